"""Clusters: no row changes, and the metadata table, the record index and the audit follow the rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping, SortOrder
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.audit.audit import Verdict
from phantombase.timeline.audit.clusterings import audit_clustering
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.instant import later
from phantombase.timeline.metadata_table import index_logs
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import (
    ONE,
    OUTPUT,
    SMALL,
    TWO,
    WRITES,
    cluster,
    compact,
    forget_heartbeats,
    golden_small_files,
    living,
    one_row,
    rename,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.faults import Faults
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.record_indexes import check_index, set_partitions, true_places
from tests.support.record_indexes import rows as index_rows
from tests.support.selection import deep
from tests.support.written_tables import check_nothing_left, read_rows, written_table

VERSIONS = pytest.mark.parametrize("version", [6, deep(8), 9])
SIZED = ClusterOptions(grouping=Grouping.SIZE, target_size=400_000, wait_s=0)
OTHER_ORDERS = ({"sort_by": ("ts", "fare")}, {"sort_by": ("fare",)}, {"sort_order": SortOrder.ZORDER})


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
    """A secondary index too, without the record index by which Hudi finds its rows."""
    path = indexed(9, tmp_path)
    before = sorted(p.name for p in path.rglob("*"))
    for names in ("secondary_index_ts", "record_index,expr_index_ts"):
        set_partitions(path, f"files,{names}")
        with pytest.raises(UnsupportedError, match=names.rpartition(",")[2]):
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
    assert pending_clusterings(open_table(path).snapshot()) == ()


def test_a_bucket_index_is_refused(tmp_path: Path) -> None:
    path = unzip_golden("v9_bucket_nonpart", tmp_path)
    before = sorted(p.name for p in path.rglob("*"))
    with pytest.raises(UnsupportedError, match="bucket"):
        cluster(path)
    assert sorted(p.name for p in path.rglob("*")) == before


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


@pytest.mark.usefixtures("default_filters")  # it goes by the sizes of files
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
    """It becomes no file, and its slices are replaced; also behind a rollback the audit is right."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 2)
    write(open_table(path), LocalEngine(one_row("k1", 50), slots=1), Write(operation=Operation.DELETE, options=WRITES))
    write(open_table(path), LocalEngine(one_row("k0", 50), slots=1), Write(operation=Operation.DELETE, options=WRITES))
    done = cluster(path, options=replace(SIZED, target_size=4 << 20)).done
    assert done is not None
    assert (done.files, done.made, done.rows) == (2, 0, 0)
    assert (read_rows(path), living(path)) == ({}, [])
    assert audit_clustering(open_table(path), done.instant).good
    undone = shutil.copytree(path, tmp_path / "undone")
    upsert(path, one_row("k0", 7))
    assert read_rows(path) == {"k0": (7, 7.0)} != rows
    roll_back_newest(open_table(undone), LOCK, done.instant)
    upsert(undone, one_row("k0", 70))  # to a log file of its old file group
    assert read_rows(undone) == {"k0": (70, 70.0)}
    assert audit_clustering(open_table(undone), done.instant).good


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
