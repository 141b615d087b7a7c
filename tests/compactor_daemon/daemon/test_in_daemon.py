"""`compactor-daemon run --serve`: the timeline service inside a daemon."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from phantombase.compactor_daemon.claims.claims import table_id
from phantombase.compactor_daemon.claims.zookeeper_claims import ZooKeeperClaims
from phantombase.compactor_daemon.daemon.dispatch import Order
from phantombase.compactor_daemon.daemon.http_service import DaemonCrew
from phantombase.compactor_daemon.daemon.table_on_storage import Settings
from phantombase.compactor_daemon.lake.lanes import Lane
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.records.failures import RetryOptions
from phantombase.compactor_daemon.zookeeper.session import ZooKeeperOptions, zookeeper_session
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.servers.zookeeper_server import ZooKeeper
from tests.support.service_client import ServiceClient

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
            while ((found := row()) is None or found["pending_compactions"]) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert (found["health"], found["pending_compactions"]) == ("ok", 0)
            assert [c["balanced"] for c in found["compactions"]] == [True]
            assert found["crew"]["pending"] == []
            assert found["crew"]["last_success"] is not None
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

    lanes = ()
    at_work = ()

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def lane_of(self, path: str) -> Lane:
        return Lane(slo_s=60.0)


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
        rest = {"attempt": AttemptOptions(), "retry": RetryOptions(), "order": next(iter(Order))}
        settings: Any = Settings(who="me", output=OutputOptions(), **rest)  # type: ignore[arg-type]
        crew = DaemonCrew(daemon, settings, session)
        (pending,) = crew.about(table)["pending"]
        assert (pending["state"], pending["work"]["holder"]) == ("running", "daemon-7")
        fleet = crew.fleet()
        assert fleet["zookeeper"] is True
        assert [(c["instant"], c["holder"]) for c in fleet["claims"]] == [(instant, "daemon-7")]
        assert [d["who"] for d in fleet["daemons"]] == ["me", "daemon-7"]
        about = crew.about(table)
        assert (about["slo_s"], about["overdue"], about["requests"]) == (60.0, 1, False)
        assert [t["trigger"] for t in about["next_plan"]["triggers"]][-1] == "time-elapsed"
        tables = ServedTables([str(path)])
        client = ServiceClient(ServiceApp(tables, 1 << 20, pages=PeopleApp(tables, 60, crew)), ServiceClient.of().loop)
        assert "daemon-7" in client.ask("/t/pending").text
        assert "daemon-7" in client.ask("/fleet").text
        held.release()
        assert crew.about(table)["pending"][0]["state"] == "waiting"
    known = crew.about(table)
    assert (known["claims"], known["pending"][0]["state"]) == ("unknown", "unknown")
    page = client.ask("/fleet").text
    assert all(words in page for words in ("ZooKeeper did not answer", ">me<"))
    assert "not used" not in page


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
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", str(table), "--executor", "local"]
    done = subprocess.run([*command, "--serve", "0", *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
