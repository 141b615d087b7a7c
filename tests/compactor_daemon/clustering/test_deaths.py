"""What a dead process, or an error, left of a clustering is finished or cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.finish import tidy
from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.clustering.cancel import cancel_clustering, cancel_pending_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import ConflictError, PhantombaseError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import State
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import (
    COPIED,
    OUTPUT,
    TWO,
    WRITES,
    cluster,
    compact,
    forget_heartbeats,
    living,
    of_clustering,
    one_row,
    request,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import Faults, died_or_ended
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import deep
from tests.support.written_tables import check_nothing_left, impatient, read_rows


@pytest.mark.parametrize(
    ("version", "options", "part"), [(6, TWO, 0), deep(8, TWO, 0), deep(9, TWO, 0), (9, COPIED, 1), deep(6, COPIED, 0)]
)
def test_a_dead_process_at_every_call(version: int, options: ClusterOptions, part: int, tmp_path: Path) -> None:
    origin, died = tmp_path / "origin", 0
    rows = small_files(origin, version, 3)

    def work(storage: Storage) -> object:
        return cluster_table(Table.on(storage), options, LOCK, output=OUTPUT)

    for died, path in enumerate(died_or_ended(origin, work, (part, 2))):  # noqa: B007
        assert read_rows(path) == rows
        forget_heartbeats(path)
        again = cluster(path, options=options)
        assert read_rows(path) == rows
        assert len(living(path)) == 1, again
        upsert(path, one_row("k1", 50), impatient(WRITES))
        assert read_rows(path) == {**rows, "k1": (50, 50.0)}
        compact(path)
        check_nothing_left(path)
        assert read_rows(path) == {**rows, "k1": (50, 50.0)}
    assert died > 5


@pytest.mark.parametrize(("version", "options", "part"), [(6, TWO, 0), (9, COPIED, 2), deep(9, TWO, 0)])
def test_an_error_at_every_call(version: int, options: ClusterOptions, part: int, tmp_path: Path) -> None:
    origin, said = tmp_path / "origin", 0
    rows = small_files(origin, version, 3)
    work = Faults.of(origin, lambda storage: cluster(Path(storage.base_path), storage, options), share=(part, 4))
    for _, _, path, error in work.errors():
        if error:
            assert read_rows(path) == rows
        forget_heartbeats(path)
        cluster(path, options=options)
        assert read_rows(path) == rows
        assert len(living(path)) == 1
        upsert(path, one_row("k1", 50), impatient(WRITES))
        check_nothing_left(path)
        said += error is not None
    assert said > 4


@one_of("version", 9, 8, 6)
def test_a_write_takes_a_dead_clustering_back(version: int, tmp_path: Path) -> None:
    """Otherwise updates of its files would fail until the next run."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path, alive=False)
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


@pytest.mark.parametrize("by", ["the next run", "a write"])
@one_of("version", 6, 9, 8)
def test_placed_files_of_a_dead_process(version: int, by: str, tmp_path: Path) -> None:
    """The process had decided: the next run, or a write, publishes them as they are."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dead: list[str] = []

    def hook(call: Call) -> object:
        if dead or (call.name == "put_if_absent" and call.path.endswith(".replacecommit")):
            dead.append(call.path)
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    forget_heartbeats(path)
    assert read_rows(path) == rows
    if by == "a write":
        upsert(path, one_row("k1", 100))
        assert read_rows(path) == {**rows, "k1": (100, 100.0)}
        assert len(living(path)) == 1
    else:
        other = OutputOptions(memory_limit=32 << 20, codec=Codec.NONE)
        result = cluster_table(open_table(path), TWO, LOCK, output=other)
        assert len(result.finished) == 1
        assert read_rows(path) == rows
        (file_id,) = living(path)
        (size,) = (p.stat().st_size for p in path.glob(f"*/{file_id}*"))
        assert size == result.finished[0].bytes_made
    check_nothing_left(path)


@one_of("version", 9, 8, 6)
def test_hudi_at_work_is_left_alone(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    instant = request(path, alive=False)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    inflight = path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))
    inflight.write_bytes(b"")
    result = cluster(path)
    assert (result.done, result.finished) == (None, ())
    with pytest.raises(ConflictError, match="Hudi"):
        cancel_clustering(open_table(path), pending, LOCK, "test")
    assert open_table(path).load_timeline().find(instant, "replacecommit") is not None
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_taken_back_by_command(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    instant = request(path)
    with pytest.raises(ConflictError, match="at work"):
        cancel_pending_clusterings(open_table(path), LOCK)
    forget_heartbeats(path)
    assert cancel_pending_clusterings(open_table(path), LOCK) == (instant,)
    check_nothing_left(path)
    table = open_table(path)
    assert instant in table.times.reserved(table.load_timeline())
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}


@one_of("version", 6, 9, 8)
def test_a_restore_undoes_what_a_dead_process_left(version: int, tmp_path: Path) -> None:
    """Wherever it died: its plan is no write that may go on."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    target = max(open_table(path).load_timeline().completed_writes)

    def work(storage: Storage) -> object:
        return cluster(Path(storage.base_path), storage)

    for copy in died_or_ended(path, work, (0, 3)):
        forget_heartbeats(copy)
        restore_table(open_table(copy), LOCK, target)
        assert read_rows(copy) == rows
        upsert(copy, one_row("k1", 100))
        tidy(open_table(copy), LOCK)
        check_nothing_left(copy)
        assert read_rows(copy) == {**rows, "k1": (100, 100.0)}


@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_process_that_wakes_up_late(version: int, tmp_path: Path) -> None:
    """It sleeps right before it places a file; meanwhile its plan is taken back. Its file never gets its name."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    asleep: list[str] = []

    def meanwhile(call: Call) -> object:
        if call.name == "place" and of_clustering(call.path) and not asleep:
            asleep.append(call.path)
            forget_heartbeats(path)
            (pending,) = pending_clusterings(open_table(path).snapshot())
            lock = type(LOCK)("another: the lock of the sleeper was lost")
            assert not cancel_clustering(open_table(path), pending, lock, "test")  # it is decided
            assert cancel_clustering(open_table(path), pending, lock, "test", decided_too=True)
        return call.do()

    with pytest.raises(PhantombaseError):
        cluster(path, HookedStorage(open_table(path).storage, meanwhile))
    instants = {i.requested_time for i in open_table(path).load_timeline().completed}
    files = [parse_data_file(p.name) for p in path.glob("*/*.parquet")]
    assert all(name is not None and name.instant in instants for name in files)
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_files_that_a_dead_process_staged_before_its_plan_are_adopted(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 4)
    size = 3 * max(file.stat().st_size for file in path.glob("*/*.parquet")) // 2
    two = ClusterOptions(min_files=2, target_size=size, small_size=size, wait_s=0)
    instant, made = request(path, alive=False, options=two), list[str]()
    tidy(open_table(path), LOCK)  # as before a clean

    def notes(call: Call) -> object:
        made.extend([call.path] if call.name == "open_output" else [])
        return call.do()

    result = cluster(path, HookedStorage(open_table(path).storage, notes), two)
    assert [(one.instant, one.made) for one in result.finished] == [(instant, 2)]
    assert not [one for one in made if instant in one]
    assert read_rows(path) == rows
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_a_plan_that_took_the_time_of_a_compaction_is_taken_back(version: int, tmp_path: Path) -> None:
    """Its process had lost the lock when it put the plan. Records and files of that time are the compaction's."""
    path = tmp_path / "t"
    small_files(path, version, 3)
    upsert(path, one_row("k1", 50))
    compact(path)
    (done,) = (one for one in open_table(path).load_timeline().completed if one.family == "commit")
    rows = read_rows(path)
    request(path)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    plan = path / open_table(path).instant_path(pending.requested)
    late = plan.rename(plan.with_name(f"{done.requested_time}.{plan.name.partition('.')[2]}"))
    forget_heartbeats(path)
    would = cluster_table(open_table(path), TWO, LOCK, output=OUTPUT, dry_run=True)
    assert would.cancelled == (done.requested_time,)
    upsert(path, one_row("k2", 60), impatient(WRITES))
    assert not late.exists()
    assert read_rows(path) == {**rows, "k2": (60, 60.0)}


@one_of("version", 9, 6)
def test_a_plan_is_not_put_at_the_time_of_another_action(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows, put = small_files(path, version, 3), list[Path]()

    def late(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith("ing.requested" if version == 9 else "commit.requested"):
            plan = path / call.path
            put.append(plan)
            plan.with_name(f"{plan.name.partition('.')[0]}.compaction.requested").write_bytes(b"")
        return call.do()

    with pytest.raises(ConflictError, match="another process began an action at the same instant"):
        cluster_table(open_table(path, HookedStorage(LocalStorage(str(path)), late)), TWO, LOCK, output=OUTPUT)
    assert not put[0].exists()
    put[0].with_name(f"{put[0].name.partition('.')[0]}.compaction.requested").unlink()
    assert read_rows(path) == rows
