"""Writes, and other runs, concurrently with a clustering: what changed meanwhile is seen, and no row is doubled."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.timeline.clocks import Stopwatch
from phantombase.timeline.errors import (
    BarrierError,
    ClusteringConflictError,
    ConflictError,
    LockError,
    PhantombaseError,
)
from phantombase.timeline.locks.section import Section
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import (
    OUTPUT,
    TWO,
    WRITES,
    begin,
    cluster,
    compact,
    forget_heartbeats,
    hidden,
    living,
    one_row,
    opens_attempt,
    overwrite,
    request,
    small_files,
    upsert,
)
from tests.support.clock import sleeps
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, pause_at
from tests.support.faults import request_rollback
from tests.support.golden_tables import LOCK, one_of
from tests.support.places import SEED
from tests.support.selection import ALL
from tests.support.written_tables import check_nothing_left, impatient, read_rows, seed_note

UPSERT = Write(operation=Operation.UPSERT, options=WRITES)


def calls_of_a_clustering(path: Path) -> list[Call]:
    """The calls of the storage in a clustering of a table that nothing disturbs."""
    counted: list[Call] = []

    def note(call: Call) -> object:
        counted.append(call)
        return call.do()

    cluster(path, HookedStorage(open_table(path).storage, note))
    return counted


@one_of("version", 9, 6)
def test_two_at_once(version: int, tmp_path: Path) -> None:
    """Another run clusters in the middle of one, at every call: one of them completes, and no row is doubled."""
    origin = tmp_path / "origin"
    rows = small_files(origin, version, 3)
    counted = calls_of_a_clustering(shutil.copytree(origin, tmp_path / "whole"))
    numbers, clustered = range(0, len(counted), 1 if ALL else 13), 0
    for number in numbers:
        path = shutil.copytree(origin, tmp_path / f"two-{number}")
        threads: list[threading.Thread] = []

        def other(path: Path = path, threads: list[threading.Thread] = threads) -> None:
            forget_heartbeats(path)
            stands = threading.Event()  # it waits for the lock of the one that is paused, or has ended

            def run() -> None:
                _quiet(lambda: cluster_table(open_table(path), TWO, Noticed(stands), output=OUTPUT))
                stands.set()

            threads.append(threading.Thread(target=run))
            threads[0].start()
            assert stands.wait(60)

        with seed_note(SEED, version, number):
            _quiet(partial(cluster, path, HookedStorage(open_table(path).storage, pause_at(number, other))))
            for thread in threads:
                thread.join()
            assert read_rows(path) == rows
            clustered += len(living(path)) == 1
            cluster(path)
            assert read_rows(path) == rows
            assert len(living(path)) == 1
        shutil.rmtree(path)
    assert clustered > len(numbers) / 2


class Noticed:
    """The lock, and an event when somebody waits for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._waits = waits

    @contextlib.contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        with contextlib.ExitStack() as stack:
            try:
                section = stack.enter_context(replace(LOCK, timeout_s=0.0).hold(purpose))
            except LockError:
                self._waits.set()
                section = stack.enter_context(LOCK.hold(purpose))
            yield section


def _quiet(do: Callable[[], object]) -> None:
    with contextlib.suppress(PhantombaseError):
        do()


@one_of("version", 9, 8, 6)
def test_writers_respect_a_plan(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path)
    with pytest.raises(ConflictError, match="clustering"):
        upsert(path, one_row("k1", 100))
    upsert(path, one_row("new", 100))
    assert schedule_compaction(open_table(path), LOCK, PLAN_NOW).instant is None
    rows["new"] = (100, 100.0)
    assert read_rows(path) == rows
    assert cluster(path).finished == ()  # its process lives
    forget_heartbeats(path)
    result = cluster(path)
    assert [one.files for one in result.finished] == [4]
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}


@one_of("version", 9, 6, 8)
@pytest.mark.parametrize("how", ["completes", "dies"])
def test_an_update_waits_for_a_clustering(
    version: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is written to the new file group, or, if the process dies, to the old one."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            forget_heartbeats(path)
            if how == "completes":
                assert [one.files for one in cluster(path).finished] == [4]

    sleeps(monkeypatch, sleep)
    done = write(open_table(path), LocalEngine(one_row("k1", 100), slots=1), UPSERT)
    assert done.waited_s > 0
    assert (len(slept), len(living(path))) == (3, 1 if how == "completes" else 4)
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_an_update_waits_for_a_clustering_of_hudi(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for one that Hudi has not begun. It is not tried again and again meanwhile: each try stages all rows, and
    leaves a rollback on the timeline."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    instant = request(path, alive=False)
    plan = next(path.glob(f".hoodie/**/{instant}.*.requested"))
    plan.write_bytes(plan.read_bytes().replace(b"phantombase.file_id", b"the.file_id.of.hudi"))
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            plan.unlink()

    sleeps(monkeypatch, sleep)
    upsert(path, one_row("k1", 100), replace(WRITES, clustering_wait_s=5))
    assert len(slept) == 3
    assert len([*path.glob(".hoodie/**/*.rollback")]) == 1
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}


def test_an_update_waits_for_a_clustering_no_longer_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first conflict on, also if one clustering follows another; nothing of the write is left."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    request(path)
    now = [1000.0]
    monkeypatch.setattr(Stopwatch, "seconds", lambda self: now[0] - 1000.0)
    sleeps(monkeypatch, lambda seconds: now.append(now.pop() + 200.0))
    with pytest.raises(ClusteringConflictError, match="clustering_wait_s"):
        upsert(path, one_row("k1", 100), replace(WRITES, clustering_wait_s=600))
    assert now == [1600.0]
    assert read_rows(path) == rows


@one_of("version", 6, 9, 8)
def test_a_clustering_is_no_conflict_for_inserts(version: int, tmp_path: Path) -> None:
    """A write of new keys goes on in the same partition while a clustering completes."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path)

    def meanwhile(call: Call) -> object:
        if call.name == "place" and "/writes/" in call.path:
            forget_heartbeats(path)
            cluster(path)
        return call.do()

    batch = LocalEngine(one_row("new", 7), slots=1)
    storage = HookedStorage(open_table(path).storage, meanwhile)
    write(open_table(path, storage), batch, Write(operation=Operation.UPSERT, options=WRITES))
    assert read_rows(path) == {**rows, "new": (7, 7.0)}
    assert len(living(path)) == 2


@one_of("version", 9, 8, 6)
def test_what_a_compaction_plans_is_left_to_it(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    upsert(path, one_row("k0", 9))
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    result = cluster(path)
    assert result.kept == {"in a pending compaction": 1}
    assert result.done is not None
    assert result.done.files == 3
    compact(path)
    assert read_rows(path) == {**rows, "k0": (9, 9.0)}


@one_of("version", 6, 9, 8)
def test_a_column_that_came_meanwhile_stays(version: int, tmp_path: Path) -> None:
    """A write that began before the plan adds it, and completes while the files are made: no schema is set back."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    wide = one_row("wide", 5).append_column("tip", pa.array([1.5]))
    threads: list[threading.Thread] = []

    def meanwhile(call: Call) -> object:
        if call.name == "place" and "/writes/" in call.path and not threads:
            patient = ClusterOptions(min_files=2, wait_s=60)
            threads.append(threading.Thread(target=cluster, args=(path, None, patient)))
            threads[0].start()
            deadline = time.monotonic() + 60
            while not _is_waiting(path):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return call.do()

    batch = LocalEngine(wide, slots=1)
    storage = HookedStorage(open_table(path).storage, meanwhile)
    write(open_table(path, storage), batch, Write(operation=Operation.UPSERT, options=WRITES))
    threads[0].join()
    assert len(living(path)) == 2
    table = open_table(path)
    (done,) = (i for i in table.load_timeline().completed if i.action == "replacecommit")
    assert "tip" in table.commit_metadata(done).extra_metadata["schema"]
    after = read_table(open_table(path))
    assert dict(zip(after["id"].to_pylist(), after["tip"].to_pylist(), strict=True)) == {
        **dict.fromkeys(rows),
        "wide": 1.5,
    }


def _is_waiting(path: Path) -> bool:
    """Whether a clustering has an attempt, which waits."""
    pending = pending_clusterings(open_table(path).snapshot())
    return any(list((path / RECORDS / one.time).glob("*/open")) for one in pending)


@one_of("version", 9, 8, 6)
def test_a_changed_input_takes_the_plan_back(version: int, tmp_path: Path) -> None:
    """A writer that does not know of clusterings adds a log file to a planned file group."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    instant = request(path, alive=False)
    aside = {p: p.read_bytes() for p in path.rglob(f"{instant}*") if p.is_file()}
    for p in aside:
        p.unlink()
    upsert(path, one_row("k1", 100))
    for p, data in aside.items():
        p.write_bytes(data)
    rows["k1"] = (100, 100.0)
    dry = cluster_table(open_table(path), TWO, LOCK, output=OUTPUT, dry_run=True)
    assert (dry.finished, dry.cancelled) == ((), (instant,))
    result = cluster(path)
    assert result.cancelled == (instant,)
    assert result.done is not None
    assert (result.done.files, living(path)) == (4, living(path)[:1])
    assert read_rows(path) == rows
    check_nothing_left(path)


def while_making(path: Path, do: Callable[[], object]) -> Storage:
    """A storage of a clustering during which something happens once, when its plan is visible."""
    done: list[str] = []

    def hook(call: Call) -> object:
        if opens_attempt(call) and not done:
            done.append(call.path)
            do()
        return call.do()

    return HookedStorage(open_table(path).storage, hook)


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT_OVERWRITE])
def test_an_input_that_changes_while_the_file_is_made(version: int, operation: Operation, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    do = upsert if operation is Operation.UPSERT else overwrite
    storage = while_making(path, lambda: hidden(path, lambda: do(path, one_row("k1", 100))))
    with pytest.raises(ConflictError, match="not as they were"):
        cluster(path, storage)
    expected = {**rows, "k1": (100, 100.0)} if operation is Operation.UPSERT else {"k1": (100, 100.0)}
    assert read_rows(path) == expected
    check_nothing_left(path)


@one_of("version", 6, 9, 8)
def test_an_overwrite_that_begins_while_the_file_is_made(version: int, tmp_path: Path) -> None:
    """As of a writer that does not ask for clusterings: it replaces the old file groups, and not the new one."""
    path = tmp_path / "trips"
    rows = small_files(path, version)

    with pytest.raises(BarrierError, match="pending write"):
        cluster(path, while_making(path, lambda: begin(path, "replacecommit")))
    assert not pending_clusterings(open_table(path).snapshot())
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_a_rollback_that_begins_while_the_file_is_made(version: int, tmp_path: Path) -> None:
    """Of a completed write, whose rows would stay in the new file."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    with pytest.raises(ConflictError, match=r"a rollback of .* is pending"):
        cluster(path, while_making(path, lambda: request_rollback(path)))
    assert not pending_clusterings(open_table(path).snapshot())
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_another_process_is_first(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)

    def other() -> None:
        forget_heartbeats(path)
        assert len(cluster(path).finished) == 1

    assert cluster(path, while_making(path, other)).done is None
    assert read_rows(path) == rows
    assert len(living(path)) == 1
    check_nothing_left(path)


@one_of("version", 9, 8, 6)
def test_a_write_that_began_before_the_plan_is_waited_for(version: int, tmp_path: Path) -> None:
    """It may not know the plan. It ends, or the plan is taken back; its log files are never lost."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    table = open_table(path)
    began = table.snapshot().next_time()
    folder = path / table.config.timeline_folder
    for state in ("requested", "inflight"):
        (folder / f"{began}.deltacommit.{state}").write_bytes(b"")
    with pytest.raises(BarrierError, match="pending write"):
        cluster(path)
    assert not pending_clusterings(open_table(path).snapshot())
    assert read_rows(path) == rows
    for state in ("requested", "inflight"):
        (folder / f"{began}.deltacommit.{state}").unlink()
    assert cluster(path).done is not None
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_a_pending_overwrite_is_waited_for(version: int, tmp_path: Path) -> None:
    """It has chosen the file groups that it replaces: the new one would stay beside its rows."""
    path = tmp_path / "trips"
    small_files(path, version)

    def meanwhile(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".hoodie_partition_metadata"):
            with pytest.raises(BarrierError):
                cluster(path)
        return call.do()

    overwrite(path, one_row("only", 7), HookedStorage(open_table(path).storage, meanwhile))
    assert read_rows(path) == {"only": (7, 7.0)}
    cluster(path)
    assert read_rows(path) == {"only": (7, 7.0)}


@one_of("version", 6, 9, 8)
def test_an_overwrite_under_a_plan(version: int, tmp_path: Path) -> None:
    """An overwrite refuses file groups of a pending clustering, as Hudi's do."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path)
    with pytest.raises(ClusteringConflictError):
        overwrite(path, one_row("only", 7))
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_a_write_in_the_middle_of_a_clustering(version: int, tmp_path: Path) -> None:
    """At every call; the clustering has lost its lock, and its heartbeat is gone: no row is lost or doubled."""
    origin = tmp_path / "origin"
    rows = small_files(origin, version, 3)
    counted = calls_of_a_clustering(shutil.copytree(origin, tmp_path / "whole"))
    wrote = 0
    for number in range(0, len(counted), 1 if ALL else 11):
        path = shutil.copytree(origin, tmp_path / f"write-{number}")
        expected = dict(rows)

        def other(path: Path = path, expected: dict[str, tuple[int, float]] = expected) -> None:
            forget_heartbeats(path)
            with contextlib.suppress(PhantombaseError):
                upsert(path, one_row("k1", 50), impatient(WRITES))
                expected["k1"] = (50, 50.0)

        with seed_note(SEED, version, number):
            _quiet(partial(cluster, path, HookedStorage(open_table(path).storage, pause_at(number, other))))
            assert read_rows(path) == expected
            forget_heartbeats(path)
            upsert(path, one_row("k2", 60), impatient(WRITES))
            assert read_rows(path) == {**expected, "k2": (60, 60.0)}
        wrote += expected != rows
        shutil.rmtree(path)
    assert wrote > (8 if ALL else 3)
