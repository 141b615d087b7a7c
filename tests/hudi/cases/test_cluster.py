"""Real Hudi and clusterings: it goes on after ours, each executes plans of the other."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings, planned_by_hudi
from phantombase.compactor_daemon.clustering.cancel import cancel_pending_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Copy, Grouping, SortOrder
from phantombase.compactor_daemon.clustering.result import ClusterResult
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.audit.clusterings import audit_clustering
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.cases.rows import Rows, key, same, without_files
from tests.hudi.cases.shared_table import SharedTable, check_rows, hudi_rs_reads
from tests.hudi.judge.client import Judge
from tests.hudi.judge.java_client import run_java
from tests.support.archived_tables import (
    OUTPUT,
    SMALL_OF_HUDI,
    TWO,
    VERSIONS_OF_HUDI,
    change_clean,
    clean,
    forget_heartbeats,
    of_attempt,
    of_clustering,
    one_row,
    opens_attempt,
    overwrite,
    request,
    row,
    small_files,
    upsert,
)
from tests.support.archived_tables import cluster as passed_clustering_cluster
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import make_old
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import deep, versions
from tests.support.written_tables import read_rows

APPENDS = {"hoodie.parquet.small.file.limit": 0, "hoodie.merge.small.file.group.candidates.limit": 0}
FEW = ClusterOptions(min_files=2, wait_s=0)
SIZED = ClusterOptions(grouping=Grouping.SIZE, wait_s=0)
COPIED = replace(FEW, copy=Copy.FORCE)


def cluster(table: SharedTable, storage: Storage | None = None, options: ClusterOptions = FEW) -> ClusterResult:
    codec = Codec.GZIP if table.version == 6 else Codec.ZSTD
    opened = table.open() if storage is None else Table.on(storage)
    output = OutputOptions(codec=codec)
    return cluster_table(opened, options, ProcessLock("cluster"), output=output, runner=LocalRunner(2))


def appended(table: SharedTable, writes: int = 4) -> pa.Table:
    """Hudi inserts new keys again and again: each write makes a file group in each partition. The rows."""
    table.create(Rows(seed=1)(range(10), 1), operation="insert")
    for number in range(1, writes):
        table.judge.insert(table.path, Rows(seed=1)(range(10 * number, 10 * number + 10), 1), table.options)
    return table.agree()


def goes_on(table: SharedTable, *, cleans: bool, metadata: bool) -> None:
    """After a clustering of 40 rows Hudi updates, compacts, cleans where asked to, and inserts 20; we cluster again."""
    newer = Rows(seed=2)(range(5, 35), 9)
    table.upsert(newer)
    check_rows(table.agree(), newer)
    table.hudi_schedules()
    table.hudi_compacts()
    if cleans:
        table.judge.clean(table.path, options=table.options)
    table.judge.insert(table.path, Rows(seed=3)(range(40, 50), 1), table.options)
    table.judge.insert(table.path, Rows(seed=3)(range(50, 60), 1), table.options)
    assert cluster(table).done is not None
    newest = Rows(seed=4)(range(0, 60, 7), 20)
    table.writer(newest).upsert(str(table.path))
    table.we_compact(table.we_schedule())
    check_rows(table.agree(), newest)
    table.upsert(Rows(seed=5)(range(0, 60, 5), 30))
    assert table.agree().num_rows == 60
    if metadata:
        assert validate(table.open()).differences == ()


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """Not made yet."""
    return SharedTable(judge=judge, path=tmp_path / "table", version=version, options=APPENDS)


@pytest.mark.interop
@pytest.mark.parametrize("metadata", [True, deep(False)])
@versions(9, deep=(8, 6))
def test_hudi_goes_on_behind_a_clustering(metadata: bool, table: SharedTable) -> None:
    table = replace(table, options={**APPENDS, "hoodie.metadata.enable": str(metadata).lower()})
    before = appended(table)
    done = cluster(table).done
    assert done is not None
    assert (done.files, done.made, done.rows) == (12, 3, 40)
    same(without_files(table.agree()), without_files(before))
    same(without_files(hudi_rs_reads(table.path)), without_files(before))
    goes_on(table, cleans=True, metadata=metadata)


@pytest.mark.interop
@pytest.mark.parametrize("metadata", [True, deep(False)])
@versions(9, deep=(8, 6))
def test_hudi_goes_on_behind_copied_row_groups(metadata: bool, table: SharedTable) -> None:
    """Row groups that Hudi wrote, then these again beside newer ones: every reader, an upsert, a compaction."""
    table = replace(table, options={**APPENDS, "hoodie.metadata.enable": str(metadata).lower()})
    before = appended(table)
    done = cluster(table, options=COPIED).done
    assert done is not None
    assert (done.files, done.made, done.copied, done.copied_row_groups) == (12, 3, 3, 12)
    same(without_files(table.agree()), without_files(before))
    same(without_files(hudi_rs_reads(table.path)), without_files(before))
    _others_read(table, before)
    goes_on(table, cleans=False, metadata=metadata)


@pytest.mark.interop
@versions(9, deep=[8, 6])
def test_hudi_reads_what_was_copied_of_our_files(table: SharedTable) -> None:
    """Files of pyarrow, and an upsert of Hudi behind them: it finds the keys by the filter of the new file."""
    rows = Rows(seed=1)
    table.creator(rows(range(10), 1)).insert(str(table.path))
    for number in range(1, 4):
        table.writer(rows(range(10 * number, 10 * number + 10), 1), small_file_bytes=0).insert(str(table.path))
    before = table.agree()
    done = cluster(table, options=COPIED).done
    assert done is not None
    assert (done.copied, done.copied_row_groups) == (done.made, done.files)
    same(without_files(table.agree()), without_files(before))
    same(without_files(hudi_rs_reads(table.path)), without_files(before))
    _others_read(table, before)
    newer = Rows(seed=2)(range(5, 45), 9)
    table.upsert(newer)
    check_rows(table.agree(), newer)
    table.hudi_schedules()
    table.hudi_compacts()
    check_rows(table.agree(), newer)
    assert table.agree().num_rows == 45


def _others_read(table: SharedTable, rows: pa.Table) -> None:
    """Hudi, DuckDB, Polars and pyarrow read the new files: the rows that a filter on statistics leaves."""
    ids = rows["id"].to_pylist()
    now = read_table(table.open())
    paths = sorted({p for p in map(str, table.path.rglob("*.parquet")) if Path(p).name.split("_")[0] in _file_ids(now)})
    assert all(pq.read_metadata(path).num_row_groups == 4 for path in paths)
    few = sorted(one for one in ids if one >= sorted(ids)[7])
    for found in (
        duckdb.read_parquet(paths).filter(f"id >= '{few[0]}'").fetchall(),  # of all columns
        pl.scan_parquet(paths).filter(pl.col("id") >= few[0]).collect().rows(),
        pq.read_table(paths[0], filters=[("id", ">=", few[0])]).to_pylist()
        + [one for path in paths[1:] for one in pq.read_table(path, filters=[("id", ">=", few[0])]).to_pylist()],
    ):
        assert len(found) == len(few)
    table.judge.sql(f"create table copied_{table.version} using hudi location '{table.path}'")
    by_hudi = table.judge.sql(f"select id from copied_{table.version} where id >= '{few[0]}'")
    table.judge.sql(f"drop table copied_{table.version}")
    assert sorted(row["id"] for row in by_hudi) == few


def _file_ids(rows: pa.Table) -> set[str]:
    return {name.split("_")[0] for name in rows["_hoodie_file_name"].to_pylist()}


@pytest.mark.interop
@versions(9, deep=(8, 6))
def test_hudi_writes_while_files_are_made(table: SharedTable) -> None:
    """Its group is left out. Reads of the past and incremental ones answer as before; Hudi updates clustered rows."""
    appended(table)
    newer, seen, first = Rows(seed=2)([0], 9), list[pa.Table](), threading.Lock()
    began = max(i.completion_time or i.requested_time for i in table.open().load_timeline().completed)
    begin = {"hoodie.datasource.read.begin.instanttime": began}

    def hook(call: Call) -> object:
        if call.name == "open_output" and of_clustering(call.path) and first.acquire(blocking=False):
            table.upsert(newer)
            seen.append(table.agree())
            seen.append(table.judge.read(table.path, query="incremental", options=begin))
        return call.do()

    done = cluster(table, HookedStorage(LocalStorage(str(table.path)), hook))
    assert done.done is not None
    assert (done.left_out, done.done.files, done.done.made) == (1, 8, 2)
    state, change = seen
    same(without_files(table.agree()), without_files(state))
    write = max(i.requested_time for i in table.open().load_timeline().completed if i.action == "deltacommit")
    same(without_files(table.judge.read(table.path, as_of=write)), without_files(state))
    assert change.num_rows == 1
    same(without_files(table.judge.read(table.path, query="incremental", options=begin)), without_files(change))
    table.judge.sql(f"create table ahead_{table.version} using hudi location '{table.path}'")
    table.judge.sql(f"update ahead_{table.version} set number = 77 where id = '{key(1)}'")
    table.judge.sql(f"drop table ahead_{table.version}")
    now = table.agree()
    numbers = dict(zip(now["id"].to_pylist(), now["number"].to_pylist(), strict=True))
    assert (now.num_rows, numbers[key(1)]) == (40, 77)
    goes_on(table, cleans=True, metadata=False)


@pytest.mark.interop
@pytest.mark.parametrize("metadata", [deep(True), deep(False)])
def test_hudi_goes_on_behind_a_clustering_that_was_taken_back(metadata: bool, table: SharedTable) -> None:
    """It lists and reads the files that were joined, writes to them, and clusters them itself."""
    table = replace(table, options={**APPENDS, "hoodie.metadata.enable": str(metadata).lower()})
    before = appended(table)
    done = cluster(table).done
    assert done is not None
    table.agree()
    roll_back_newest(table.open(), ProcessLock("cluster"), done.instant)
    same(table.agree(), before)
    same(hudi_rs_reads(table.path), before)
    newer = Rows(seed=2)(range(5, 35), 9)
    table.upsert(newer)
    check_rows(table.agree(), newer)
    table.hudi_schedules()
    table.hudi_compacts()
    assert cluster(table).done is not None
    assert table.agree().num_rows == 40
    if metadata:
        assert validate(table.open()).differences == ()


@pytest.mark.interop
@versions(9, deep=(8, 6))
@pytest.mark.parametrize("at", ["requested", deep("inflight"), "placed", deep("done")])
def test_hudi_executes_a_plan_of_a_dead_process(at: str, table: SharedTable) -> None:
    """It rolls back what ours had begun, and makes its own files; no row is doubled by files that ours had placed."""
    before = appended(table)

    dead: list[str] = []

    def dies(call: Call) -> object:
        if dead:
            raise ProcessDied
        try:
            return die(call)
        except ProcessDied:
            dead.append(call.path)
            raise

    def die(call: Call) -> object:
        completes = call.name == "put_if_absent" and call.path.endswith(".replacecommit")
        if at == "requested" and opens_attempt(call):
            raise ProcessDied
        if at == "inflight" and call.name == "place" and of_clustering(call.path):
            raise ProcessDied
        if at == "placed" and completes:
            raise ProcessDied
        done = call.do()
        if at == "done" and completes:
            raise ProcessDied
        return done

    with suppress(ProcessDied):
        cluster(table, HookedStorage(LocalStorage(str(table.path)), dies))
    shutil.rmtree(table.path / ".hoodie" / ".heartbeat", ignore_errors=True)
    pending = pending_clusterings(table.open().snapshot())
    assert len(pending) == (at != "done")
    same(without_files(table.agree()), without_files(before))
    if pending:
        table.judge.execute_clustering(table.path, table.options)
    assert not pending_clusterings(table.open().snapshot())
    same(without_files(table.agree()), without_files(before))
    newer = Rows(seed=2)(range(5, 35), 9)
    table.upsert(newer)
    check_rows(table.agree(), newer)
    assert table.agree().num_rows == 40
    cluster(table)  # and removes what only the dead attempt named
    check_rows(table.agree(), newer)
    assert table.agree().num_rows == 40


@pytest.mark.interop
@pytest.mark.parametrize("inflight", ["last", "none"])
@versions(deep=(9, 8, 6))
def test_hudi_needs_no_inflight_file_of_a_completed_clustering(inflight: str, table: SharedTable) -> None:
    """Put right before the completed file, or never: reads, upserts, compactions, cleans, archives and clusterings."""
    metadata = table.version != 6  # the Java client of 0.15.0 archives no table with a metadata table
    table = replace(table, options={**APPENDS, "hoodie.metadata.enable": str(metadata).lower()})
    before = appended(table)
    held: list[Call] = []

    def late(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith((".clustering.inflight", ".replacecommit.inflight")):
            held.append(call)
            return True
        if call.name == "put_if_absent" and call.path.endswith(".replacecommit") and inflight == "last":
            held[0].do()
        return call.do()

    done = cluster(table, HookedStorage(LocalStorage(str(table.path)), late)).done
    assert done is not None
    there = list((table.path / table.open().config.timeline_folder).glob(f"{done.instant}*.inflight"))
    assert len(there) == (inflight == "last")
    same(without_files(table.agree()), without_files(before))
    goes_on(table, cleans=True, metadata=metadata)
    for number in range(6):
        table.upsert(Rows(seed=6 + number)(range(number, 60, 7), 40 + number))
    rows = table.agree()
    table.judge.clean(table.path, options=table.options)
    run_java(HUDI[table.version], "archive", table.path, *SMALL_OF_HUDI)
    same(table.agree(), rows)
    assert done.instant not in {i.requested_time for i in table.open().load_timeline().instants}


@pytest.mark.interop
@pytest.mark.parametrize("order", [deep(SortOrder.ORDER), SortOrder.HILBERT, deep(SortOrder.ZORDER)])
@versions(9, deep=(8, 6))
def test_hudi_goes_on_behind_sorted_groups_with_logs(order: SortOrder, table: SharedTable) -> None:
    """Slices of Hudi and of phantombase with updates and deletes; several files of a group."""
    appended(table)
    table.upsert(Rows(seed=6)(range(0, 40, 3), 5))
    table.delete(Rows(seed=6)(range(0, 40, 13), 6))
    table.writer(Rows(seed=7)(range(1, 40, 4), 7)).upsert(str(table.path))
    before = table.agree()
    options = replace(SIZED, sort_by=("number", "text"), sort_order=order, target_size=400_000)
    done = cluster(table, options=options).done
    assert done is not None
    assert done.made > 3
    same(without_files(table.agree()), without_files(before))
    same(without_files(hudi_rs_reads(table.path)), without_files(before))
    assert audit_clustering(table.open(), done.instant).good
    missing = Rows(seed=8)(sorted(set(range(40)) - _numbers(before)), 8)
    table.upsert(missing)
    assert table.agree().num_rows == 40
    goes_on(table, cleans=True, metadata=False)


def _numbers(rows: pa.Table) -> set[int]:
    return {int(key[-5:]) for key in rows["id"].to_pylist()}


@pytest.mark.interop
@pytest.mark.parametrize("sort", [True, deep(False)])
@versions(6, deep=(9, 8))
def test_we_execute_a_plan_of_hudi(sort: bool, table: SharedTable) -> None:
    """Groups with logs, and of several new files; and cluster what it has not planned. Then Hudi goes on."""
    appended(table)
    table.upsert(Rows(seed=6)(range(0, 40, 3), 5))
    before = table.agree()
    plan = "hoodie.clustering.plan.strategy."
    small = {f"{plan}target.file.max.bytes": 500_000, f"{plan}max.bytes.per.group": 1_300_000}
    table.judge.plan_clustering(
        table.path, {**table.options, **small, **({f"{plan}sort.columns": "number, text"} if sort else {})}
    )
    (planned,) = planned_by_hudi(table.open().snapshot())
    assert planned.plan.sort_by == (("number", "text") if sort else ())
    assert any(one.logs for group in planned.plan.groups for one in group.slices)
    assert max(group.outputs for group in planned.plan.groups) > 1
    result = cluster(table)
    assert [(one.instant, one.rows) for one in result.finished] == [(planned.time, 40)]
    same(without_files(table.agree()), without_files(before))
    assert audit_clustering(table.open(), planned.time).good
    goes_on(table, cleans=True, metadata=False)


@pytest.mark.interop
@versions(deep=(9, 8, 6))
def test_hudi_executes_a_plan_that_we_gave_up(table: SharedTable) -> None:
    """After a death with files that have their final names, and before."""
    before = appended(table)
    table.judge.plan_clustering(table.path, table.options)
    for at in (".inflight", ".replacecommit"):

        def die(call: Call, at: str = at) -> object:
            if call.name == "put_if_absent" and call.path.endswith(at):
                raise ProcessDied(call.path)
            return call.do()

        with suppress(ProcessDied):
            cluster(table, HookedStorage(LocalStorage(str(table.path)), die))
        forget_heartbeats(table.path)
        same(without_files(table.agree()), without_files(before))
    table.judge.execute_clustering(table.path, table.options)
    same(without_files(table.agree()), without_files(before))
    assert cluster(table).finished == ()
    if table.version > 6:  # 0.15.0 fails to compact the decimals of its own clusterings (docs/guides/hudi.md)
        goes_on(table, cleans=True, metadata=False)


@pytest.mark.interop
@pytest.mark.parametrize("data", [b"", b"Obj\x01 cut"], ids=["empty", "torn"])
@versions(deep=[9, 8, 6])
def test_hudi_goes_on_where_an_unreadable_plan_was(data: bytes, judge: Judge, version: int, tmp_path: Path) -> None:
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=APPENDS)
    before = appended(table, writes=2)
    opened = table.open()
    action = "clustering" if opened.layout.has_completion_times else "replacecommit"
    time = opened.snapshot().next_time()
    plan = table.path / opened.instant_path(Instant(requested_time=time, action=action, state=State.REQUESTED))
    plan.write_bytes(data)
    make_old({plan}, 3600)
    gone = cancel_pending_clusterings(table.open(), ProcessLock("cluster"))
    assert gone == (() if version == 6 and not data else (time,))  # an empty one of version 6 is of a write
    same(without_files(table.agree()), without_files(before))
    newer = Rows(seed=2)(range(5, 25), 9)
    table.upsert(newer)
    check_rows(table.agree(), newer)
    table.hudi_schedules()
    table.hudi_compacts()
    table.judge.clean(table.path, options=table.options)
    check_rows(table.agree(), newer)


# A clustering or overwrite that a clean of Hudi has passed while it was pending is made anew.
#
# Its replace commit could be archived while the joined or replaced files are there.


_REWRITES = WriteOptions(slots=1)


def write(path: Path, number: int) -> None:
    """To another partition, whose base file is written anew."""
    upsert(path, row(f"b{number}", "b", number), _REWRITES)


def cleaned(path: Path, *, passes: bool) -> None:
    """Writes and a clean. `passes`: as Hudi's by hours, whose cutoff takes no notice of a pending clustering."""
    for number in range(4, 7):
        write(path, number)
    assert clean(path).files
    if passes:
        change_clean(path, earliestCommitToRetain=open_table(path).load_timeline().latest_completed)


@pytest.mark.parametrize("passes", [True, False])
@one_of("version", 9, 8, 6)
def test_a_plan_of_a_dead_process(version: int, passes: bool, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    for number in range(4):
        write(path, number)
    planned = request(path)
    cleaned(path, passes=passes)
    forget_heartbeats(path)
    rows = read_rows(path)
    seen = cluster_table(open_table(path), TWO, LOCK, output=OUTPUT, dry_run=True)
    assert (seen.cancelled, len(seen.finished)) == (((planned,), 0) if passes else ((), 1))
    made: list[str] = []

    def notes(call: Call) -> object:
        made.extend([call.path] if call.name == "open_output" and of_attempt(call.path) else [])
        return call.do()

    done = passed_clustering_cluster(path, HookedStorage(open_table(path).storage, notes))
    assert not passes or not any(planned in one for one in made)
    assert done.cancelled == ((planned,) if passes else ())
    assert [one.instant for one in done.finished] == ([] if passes else [planned])
    assert (done.done is not None) == passes
    assert read_rows(path) == rows


@one_of("version", 9, 6, 8)
def test_while_the_files_are_made(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small = small_files(path, version)
    for number in range(4):
        write(path, number)
    began: list[str] = []

    def hook(call: Call) -> object:
        if opens_attempt(call) and not began:
            began.append(call.path)
            cleaned(path, passes=True)
        return call.do()

    assert passed_clustering_cluster(path, HookedStorage(open_table(path).storage, hook)).done is not None
    assert began  # the plan was made again
    assert read_rows(path) == {**small, **{f"b{number}": (number, float(number)) for number in range(7)}}


@pytest.mark.interop
@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_hudi_archives_no_replace_commit_whose_files_are_there(version: int, tmp_path: Path) -> None:
    """Without the rule all rows of the joined files came twice."""
    path = tmp_path / "trips"
    small_files(path, version)
    request(path)
    for number in range(6):
        write(path, number)
    assert "deleted" in run_java(HUDI[version], "clean", path, *VERSIONS_OF_HUDI)[-1]
    forget_heartbeats(path)
    passed_clustering_cluster(path)
    for number in range(6, 12):
        write(path, number)
    rows = read_rows(path)
    run_java(HUDI[version], "archive", path, *SMALL_OF_HUDI)
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_an_overwrite(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    for number in range(4):
        write(path, number)
    rows, began = read_rows(path), list[str]()

    def hook(call: Call) -> object:
        if call.name == "open_output" and "/writes/" in call.path and not began:
            began.append(call.path)
            cleaned(path, passes=True)
        return call.do()

    with pytest.raises(ConflictError, match="a clean that retained commits"):
        overwrite(path, one_row("new", 100), HookedStorage(open_table(path).storage, hook))
    assert rows.items() < read_rows(path).items()
    overwrite(path, one_row("new", 100))
    assert {key for key in read_rows(path) if not key.startswith("b")} == {"new"}


@pytest.mark.interop
@pytest.mark.parametrize("version", [deep(6), 9])
def test_hudi_archives_no_overwrite_whose_files_are_there(version: int, tmp_path: Path) -> None:
    """Without the rule the replaced rows were back."""
    path = tmp_path / "trips"
    small_files(path, version)
    began = list[str]()

    def hook(call: Call) -> object:
        if call.name == "open_output" and "/writes/" in call.path and not began:
            began.append(call.path)
            for number in range(6):
                write(path, number)
            run_java(HUDI[version], "clean", path, *VERSIONS_OF_HUDI)
        return call.do()

    with suppress(ConflictError):
        overwrite(path, one_row("new", 100), HookedStorage(open_table(path).storage, hook))
    assert began
    for number in range(6, 12):
        write(path, number)
    rows = read_rows(path)
    run_java(HUDI[version], "archive", path, *SMALL_OF_HUDI)
    assert read_rows(path) == rows
