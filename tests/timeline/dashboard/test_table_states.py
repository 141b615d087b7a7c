"""The state of tables as JSON: one word each, worst first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.timeline.cli.main import app
from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.dashboard.health import Word, health_of
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.pages import bars
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.locks.holder import look_at_lock
from phantombase.timeline.locks.seen import LockSeen, LockState
from phantombase.timeline.locks.table_lock import HUDI_LOCK, parse_lock, table_lock
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server
from tests.support.servers.zookeeper_server import ZooKeeper, free_ports
from tests.support.service_client import ServiceClient


def pending(action: str = "compaction", **more: Any) -> dict[str, Any]:
    row = {"instant": "20261121090001000", "action": action, "state": "requested", "age_s": 50.0}
    return {**row, "heartbeat": "none", "heartbeat_age_s": None, "problem": None, **more}


@pytest.mark.parametrize(
    ("rows", "slo_s", "word", "reason"),
    [
        ([], 60, Word.OK, "no compaction is pending"),
        ([pending()], None, Word.OK, "pending for 50 s"),
        ([pending()], 60, Word.OK, "pending for 50 s"),
        ([pending(), pending(age_s=70.0)], 60, Word.LATE, "pending for 1 min 10 s; the goal is 1 min"),
        ([pending("clean", age_s=70.0)], 60, Word.OK, "no compaction"),
        ([pending(age_s=None)], 60, Word.OK, "no compaction"),
        ([pending("deltacommit", heartbeat="fresh", heartbeat_age_s=1.0)], 60, Word.OK, "no compaction"),
        ([pending("deltacommit", heartbeat="stale", heartbeat_age_s=200.0)], 60, Word.STUCK, "silent for 3 min 20 s"),
        ([pending(age_s=70.0, problem="not Avro")], 60, Word.STUCK, "compaction 20261121090001000: not Avro"),
    ],
)
def test_the_word_and_its_reason(rows: list[dict[str, Any]], slo_s: float | None, word: Word, reason: str) -> None:
    found = health_of(rows, slo_s)
    assert found.word is word
    assert reason in found.reason


def test_tables_come_worst_first(tmp_path: Path) -> None:
    fine = unzip_golden("v9_plain", tmp_path / "1")
    late = unzip_golden("v9_pending", tmp_path / "2")
    stuck = unzip_golden("v9_types", tmp_path / "3")
    broken = unzip_golden("v9_compacted_cleaned", tmp_path / "4")
    begun = "20991121091340983"
    (stuck / f".hoodie/timeline/{begun}.deltacommit.requested").touch()
    beat = stuck / ".hoodie/.heartbeat" / begun
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    os.utime(beat, (time.time() - 500,) * 2)
    max(broken.glob("*/*.parquet"), key=lambda p: p.name.rpartition("_")[2]).unlink()
    client = ServiceClient.of(fine, late, stuck, broken, slo_s=60)
    reply = client.ask("/api/tables")
    assert reply.headers["content-type"] == "application/json"
    rows = reply.json()["tables"]
    words = {"compacted_cleaned": "broken", "types": "stuck", "pending": "late", "plain": "ok"}
    assert [(row["served_as"], row["health"]) for row in rows] == list(words.items())
    assert "does not exist" in rows[0]["reason"]
    assert (rows[2]["pending_compactions"], rows[2]["file_groups"], rows[2]["log_files_max"]) == (1, 2, 5)
    assert (rows[2]["last_compaction"], rows[2]["delta_commits_since_compaction"]) == (None, 6)


def test_one_table_has_the_names_of_show(tmp_path: Path) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    shown = json.loads(CliRunner().invoke(app, ["show", str(table), "--json"]).stdout)
    found = ServiceClient.of(table).ask("/api/tables/pending").json()
    assert found.keys() >= shown.keys()
    assert [{k: v for k, v in row.items() if k != "kind"} for row in found["instants"]] == shown["instants"]
    assert found["table"] == shown["table"]


def test_two_tables_of_one_name_get_numbers(tmp_path: Path) -> None:
    paths = [unzip_golden("v9_plain", tmp_path / n) for n in "ab"]
    rows = ServiceClient.of(*paths).ask("/api/tables").json()["tables"]
    assert [(row["served_as"], row["path"]) for row in rows] == [("plain", str(paths[0])), ("plain-2", str(paths[1]))]


@pytest.mark.parametrize(
    "path", ["/api/tables/none", "/api/tables/../plain", "/api/tablesx", "/x", "/t/", "/t/none", "/t/../x"]
)
def test_other_paths_are_not_found(path: str, tmp_path: Path) -> None:
    reply = ServiceClient.of(unzip_golden("v9_plain", tmp_path)).ask(path)
    assert (reply.status, bool(reply.text)) == (404, True)


def test_pages_need_no_script_and_let_nothing_else_in(tmp_path: Path) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    odd = tmp_path / "<script>alert(1)<"
    odd.mkdir()
    client = ServiceClient.of(table, odd)
    for path in ("/", "/t/pending", "/t/%3Cscript%3Ealert(1)%3C"):
        page = client.ask(path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text
        assert "style=" not in page.text
    first = client.ask("/").text
    assert first.index("broken") < first.index("/t/pending")
    assert client.ask("/page.css").headers["content-type"].startswith("text/css")
    one = client.ask("/t/pending").text
    assert one.count("<rect") == 2 * 7  # in the chart, and in the list
    assert one.count('class="open"') == 2 * 1


def test_bars_of_instants() -> None:
    def row(second: int, done: int | None, state: str = "completed") -> dict[str, Any]:
        end = None if done is None else f"202611210900{done:02d}000"
        return {"instant": f"202611210900{second:02d}000", "action": "commit", "state": state,
                "completion_time": end}  # fmt: skip

    rows = [row(0, 5), row(10, None), row(20, None, "inflight"), {**row(1, None), "instant": "00000000000001"}]
    found = bars(rows, datetime(2026, 11, 21, 9, 0, 50))
    assert [(b.x, b.width, b.open, b.took_s) for b in found] == [
        (800, 200, True, 30.0),  # to the right edge
        (400, 6, False, None),
        (0, 200, False, 5.0),
    ]
    assert bars([], datetime(2026, 11, 21)) == []


def test_times_are_of_the_zone_that_was_given(tmp_path: Path) -> None:
    """`--timezone`, as the table's writers have it; a table that names UTC keeps to it."""
    table = unzip_golden("v9_pending", tmp_path)
    found = {}
    for zone in ("UTC", "Asia/Kolkata"):
        tables = ServedTables([str(table)], clock=ClockOptions(timezone=zone))
        row = ServiceClient.of_tables(tables).ask("/api/tables/pending").json()
        assert row["timezone"] == zone
        found[zone] = row["oldest_pending_s"]
    assert found["Asia/Kolkata"] - found["UTC"] == pytest.approx(5.5 * 3600, abs=60)


# The table lock on a table's page: which process holds it, as far as that can be seen.


HUDI = "org.apache.hudi.client.transaction.lock."
PROVIDER = "hoodie.write.lock.provider"


def look(path: object, given: str | None = None, properties: Mapping[str, str] | None = None) -> LockSeen:
    return look_at_lock(open_storage(str(path)), given, properties or {}, clock_ms())


@contextmanager
def held_elsewhere(path: Path, lock: str) -> Iterator[int]:
    """Another process holds a lock."""
    code = (
        "import sys; from phantombase.timeline.locks.table_lock import table_lock\n"
        "from phantombase.timeline.storage.open_storage import open_storage\n"
        "with table_lock(open_storage(sys.argv[1]), sys.argv[2]).hold('test'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path), lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


@pytest.mark.parametrize("kind", ["storage", "file"])
def test_a_lock_file_names_the_process_of_this_machine(kind: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    lock = "storage" if kind == "storage" else f"file:{tmp_path}/lock"
    assert look(table, lock).state is LockState.FREE
    with held_elsewhere(table, lock) as pid:
        seen = look(table, lock)
        assert (seen.state, f"process {pid}" in str(seen.holder)) == (LockState.HELD, True), seen
    assert look(table, lock).state is LockState.FREE


def test_a_lock_in_zookeeper_names_its_holder(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    lock = f"zookeeper:{zookeeper.hosts}/served/{tmp_path.name}"
    assert look(tmp_path, lock).state is LockState.FREE
    with parse_lock(lock).hold("write"):
        seen = look(tmp_path, lock)
    assert (seen.state, f"pid {os.getpid()}: write" in str(seen.holder)) == (LockState.HELD, True), seen
    assert seen.for_s is not None
    where = {"url": zookeeper.hosts, "base_path": "/served", "lock_key": tmp_path.name}
    by_hudi = {f"hoodie.write.lock.zookeeper.{name}": value for name, value in where.items()}
    by_hudi[PROVIDER] = f"{HUDI}ZookeeperBasedLockProvider"
    with parse_lock(lock).hold("write"):
        assert look(tmp_path, properties=by_hudi).state is LockState.HELD
    assert look(tmp_path, properties=by_hudi).state is LockState.FREE


def test_zookeeper_that_is_away_is_unknown_and_soon_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    seen = look(tmp_path, f"zookeeper:127.0.0.1:{port}/served/t")
    assert (seen.state, time.monotonic() - began < 60) == (LockState.UNKNOWN, True)
    assert str(port) in seen.why


def test_the_lock_of_an_object_store_names_its_holder(s3: S3Server) -> None:
    """The object of Hudi's StorageBasedLockProvider: also found where nothing names the lock."""
    url = f"s3://{s3.new_bucket()}/t"
    storage = open_storage(url)
    assert look(url).state is LockState.UNKNOWN
    with table_lock(storage, "storage").hold("write"):
        owner = json.loads(storage.read(HUDI_LOCK))["owner"]
        for seen in (look(url), look(url, "storage"), look(url, None, {PROVIDER: f"{HUDI}StorageBasedLockProvider"})):
            assert (seen.state, seen.holder) == (LockState.HELD, owner)
    assert look(url).state is LockState.FREE
    other = s3.new_bucket()
    s3.put(f"{other}/t/{HUDI_LOCK}", b"not a lock")
    assert look(f"s3://{other}/t").state is LockState.UNKNOWN


@pytest.mark.parametrize(
    ("until_ms", "expired", "state"),
    [(60_000, False, "held"), (60_000, True, "free"), (-60_000, False, "free"), (-100, False, "held")],
)
def test_an_object_counts_as_long_as_hudi_says(until_ms: int, expired: bool, state: str, tmp_path: Path) -> None:
    (tmp_path / HUDI_LOCK).parent.mkdir(parents=True)
    text = json.dumps({"expired": expired, "validUntil": 1_000_000 + until_ms, "owner": "x"})
    (tmp_path / HUDI_LOCK).write_text(text)
    seen = look_at_lock(LocalStorage(str(tmp_path)), None, {}, 1_000_000)
    assert seen.state.value == state


@pytest.mark.parametrize(
    ("provider", "state"),
    [
        ("org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider", "unknown"),
        (f"{HUDI}InProcessLockProvider", "unknown"),
        ("", "unknown"),
        (f"{HUDI}FileSystemBasedLockProvider", "free"),
        (f"{HUDI}ZookeeperBasedLockProvider", "unknown"),  # nothing says where
    ],
)
def test_unknown_is_never_free(provider: str, state: str, tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    assert look(tmp_path, None, {PROVIDER: provider}).state.value == state


def test_hudis_lock_file_is_held_as_long_as_it_is_there(tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / ".hoodie/lock").touch()
    seen = look(tmp_path, None, {PROVIDER: f"{HUDI}FileSystemBasedLockProvider"})
    assert (seen.state, seen.for_s is not None) == (LockState.HELD, True)


def test_the_page_shows_it(tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    lock = f"file:{tmp_path}/{{name}}.lock"
    settings = CommandSettings(lock=lock)
    tables = ServedTables([str(table)])
    client = ServiceClient.of_tables(tables)
    assert client.ask("/api/tables/plain").json()["lock"]["state"] == "unknown"
    assert "which lock the writers share is not known here" in client.ask("/t/plain").text
    client = ServiceClient(ServiceApp(tables, 1 << 20, pages=PeopleApp(tables, settings=settings)), client.loop)
    name = client.ask("/api/tables/plain").json()["table"]["name"]
    with held_elsewhere(table, lock.replace("{name}", name)) as pid:
        found = client.ask("/api/tables/plain").json()["lock"]
        assert (found["state"], found["lock"]) == ("held", f"{tmp_path}/{name}.lock")
        assert f"by process {pid}" in client.ask("/t/plain").text
