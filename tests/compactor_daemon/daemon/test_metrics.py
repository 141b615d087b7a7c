"""What a daemon counts, and what it answers to those who watch it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_or_resume import Compacted
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.http_service import DaemonFleet, Reports
from phantombase.compactor_daemon.daemon.metrics import DaemonHealth, Metrics, serve
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.daemon.work import Summary
from phantombase.compactor_daemon.fleet.catalog import FleetTables, Members, fleet_of
from phantombase.compactor_daemon.fleet.claims import table_id
from phantombase.compactor_daemon.fleet.pools import Pool, Pools, PoolUsage
from phantombase.compactor_daemon.fleet.zookeeper_claims import ZooKeeperClaims
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import ServiceDone
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.actions import StatusFleet
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.dashboard.verdict import Freshness
from phantombase.timeline.errors import UsageError
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.daemons import metrics_of_a_lake
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT
from tests.support.servers.zookeeper_server import ZooKeeper
from tests.support.service_client import ServiceClient

TABLE = '/data/a "b"\\c'
DONE = Compacted(
    instant="20260101000000000",
    attempt=1,
    file_groups=2,
    rows=70,
    bytes_written=7000,
    rows_read=100,
    bytes_read=10_000,
    seconds=3.0,
    resumed=False,
)
WELL = DaemonHealth(silent_s=0.0, trouble=None)


class Served:
    """A server whose health a test sets, and what it answers."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.health = WELL
        self.port = 0

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def samples(self) -> dict[str, float]:
        """Values by name without those of the process; those of tables only of `TABLE`; buckets by `name le`."""
        status, text = self.get("/metrics")
        assert status == 200
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        assert {s.labels["table"] for s in samples if "table" in s.labels} <= {TABLE}
        samples = [s for s in samples if not s.name.startswith(("process_", "phantombase_build_info"))]
        return {f"{s.name} {s.labels['le']}" if "le" in s.labels else s.name: s.value for s in samples}


@pytest.fixture
def served() -> Iterator[Served]:
    """A server on a free port."""
    found = Served()
    with serve(0, found.metrics, lambda: found.health) as port:
        found.port = port
        yield found


def test_the_names_are_there_from_the_first_look(served: Served) -> None:
    """Names are what dashboards and alerts are made of; a counter that is not there cannot grow."""
    assert not any("seconds" not in name for name in served.samples())  # histograms are of the daemon
    served.metrics.snapshot_taken(TABLE, pending=3, parked=1, oldest_s=42.5)
    found = served.samples()
    gauges = {"pending": 3, "parked": 1, "oldest_pending_seconds": 42.5, "running": 0}
    counters = ("completed", "failed", "bytes_in", "bytes_out", "rows_in", "rows_out")
    expected = {f"phantombase_{name}": value for name, value in gauges.items()}
    expected |= {f"phantombase_{name}_total": 0 for name in counters}
    assert expected.items() <= found.items()
    assert {"phantombase_claim_latency_seconds_count", "phantombase_compaction_seconds_count"} <= found.keys()
    assert "phantombase_zookeeper_connected" not in found
    served.metrics.snapshot_taken(TABLE, pending=0, parked=0, oldest_s=None)
    assert served.samples()["phantombase_oldest_pending_seconds"] == 0
    names = ("phantombase_read_optimized_lag_seconds", "phantombase_freshness_goal_seconds")
    served.metrics.freshness(TABLE, Freshness(lag_s=12.5, goal_s=600.0))
    assert [served.samples().get(name) for name in names] == [12.5, 600]
    served.metrics.freshness(TABLE, None)
    assert [served.samples().get(name) for name in names] == [None, None]


def test_a_compaction_is_counted_once(served: Served) -> None:
    """Running while it runs, then completed with what it read and wrote."""
    metrics = served.metrics
    metrics.started(TABLE, latency_s=0.3)
    metrics.started(TABLE, latency_s=None)
    assert served.samples()["phantombase_running"] == 2
    metrics.suspend(TABLE)
    assert served.samples()["phantombase_running"] == 1
    metrics.resumed(TABLE)
    metrics.finished(TABLE, DONE)
    metrics.failed(TABLE)
    metrics.finished(TABLE, None)
    found = served.samples()
    assert (
        found.items()
        >= {
            "phantombase_running": 0,
            "phantombase_completed_total": 1,
            "phantombase_failed_total": 1,
            "phantombase_bytes_in_total": 10_000,
            "phantombase_bytes_out_total": 7000,
            "phantombase_rows_in_total": 100,
            "phantombase_rows_out_total": 70,
            "phantombase_claim_latency_seconds_count": 1,
            "phantombase_claim_latency_seconds_bucket 0.25": 0,
            "phantombase_claim_latency_seconds_bucket 0.5": 1,
            "phantombase_compaction_seconds_count": 1,
            "phantombase_compaction_seconds_sum": 3.0,
        }.items()
    )


def test_services_are_counted_where_they_run(served: Served) -> None:
    """A table without services has no such series."""
    served.metrics.snapshot_taken(TABLE, pending=0, parked=0, oldest_s=None)
    assert not any("service" in name for name in served.samples())
    served.metrics.served(TABLE, ServiceDone(service=Service.CLEAN, what="", instants=1, files=3, bytes=300))
    served.metrics.served(TABLE, ServiceDone(service=Service.CLEAN, what="no answer", failed=True))
    found = served.samples()
    names = ("service_instants", "service_failed", "service_files", "service_bytes")
    assert [found[f"phantombase_{name}_total"] for name in names] == [1, 1, 3, 300]
    assert found["phantombase_service_last_success_timestamp_seconds"] > 0


def test_clocks_that_disagree_do_not_count_backwards(served: Served) -> None:
    """A plan of another machine may be of the future."""
    served.metrics.snapshot_taken(TABLE, pending=1, parked=0, oldest_s=-5.0)
    served.metrics.started(TABLE, latency_s=-5.0)
    found = served.samples()
    assert found["phantombase_oldest_pending_seconds"] == 0
    assert found["phantombase_claim_latency_seconds_sum"] == 0


def test_zookeeper_is_shown_where_it_is_used(served: Served) -> None:
    """1 and 0; a daemon without it has no such series, which no alert must fire on."""
    for connected in (True, False, True):
        served.metrics.zookeeper(connected)
        assert served.samples()["phantombase_zookeeper_connected"] == connected


def test_health_and_readiness(served: Served) -> None:
    """Alive while the loop goes round; ready when it can work too. The reason is the answer."""
    assert (served.get("/healthz"), served.get("/readyz")) == ((200, "ok\n"), (200, "ok\n"))
    served.health = replace(WELL, trouble="claims on /t cannot be taken")
    assert (served.get("/healthz"), served.get("/readyz")) == ((200, "ok\n"), (503, "claims on /t cannot be taken\n"))
    for silent_s, status in ((60.0, 200), (60.1, 503)):
        served.health = replace(WELL, silent_s=silent_s)
        assert (served.get("/healthz")[0], served.get("/readyz")[0]) == (status, status)
    assert "the limit is 60 s" in served.get("/healthz")[1]
    assert served.get("/else")[0] == 404


def test_a_taken_port_is_an_error_and_a_hanging_client_no_hindrance(served: Served) -> None:
    """One line that names the port; whoever connects and says nothing neither blocks others nor the end."""
    with pytest.raises(UsageError, match=str(served.port)), serve(served.port, Metrics(), lambda: WELL):
        pass
    with serve(0, Metrics(), lambda: WELL) as port:
        silent = socket.create_connection(("127.0.0.1", port), timeout=60)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert answer.status == 200
    silent.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_a_table_in_trouble_is_down_and_one_that_went_has_no_series(served: Served) -> None:
    served.metrics.snapshot_taken(TABLE, pending=3, parked=1, oldest_s=42.5)
    served.metrics.trouble(TABLE, None)
    assert served.samples()["phantombase_table_up"] == 1
    served.metrics.trouble(TABLE, "no such disk")
    assert served.samples()["phantombase_table_up"] == 0
    served.metrics.served(TABLE, ServiceDone(service=Service.CLEAN, what="", files=1))
    served.metrics.forget(TABLE)
    assert not [s for f in served.metrics.registry.collect() for s in f.samples if "table" in s.labels]


def test_a_table_has_few_series_and_the_daemon_says_which_build_it_is(served: Served) -> None:
    served.metrics.snapshot_taken(TABLE, pending=3, parked=1, oldest_s=42.5)
    served.metrics.started(TABLE, latency_s=0.3)
    served.metrics.finished(TABLE, DONE)
    samples = [s for f in served.metrics.registry.collect() for s in f.samples if s.labels.get("table") == TABLE]
    assert len(samples) <= 12
    text = served.get("/metrics")[1]
    assert 'phantombase_build_info{python="' in text
    assert "process_resident_memory_bytes" in text
    assert abs(served.samples()["phantombase_last_success_timestamp_seconds"] - time.time()) < 60


def test_what_lanes_use_is_shown(served: Served) -> None:
    served.metrics.pool(PoolUsage(pool="sales_*", running=2, occupancy=0.5, bytes=7, why_not=""))
    names = ("running", "occupancy", "bytes")
    assert [served.samples()[f"phantombase_pool_{name}"] for name in names] == [2, 0.5, 7]


def test_every_panel_and_alert_has_data(tmp_path: Path) -> None:
    """From the port of a daemon's metrics alone. A COPY_ON_WRITE table is well; a table that cannot be read is broken,
    and no trouble of the others."""
    metrics = metrics_of_a_lake(tmp_path)
    with serve(0, metrics, lambda: WELL) as port:
        families = list(text_string_to_metric_families(get(f"http://127.0.0.1:{port}/metrics")))
    samples = [sample for family in families for sample in family.samples]
    rules = [r for g in yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"] for r in g["rules"]]
    panels = json.loads((ROOT / "deploy/grafana.json").read_text())["panels"]
    queries = [rule["expr"] for rule in rules] + [t["expr"] for panel in panels for t in panel["targets"]]
    names = {name for query in queries for name in re.findall(r"phantombase_\w+|process_\w+", query)}
    assert names - {sample.name for sample in samples} == set()
    found = {(s.labels["table"].rpartition("/")[2], s.name.removeprefix("phantombase_")): s.value
             for s in samples if "table" in s.labels}  # fmt: skip
    assert {name: found[name, "health"] for name in ("rides", "dim")} == {"rides": 0, "dim": 0}
    assert {name: found[name, "table_up"] for name in ("rides", "dim", "odd")} == {"rides": 1, "dim": 1, "odd": 0}
    assert {found[name, "slo_seconds"] for name in ("rides", "dim")} == {60.0}
    assert found["rides", "read_optimized_lag_seconds"] >= 0
    assert {found[name, "silenced"] for name in ("rides", "dim", "odd")} == {0}


def test_metrics_of_idle_tables_cost_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeline that the daemon has read tells that the table is as before; one that has changed is read again."""
    path = str(unzip_golden("v9_plain", tmp_path))
    rest = {"attempt": AttemptOptions(), "retry": RetryOptions(), "order": next(iter(DaemonOrder))}
    reports = Reports(DaemonSettings(who="me", output=OutputOptions(), **rest))  # type: ignore[arg-type]
    requests = list[str]()
    for name in ("list", "read", "find", "open_input"):
        asked = getattr(LocalStorage, name)

        def counted(self: LocalStorage, *given: Any, of: Any = asked, **more: Any) -> Any:
            requests.append(f"{of.__name__} {given}")
            return of(self, *given, **more)

        monkeypatch.setattr(LocalStorage, name, counted)
    timeline = Table.open(path).load_timeline()
    first = reports.report(path, timeline, Pool())
    assert len(requests) > 4
    requests.clear()
    idle = [reports.report(path, timeline, Pool()) for _ in range(500)]
    assert (requests, {row["health"] for row in idle}) == ([], {"well"})
    ages = {name for name in first if "seconds" in name} | {"read_optimized_lag_s"}
    assert {k: v for k, v in idle[-1].items() if k not in ages} == {k: v for k, v in first.items() if k not in ages}
    newest = max((tmp_path / "plain/.hoodie/timeline").glob("*.deltacommit"))
    newest.unlink()
    reports.report(path, Table.open(path).load_timeline(), Pool())
    assert any("open_input" in one or "list" in one for one in requests)


def test_it_listens_where_it_is_asked_to() -> None:
    """A second address of this machine is refused."""
    with serve(0, Metrics(), lambda: WELL, host="127.0.0.1") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=10)


# `compactor-daemon run --serve`: the timeline service inside a daemon.


TOKEN = "a token of twenty-seven bytes"


def get(url: str, **headers: str) -> str:
    with urlopen(Request(url, headers=headers), timeout=60) as reply:
        return str(reply.read().decode())


def post(url: str, headers: dict[str, str]) -> str:
    with urlopen(Request(url, b"", headers), timeout=60) as reply:
        return str(reply.read().decode())


def test_pages_show_the_daemon_and_its_work(tmp_path: Path) -> None:
    """It compacts as ever; the pages know it, and its metrics are there too. It ends by SIGTERM."""
    table = unzip_golden("v9_pending", tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", str(table), "--executor", "local"]
    command += ["--serve", "0", "--serve-token-file", str(tmp_path / "token"), "--poll-interval", "0.5"]
    command += ["--sole-writer", "--serve-allow-actions"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        read: list[str] = []
        try:
            address = address_in(process.stderr, read)
            bearer = {"authorization": f"Bearer {TOKEN}"}

            def row() -> Any:
                try:
                    return json.loads(get(f"{address}/api/tables/pending", **bearer))
                except HTTPError as error:
                    if error.code != 404:
                        raise
                    return None  # the daemon has not opened it yet

            deadline = time.monotonic() + 60
            # What is pending may be of a later moment than what the page has of the files.
            while (found := row()) is None or found["pending_compactions"] or not found["compactions"]:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert (found["health"], found["pending_compactions"]) == ("well", 0)
            assert [c["balanced"] for c in found["compactions"]] == [True]
            assert found["fleet_info"]["pending"] == []
            assert found["fleet_info"]["last_success"] is not None
            fleet = json.loads(get(f"{address}/api/fleet", **bearer))
            assert (fleet["known"], fleet["zookeeper"], fleet["daemons"][0]["tables"]) == (True, None, 1)
            metrics = get(f"{address}/metrics", **bearer)
            assert f'phantombase_completed_total{{table="{table}"}} 1.0' in metrics
            assert "phantombase_backlog_log_bytes{" in metrics
            assert "</html>" in get(f"{address}/t/pending", **bearer)
            done = json.loads(post(f"{address}/api/tables/pending/actions/schedule", bearer))
            assert (done["exit_code"], "requested compaction" in done["output"]) == (0, True), done
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, "".join(read) + errors


class AtWork:
    """A daemon as far as the pages ask it."""

    fleet: FleetTables | None = None
    at_work, pools, pages, summary = (), (), None, Summary()

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def pool_of(self, path: str) -> Pool:
        return Pool(slo_s=60.0)

    def freshness_of(self, path: str) -> None:
        """See `Daemon`."""


def test_pages_show_the_claims_of_a_fleet(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Who holds them; and when ZooKeeper is gone, that this is unknown."""
    path = unzip_golden("v9_pending", tmp_path)
    table = Table.open(str(path))
    (instant,) = [i.requested_time for i in table.load_timeline().pending_compactions]
    options = ZooKeeperOptions(hosts=f"{zookeeper.hosts}/pages", call_timeout_s=60.0)
    daemon: Any = AtWork(str(path))
    with zookeeper_session(options) as session:
        held = ZooKeeperClaims(session, table_id(table.storage), "daemon-7").take(instant)
        assert held is not None
        rest = {"attempt": AttemptOptions(), "retry": RetryOptions(), "order": next(iter(DaemonOrder))}
        settings: Any = DaemonSettings(who="me", output=OutputOptions(), **rest)  # type: ignore[arg-type]
        fleet_info = DaemonFleet(daemon, settings, session, Reports(settings))
        (pending,) = fleet_info.about(table)["pending"]
        assert (pending["state"], pending["work"]["holder"]) == ("running", "daemon-7")
        fleet = fleet_info.fleet()
        assert fleet["zookeeper"] is True
        assert [(c["instant"], c["holder"]) for c in fleet["claims"]] == [(instant, "daemon-7")]
        assert [d["who"] for d in fleet["daemons"]] == ["me", "daemon-7"]
        about = fleet_info.about(table)
        assert (about["slo_s"], about["overdue"], about["requests"]) == (60.0, 1, False)
        assert [t["trigger"] for t in about["next_plan"]["triggers"]][-1] == "time-elapsed"
        tables = ServedTables([str(path)])
        client = ServiceClient(
            ServiceApp(tables, 1 << 20, pages=PeopleApp(tables, 60, fleet_info)), ServiceClient.of().loop
        )
        assert "daemon-7" in client.ask("/t/pending").text
        assert "daemon-7" in client.ask("/fleet").text
        held.release()
        assert fleet_info.about(table)["pending"][0]["state"] == "waiting"
    known = fleet_info.about(table)
    assert (known["claims"], known["pending"][0]["state"]) == ("unknown", "unknown")
    page = client.ask("/fleet").text
    assert all(words in page for words in ("ZooKeeper did not answer", ">me<"))
    assert "not used" not in page


def test_pages_of_one_daemon_show_the_whole_fleet(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Its tables, those of another daemon and where that one has its pages; metrics are of its own tables."""
    mine, theirs = (unzip_golden("v9_plain", tmp_path / name) for name in ("a2", "a10"))
    daemon: Any = AtWork(str(mine))
    rest = {"attempt": AttemptOptions(), "retry": RetryOptions(), "order": next(iter(DaemonOrder))}
    settings: Any = DaemonSettings(who="me", output=OutputOptions(), **rest)  # type: ignore[arg-type]
    with zookeeper_session(ZooKeeperOptions(hosts=f"{zookeeper.hosts}/whole", call_timeout_s=60.0)) as session:
        other = Members(session, fleet_of(str(tmp_path)), "daemon-7", lambda: None)
        use = {"pool": "a*", "running": 0, "occupancy": 0.5, "bytes": 0, "why_not": "its hours are 22:00-06:00"}
        members = other.snapshot({"tables": 1, "pages": "http://b:8080", "pools": [use, {**use, "pool": "*"}]})
        names = {str(path): path.parent.name for path in (mine, theirs)}
        daemon.fleet = FleetTables(names=names, members=members, pools=Pools())
        info = DaemonFleet(daemon, settings, session, Reports(settings), str(tmp_path))
        tables = ServedTables([], found=info.paths, name_of=info.name_of)
        tables.follow(tables.snapshot())
        pages = PeopleApp(tables, fleet_info=info)
        client = ServiceClient(ServiceApp(tables, 1 << 20, pages=pages), ServiceClient.of().loop)
        rows = client.ask("/api/tables").json()["tables"]
        assert [(row["served_as"], row["served_by"]) for row in rows] == [("a2", ["daemon-7"]), ("a10", ["daemon-7"])]
        assert '<a href="/fleet#daemon-7">daemon-7</a>' in client.ask("/t/a10").text
        fleet = client.ask("/fleet").text
        assert all(words in fleet for words in ('<tr id="daemon-7">', 'href="http://b:8080/"', "its hours are 22:00"))
        assert (str(mine) in (text := client.ask("/metrics").text), str(theirs) in text) == (True, False)
        words = ["--root", str(tmp_path), "--zookeeper", f"{zookeeper.hosts}/whole"]
        answer = CliRunner().invoke(app, ["status", *words, "--brief", "--json"]).stdout
        (tmp_path / "answer").write_text(answer)
        script = f"import sys; print(open({str(tmp_path / 'answer')!r}).read())"
        alone = StatusFleet((sys.executable, "-c", script), words)
        served = ServedTables([f"{tmp_path}/*/plain"])
        served.follow(served.snapshot())
        client = ServiceClient(ServiceApp(served, 1 << 20, pages=PeopleApp(served, fleet=alone)), client.loop)
        assert '<a href="/fleet#daemon-7">daemon-7</a>' in client.ask("/t/a10%2Fplain").text
        fleet = client.ask("/fleet").text
        assert all(words in fleet for words in ('<tr id="daemon-7">', 'href="http://b:8080/"', "its hours are 22:00"))


def address_in(lines: Iterable[str], read: list[str]) -> str:
    """The address that a daemon logs; what was read before it is kept in `read`."""
    for line in lines:
        read.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError("".join(read))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--serve-host", "0.0.0.0"], "needs a token"), (["--serve-token-file", "none"], "cannot be read")],
)
def test_what_is_not_safe_is_refused(arguments: list[str], reason: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    done = CliRunner().invoke(app, ["run", str(table), "--executor", "local", "--serve", "0", *arguments])
    assert (type(done.exception), reason in str(done.exception)) == (UsageError, True), done.exception
