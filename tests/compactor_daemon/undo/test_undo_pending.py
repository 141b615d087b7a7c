"""Rollbacks of dead writers: what goes, what stays, and what a crash in between changes (nothing)."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint, savepoints
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.timeline.errors import ConflictError, MalformedError, UnsupportedError, UsageError
from phantombase.timeline.format.clean import Savepoint, decode_savepoint, encode_savepoint
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.format.rollback_plan import (
    RevokedSlice,
    RollbackPlan,
    decode_rollback_plan,
    encode_rollback_metadata,
    encode_rollback_plan,
    rolled_back_instants,
)
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.locks.section import Section
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.in_progress import PendingRollback, pending_rollbacks
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import open_table, run_all, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import HookedStorage
from tests.support.faults import DeadWrite, Faults, died_or_ended, kept, leave_dead_write, make_old
from tests.support.golden_tables import LOCK, golden_metadata, one_of, unzip_golden
from tests.support.selection import deep

TABLES = ("v6_plain", "v8_plain", "v9_plain", "v6_pending", "v9_pending", "v6_bucket_nonpart")


@pytest.fixture(params=TABLES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table."""
    return unzip_golden(request.param, tmp_path)


def now_ms(later_s: float = 0.0) -> int:
    """The clock, or a later time."""
    return int((time.time() + later_s) * 1000)


def undo_all(table: Table, *, lazy: bool = True, later_s: float = 0.0) -> list[str]:
    """A writer's look after dead ones."""
    return roll_back_dead_writers(table, LOCK, lazy=lazy, now_ms=lambda: now_ms(later_s), expiry_s=120.0)


def content(path: Path) -> dict[str, str]:
    """Every visible file with a digest of its bytes; rollback instants and measured times masked."""
    times = {time_ for file in path.rglob("2*.rollback*") for time_ in re.findall(r"\d{17}", file.name)}
    found = {}
    for name in visible_files(path):
        data, masked = (path / name).read_bytes(), name
        for time_ in times:
            data, masked = data.replace(time_.encode(), b"R"), masked.replace(time_, "R")
        found[masked] = "" if masked.endswith("R.rollback") or "R_R" in masked else hashlib.md5(data).hexdigest()
    return found


def check_undone(path: Path, dead: DeadWrite, rollback: str, before: set[str]) -> None:
    """Nothing of the write is left but its revoked log files (version 6) and the rollback."""
    table = open_table(path)
    target, timeline = dead.instant.requested_time, table.load_timeline()
    assert timeline.find(target, "deltacommit") is None
    done = timeline.find(rollback, "rollback")
    assert done is not None
    assert done.completed
    others = [t for i in timeline.instants if i != done for t in (i.requested_time, i.completion_time or "")]
    assert rollback > max(others)
    assert (done.completion_time is None) == (table.config.version == 6)
    if done.completion_time is not None:
        assert done.completion_time > rollback
    data = table.storage.read(table.instant_path(done))
    assert rolled_back_instants(data, "") == (target,)
    new = {n for n in visible_files(path) - before if ".rollback" not in n}
    commands = {n for n in new if n.endswith("_1-0-1")}
    assert new - commands == (set(dead.logs) if table.config.version == 6 else set())
    assert len(commands) == (len(dead.logs) if table.config.version == 6 else 0)
    for log in commands:
        (block,) = scan_blocks(table.storage.open_input(log), log)
        assert block.kind is BlockKind.COMMAND
        assert block.headers[HeaderKey.TARGET_INSTANT_TIME] == target
        assert (path / log).stat().st_size == 105
        behind = [n for n in dead.logs if n.split(".log.")[0] == log.split(".log.")[0]]
        assert [int(re.split(r"[._]", n.split(".log.")[1])[0]) + 1 for n in behind] == [
            int(re.split(r"[._]", log.split(".log.")[1])[0])
        ]
    assert not (path / ".hoodie/.phantombase/writes" / target).exists()
    assert not (path / ".hoodie/.temp" / target).exists()


def test_a_dead_writer_is_undone_and_nothing_else(path: Path) -> None:
    """The rows are those from before, for readers of any time; a second snapshot finds nothing to do."""
    before, rows = visible_files(path), read_table(open_table(path))
    dead = leave_dead_write(path)
    assert_same_rows(read_table(open_table(path)), rows)
    (rollback,) = undo_all(open_table(path))
    check_undone(path, dead, rollback, before)
    assert_same_rows(read_table(open_table(path)), rows)
    after = content(path)
    assert undo_all(open_table(path)) == []
    assert roll_back(open_table(path), dead.instant, LOCK) == rollback
    assert content(path) == after


@pytest.mark.parametrize("path", ["v6_plain", "v9_plain"], indirect=True)
def test_two_dead_writers_are_undone_latest_first(path: Path) -> None:
    """On version 6 both wrote to the same slices."""
    rows = read_table(open_table(path))
    first, second = leave_dead_write(path), leave_dead_write(path)
    done = undo_all(open_table(path))
    assert len(done) == 2
    undone = [d for r in done for d in targets(open_table(path), r)]
    assert undone == [second.instant.requested_time, first.instant.requested_time]
    assert_same_rows(read_table(open_table(path)), rows)


def targets(table: Table, rollback: str) -> tuple[str, ...]:
    """What a completed rollback undid."""
    found = table.load_timeline().find(rollback, "rollback")
    assert found is not None
    return rolled_back_instants(table.storage.read(table.instant_path(found)), "")


@pytest.mark.parametrize("path", ["v6_plain"], indirect=True)
def test_without_markers_the_blocks_tell(path: Path) -> None:
    """Version 6: log files do not carry the instant in their names; their blocks do."""
    before = visible_files(path)
    dead = leave_dead_write(path, markers=False)
    (rollback,) = undo_all(open_table(path))
    check_undone(path, dead, rollback, before)


def test_a_log_file_that_began_a_file_group_is_deleted(tmp_path: Path) -> None:
    """Version 6: inserts of a bucket index lie in log files on the delta commit's own instant."""
    path = unzip_golden("v6_plain", tmp_path)
    before = visible_files(path)
    dead = leave_dead_write(path)
    new = path / Path(dead.bases[0]).parent / f".new-0_{dead.instant.requested_time}.log.1_0-1-2"
    shutil.copy(path / dead.logs[0], new)
    (rollback,) = undo_all(open_table(path))
    assert not new.exists()
    check_undone(path, dead, rollback, before)


# --- who is dead ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [True, False])
def test_the_living_are_left_alone(path: Path, lazy: bool) -> None:
    """A fresh heartbeat; without one, in lazy mode, any young file; a process known to be gone has none of that."""
    dead = leave_dead_write(path, begun_by=Process.current(), age_s=0.0)
    before = content(path)
    beat = path / heartbeat_path(dead.instant.requested_time)
    assert undo_all(open_table(path), lazy=lazy) == []
    beat.write_bytes(b"")  # Hudi's
    assert undo_all(open_table(path), lazy=lazy) == []
    assert undo_all(open_table(path), lazy=lazy, later_s=100.0) == []
    make_old({beat}, 3600.0)
    if lazy:
        assert undo_all(open_table(path), lazy=True) == []
        beat.unlink()
        assert undo_all(open_table(path), lazy=True) == []
        assert {k: v for k, v in before.items() if "heartbeat" not in k} == content(path)
        assert len(undo_all(open_table(path), lazy=True, later_s=121.0)) == 1
    else:
        assert len(undo_all(open_table(path), lazy=False)) == 1


@pytest.mark.parametrize("path", ["v9_plain"], indirect=True)
def test_a_young_write_of_a_process_that_is_gone(path: Path) -> None:
    """Nobody waits for its heartbeat to grow old."""
    leave_dead_write(path, age_s=0.0)
    assert len(undo_all(open_table(path))) == 1


@pytest.mark.parametrize("path", ["v6_plain", "v9_plain"], indirect=True)
def test_table_services_are_not_writers(path: Path) -> None:
    """Pending compactions and clusterings, and rollbacks of them, are Hudi's or the compactor's business."""
    table = open_table(path)
    storage, folder = table.storage, table.config.timeline_folder
    name = "v6_clustered" if table.config.version == 6 else "v9_clustered"
    suffixes = (".replacecommit.requested", ".clustering.requested")
    plan = next(d for p, d in golden_metadata(name).items() if p.endswith(suffixes) and d)
    action = "replacecommit" if table.config.version == 6 else "clustering"
    storage.put_if_absent(f"{folder}/20990101000000000.compaction.requested", b"")
    storage.put_if_absent(f"{folder}/20990101000000001.{action}.requested", plan)
    storage.put_if_absent(f"{folder}/20990101000000001.{action}.inflight", b"")
    for number, what in enumerate((("20990101000000000", "compaction"), ("20990101000000001", action))):
        record = encode_rollback_plan(RollbackPlan(target=what[0], action=what[1]), storage.base_path)
        storage.put_if_absent(f"{folder}/2099010100000001{number}.rollback.requested", record)
    before = content(path)
    assert undo_all(table, later_s=1e6) == []
    assert content(path) == before
    compaction = Instant(requested_time="20990101000000000", action="compaction", state=State.REQUESTED)
    with pytest.raises(UsageError, match="compaction"):
        roll_back(table, compaction, LOCK)


# --- refusals -----------------------------------------------------------------------------------------------------


def test_what_is_not_pending_is_not_rolled_back(path: Path) -> None:
    """Completed; unknown; completed while we looked."""
    table = open_table(path)
    before = content(path)
    done = next(i for i in table.load_timeline().instants if i.action == "deltacommit" and i.completed)
    unknown = Instant(requested_time="20000101000000000", action="deltacommit", state=State.INFLIGHT)
    for instant, found in ((done, "it has completed"), (unknown, "it is not on the active timeline")):
        with pytest.raises(ConflictError, match=f"no longer pending.*expected a pending deltacommit.*found {found}"):
            roll_back(table, instant, LOCK)
    assert content(path) == before


@dataclass(frozen=True)
class CompletedFirst:
    """A lock whose section its holder enters only after a write has completed."""

    storage: LocalStorage
    completed: str

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock.hold`."""
        self.storage.put_if_absent(self.completed, b"{}")
        yield kept(purpose)


@pytest.mark.parametrize("path", ["v6_plain", "v9_plain"], indirect=True)
def test_a_write_that_completed_while_the_lock_was_waited_for_is_kept(path: Path) -> None:
    """No rollback is requested: it would pend for ever."""
    dead, table = leave_dead_write(path), open_table(path)
    done = replace(dead.instant.at(State.COMPLETED), completion_time="20990101000000000")
    lock = CompletedFirst(LocalStorage(str(path)), table.instant_path(done))
    assert roll_back_dead_writers(table, lock, lazy=True, now_ms=now_ms, expiry_s=120.0) == []
    assert pending_rollbacks(table) == ()
    assert all((path / file).exists() for file in (*dead.logs, *dead.bases))
    with pytest.raises(ConflictError, match=r"no longer pending.*found it has completed"):
        roll_back(table, dead.instant, LOCK)


@pytest.mark.parametrize("path", [deep("v6_plain"), "v9_plain"], indirect=True)
def test_a_write_that_completes_at_any_call_is_kept_or_undone_but_never_both(path: Path) -> None:
    """Completed before the rollback was requested: its files stay. Later: the rollback says what happened."""
    dead = leave_dead_write(path)
    origin, outcomes = path.with_name("origin"), set[bool]()
    path.rename(origin)
    for number in range(500):
        shutil.copytree(origin, path)
        inner = LocalStorage(str(path))
        storage = HookedStorage(inner, lambda call: call.do())
        table = open_table(path, storage)
        completed = table.instant_path(
            Instant(
                requested_time=dead.instant.requested_time,
                action="deltacommit",
                state=State.COMPLETED,
                completion_time=None if table.config.version == 6 else "20990101000000000",
            )
        )

        start = len(storage.calls)

        def hook(call: object, at: int = start + number, done: str = completed, put: LocalStorage = inner) -> object:
            number_, do = call.number, call.do  # type: ignore[attr-defined]
            if number_ == at:
                put.put_if_absent(done, b"{}")
            return do()

        storage._hook = hook
        undone = []
        with suppress(ConflictError):
            undone = undo_all(table)
        outcomes.add(bool(undone))
        requested = [p for p in path.rglob("*.rollback.requested") if p.stat().st_mtime > time.time() - 600]
        if not requested:
            assert undone == []
            assert all((path / file).exists() for file in (*dead.logs, *dead.bases))
        finished = start + number >= len(storage.calls)
        shutil.rmtree(path)
        if finished:
            break
    assert finished
    assert number > 30
    assert outcomes == {True, False}


def test_an_unknown_index_is_refused(tmp_path: Path) -> None:
    """Nothing is touched."""
    path = unzip_golden("v6_with_metadata_table", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.metadata.partitions=files,vector_index\n")
    before = content(path)
    instant = Instant(requested_time="20000101000000000", action="deltacommit", state=State.INFLIGHT)
    with pytest.raises(UnsupportedError, match="vector_index"):
        roll_back(open_table(path), instant, LOCK)
    with pytest.raises(UnsupportedError, match="vector_index"):
        undo_all(open_table(path))
    assert content(path) == before


@pytest.mark.parametrize("path", ["v9_plain"], indirect=True)
def test_a_plan_that_names_files_of_others_deletes_nothing(path: Path) -> None:
    """Whoever wrote it."""
    dead = leave_dead_write(path)
    table = open_table(path)
    view = table.load_view()
    base = next(s.base for g in view.groups for s in g.slices if s.base is not None)
    partition, _, name = base.path.rpartition("/")
    target = dead.instant.requested_time
    plan = RollbackPlan(target=target, action="deltacommit", doomed=((partition, name),))
    request = PendingRollback(instant="20990101000000000", plan=plan).at(State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(request), encode_rollback_plan(plan, table.storage.base_path))
    before = content(path)
    with pytest.raises(MalformedError, match="another instant"):
        undo_all(table, later_s=1e6)
    assert content(path) == before


# --- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [deep("v6_plain"), "v9_plain"], indirect=True)
def test_a_death_at_every_storage_call_comes_to_the_same_end(path: Path) -> None:
    """Run again by roll_back or by the snapshot after dead writers; a reader in between sees the same rows."""
    rows = read_table(open_table(path))
    dead, expected, died = leave_dead_write(path), undone(path), 0
    for died, copy in enumerate(died_or_ended(path, lambda storage: undo_all(Table.on(storage)))):
        assert_same_rows(read_table(open_table(copy)), rows)
        if died % 2 == 0:
            roll_back(open_table(copy), dead.instant, LOCK)
        undo_all(open_table(copy), later_s=1e6)
        assert content(copy) == expected
        assert_same_rows(read_table(open_table(copy)), rows)
    assert died > 8


@pytest.mark.parametrize("path", ["v6_plain", deep("v9_plain")], indirect=True)
def test_an_error_at_every_storage_call_comes_to_the_same_end(path: Path) -> None:
    """Before the call takes effect, after it, or half-way."""
    leave_dead_write(path)
    expected, said = undone(path), 0
    for _, _, copy, error in Faults.of(path, lambda storage: undo_all(Table.on(storage))).errors():
        assert not isinstance(error, OSError)
        undo_all(open_table(copy), later_s=1e6)
        assert content(copy) == expected
        said += error is not None
    assert said > 8


def undone(path: Path) -> dict[str, str]:
    """What is left once the dead write of a table is undone."""
    whole = shutil.copytree(path, path.with_name(f"{path.name}-copy"))  # files of it name the table: as `Faults` does
    undo_all(open_table(whole))
    found = content(whole)
    shutil.rmtree(whole)
    return found


# --- records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v6_rolled_back", "v8_rolled_back", "v9_rolled_back"])
def test_hudis_records_are_read_and_ours_have_its_schema(name: str) -> None:
    """What Hudi planned and did, in its golden tables."""
    files = golden_metadata(name)
    requested = next(p for p in files if p.endswith(".rollback.requested"))
    completed = next(p for p in files if p.endswith(".rollback"))
    plan = decode_rollback_plan(files[requested], requested)
    assert plan.action == "deltacommit"
    assert rolled_back_instants(files[completed], completed) == (plan.target,)
    if name.startswith("v6"):
        assert [s.partition for s in plan.revoked] == ["north", "south"]
        assert all(re.fullmatch(r"\..*\.log\.2_\d-1092-\d+", n) for s in plan.revoked for n in s.logs)
        assert plan.doomed == ()
    else:
        assert plan.revoked == ()
        assert [p for p, n in plan.doomed if plan.target in n] == ["north", "south"]
    ours = encode_rollback_plan(plan, "/base")
    assert schema_of(ours) == schema_of(files[requested])
    assert decode_rollback_plan(ours, "") == plan
    done = encode_rollback_metadata(plan, "20990101000000000", 5, {("north", "x"): 105}, "/base")
    assert schema_of(done) == schema_of(files[completed])
    assert b"/base/north/x" in done


def schema_of(data: bytes) -> object:
    """The writer's schema in an Avro container file."""
    start = data.index(b"{")
    return json.JSONDecoder().raw_decode(data[start:].decode(errors="replace"))[0]


@pytest.mark.parametrize(
    "change",
    [
        {"doomed": (("../other", "f"),)},
        {"revoked": (RevokedSlice(partition="p", file_id="", base_instant="1", logs={"l": 1}),)},
        {"revoked": (RevokedSlice(partition="p", file_id="f", base_instant="", logs={"l": 1}),)},
    ],
)
def test_a_plan_that_cannot_be_followed_is_malformed(change: dict[str, Any]) -> None:
    """A folder outside the table; log files of no slice."""
    plan = replace(RollbackPlan(target="20990101000000001", action="deltacommit"), **change)
    with pytest.raises(MalformedError, match=r"found .*where|where.*found"):
        decode_rollback_plan(encode_rollback_plan(plan, "/b"), "where")


def test_plans_of_one_target_add_up() -> None:
    """Each file and each slice once."""
    slices = [RevokedSlice(partition="p", file_id=f, base_instant="1", logs={"l": 1}) for f in "ab"]
    one = RollbackPlan(target="1", action="deltacommit", doomed=(("p", "x"),), revoked=(slices[1],))
    other = RollbackPlan(target="1", action="deltacommit", doomed=(("p", "x"), ("o", "y")), revoked=tuple(slices))
    both = one.with_all_of(other)
    assert both.doomed == (("o", "y"), ("p", "x"))
    assert both.revoked == tuple(slices)


def test_what_hudi_says_of_a_slice_and_what_is_found_add_up() -> None:
    """Hudi 0.15: a request for each log file, each of size 1."""

    def slice_of(**logs: int) -> RevokedSlice:
        return RevokedSlice(partition="p", file_id="f", base_instant="1", logs=logs)

    hudi = RollbackPlan(target="1", action="deltacommit", revoked=(slice_of(a=1), slice_of(b=1), slice_of(c=1)))
    found = RollbackPlan(target="1", action="deltacommit", revoked=(slice_of(b=70, c=80, d=90),))
    assert hudi.with_all_of(found).revoked == (slice_of(a=1, b=70, c=80, d=90),)


def test_pending_rollbacks_are_found(tmp_path: Path) -> None:
    """Latest target first."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    assert pending_rollbacks(table) == ()
    made = [
        PendingRollback(instant=f"2099010100000001{n}", plan=RollbackPlan(target=t, action="deltacommit"))
        for n, t in enumerate(("20990101000000001", "20990101000000002"))
    ]
    for rollback in made:
        table.storage.put_if_absent(
            table.instant_path(rollback.at(State.REQUESTED)), encode_rollback_plan(rollback.plan, "/b")
        )
    assert pending_rollbacks(table) == (made[1], made[0])


# Savepoints: what they keep, what is refused, and what a process leaves that dies while it makes or deletes one.


def keep(table: Table, instant: str | None = None) -> str:
    return create_savepoint(table, LOCK, instant, user="who", comment="why").instant


def files(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*.savepoint*"))


def test_a_record_is_read_as_it_was_written() -> None:
    made = Savepoint(user="who", comment="why", made_ms=7, files={"": ("a.parquet",), "süd": (".a.log.1", "b.parquet")})
    assert decode_savepoint(encode_savepoint(made), "there") == made


@one_of("name", "v9_pending", "v6_pending")
def test_the_newest_write_is_kept_once(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    instant = keep(open_table(path))
    assert instant == max(open_table(path).load_timeline().completed_writes)
    before = files(path)
    assert keep(open_table(path), instant) == instant
    assert files(path) == before
    [kept] = savepoints(open_table(path).snapshot())
    assert (kept.savepoint.user, kept.savepoint.comment) == ("who", "why")
    assert all((path / partition / n).exists() for partition, names in kept.savepoint.files.items() for n in names)


@one_of("name", "v6_pending", "v9_pending")
def test_of_an_older_write(name: str, tmp_path: Path) -> None:
    """Files that were begun later are no part of it."""
    path = unzip_golden(name, tmp_path)
    run_all(open_table(path))
    oldest = min(open_table(path).load_timeline().completed_writes)
    keep(open_table(path), oldest)
    [kept] = savepoints(open_table(path).snapshot())
    bases = [n for names in kept.savepoint.files.values() for n in names if n.endswith(".parquet")]
    assert bases
    assert all(n.endswith(f"_{oldest}.parquet") for n in bases)


@one_of("name", "v9_pending", "v6_pending")
def test_only_completed_writes_are_kept(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    [pending] = open_table(path).load_timeline().pending_merges
    for instant in (pending.requested_time, "20200101000000000"):
        with pytest.raises(UsageError, match="completed write"):
            keep(open_table(path), instant)
    with pytest.raises(UsageError, match="no such savepoint"):
        delete_savepoint(open_table(path), LOCK, pending.requested_time)
    assert files(path) == []


@one_of("name", "v9_pending", "v6_pending")
def test_a_state_that_may_still_change_is_not_kept(name: str, tmp_path: Path) -> None:
    """A write is pending below it: by default an earlier state is kept."""
    path = unzip_golden(name, tmp_path)
    times = sorted(open_table(path).load_timeline().completed_writes)
    pending = f"{int(times[-1]) - 1}"
    table = open_table(path)
    for ending in ("requested", "inflight"):
        (path / table.config.timeline_folder / f"{pending}.deltacommit.{ending}").touch()
    with pytest.raises(UsageError, match="pending write"):
        keep(open_table(path), times[-1])
    assert keep(open_table(path)) == times[-2]


@one_of("name", "v6_pending", "v9_pending")
def test_not_beside_a_pending_clean(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (path / table.config.timeline_folder / "29990101000000000.clean.requested").touch()
    with pytest.raises(ConflictError, match="a clean is pending"):
        keep(table)
    assert files(path) == []


@one_of("name", "v9_pending", "v6_pending")
def test_a_process_dies_while_it_makes_one(name: str, tmp_path: Path) -> None:
    """There is a whole savepoint or none, and the next run makes it."""
    origin = unzip_golden(name, tmp_path)
    for path in died_or_ended(origin, lambda storage: keep(Table.on(storage))):
        assert len(savepoints(open_table(path).snapshot())) in (0, 1)
        instant = keep(open_table(path))
        [kept] = savepoints(open_table(path).snapshot())
        assert kept.instant == instant
        assert len(files(path)) == 2


@one_of("name", "v9_pending", "v6_pending")
def test_a_process_dies_while_it_deletes_one(name: str, tmp_path: Path) -> None:
    """It is there as long as any file of it is, and the next run deletes the rest."""
    origin = unzip_golden(name, tmp_path)
    instant = keep(open_table(origin))
    for path in died_or_ended(origin, lambda storage: delete_savepoint(Table.on(storage), LOCK, instant)):
        assert bool(files(path)) == bool(savepoints(open_table(path).snapshot()))
        if files(path):
            delete_savepoint(open_table(path), LOCK, instant)
        assert files(path) == []


def test_commands(tmp_path: Path) -> None:
    path = str(unzip_golden("v9_pending", tmp_path))

    def run(*args: str) -> str:
        done = CliRunner().invoke(app, ["savepoint", *args])
        assert done.exit_code == 0, done.output
        return done.output

    assert "no savepoints" in run("list", path)
    assert "files in 2 partitions are kept" in run("create", path, "--comment", "before", "--sole-writer")
    assert "before" in run("list", path)
    [kept] = savepoints(Table.open(path).snapshot())
    assert "is deleted" in run("delete", path, kept.instant, "--sole-writer")
    assert "no savepoints" in run("list", path)
    for name in ("--user", "--comment"):  # bytes of a command line that are no UTF-8
        refused = CliRunner().invoke(app, ["savepoint", "create", path, "--sole-writer", name, "\udcff"])
        assert isinstance(refused.exception, UsageError)
    refused = CliRunner().invoke(app, ["savepoint", "create", path])
    assert isinstance(refused.exception, UsageError)
