"""What `status`, `claims` and `release` say of a table's compactions, and that unknown is never said as no."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant
from phantombase.compactor_daemon.attempt.failures import Failure, record_failure
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.attempt.outcome import OPEN, REVOKED, CommitDecision, revoke_decision
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, SliceTask
from phantombase.compactor_daemon.cli import render_status as status_render
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import Claim, table_id
from phantombase.compactor_daemon.fleet.zookeeper_claims import ZooKeeperClaims
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from phantombase.compactor_daemon.status.pending import Claimed, StatusOptions
from phantombase.compactor_daemon.status.status import claim_rows, table_status, work_rows
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.dashboard.overview import Clock, as_json
from phantombase.timeline.errors import UnknownStateError
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.instants.reserved_times import OUTCOME, attempt_folder
from phantombase.timeline.locks.heartbeat import EXPIRY_S, Process, heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.text_table import Row
from tests.support.change_feeds import request
from tests.support.compaction_steps import OPTIONS, OUTPUT, open_table, run_one
from tests.support.golden_tables import unzip_golden
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

ME = Process.current()
NOTE = {"attempt": 2, "since_ms": 1_000, "done": 3, "total": 8, "bytes": 4096, "waiting": 0}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test opens is closed at its end."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """One pending compaction, of a plan that Hudi made."""
    return open_table(unzip_golden("v9_pending", tmp_path))


def only(table: Table) -> str:
    """Its instant."""
    (instant,) = table.load_timeline().pending_compactions
    return instant.requested_time


def add_plan(table: Table, age_s: float) -> str:
    """One more pending compaction with the same plan, requested so long ago; only a look at it may be taken."""
    instant = format_time(table.now() - timedelta(seconds=age_s))
    first = table.instant_path(Instant(requested_time=only_first(table), action="compaction", state=State.REQUESTED))
    path = table.instant_path(Instant(requested_time=instant, action="compaction", state=State.REQUESTED))
    assert table.storage.put_if_absent(path, table.storage.read(first))
    return instant


def only_first(table: Table) -> str:
    """The earliest pending compaction."""
    return table.load_timeline().pending_compactions[0].requested_time


def report(table: Table, claims: Claimed = None, *, now_ms: int | None = None, **options: Any) -> Row:
    """The report now; `now_ms`: what the clock says that failures go by."""
    clock = Clock(clock_ms() if now_ms is None else now_ms, table.now())
    row: Row = as_json(table_status(table.snapshot(cached=False), claims, StatusOptions(recent=5, **options), clock))
    return row


def row_of(table: Table, claims: Claimed = None, **options: Any) -> Row:
    """The one row of a report; it can be shown and is plain JSON."""
    data = report(table, claims, **options)
    json.dumps(data)
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for item in status_render.status(data):
        console.print(item)
    (row,) = data["pending"]
    assert isinstance(row, dict)
    return row


def put_outcome(storage: Storage, instant: str, record: bytes | None, number: int = 1) -> None:
    """An attempt, with a outcome unless it is None."""
    folder = attempt_folder(instant, number)
    storage.put_if_absent(f"{folder}/{OPEN}", b"{}")
    if record is not None:
        storage.put_if_absent(f"{folder}/{OUTCOME}", record)


def a_decision(instant: str, merged: tuple[str, ...] = ()) -> bytes:
    """A decision."""
    return CommitDecision(
        instant=instant,
        attempt=1,
        nonce="n",
        table_version=9,
        completion_time=None,
        completed_path=f".hoodie/timeline/{instant}_{instant}.commit",
        content=b"",
        merged=merged,
    ).to_json()


def a_claim(instant: str) -> Claim:
    """Somebody else's."""
    claim = Claim(instant=instant, holder="zk-holder", host="far", pid=7, since_ms=clock_ms() - 5000)
    return replace(claim, attempt=4, done=1, total=6, input_bytes=99)


def failure(age_s: float = 1.0, *, park: bool = False, now_ms: int | None = None) -> Failure:
    """A failed try."""
    at_ms = (clock_ms() if now_ms is None else now_ms) - round(age_s * 1000)
    return Failure(at_ms=at_ms, error="StorageError", what="disk full", who="h:1", park=park)


# --- the state of an instant -------------------------------------------------------------------------------------


def test_nobody_works_on_it(table: Table) -> None:
    """Age, file groups, and bytes as the files are now."""
    row = row_of(table)
    plan = table.compaction_plan(only(table))
    files = [(o.partition_path, n) for o in plan.operations for n in (o.data_file_path, *o.delta_file_paths) if n]
    sizes = [(Path(table.storage.base_path) / part / name).stat().st_size for part, name in files]
    assert (row["state"], row["why"], row["work"], row["failures"], row["foreign"]) == ("waiting", *[None] * 4)
    assert (row["file_groups"], row["input_bytes"], row["attempts"]) == (len(plan.operations), sum(sizes), 0)
    assert row["problem"] is None
    assert row["action"] == "compaction"


def test_a_log_compaction_says_so(tmp_path: Path) -> None:
    """It leaves base files as they are, so its instant alone does not say what will become of the table."""
    path = tmp_path / "t"
    for ts in (1, 2, 3):
        rows = pa.table({"id": ["a", "b"], "ts": [ts, ts]})
        writer(rows).table("t").key("id").ordering("ts").buckets(1).upsert(str(path))
    instant = request(open_table(path))
    row = row_of(open_table(path))
    assert (row["instant"], row["action"]) == (instant, "logcompaction")
    lines = [str(item) for item in status_render.status(report(open_table(path)))]
    assert f"log compaction: {instant}" in lines


def test_a_heartbeat_of_ours_says_who_works(table: Table, stack: ExitStack) -> None:
    """Without ZooKeeper: process, attempt, slices, as of the last beat. A note that is not there is unknown."""
    instant = only(table)
    stack.enter_context(heartbeat(table.storage, instant, 60.0, note=lambda: {**NOTE, "since_ms": clock_ms() - 9000}))
    row = row_of(table)
    work = row["work"]
    assert row["state"] == "running"
    assert (work["source"], work["host"], work["pid"]) == ("heartbeat", ME.host, ME.pid)
    assert [work[k] for k in ("attempt", "done", "total", "input_bytes")] == [2, 3, 8, 4096]
    assert 9.0 <= work["for_s"] < 60.0
    assert 0 <= work["beat_s"] < 60.0
    stack.close()
    stack.enter_context(heartbeat(table.storage, instant, 60.0))
    row = row_of(table)
    assert (row["state"], row["work"]["pid"], row["work"]["done"]) == ("running", ME.pid, None)


def test_a_process_that_waits_for_writes_does_not_run(table: Table, stack: ExitStack) -> None:
    """As its heartbeat says, whoever holds the claim; not once it is dead."""
    instant, note = only(table), {**NOTE, "waiting": 1}
    with heartbeat(table.storage, instant, 60.0, note=lambda: note):
        for claims in (None, {instant: a_claim(instant)}):
            row = row_of(table, claims)
            assert (row["state"], row["work"] is None) == ("waiting", False)
            assert "waits for writes that began before it" in row["why"]
    ended = {**asdict(replace(ME, started=1)), "note": note}
    table.storage.overwrite(heartbeat_path(instant), b"phantombase\n" + json.dumps(ended).encode())
    row = row_of(table)
    assert (row["state"], row["work"]) == ("waiting", None)
    assert "has ended" in row["why"]


@pytest.mark.parametrize("end", ["has ended", "is silent"])
def test_a_dead_process_works_on_nothing(table: Table, end: str) -> None:
    """Killed on this machine: at once. Elsewhere: once its heartbeat has expired."""
    instant, path = only(table), heartbeat_path(only(table))
    owner = replace(ME, started=1) if end == "has ended" else replace(ME, host="far")
    table.storage.overwrite(path, b"phantombase\n" + json.dumps({**asdict(owner), "note": NOTE}).encode())
    if end == "is silent":
        assert row_of(table)["state"] == "running"
        old = time.time() - EXPIRY_S - 5
        os.utime(Path(table.storage.base_path) / path, (old, old))
    put_outcome(table.storage, instant, None)
    row = row_of(table)
    assert (row["state"], row["work"]) == ("waiting", None)
    assert f"process {owner.pid} on {owner.host} {end}" in row["why"]


def test_a_claim_says_who_works(table: Table, stack: ExitStack) -> None:
    """ZooKeeper's word counts before the heartbeat's: it is newer."""
    instant = only(table)
    stack.enter_context(heartbeat(table.storage, instant, 60.0, note=lambda: NOTE))
    row = row_of(table, {instant: a_claim(instant)})
    work = row["work"]
    assert row["state"] == "running"
    assert [work[k] for k in ("source", "holder", "host", "pid", "attempt", "done", "total", "input_bytes")] == [
        *("zookeeper", "zk-holder", "far", 7, 4, 1, 6, 99)
    ]
    row = row_of(table, {instant: Claim.from_json(b"?", instant)})
    assert (row["state"], row["work"]["holder"], row["work"]["for_s"]) == ("running", "unknown", None)


def test_a_claim_on_an_instant_that_is_done_is_no_row(table: Table) -> None:
    """Claims given back since they were asked, and those on instants that are swept."""
    assert [r["instant"] for r in report(table, {"20990101000000000": a_claim("x")})["pending"]] == [only(table)]


def test_unreachable_zookeeper_is_no_no(table: Table, stack: ExitStack) -> None:
    """What storage knows is said; what only claims could tell is unknown."""
    lost = UnknownStateError("ZooKeeper did not answer", path="zk:1")
    data = report(table, lost)
    assert (data["claims"], data["pending"][0]["state"]) == ("unknown", "unknown")
    assert "ZooKeeper did not answer" in data["claims_problem"]
    stack.enter_context(heartbeat(table.storage, only(table), 60.0))
    assert row_of(table, lost)["state"] == "running"
    assert report(table, {})["claims"] == "known"
    assert report(table)["claims"] == "not asked"


def test_failures(table: Table) -> None:
    """One: it waits, twice as long each time. Too many, or one to park: until somebody releases it."""
    instant, now_ms = only(table), clock_ms()
    record_failure(table.storage, instant, failure(now_ms=now_ms))
    row = row_of(table, now_ms=now_ms)
    assert (row["state"], row["why"]) == ("backing off", "StorageError: disk full")
    assert (row["failures"]["count"], row["failures"]["who"]) == (1, "h:1")
    assert 0 < row["failures"]["next_try_s"] <= 9
    record_failure(table.storage, instant, failure(park=True))
    row = row_of(table)
    assert (row["state"], row["why"]) == ("parked", "StorageError: disk full")
    assert row["failures"]["next_try_s"] is None


def test_a_failure_long_ago_does_not_hold_it(table: Table) -> None:
    """It waits for a daemon, as before; the failure is still shown."""
    record_failure(table.storage, only(table), failure(age_s=3600))
    row = row_of(table)
    assert (row["state"], row["failures"]["count"]) == ("waiting", 1)
    assert row["why"].endswith("StorageError: disk full")


def test_executors_of_hudi(table: Table) -> None:
    """Live while the inflight file is young or a heartbeat fresh; then it is left over."""
    storage, instant = table.storage, only(table)
    inflight = inflight_path(table, instant)
    storage.put_if_absent(inflight, b"")
    row = row_of(table)
    assert (row["state"], row["foreign"]["live"]) == ("foreign", True)
    assert row["foreign"]["heartbeat_s"] is None
    os.utime(Path(storage.base_path) / inflight, (time.time() - 7200,) * 2)
    row = row_of(table)
    assert (row["state"], row["foreign"]["live"]) == ("waiting", False)
    assert "Hudi" in row["why"]
    assert row["foreign"]["inflight_s"] >= 7200
    storage.overwrite(heartbeat_path(instant), b"")
    assert row_of(table)["state"] == "foreign"


def test_decisions(table: Table, stack: ExitStack) -> None:
    """A go waits to be published, or is being; a void is half-way unscheduled until a later attempt is opened."""
    storage, instant = table.storage, only(table)
    put_outcome(storage, instant, b'{"outcome":"cancelled","nonce":"n"}')
    assert row_of(table)["state"] == "unscheduled"
    put_outcome(storage, instant, None, number=2)
    assert row_of(table)["state"] == "waiting"
    put_outcome(storage, instant, a_decision(instant), number=3)
    row = row_of(table)
    assert (row["state"], row["attempts"], row["work"]) == ("decided", 3, None)
    stack.enter_context(heartbeat(storage, instant, 60.0, note=lambda: NOTE))
    row = row_of(table)
    assert (row["state"], row["why"], row["work"]["pid"]) == ("decided", None, ME.pid)


def put_pending(table: Table, action: str, data: bytes = b"") -> Path:
    """A restore or rollback that pends, with that plan."""
    time_ = table.snapshot().next_time()
    file = Path(table.storage.base_path) / table.instant_path(
        Instant(requested_time=time_, action=action, state=State.REQUESTED)
    )
    file.write_bytes(data)
    return file


def a_rollback(instant: str) -> bytes:
    """The plan of one of a compaction."""
    return encode_rollback_plan(RollbackPlan(target=instant, action="compaction"), "/b")


def test_a_decision_that_waits_is_not_about_to_be_published(table: Table) -> None:
    """Restores and rollbacks come first; why, and what ends an unreadable one, is there."""
    instant = only(table)
    put_outcome(table.storage, instant, a_decision(instant))
    row = row_of(table)
    assert (row["state"], row["validity"]) == ("decided", "valid")
    assert "the next run publishes it" in row["why"]
    file = put_pending(table, "restore")
    row = row_of(table)
    assert (row["state"], row["validity"]) == ("decided", "blocked")
    assert row["why"] == f"waits: restore {file.name[:17]} is pending"
    file.unlink()
    file = put_pending(table, "rollback", a_rollback(instant))
    assert row_of(table)["why"] == f"waits: a rollback of {instant} is pending"
    file.write_bytes(b"")
    why = row_of(table)["why"]
    assert why.startswith("waits: ")
    assert file.name in why
    assert "Hudi" in why


def test_a_decision_that_has_fallen(table: Table) -> None:
    """It is not shown as good; pending writes hold its next attempt."""
    instant = only(table)
    put_outcome(table.storage, instant, a_decision(instant, merged=("20990101000000000",)))
    row = row_of(table)
    assert (row["state"], row["validity"]) == ("invalid", "invalid")
    assert "20990101000000000, which it merged, was rolled back" in row["why"]
    assert "reverts it" in row["why"]


def test_a_decision_of_which_it_is_unknown_whether_it_stands(table: Table) -> None:
    """The timeline is being moved: never shown as fine, nor hidden."""
    instant = only(table)
    put_outcome(table.storage, instant, a_decision(instant))
    table.storage.put_if_absent(f".hoodie/{instant}.deltacommit", b"")
    row = row_of(table)
    assert (row["state"], row["validity"]) == ("unknown", None)
    assert "upgraded or downgraded" in row["problem"]


def test_a_parked_decision_is_parked(table: Table) -> None:
    """No daemon tries it again before it is released."""
    instant = only(table)
    put_outcome(table.storage, instant, a_decision(instant))
    record_failure(table.storage, instant, failure())
    row = row_of(table)
    assert (row["state"], row["validity"]) == ("backing off", "valid")
    record_failure(table.storage, instant, failure(park=True))
    data = report(table)
    (row,) = data["pending"]
    assert (row["state"], row["validity"]) == ("parked", "valid")
    assert "disk full" in row["why"]
    assert "decided" in row["why"]
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for item in status_render.status(data):
        console.print(item)
    assert f"compactor-daemon release TABLE {instant}" in console.export_text()


def test_a_decision_that_was_taken_back_says_why(table: Table) -> None:
    """Until the next attempt has ended otherwise; a damaged record is not hidden either."""
    storage, instant = table.storage, only(table)
    put_outcome(storage, instant, a_decision(instant))
    revoke_decision(storage, instant, 1, "write 7 was rolled back", "me")
    row = row_of(table)
    assert (row["state"], row["revoked_why"]) == ("waiting", "write 7 was rolled back")
    assert "revoked: write 7 was rolled back" in row["why"]
    storage.overwrite(f"{attempt_folder(instant, 1)}/{REVOKED}", b"")
    assert "cannot be read" in row_of(table)["why"]


def test_an_undecided_instant_waits_for_restores_and_rollbacks(table: Table) -> None:
    """Those that may concern it: others do not."""
    instant = only(table)
    assert (row_of(table)["validity"], row_of(table)["why"]) == (None, None)
    file = put_pending(table, "rollback", a_rollback("20990101000000000"))
    assert row_of(table)["why"] is None
    file.write_bytes(a_rollback(instant))
    row = row_of(table)
    assert (row["state"], row["validity"]) == ("waiting", None)
    assert row["why"] == f"waits: a rollback of {instant} is pending"
    file.write_bytes(b"")
    assert file.name in row_of(table)["why"]
    file.unlink()
    file = put_pending(table, "restore")
    assert row_of(table)["why"] == f"waits: restore {file.name[:17]} is pending"


def test_an_undecided_instant_under_a_half_upgraded_timeline(table: Table) -> None:
    """What pends there may be in the other half."""
    table.storage.put_if_absent(f".hoodie/{only(table)}.deltacommit", b"")
    row = row_of(table)
    assert row["state"] == "unknown"
    assert "upgraded or downgraded" in row["problem"]


def test_what_cannot_be_read_is_unknown_and_hides_nothing(table: Table) -> None:
    """A damaged record, a damaged plan; the other instants are shown."""
    good, damaged = only(table), add_plan(table, 60)
    put_outcome(table.storage, damaged, b"{")
    rows = {r["instant"]: r for r in report(table)["pending"]}
    assert (rows[good]["state"], rows[damaged]["state"]) == ("waiting", "unknown")
    assert OUTCOME in rows[damaged]["problem"]
    broken = add_plan(table, 30)
    path = table.instant_path(Instant(requested_time=broken, action="compaction", state=State.REQUESTED))
    table.storage.overwrite(path, b"no plan")
    rows = {r["instant"]: r for r in report(table, {broken: a_claim(broken)})["pending"]}
    assert (rows[broken]["state"], rows[broken]["file_groups"], rows[broken]["work"]["pid"]) == ("unknown", None, 7)


def test_a_planned_file_that_is_gone_is_a_problem(table: Table) -> None:
    """Its size is unknown, not zero."""
    operation = table.compaction_plan(only(table)).operations[0]
    gone = f"{operation.partition_path}/{operation.delta_file_paths[0]}"
    table.storage.delete(gone)
    row = row_of(table)
    assert (row["state"], row["input_bytes"]) == ("waiting", None)
    assert gone in row["problem"]


def test_overdue(table: Table) -> None:
    """Pending for longer than the objective; nothing is overdue without one, and made-up instants are unknown."""
    young = add_plan(table, 100)
    late = {r["instant"]: r["overdue"] for r in report(table, slo_s=3600)["pending"]}
    assert late == {only_first(table): True, young: False}
    assert report(table, slo_s=3600)["overdue"] == 1
    assert not any(r["overdue"] for r in report(table)["pending"])
    first = table.instant_path(Instant(requested_time=young, action="compaction", state=State.REQUESTED))
    odd = table.instant_path(Instant(requested_time="00000000000001", action="compaction", state=State.REQUESTED))
    table.storage.put_if_absent(odd, table.storage.read(first))
    assert report(table, slo_s=3600)["pending"][0]["overdue"] is None


# --- writes, done ------------------------------------------------------------------------------------------------


def test_pending_writes_hold_what_began_after_them(table: Table, stack: ExitStack) -> None:
    """Who, since when, alive or dead; a decided compaction waits for nobody, a running one not for younger writes."""
    storage, waiting = table.storage, only(table)
    running, done = add_plan(table, 900), add_plan(table, 600)
    put_outcome(storage, done, a_decision(done))
    note = {**NOTE, "since_ms": clock_ms() - 300_000}
    stack.enter_context(heartbeat(storage, running, 60.0, note=lambda: note))
    old, young = (format_time(table.now() - timedelta(seconds=s)) for s in (400, 200))
    for time_ in (old, young):
        path = table.instant_path(Instant(requested_time=time_, action="deltacommit", state=State.REQUESTED))
        storage.put_if_absent(path, b"")
    gone = replace(ME, started=1)
    storage.overwrite(heartbeat_path(old), b"phantombase\n" + json.dumps(asdict(gone)).encode())
    writes = {w["instant"]: w for w in report(table)["writes"]}
    assert writes[old]["holds"] == [waiting, running]
    assert writes[young]["holds"] == [waiting]
    assert (writes[old]["alive"], writes[old]["pid"]) == (False, gone.pid)
    assert (writes[young]["alive"], writes[young]["pid"]) == (None, None)
    storage.overwrite(heartbeat_path(young), b"")
    assert {w["instant"]: w["alive"] for w in report(table)["writes"]} == {old: False, young: True}


@pytest.mark.parametrize("name", ["v6_compacted_cleaned", "v8_compacted_cleaned", "v9_compacted_cleaned"])
def test_what_hudi_completed(name: str, tmp_path: Path) -> None:
    """Compactions by Hudi, newest first; no delta commit, clustering or bulk insert among them."""
    table = open_table(unzip_golden(name, tmp_path))
    recent = report(table)["recent"]
    assert recent
    assert {row["by"] for row in recent} == {"hudi"}
    times = [row["instant"] for row in recent]
    assert times == sorted(times, reverse=True)
    assert all(row["rows"] and row["bytes_written"] and row["problem"] is None for row in recent)
    write = Instant(
        requested_time=format_time(table.now()), action="commit", state=State.COMPLETED, completion_time=times[0]
    )
    metadata = encode(CommitMetadata(operation_type="UPSERT"), table.layout.encoding)
    assert table.storage.put_if_absent(table.instant_path(write), metadata)
    assert report(table)["recent"] == recent


def test_a_compaction_from_waiting_to_done(table: Table) -> None:
    """While it runs its own heartbeat says how far it is; then it is among what was done, with its rows."""
    instant = only(table)
    seen: list[Row] = []

    class Watched(LocalRunner):
        def __call__(self, storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
            def look_on(done: int, total: int) -> None:
                progress(done, total)
                wait_until(lambda: (row_of(table)["work"] or {}).get("done") == done)  # told by the next beat
                seen.append(row_of(table))

            return super().__call__(storage, tasks, look_on)

    done = compact_instant(
        table,
        instant,
        lock=ProcessLock(table.storage.base_path),
        runner=Watched(1),
        progress=lambda done, total: None,
        output=OUTPUT,
        options=replace(OPTIONS, heartbeat_s=0.02),
    )
    slices = done.file_groups
    assert [row["state"] for row in seen] == ["running"] * len(seen)
    assert (seen[-1]["work"]["done"], seen[-1]["work"]["total"]) == (slices, slices)
    assert all(row["work"]["attempt"] == 1 and row["work"]["input_bytes"] == done.bytes_read for row in seen)
    data = report(table)
    assert data["pending"] == []
    newest = data["recent"][0]
    assert (newest["instant"], newest["by"], newest["file_groups"]) == (instant, "phantombase", slices)
    assert (newest["rows"], newest["bytes_written"]) == (done.rows, done.bytes_written)


def test_an_instant_completed_under_the_look_is_left_out(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as decided nor as an error: it pends no more."""
    instant, before = only(table), Table.compaction_plan

    def completing(self: Table, time_: str) -> Any:
        monkeypatch.setattr(Table, "compaction_plan", before)
        run_one(table, instant)
        return before(self, time_)

    monkeypatch.setattr(Table, "compaction_plan", completing)
    assert report(table)["pending"] == []


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """A command: exit code and stdout, as a pipe sees it."""
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of a test run have it

    def run(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, args)
        return result.exit_code, result.stdout if result.exception is None else f"{result.stdout}{result.exception}"

    return run


def test_release(table: Table, call: Callable[..., tuple[int, str]]) -> None:
    """A parked instant waits again; only a pending compaction can be released."""
    instant, path = only(table), table.storage.base_path
    record_failure(table.storage, instant, failure(park=True))
    assert "parked after 1 failure" in call("status", path)[1]
    code, text = call("release", path, instant, "--json")
    assert (code, json.loads(text)["failures"]) == (0, 1)
    assert row_of(table)["state"] == "waiting"
    assert "nothing to release" in call("release", path, instant)[1]
    code, text = call("release", path, "../..")
    assert code == 1
    assert "not a pending compaction" in text


def test_claims_without_zookeeper(table: Table, stack: ExitStack, call: Callable[..., tuple[int, str]]) -> None:
    """By heartbeats; a table where nobody works has no row."""
    path = table.storage.base_path
    assert "No process works" in call("claims", path)[1]
    stack.enter_context(heartbeat(table.storage, only(table), 60.0, note=lambda: NOTE))
    (row,) = json.loads(call("claims", path, "--json")[1])["claims"]
    assert (row["table"], row["instant"], row["source"], row["done"]) == (path, only(table), "heartbeat", 3)
    (same,) = work_rows(table_status(table.snapshot(cached=False)))
    assert same.instant == row["instant"]
    assert claim_rows("t", {}, Clock.of(table)) == []


def test_claims_in_zookeeper(
    table: Table, zookeeper: ZooKeeper, stack: ExitStack, call: Callable[..., tuple[int, str]]
) -> None:
    """A fleet's claims, in `claims` and in `status`; a table no fleet has served has none."""
    instant, path = only(table), table.storage.base_path
    hosts = f"{zookeeper.hosts}/some/where"
    assert "No process works" in call("claims", "--zookeeper", hosts, path)[1]
    session = stack.enter_context(zookeeper_session(ZooKeeperOptions(hosts=hosts)))
    claims = ZooKeeperClaims(session, table_id(table.storage), "me")
    held = claims.take(instant)
    assert held is not None
    (row,) = json.loads(call("claims", "--zookeeper", hosts, path, "--json")[1])["claims"]
    assert (row["instant"], row["holder"], row["pid"]) == (instant, "me", os.getpid())
    code, text = call("status", path, "--zookeeper", hosts, "--json")
    data = json.loads(text)
    assert (code, data["claims"], data["pending"][0]["state"]) == (0, "known", "running")
    held.release()
    assert json.loads(call("status", path, "--zookeeper", hosts, "--json")[1])["pending"][0]["state"] == "waiting"


def test_zookeeper_that_does_not_answer(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[..., tuple[int, str]]
) -> None:
    """`claims` has nothing to say; `status` says what it knows, and exits with 1. Wrong options are refused."""
    path = table.storage.base_path
    monkeypatch.setattr("phantombase.compactor_daemon.cli.fleet_flags._CONNECT_S", 0.5)
    nobody = ("--zookeeper", "127.0.0.1:1")
    code, text = call("claims", *nobody, path, "--json")
    assert code == 1
    assert "claims" not in text.partition("no connection")[0]
    code, text = call("status", *nobody, path, "--json")
    data = json.loads(text.removesuffix("1"))
    assert (code, data["claims"], data["pending"][0]["state"]) == (1, "unknown", "unknown")
    assert "claims unknown:" in call("status", *nobody, path)[1]
    code, text = call("status", path, "--zookeeper", "embedded", "--zookeeper-dir", str(tmp_path), "--json")
    assert (code, json.loads(text.removesuffix("1"))["claims"]) == (1, "unknown")
    code, text = call("status", *nobody, path, "--zookeeper-digest-file", str(tmp_path / "none"))
    assert code == 1
    assert "cannot be read" in text
