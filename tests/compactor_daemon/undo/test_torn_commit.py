"""What Hudi leaves unreadable that is killed while it writes in place on a local disk: commands of errors end it."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.archiving.archived_files import Archive, remove_instants
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.status.status import table_status
from phantombase.compactor_daemon.undo.repair import write_anew
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    ConflictError,
    LedgerError,
    MalformedError,
    MissingFileError,
    StorageError,
    UsageError,
)
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.compaction_plan import decode_plan, encode_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.instants.instant_files import load_state_files, of_instants
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Undone, undo
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    check_usable,
    clustered,
    compact,
    long_table,
    one_row,
    overwrite,
    restore,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.faults import LockLostAt, roll_back_half_way, small_table
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import deep
from tests.support.written_tables import Rows, read_rows, written_table

REWRITES = WriteOptions(slots=1)
"""Small base files are written anew."""


def tear(path: Path, write: Instant, size: int = 0) -> None:
    """Leaves that many bytes of its completed file."""
    file = path / open_table(path).instant_path(write)
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize("size", [0, deep(50)])
@one_of("version", 9, 8, 6)
def test_the_command_that_its_error_names_ends_it(version: int, size: int, tmp_path: Path) -> None:
    """Its writer reported no write. The rows of before are there, and the table goes on."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    upsert(path, one_row("torn", 100))
    timeline = open_table(path).load_timeline()
    tear(path, timeline.completed_writes[timeline.latest_completed], size)
    with pytest.raises(MalformedError) as error:
        read_rows(path)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [str(path) if word == "TABLE" else word for word in command.split()]
    done = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert done.exit_code == 0, done.output
    assert read_rows(path) == rows
    upsert(path, one_row("torn", 101))
    assert read_rows(path) == rows | {"torn": (101, 101.0)}


@pytest.mark.parametrize("size", [0, deep(50)])
@one_of("version", 6, 9, 8)
def test_writes_and_compactions_go_on_behind_one_in_the_middle(version: int, size: int, tmp_path: Path) -> None:
    """As those of Hudi: the size of a row is an estimate, and what was written is looked for everywhere."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    for number, key in enumerate(("k0", "k1"), 100):
        upsert(path, one_row(key, number))
        rows[key] = (number, float(number))
    tear(path, open_table(path).load_timeline().completed[-2], size)
    upsert(path, one_row("behind", 102))
    compact(path)
    assert read_rows(path) == rows | {"behind": (102, 102.0)}
    assert not [log for log in open_table(path).load_view().groups if log.slices[-1].logs]


@one_of("version", 9, 8, 6)
def test_a_clean_keeps_what_its_rollback_brings_back(version: int, tmp_path: Path) -> None:
    """By file versions the slice below a torn write is an old one, and all readers fail until it is rolled back."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), REWRITES)
    rows = read_rows(path)
    upsert(path, one_row("k1", 1), REWRITES)
    newest = open_table(path).load_timeline().completed[-1]
    tear(path, newest)
    with pytest.raises(MalformedError, match=f"`compactor-daemon rollback TABLE {newest.requested_time}`"):
        clean_table(open_table(path), CleanOptions(policy=Policy.VERSIONS, retain=1, floor_s=0), LOCK)
    done = CliRunner().invoke(app, ["rollback", str(path), newest.requested_time, "--sole-writer"])
    assert done.exit_code == 0, done.output
    assert read_rows(path) == rows


@pytest.mark.parametrize("begun", [False, True])
@one_of("version", 9, 8, 6)
def test_a_restore_takes_a_plan_that_cannot_be_read_away(version: int, begun: bool, tmp_path: Path) -> None:
    """As the error of such a plan says: nothing else ends it."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    table = open_table(path)
    timeline = table.load_timeline()
    plan = Instant(requested_time=table.snapshot().next_time(), action="compaction", state=State.REQUESTED)
    (path / table.instant_path(plan)).write_bytes(b"Obj\x01torn")
    if begun:
        (path / table.instant_path(plan.at(State.INFLIGHT))).touch()
    with pytest.raises(MalformedError, match="`compactor-daemon restore TABLE --to INSTANT`"):
        read_rows(path)
    words = ["restore", str(path), "--to", timeline.latest_completed, "--sole-writer"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 200))
    assert read_rows(path) == rows | {"k0": (200, 200.0)}


@one_of("version", 6, 9, 8)
def test_a_restore_to_such_a_write_is_refused(version: int, tmp_path: Path) -> None:
    """It would be the newest one then, and no reader could read the table."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    for key in ("torn", "newest"):
        upsert(path, one_row(key, 1))
    torn = open_table(path).load_timeline().completed[-2]
    tear(path, torn)
    with pytest.raises(UsageError, match=r"no reader could read the table.*--to (\d+)") as refused:
        restore_table(open_table(path), LOCK, torn.requested_time)
    (before,) = re.findall(r"--to (\d+)", str(refused.value))
    restore_table(open_table(path), LOCK, before)
    assert read_rows(path) == rows


# The plan of a restore that cannot be read, as a killed Hudi leaves it: nothing is undone, and the table goes on.


def torn(path: Path, data: bytes, state: State = State.REQUESTED) -> Path:
    table = open_table(path)
    time_ = table.snapshot().next_time()
    instant = Instant(requested_time=time_, action="restore", state=State.REQUESTED)
    file = path / table.instant_path(instant)
    file.write_bytes(data)
    if state is State.INFLIGHT:
        (path / table.instant_path(instant.at(State.INFLIGHT))).write_bytes(b"")
    return file


def age(file: Path) -> None:
    os.utime(file, (time.time() - 130,) * 2)


@pytest.mark.parametrize("data", [b"", b"Obj\x01 cut"])
@one_of("version", 9, 8, 6)
def test_it_is_removed_by_a_restore_once_no_process_writes_it(version: int, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    first = small_table(path, version)
    rows, file = read_rows(path), torn(path, data)
    for target in (first, None):
        with pytest.raises(MalformedError, match="removes it once it has not changed for two minutes"):
            restore(path, target)
    age(file)
    with pytest.raises(ConflictError, match="a restore of the table is in progress"):
        upsert(path, one_row("k2", 2))
    with pytest.raises(MalformedError):
        restore(path, first, dry_run=True)
    assert file.exists()
    with pytest.raises(UsageError, match="no restore is pending"):
        restore(path, None)
    assert not file.exists()
    check_usable(path, rows)


def begun(path: Path, to: str, undone: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A restore whose process dies when it has undone so many writes; its plan is torn then."""
    done: list[str] = []

    def dies(table: Table, instant: Instant, traces: Callable[[], RollbackPlan]) -> Undone:
        if len(done) == undone:
            raise StorageError("the process is killed here")
        done.append(instant.requested_time)
        return undo(table, instant, traces)

    with monkeypatch.context() as patch:
        patch.setattr("phantombase.compactor_daemon.undo.restore.undo", dies)
        with pytest.raises(StorageError, match="is killed"):
            restore(path, to)
    files = [file for file in (path / ".hoodie").rglob("*.restore.*") if file.is_file()]
    (plan,) = [file for file in files if file.name.endswith(".requested")]
    plan.write_bytes(plan.read_bytes()[:60])
    for file in files:
        age(file)
    return plan


@pytest.mark.parametrize(("undone", "is_gone"), [(1, False), (0, False), (2, True)])
@one_of("version", 9, 6, 8)
def test_the_command_for_one_that_has_begun_ends_it(
    version: int, undone: int, is_gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two of three later writes, one or none are undone: the state that its user names comes back, the same or an
    earlier one."""
    path = tmp_path / "trips"
    first = small_table(path, version)
    rows = {"k0": read_rows(path)["k0"]}
    for number in range(3):
        upsert(path, one_row(f"k{number}", 10 + number))
    last = max(t for t in open_table(path).load_timeline().completed_writes)
    plan = begun(path, first, undone, monkeypatch)
    if is_gone:
        plan.unlink()
    if undone == 1:  # Hudi's restore undoes each instant by a rollback
        table = open_table(path)
        timeline = table.load_timeline()
        at_work = RollbackPlan(target=timeline.latest_completed, action="deltacommit")
        rollback = Instant(requested_time=table.snapshot().next_time(), action="rollback", state=State.REQUESTED)
        (path / table.instant_path(rollback)).write_bytes(encode_rollback_plan(at_work, str(path)))
    with pytest.raises(MalformedError, match="to which instant is unknown") as error:
        restore(path, None)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [str(path) if word == "TABLE" else first if word == "INSTANT" else word for word in command.split()]
    for more in (["--dry-run"], ["--sole-writer"]):
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, done.output
    timeline = open_table(path).load_timeline()
    assert last not in timeline.completed_writes
    assert not timeline.pending("rollback")
    check_usable(path, rows)


@one_of("version", 9, 6, 8)
def test_one_that_has_begun_waits_for_its_process(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may still work by the plan that it has read."""
    path = tmp_path / "trips"
    first = small_table(path, version)
    upsert(path, one_row("k0", 10))
    plan = begun(path, first, 0, monkeypatch)
    before = plan.read_bytes()
    os.utime(plan)
    with pytest.raises(ConflictError, match="may still work on a restore"):
        restore(path, first)
    assert plan.read_bytes() == before


@one_of("version", 9, 8, 6)
def test_one_that_has_begun_goes_to_no_state_built_upon_what_is_undone(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi's restore undoes clusterings before all else: a write upon their files is left, without its base file."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    first = open_table(path).load_timeline().latest_completed
    time_ = clustered(path)
    upsert(path, one_row(min(rows), 300))
    behind = open_table(path).load_timeline().latest_completed
    begun(path, first, 0, monkeypatch)
    table = open_table(path)
    done = table.load_timeline().completed_writes[time_]
    bases = [Path(name) for name in table.commit_metadata(done).named_files]
    doomed = tuple((str(file.parent).removeprefix("."), file.name) for file in bases)
    gone = RollbackPlan(target=time_, action="replacecommit", doomed=doomed)
    undo(table, done.at(State.INFLIGHT), lambda: gone)
    with pytest.raises(UsageError, match=f"a state before {time_}"):
        restore(path, behind)
    restore(path, first)
    check_usable(path, rows)


@one_of("version", 9, 8, 6)
def test_status_names_the_write_of_a_rollback_that_is_half_way(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_table(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    roll_back_half_way(path, newest)
    (seen,) = table_status(open_table(path).snapshot(cached=False)).in_progress
    assert seen.action == "rollback"
    assert seen.todo == f"`compactor-daemon rollback TABLE {newest}`, or Hudi"


# A completed file of an overwrite or a clustering that cannot be read: a restore takes it back.


@pytest.mark.parametrize(
    ("by", "size"), [("overwrite", 0), ("clustering", 50), deep("overwrite", 50), deep("clustering", 0)]
)
@one_of("version", 9, 8, 6)
def test_the_command_for_a_torn_replacement_ends_it(version: int, by: str, size: int, tmp_path: Path) -> None:
    """Never is it taken for one that replaced nothing: its rows would be doubled."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    compact(path)
    before = open_table(path).load_timeline().latest_completed
    if by == "overwrite":
        overwrite(path, one_row("new", 90))
    else:
        options = ClusterOptions(min_files=2)
        assert cluster_table(open_table(path), options, LOCK, output=OutputOptions()).done is not None
    table = open_table(path)
    (done,) = (i for i in table.load_timeline().completed if i.family == "replacecommit")
    file = path / table.instant_path(done)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(MalformedError) as error:
        read_rows(path)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [{"TABLE": str(path), "INSTANT": before}.get(word, word) for word in command.split()]
    assert CliRunner().invoke(app, [*words, "--dry-run"]).exit_code == 0
    ended = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


@pytest.mark.parametrize("version", [6, deep(8), 9])
def test_a_begun_plan_of_a_clustering_that_cannot_be_read_goes_with_a_restore(version: int, tmp_path: Path) -> None:
    """Of what it would have replaced nothing is gone: it is not completed."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    compact(path)
    table = open_table(path)
    timeline = table.load_timeline()
    action = "replacecommit" if version == 6 else "clustering"
    plan = Instant(requested_time=table.snapshot().next_time(), action=action, state=State.REQUESTED)
    (path / table.instant_path(plan)).write_bytes(b"Obj\x01torn")
    (path / table.instant_path(plan.at(State.INFLIGHT))).touch()
    made = next((path / "a").glob("*.parquet"))
    litter = made.with_name(f"{uuid.uuid4()}-0_0-1-2_{plan.requested_time}.parquet")
    litter.write_bytes(made.read_bytes())
    with pytest.raises(MalformedError, match="cannot be read"):
        upsert(path, one_row("k0", 100))
    words = ["restore", str(path), "--to", timeline.latest_completed]
    assert CliRunner().invoke(app, [*words, "--dry-run"]).exit_code == 0
    ended = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    assert not litter.exists()
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


# A completed file of a compaction that cannot be read, as Hudi leaves it that is killed while it writes it.


def _made(path: Path, version: int) -> tuple[Rows, Instant, CommitMetadata]:
    """A table whose last compaction has writes behind it; its rows, that compaction, and what its file says."""
    long_table(path, version)
    compact(path)
    upsert(path, one_row("k1", 50))
    table = open_table(path)
    done = next(i for i in reversed(table.load_timeline().completed) if i.action == "commit")
    return read_rows(path), done, table.commit_metadata(done)


def _tear(path: Path, done: Instant, size: int = 0, *, age_s: float = 200) -> Path:
    file = path / open_table(path).instant_path(done)
    file.write_bytes(file.read_bytes()[:size])
    os.utime(file, (file.stat().st_mtime - age_s, file.stat().st_mtime - age_s))
    return file


def _essence(metadata: CommitMetadata) -> tuple[object, ...]:
    stats = sorted(
        (s.path, s.num_writes, s.file_size_in_bytes) for of in metadata.partition_to_write_stats.values() for s in of
    )
    return stats, metadata.compacted, metadata.operation_type, metadata.extra_metadata["schema"]


@pytest.mark.parametrize(
    ("version", "size"), [(6, 0), (9, 50), *(deep(*case) for case in ((6, 50), (8, 0), (8, 50), (9, 0)))]
)
def test_the_command_that_its_error_names_writes_it_anew(version: int, size: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows, done, metadata = _made(path, version)
    file = _tear(path, done, size)
    before = file.stat().st_mtime_ns
    if size:
        with pytest.raises(MalformedError, match="repair TABLE"):
            read_rows(path)
    else:
        assert read_rows(path) == rows  # as with Hudi
    with pytest.raises(MalformedError) as error:
        open_table(path).commit_metadata(done)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [str(path) if word == "TABLE" else word for word in command.split()]
    assert CliRunner().invoke(app, [*words, "--dry-run"]).exit_code == 0
    assert file.stat().st_size == size
    ended = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    assert _essence(open_table(path).commit_metadata(done)) == _essence(metadata)
    if version == 6:  # a completion time for Hudi 1.x
        assert file.stat().st_mtime_ns // 10**6 == before // 10**6
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    compact(path)
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("is_archived", [False, True], ids=["active", "archived"])
def test_where_a_clean_has_removed_what_it_merged(version: int, is_archived: bool, tmp_path: Path) -> None:
    """Hudi cleans behind such a file, and reads on. The clean shows that the compaction counts as completed.

    Hudi archives cleans by their number, also those behind a write that stays."""
    path = tmp_path / "trips"
    rows, done, metadata = _made(path, version)
    keep = ["--policy", "versions", "--retain", "1", "--floor", "0"]
    cleaned = CliRunner().invoke(app, ["clean", str(path), *keep, "--sole-writer"])
    assert cleaned.exit_code == 0, cleaned.output
    inputs = [_input(open_table(path), done, base) for base in _base_files(path, metadata)]
    assert not any((path / name).exists() for name in inputs)
    _tear(path, done)
    (clean,) = (f for f in (path / ".hoodie").rglob("*.clean") if f.is_file())
    clean.rename(clean.with_suffix(".away"))
    _refused(path, done, MissingFileError, "merged is gone")
    clean.with_suffix(".away").rename(clean)
    if is_archived:
        table = open_table(path)
        timeline, files = table.load_timeline(), load_state_files(table.storage, table.config)
        cleans = [i for i in timeline.instants if i.action == "clean"]
        archive = Archive(storage=table.storage, config=table.config, moment=table.times.moment)
        archive.write(cleans, timeline, files)
        remove_instants(table.storage, of_instants(files, cleans))
    ended = CliRunner().invoke(app, ["repair", str(path), done.requested_time, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    stats, *rest = _essence(metadata)
    assert _essence(open_table(path).commit_metadata(done)) == (stats, *rest)
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    compact(path)
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


def test_a_lock_that_is_lost_behind_the_new_file_leaves_its_time(tmp_path: Path) -> None:
    """On version 6 it is the completion time; a file that is complete is not repaired again."""
    path = tmp_path / "trips"
    rows, done, _ = _made(path, 6)
    file = _tear(path, done)
    before = file.stat().st_mtime_ns // 10**6
    write_anew(open_table(path), done.requested_time, LockLostAt(1))
    assert file.stat().st_mtime_ns // 10**6 == before
    assert read_rows(path) == rows


def test_change_logs_that_a_plan_names_are_no_inputs(tmp_path: Path) -> None:
    """See `merged_logs`; a clean may have removed them."""
    path = tmp_path / "trips"
    rows, done, _ = _made(path, 9)
    requested = next(path.rglob("*.compaction.requested"))
    plan = decode_plan(requested.read_bytes(), "plan")
    named = [replace(o, delta_file_paths=(*o.delta_file_paths, f"{o.merged_logs[-1]}.cdc")) for o in plan.operations]
    requested.write_bytes(encode_plan(replace(plan, operations=named)))
    _tear(path, done)
    write_anew(open_table(path), done.requested_time, LOCK)
    assert read_rows(path) == rows


def _refused(path: Path, done: Instant, error: type[Exception], match: str) -> None:
    file = path / open_table(path).instant_path(done)
    size = file.stat().st_size
    with pytest.raises(error, match=match):
        write_anew(open_table(path), done.requested_time, LOCK)
    assert file.stat().st_size == size


@one_of("version", 6, 9, 8)
def test_one_that_may_still_be_written_is_left_alone(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    _, done, _ = _made(path, version)
    _tear(path, done, age_s=60)
    _refused(path, done, ConflictError, "may still be writing")


def test_one_that_can_be_read_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    _, done, _ = _made(path, 9)
    _refused(path, done, UsageError, "can be read")


def _base_files(path: Path, metadata: CommitMetadata) -> list[Path]:
    return [path / name for name in sorted(metadata.named_files)]


def _input(table: Table, done: Instant, base: Path) -> str:
    """The base file that was merged into `base`."""
    plan = table.compaction_plan(done.requested_time)
    (name,) = (o.data_file_path for o in plan.operations if base.name.startswith(o.file_id))
    assert name is not None
    return f"{base.parent.name}/{name}"


@one_of("version", 9, 8, 6)
def test_what_cannot_be_proved_is_left_alone(version: int, tmp_path: Path) -> None:
    """A base file of it is gone, has other rows, or has a second one beside it; what it merged is gone."""
    path = tmp_path / "trips"
    _, done, metadata = _made(path, version)
    _tear(path, done)
    base = _base_files(path, metadata)[0]
    whole = base.read_bytes()
    base.unlink()
    _refused(path, done, MissingFileError, "not one base file")
    merged = path / _input(open_table(path), done, base)
    base.write_bytes(merged.read_bytes())
    _refused(path, done, LedgerError, "does not balance")
    base.write_bytes(whole[: len(whole) // 2])
    _refused(path, done, MalformedError, "")
    base.write_bytes(whole)
    second = base.with_name(re.sub(r"_[^_]*_", "_9-9-9_", base.name, count=1))
    second.write_bytes(whole)
    _refused(path, done, MissingFileError, "not one base file")
    second.unlink()
    merged.unlink()
    _refused(path, done, MissingFileError, "merged is gone")
