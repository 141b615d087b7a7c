"""Clusters: no row changes, what changed meanwhile is seen, and what a dead process left is finished or taken back."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.attempt.needed_records import tidy
from phantombase.compactor_daemon.attempt.outcome import find_decision
from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cancel import cancel_clustering, cancel_pending_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping, SortOrder
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.audit.audit import Verdict
from phantombase.timeline.audit.clusterings import audit_clustering
from phantombase.timeline.clocks import Stopwatch
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import (
    BarrierError,
    ClusteringConflictError,
    ConflictError,
    LockError,
    PhantombaseError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import State, later
from phantombase.timeline.instants.reserved_times import put_tombstone
from phantombase.timeline.locks.section import Section
from phantombase.timeline.metadata_table import index_logs
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import (
    COPIED,
    ONE,
    OUTPUT,
    SMALL,
    TWO,
    WRITES,
    begin,
    cluster,
    compact,
    forget_heartbeats,
    golden_small_files,
    hidden,
    living,
    of_clustering,
    one_row,
    opens_attempt,
    overwrite,
    rename,
    request,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, pause_at
from tests.support.faults import Faults, died_or_ended, request_rollback
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.places import SEED
from tests.support.record_indexes import check_index, set_partitions, true_places
from tests.support.record_indexes import rows as index_rows
from tests.support.selection import ALL, deep
from tests.support.written_tables import check_nothing_left, impatient, read_rows, seed_note, written_table

AT_ONCE = replace(WRITES, clustering_wait_s=0)
UPSERT = Write(operation=Operation.UPSERT, options=WRITES)
VERSIONS = pytest.mark.parametrize("version", [6, 8, 9])


@VERSIONS
def test_no_row_changes(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 6)
    before = read_table(open_table(path)).sort_by("id")
    done = cluster(path).done
    assert done is not None
    assert (done.files, done.made, done.rows) == (6, 1, 6)
    (file_id,) = living(path)
    after = read_table(open_table(path)).sort_by("id")
    kept = [name for name in before.column_names if name != "_hoodie_file_name"]
    assert after.select(kept) == before.select(kept)
    assert {name.split("_")[0] for name in after["_hoodie_file_name"].to_pylist()} == {file_id}
    check_nothing_left(path)
    # Writers, compactors, the cleaner and the archiver go on behind it.
    upsert(path, one_row("k3", 100))
    compact(path)
    rows["k3"] = (100, 100.0)
    assert read_rows(path) == rows
    assert clean_table(open_table(path), ONE, LOCK).files >= 6
    for number in range(4):
        upsert(path, one_row("k0", 200 + number))
    rows["k0"] = (203, 203.0)
    archive_table(open_table(path), SMALL, LOCK)
    assert done.instant not in {i.requested_time for i in open_table(path).load_timeline().instants}
    assert read_rows(path) == rows
    assert living(path) == [file_id]


@one_of("version", 9, 8, 6)
def test_a_read_of_the_past_and_an_incremental_one(version: int, tmp_path: Path) -> None:
    """A clustering is no change: an incremental read does not deliver its rows."""
    path = tmp_path / "trips"
    small_files(path, version)
    commits = [i.completion_time or i.requested_time for i in open_table(path).load_timeline().completed]
    since = {c: read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin=c)).num_rows for c in commits}
    cluster(path)
    for number, commit in enumerate(commits):
        assert read_table(open_table(path), ReadOptions(as_of=commit)).num_rows == number + 1
        assert (
            read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin=commit)).num_rows == since[commit]
        )


@one_of("name", "v6_with_metadata_table", "v9_with_metadata_table")
def test_the_metadata_table_names_the_new_file(name: str, tmp_path: Path) -> None:
    path = golden_small_files(name, tmp_path)
    before = read_table(open_table(path))
    done = cluster(path).done
    assert done is not None
    assert (done.files >= 6, done.made) == (True, 2)
    after = read_table(open_table(path))
    kept = [column for column in before.column_names if column != "_hoodie_file_name"]
    assert after.sort_by("id").select(kept) == before.sort_by("id").select(kept)
    assert validate(open_table(path)).differences == ()


def indexed(version: int, tmp_path: Path) -> Path:
    """A table of Hudi with a record index of two file groups; some keys are deleted, one is below a delete as well."""
    path = unzip_golden(f"more/v{version}_record_index", tmp_path)
    writer(index_rows(range(20, 40), 10)).option(small_file_bytes=0).upsert(str(path))
    writer(index_rows((4, 21), 11)).delete(str(path))
    return path


@one_of("version", 9, 6, 8)
@pytest.mark.parametrize("portion", [3, deep(1 << 19)])
def test_the_record_index_names_the_new_file(
    version: int, portion: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it, behind writes of the same keys, another clustering into several files, and a rollback of it."""
    monkeypatch.setattr(index_logs, "_PORTION_ROWS", portion)
    monkeypatch.setattr(index_logs, "_FILES_MAX", 1)
    path = indexed(version, tmp_path)
    before = check_index(path)
    done = cluster(path).done
    assert done is not None
    after = check_index(path)
    assert before.keys() == after.keys()
    assert {file_id for _, file_id in after.values()}.isdisjoint(file_id for _, file_id in before.values())
    check_nothing_left(path)
    writer(index_rows(range(0, 50, 2), 20)).upsert(str(path))
    writer(index_rows((6, 7), 21)).delete(str(path))
    last = check_index(path)
    assert cluster(path, options=replace(SIZED, target_size=100_000, sort_by=("id",))).done is not None
    assert check_index(path).keys() == last.keys()
    roll_back_newest(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))
    assert check_index(path) == last


@one_of("version", 6, 9, 8)
def test_the_record_index_behind_a_dead_process(version: int, tmp_path: Path) -> None:
    """At any call that changes something: the next process makes its log files again, from the placed files."""
    origin = indexed(version, tmp_path)
    places = check_index(origin)
    work = Faults.of(origin, lambda s: cluster(Path(s.base_path), s), share=(0, 7))
    for _, path in work.deaths():
        assert true_places(path).keys() == places.keys()
        forget_heartbeats(path)
        cluster(path)
        assert check_index(path).keys() == places.keys()
        writer(index_rows((5, 22), 30)).upsert(str(path))
        assert check_index(path).keys() == places.keys()
        check_nothing_left(path)


def test_other_indexes_are_refused_by_name(tmp_path: Path) -> None:
    path = indexed(9, tmp_path)
    before = sorted(p.name for p in path.rglob("*"))
    for name in ("secondary_index_ts", "expr_index_ts"):
        set_partitions(path, f"files,record_index,{name}")
        with pytest.raises(UnsupportedError, match=name):
            cluster(path)
        assert sorted(p.name for p in path.rglob("*")) == before


def test_keys_that_the_record_index_cannot_hold(tmp_path: Path) -> None:
    """Nothing is pending behind the error, and the index is kept."""
    path = indexed(9, tmp_path)
    partitions = ",".join(open_table(path).config.metadata_partitions)
    writer(index_rows((3,), 30).set_column(0, "id", pa.array(["\U0001f600"]))).upsert(str(path))
    set_partitions(path, partitions)
    rows = true_places(path)
    with pytest.raises(UnsupportedError, match="cannot hold"):
        cluster(path)
    assert true_places(path) == rows
    assert open_table(path).config.metadata_partitions == tuple(partitions.split(","))
    assert pending_clusterings(open_table(path), open_table(path).load_timeline()) == ()


def test_a_bucket_index_is_refused(tmp_path: Path) -> None:
    path = unzip_golden("v9_bucket_nonpart", tmp_path)
    before = sorted(p.name for p in path.rglob("*"))
    with pytest.raises(UnsupportedError, match="bucket"):
        cluster(path)
    assert sorted(p.name for p in path.rglob("*")) == before


@pytest.mark.parametrize(("version", "options"), [(6, TWO), deep(8, TWO), deep(9, TWO), (9, COPIED), deep(6, COPIED)])
def test_a_dead_process_at_every_call(version: int, options: ClusterOptions, tmp_path: Path) -> None:
    origin, died = tmp_path / "origin", 0
    rows = small_files(origin, version, 3)
    for died, path in enumerate(  # noqa: B007
        died_or_ended(origin, lambda s: cluster_table(Table.on(s), options, LOCK, output=OUTPUT))
    ):
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
    assert died > 8


@pytest.mark.parametrize(("version", "options", "part"), [(6, TWO, 0), (9, COPIED, 1), deep(9, TWO, 0)])
def test_an_error_at_every_call(version: int, options: ClusterOptions, part: int, tmp_path: Path) -> None:
    origin, said = tmp_path / "origin", 0
    rows = small_files(origin, version, 3)
    work = Faults.of(origin, lambda storage: cluster(Path(storage.base_path), storage, options), share=(part, 2))
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
    assert said > 8


@one_of("version", 9, 6)
def test_two_at_once(version: int, tmp_path: Path) -> None:
    """Another run clusters in the middle of one, at every call: one of them completes, and no row is doubled."""
    origin = tmp_path / "origin"
    rows = small_files(origin, version, 3)
    counted: list[Call] = []

    def note(call: Call) -> object:
        counted.append(call)
        return call.do()

    cluster(shutil.copytree(origin, tmp_path / "whole"), HookedStorage(open_table(tmp_path / "whole").storage, note))
    numbers, clustered = range(0, len(counted), 1 if ALL else 7), 0
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
        upsert(path, one_row("k1", 100), AT_ONCE)
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


def _sleeps(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], object]) -> None:
    """In the place of `time.sleep` in this thread; others, such as heartbeats, sleep."""
    others = time.sleep
    this = threading.current_thread()
    monkeypatch.setattr(time, "sleep", lambda s: (sleep if threading.current_thread() is this else others)(s))


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

    _sleeps(monkeypatch, sleep)
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

    monkeypatch.setattr(time, "sleep", sleep)
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
    _sleeps(monkeypatch, lambda seconds: now.append(now.pop() + 200.0))
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


@one_of("version", 9, 8, 6)
def test_a_write_takes_a_dead_clustering_back(version: int, tmp_path: Path) -> None:
    """Otherwise updates of its files would fail until the next run."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path, alive=False)
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


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
    pending = pending_clusterings(open_table(path), open_table(path).load_timeline())
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
    assert not pending_clusterings(open_table(path), open_table(path).load_timeline())
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_a_rollback_that_begins_while_the_file_is_made(version: int, tmp_path: Path) -> None:
    """Of a completed write, whose rows would stay in the new file."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    with pytest.raises(ConflictError, match=r"a rollback of .* is pending"):
        cluster(path, while_making(path, lambda: request_rollback(path)))
    assert not pending_clusterings(open_table(path), open_table(path).load_timeline())
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
def test_a_write_that_began_before_the_plan_is_waited_for(version: int, tmp_path: Path) -> None:
    """It may not know the plan. It ends, or the plan is taken back; its log files are never lost."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    table = open_table(path)
    began = table.next_time(table.load_timeline())
    folder = path / table.config.timeline_folder
    for state in ("requested", "inflight"):
        (folder / f"{began}.deltacommit.{state}").write_bytes(b"")
    with pytest.raises(BarrierError, match="pending write"):
        cluster(path)
    assert not pending_clusterings(open_table(path), open_table(path).load_timeline())
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
    how = Write(operation=Operation.INSERT_OVERWRITE, options=AT_ONCE)
    with pytest.raises(ClusteringConflictError):
        write(open_table(path), LocalEngine(one_row("only", 7), slots=1), how)
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_hudi_at_work_is_left_alone(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    instant = request(path, alive=False)
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
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

    for copy in died_or_ended(path, work):
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
            (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
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


def test_a_schema_that_grew(tmp_path: Path) -> None:
    """Old files lack a column: it is null in the new one."""
    path = tmp_path / "trips"
    small_files(path, 9)
    wide = one_row("wide", 5).append_column("tip", pa.array([1.5]))
    upsert(path, wide)
    before = read_table(open_table(path)).sort_by("id")
    assert cluster(path).done is not None
    after = read_table(open_table(path)).sort_by("id")
    assert after["tip"].to_pylist() == before["tip"].to_pylist()
    assert pc.sum(after["tip"]).as_py() == 1.5


SIZED = ClusterOptions(grouping=Grouping.SIZE, target_size=400_000, wait_s=0)


def batch(keys: Iterable[str], number: int) -> pa.Table:
    return pa.concat_tables([one_row(key, number + n % 17) for n, key in enumerate(keys)])


def with_logs(path: Path, version: int) -> dict[str, tuple[int, float]]:
    """Three base files; two have updates, some of them older than what is there, and deletes in log files. The rows."""
    written_table(path, version, batch((f"k0-{n}" for n in range(90)), 10), WRITES)
    for number in (1, 2):
        upsert(path, batch((f"k{number}-{n}" for n in range(90)), 10), WRITES)
    upsert(path, batch((f"k{number}-{n}" for number in (0, 1) for n in range(0, 90, 3)), 90))
    upsert(path, batch((f"k0-{n}" for n in range(5)), 1))
    gone = LocalEngine(batch((f"k1-{n}" for n in range(4)), 200), slots=1)
    write(open_table(path), gone, Write(operation=Operation.DELETE, options=WRITES))
    return read_rows(path)


@VERSIONS
def test_slices_with_logs_are_merged(version: int, tmp_path: Path) -> None:
    """As a compaction merges them; several sorted files, and the audit proves them."""
    path = tmp_path / "trips"
    rows = with_logs(path, version)
    options = replace(SIZED, sort_by=("fare",))
    would = cluster_table(open_table(path), options, LOCK, output=OUTPUT, dry_run=True).done
    done = cluster(path, options=options).done
    assert done is not None
    assert would is not None
    assert (would.files, would.bytes, would.made) == (done.files, done.bytes, done.made)
    assert (done.files, done.rows) == (3, len(rows))
    assert done.made == len(living(path)) > 1
    assert read_rows(path) == rows
    names = [name for name in sorted(p.name for p in path.glob("*/*.parquet")) if name.split("_")[0] in living(path)]
    fares = [pq.read_table(path / "a" / name, partitioning=None)["fare"].to_pylist() for name in names]
    assert [*chain(*fares)] == sorted(chain(*fares))
    audited = audit_clustering(open_table(path), done.instant)
    assert audited.good
    assert {group.verdict for group in audited.groups} == {Verdict.PROVED}
    check_nothing_left(path)
    # What is sorted is not sorted again; what was written since is.
    assert cluster(path, options=options).why == "what is chosen is sorted already"
    upsert(path, one_row("k2-1", 200))
    again = cluster(path, options=options).done
    assert again is not None
    assert again.files < done.made
    assert read_rows(path) == rows | {"k2-1": (200, 200.0)}
    clean_table(open_table(path), ONE, LOCK)
    assert read_rows(path) == rows | {"k2-1": (200, 200.0)}


@VERSIONS
def test_a_group_whose_rows_are_all_deleted(version: int, tmp_path: Path) -> None:
    """It becomes no file, and its slices are replaced."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 2)
    write(open_table(path), LocalEngine(one_row("k1", 50), slots=1), Write(operation=Operation.DELETE, options=WRITES))
    write(open_table(path), LocalEngine(one_row("k0", 50), slots=1), Write(operation=Operation.DELETE, options=WRITES))
    done = cluster(path, options=replace(SIZED, target_size=4 << 20)).done
    assert done is not None
    assert (done.files, done.made, done.rows) == (2, 0, 0)
    assert (read_rows(path), living(path)) == ({}, [])
    assert audit_clustering(open_table(path), done.instant).good
    upsert(path, one_row("k0", 7))
    assert read_rows(path) == {"k0": (7, 7.0)} != rows


@one_of("version", 9, 6)
def test_partitions_by_a_condition(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version, 2)
    for number in range(2):
        upsert(path, pa.table([[f"b{number}"], ["b"], [number], [1.0]], schema=one_row("", 0).schema), WRITES)
    rows = read_rows(path)
    with pytest.raises(UsageError, match="folders"):
        cluster(path, options=replace(TWO, where="day = 'b' and fare > 1"))
    assert cluster(path, options=replace(TWO, where="day > 'b'")).why == "no partition is chosen"
    done = cluster(path, options=replace(TWO, where="day = 'b'")).done
    assert done is not None
    assert (done.files, len(living(path)), read_rows(path)) == (2, 3, rows)


@pytest.mark.parametrize("version", [9, deep(8), deep(6)])
def test_what_an_archived_clustering_sorted(version: int, tmp_path: Path) -> None:
    """The archive of version 6 has no plans that phantombase reads: unknown, so it is sorted again."""
    path = tmp_path / "trips"
    rows = with_logs(path, version)
    options = replace(SIZED, sort_by=("fare", "ts"), target_size=600_000)
    done = cluster(path, options=options).done
    assert done is not None
    for other in OTHER_ORDERS:
        how = replace(options, **other)
        would = cluster_table(open_table(path), how, LOCK, output=OUTPUT, dry_run=True)
        assert would.done is not None
    for number in range(6):
        upsert(path, pa.table([["b"], ["b"], [number], [1.0]], schema=one_row("", 0).schema))
    rows["b"] = (5, 1.0)
    clean_table(open_table(path), ONE, LOCK)
    archive_table(open_table(path), SMALL, LOCK)
    assert done.instant not in {i.requested_time for i in open_table(path).load_timeline().instants}
    last = cluster(path, options=replace(options, where="day = 'a'"))
    assert (last.done is None) is (version != 6)
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_slices_of_archived_writes_behind_the_start(version: int, tmp_path: Path) -> None:
    """A write of a slow clock is the start of the timeline: only the archive shows that the others completed."""
    path = tmp_path / "trips"
    small_files(path, version)
    for number in range(10, 16):
        upsert(path, one_row("k1", number))
    assert archive_table(open_table(path), SMALL, LOCK).archived
    archived = open_table(path).load_timeline(archived=True).archived
    upsert(path, pa.table([["slow"], ["b"], [1], [1.0]], schema=one_row("", 0).schema))
    rename(path, -1, later(min(i.requested_time for i in archived), 1))
    rows = read_rows(path)
    done = cluster(path, options=replace(SIZED, sort_by=("fare",))).done
    assert done is not None
    assert done.files >= 4
    assert read_rows(path) == rows


OTHER_ORDERS = ({"sort_by": ("ts", "fare")}, {"sort_by": ("fare",)}, {"sort_order": SortOrder.ZORDER})


# A clustering is an attempt: its decision, and what it takes over of a dead one.


def dies_at(path: Path, at: Callable[[Call], bool], *, behind: bool = False, alive: bool = False) -> None:
    """A clustering whose process dies before, or behind, a call. `alive`: it seems to live."""
    dead: list[str] = []

    def hook(call: Call) -> object:
        if dead:
            raise ProcessDied(call.path)
        if not at(call):
            return call.do()
        dead.append(call.path)
        if behind:
            call.do()
        raise ProcessDied(call.path)

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    if not alive:
        forget_heartbeats(path)


def decides(call: Call) -> bool:
    return call.name == "put_if_absent" and call.path.endswith("/outcome")


@one_of("version", 9, 6, 8)
def test_files_get_their_names_behind_the_inflight_file_and_their_markers(version: int, tmp_path: Path) -> None:
    """Else Hudi, which executes the plan when it finds it, doubles every row: it has nothing to roll back."""
    path = tmp_path / "trips"
    small_files(path, version)
    placed: list[str] = []

    def hook(call: Call) -> object:
        if call.name == "place" and of_clustering(call.path):
            (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
            assert (path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))).read_bytes()
            decision = find_decision(open_table(path).storage, pending.time)
            assert decision is not None
            (final,) = (one.final for one in decision.placements if one.staged == call.path)
            assert (path / ".hoodie/.temp" / pending.time / f"{final}.marker.CREATE").exists()
            placed.append(final)
        return call.do()

    assert cluster(path, HookedStorage(open_table(path).storage, hook)).done is not None
    assert len(placed) == 1
    check_nothing_left(path)


@one_of("version", 6, 9, 8)
def test_a_decided_clustering_waits_for_a_write_that_may_change_its_files(version: int, tmp_path: Path) -> None:
    """The write does not ask for clusterings. The decision is neither published nor taken back until it has ended."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    begin(path, "replacecommit")
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    decision = find_decision(open_table(path).storage, pending.time)
    assert decision is not None
    with pytest.raises(ConflictError, match="is pending, which may change its files"):
        publish(open_table(path), decision, LOCK)
    assert not cancel_clustering(open_table(path), pending, LOCK, "test")
    assert find_decision(open_table(path).storage, pending.time) == decision
    for file in (path / open_table(path).config.timeline_folder).glob("*.replacecommit.*"):
        if not file.name.startswith(pending.time):
            file.unlink()
    assert [one.instant for one in cluster(path).finished] == [pending.time]
    assert read_rows(path) == rows
    assert len(living(path)) == 1


@one_of("version", 9, 6)
def test_a_decision_behind_a_tombstone_is_not_published(version: int, tmp_path: Path) -> None:
    """A process has begun to cancel it, and died."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    decision = find_decision(open_table(path).storage, pending.time)
    assert decision is not None
    put_tombstone(open_table(path).storage, pending.time)
    with pytest.raises(ConflictError, match="it was cancelled"):
        publish(open_table(path), decision, LOCK)
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 8, 6)
def test_a_decision_that_waits_is_not_reported_as_cancelled(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    dies_at(path, decides, behind=True)
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    folder = path / open_table(path).config.timeline_folder
    for state in ("requested", "inflight"):
        (folder / f"{int(pending.time) - 1}.deltacommit.{state}").write_bytes(b"")
    result = cluster(path)
    assert (result.done, result.finished, result.cancelled) == (None, (), ())
    assert pending_clusterings(open_table(path), open_table(path).load_timeline()) == (pending,)


@pytest.mark.parametrize("by", ["the next run", "a write"])
def test_a_decision_of_another_table_version_blocks_nothing(by: str, tmp_path: Path) -> None:
    """It is never published: the next run, or a write, cancels it."""
    path = tmp_path / "trips"
    rows = small_files(path, 8)
    dies_at(path, decides, behind=True)
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    settings = path / ".hoodie/hoodie.properties"
    settings.write_text(settings.read_text().replace("hoodie.table.version=8", "hoodie.table.version=9"))
    if by == "a write":
        upsert(path, one_row("k1", 100), AT_ONCE)
        rows["k1"] = (100, 100.0)
        check_nothing_left(path)
    else:
        result = cluster(path)
        assert result.cancelled == (pending.time,)
        assert result.done is not None
    assert read_rows(path) == rows


@pytest.mark.parametrize("when", ["before the inflight file", "before the commit"])
@one_of("version", 6, 9, 8)
def test_hudi_that_begins_while_files_are_placed(when: str, version: int, tmp_path: Path) -> None:
    """It takes no lock. With its commit every file of the instant counts, so none of phantombase may be left."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    begun: list[str] = []

    def begins() -> None:
        (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
        (path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))).write_bytes(b"")
        begun.append(pending.time)

    def hook(call: Call) -> object:
        early = when == "before the inflight file"
        if early and not begun and call.name == "put_if_absent" and call.path.endswith(".inflight"):
            begins()
        done = call.do()
        if not early and not begun and call.name == "place" and of_clustering(call.path):
            begins()
        return done

    with pytest.raises(ConflictError, match="Hudi has begun"):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    assert [file.name for file in path.glob("*/*.parquet") if begun[0] in file.name] == []
    assert read_rows(path) == rows


def test_a_log_that_grew_behind_the_decision(tmp_path: Path) -> None:
    """On version 6 Hudi appends to a log file where the storage can: its name is the one that was read."""
    path = tmp_path / "trips"
    rows = small_files(path, 6)
    upsert(path, one_row("k1", 50))
    (log,) = path.glob("*/.*.log.*")
    dies_at(path, decides, behind=True)
    hidden(path, lambda: upsert(path, one_row("k1", 100), AT_ONCE))
    (new,) = {file for file in path.glob("*/.*.log.*") if file.suffix != ".crc"} - {log}
    begins_at, size = log.stat().st_size, log.stat().st_size + new.stat().st_size
    log.write_bytes(log.read_bytes() + new.read_bytes())
    new.unlink()
    commit = max((path / ".hoodie").glob("*.deltacommit"))
    stated = {new.name: log.name, f'"fileSizeInBytes" : {size - begins_at}': f'"fileSizeInBytes" : {size}'}
    text = commit.read_text()
    for old, now in stated.items():
        assert old in text
        text = text.replace(old, now)
    commit.write_text(text)
    assert read_rows(path)["k1"] == (100, 100.0)
    cluster(path)
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}


@one_of("version", 9, 8, 6)
def test_a_decision_whose_staged_file_is_lost_is_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    (staged,) = (path / RECORDS).rglob("*.parquet")
    staged.unlink()
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)
    assert len(living(path)) == 4


@one_of("version", 6, 9, 8)
def test_a_column_that_came_behind_the_decision_stays(version: int, tmp_path: Path) -> None:
    """The process that decided is alive, so the write leaves the decision to it."""
    path = tmp_path / "trips"
    small_files(path, version)
    dies_at(path, decides, behind=True, alive=True)
    upsert(path, one_row("wide", 5).append_column("tip", pa.array([1.5])))
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    forget_heartbeats(path)
    assert [one.instant for one in cluster(path).finished] == [pending.time]
    done = open_table(path).load_timeline().find(pending.time, "replacecommit")
    assert done is not None
    assert "tip" in open_table(path).commit_metadata(done).extra_metadata["schema"]
    assert sorted(filter(None, read_table(open_table(path))["tip"].to_pylist())) == [1.5]


@one_of("version", 9, 6)
def test_no_file_is_placed_behind_the_files_that_are_cancelled(version: int, tmp_path: Path) -> None:
    """A process that has lost its lock stalled before it placed one."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    decision = find_decision(open_table(path).storage, pending.time)
    assert decision is not None

    def wakes(call: Call) -> object:
        if call.name == "delete_folder" and "/.temp/" in call.path:
            for one in decision.placements:
                with contextlib.suppress(PhantombaseError):
                    open_table(path).storage.place(one.staged, one.final)
        return call.do()

    table = open_table(path, HookedStorage(open_table(path).storage, wakes))
    assert cancel_clustering(table, pending, LOCK, "test", decided_too=True)
    check_nothing_left(path)
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
def test_a_write_in_the_middle_of_a_clustering(version: int, tmp_path: Path) -> None:
    """At every call; the clustering has lost its lock, and its heartbeat is gone: no row is lost or doubled."""
    origin = tmp_path / "origin"
    rows = small_files(origin, version, 3)
    counted: list[Call] = []

    def note(call: Call) -> object:
        counted.append(call)
        return call.do()

    cluster(shutil.copytree(origin, tmp_path / "whole"), HookedStorage(open_table(tmp_path / "whole").storage, note))
    wrote = 0
    for number in range(0, len(counted), 1 if ALL else 5):
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
    assert wrote > 8
