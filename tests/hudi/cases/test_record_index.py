"""Hudi's index of rows: our compaction leaves it as it is, our writes keep it, and Hudi's find every key by it.

Where a write takes it out, Hudi builds it anew. A write of ours never puts a key into a second partition: Hudi could
not build its index any more, and every write of its own would fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table import index_logs
from phantombase.timeline.metadata_table.validate import validate
from tests.hudi.cases.indexed_table import ALL_INDEXES, IndexedTable
from tests.hudi.cases.rows import partition
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.record_indexes import check_index, hudi_places
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

RECORD_INDEX = {
    **METADATA_TABLE,
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 2,
    "hoodie.metadata.record.index.max.filegroup.count": 2,
    "hoodie.index.type": "RECORD_INDEX",
}


def rows(numbers: Sequence[int], ts: int) -> pa.Table:
    """Keys in ASCII: over others Hudi 0.15 cannot build the index."""
    return pa.table(
        {"id": [f"{n:05d}" for n in numbers], "p": [partition(n) for n in numbers], "ts": [ts] * len(numbers)}
    )


@versions(9, deep=[6])
def test_hudi_finds_every_key(judge: Judge, version: int, tmp_path: Path) -> None:
    """By the index that our compaction has left, and by the one it has built behind our write; none is doubled.

    Our write takes it out with a key that Hudi cannot look up in it; its row is deleted before Hudi builds it."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=RECORD_INDEX)
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 2), 2))
    assert "record_index" in table.open().config.built_metadata_partitions
    table.we_schedule()
    table.we_compact()
    assert "record_index" in table.open().config.built_metadata_partitions
    table.upsert(rows(range(30, 50), 3))
    assert table.agree().num_rows == 50

    odd = rows((3,), 4).set_column(0, "id", pa.array(["\U0001f600"]))
    table.writer(odd).upsert(str(table.path))
    assert "record_index" not in table.open().config.built_metadata_partitions
    table.writer(odd).delete(str(table.path))
    table.writer(rows(range(60), 5)).upsert(str(table.path))
    assert table.agree().num_rows == 60
    table.upsert(rows(range(40, 70), 6))
    assert "record_index" in table.open().config.built_metadata_partitions
    assert table.agree().num_rows == 70
    table.upsert(rows(range(0, 70, 3), 7))
    assert table.agree().num_rows == 70


@versions(9, deep=[8, 6])
def test_our_writes_keep_it(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi updates what we have inserted, and inserts what we have deleted; what it reads of the index is where rows
    are, after writes of either, a compaction, and a move."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=RECORD_INDEX)
    table.create(rows(range(20), 1))
    path = str(table.path)

    def check(count: int) -> None:
        assert hudi_places(judge, table.path) == check_index(table.path)
        assert table.agree().num_rows == count

    table.writer(rows(range(10, 30), 2)).upsert(path)
    check(30)
    table.upsert(rows(range(25, 35), 3))
    check(35)
    table.writer(rows((3, 4, 26, 33), 4)).delete(path)
    check(31)
    table.upsert(rows((3, 26, 27), 5))  # into other base files than those that have them below our delete
    check(33)
    table.writer(rows((3, 4, 26, 40), 6), small_file_bytes=0).upsert(path)
    check(35)
    table.delete(rows((4, 5, 40), 7))
    table.writer(rows((5, 50), 8)).insert(path)
    table.writer(rows((51, 52), 8)).bulk_insert(path)
    table.we_schedule()
    table.we_compact()
    check(36)
    table.writer(rows_in(partition(0), range(1, 4), 9)).global_keys().upsert(path)
    check(36)
    table.upsert(rows(range(4, 60), 10))  # of those that moved Hudi would show the folder for the column
    assert hudi_places(judge, table.path) == check_index(table.path)
    assert table.agree().num_rows == 60


@versions(9, deep=[8, 6])
@pytest.mark.parametrize("portion", [3, deep(1 << 19)])
def test_our_overwrites_keep_it(
    judge: Judge, version: int, portion: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi inserts what they have replaced, and updates what they have written, also where one log file of the index
    deletes a key and then adds it: in portions of three keys."""
    monkeypatch.setattr(index_logs, "_PORTION_ROWS", portion)
    options = {**RECORD_INDEX, "hoodie.metadata.compact.max.delta.commits": 4}
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 2), 2))
    path, place = str(table.path), partition(3)
    own = [n for n in range(50) if partition(n) == place]

    def check(count: int) -> None:
        assert hudi_places(judge, table.path) == check_index(table.path)
        assert table.agree().num_rows == count

    table.writer(rows(own[1:3], 3)).delete(path)
    strangers = sum(partition(n) != place for n in range(40))
    table.writer(rows((*own[:8:2], own[-1]), 4)).insert_overwrite(path)
    check(strangers + 5)
    table.upsert(rows(range(50), 5))
    check(50)
    table.we_schedule()
    table.upsert(rows(range(20), 6))
    table.writer(rows(own[::3], 7)).insert_overwrite(path)  # beside a compaction that is pending
    table.we_compact()
    check(50 - len(own) + len(own[::3]))
    table.upsert(rows(range(60), 8))
    check(60)
    writer().delete_partition(path, [place, partition(4)])
    table.upsert(rows(range(60), 9))
    check(60)
    table.writer(rows(range(0, 60, 4), 10)).insert_overwrite_table(path)
    check(15)
    table.upsert(rows(range(70), 11))
    check(70)


def rows_in(place: str, numbers: range, ts: int) -> pa.Table:
    """Keys in a partition that is not theirs by `rows`."""
    return rows(numbers, ts).set_column(1, "p", pa.array([place] * len(numbers)))


@versions(deep=[9, 8, 6])
def test_hudi_finds_every_key_behind_our_clusterings(judge: Judge, version: int, tmp_path: Path) -> None:
    """Also key filters and statistics of the new files, and behind compactions of the metadata table."""
    options = {
        **RECORD_INDEX,
        **ALL_INDEXES,
        "hoodie.parquet.small.file.limit": 0,
        "hoodie.merge.small.file.group.candidates.limit": 0,
        "hoodie.metadata.compact.max.delta.commits": 4,
    }
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(20, 40), 2))
    table.upsert(rows(range(0, 40, 3), 3))
    table.delete(rows((4, 25), 4))
    joined, rewritten = ClusterOptions(min_files=2, wait_s=0), ClusterOptions(rewrite=("codec",), wait_s=0)
    for number, how, codec in ((1, joined, Codec.GZIP), (2, rewritten, Codec.SNAPPY)):
        kept = set(table.open().config.built_metadata_partitions)
        done = cluster_table(table.open(), how, ProcessLock("cluster"), output=OutputOptions(codec=codec))
        assert done.done is not None
        assert set(table.open().config.built_metadata_partitions) == kept
        assert validate(table.open()).differences == ()
        assert hudi_places(judge, table.path) == check_index(table.path)
        table.upsert(rows(range(0, 40 + 10 * number, 2), 4 + number))
        table.delete(rows((5, 6, 21), 10 + number))
        assert hudi_places(judge, table.path) == check_index(table.path)
        table.agree()
    there = {*range(40), *range(40, 60, 2)} - {5, 21, 25} | {4}
    assert set(check_index(table.path)) == {f"{n:05d}" for n in there - {6}}


@pytest.mark.deep
@versions(9, deep=[6])
def test_keys_stay_in_their_partitions(judge: Judge, version: int, tmp_path: Path) -> None:
    """Refused while Hudi's index is there, and where our writes have kept it."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=RECORD_INDEX)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(0, 20, 2), 2))
    path, place = str(table.path), partition(0)
    strangers = [n for n in range(20) if partition(n) != place]
    one = range(strangers[0], strangers[0] + 1)
    for ts in (3, 4):
        with pytest.raises(UnsupportedError, match="move keys to another partition"):
            table.writer(rows_in(place, one, ts)).upsert(path)
        table.writer(rows(range(15, 20 + ts), ts)).upsert(path)
        assert "record_index" in table.open().config.built_metadata_partitions
    with pytest.raises(UnsupportedError, match="move keys to another partition"):
        table.writer(rows_in(place, one, 5)).delete(path)
    table.writer(rows(one, 5)).delete(path)
    table.writer(rows_in(place, one, 6)).upsert(path)  # moved in two steps
    assert table.agree().num_rows == 24
    table.upsert(rows(range(20, 30), 7))
    assert "record_index" in table.open().config.built_metadata_partitions
    table.upsert(rows_in(place, one, 8))  # where Hudi's index finds it
    found = {row["id"]: row for row in table.agree().to_pylist()}
    assert len(found) == table.agree().num_rows == 30
    assert found[f"{one[0]:05d}"]["_hoodie_partition_path"] == place


# --- an index for each partition, 1.1 and newer ---------------------------------------------------------------------

FOR_EACH_PARTITION = {
    **METADATA_TABLE,
    "hoodie.metadata.record.level.index.enable": "true",
    "hoodie.metadata.record.level.index.min.filegroup.count": 2,
    "hoodie.metadata.record.level.index.max.filegroup.count": 2,
    "hoodie.index.type": "RECORD_LEVEL_INDEX",
}


def placed(places: dict[str, str], ts: int) -> pa.Table:
    """Keys in partitions, a letter each."""
    pairs = [(key, place) for key, of in places.items() for place in of]
    return pa.table({"id": [k for k, _ in pairs], "p": [p for _, p in pairs], "ts": [ts] * len(pairs)})


@versions(deep=[9, 8])
def test_an_index_for_each_partition_is_built_anew_behind_our_writes(
    judge: Judge, version: int, tmp_path: Path
) -> None:
    """Nothing is doubled or lost, with a partition that only our write has, and keys in two partitions.

    Of one batch with both of them Hudi 1.2.0 writes the values of one row twice: it writes a partition at a time here.
    """
    table = IndexedTable(
        judge=judge, path=tmp_path / "table", version=version, options=FOR_EACH_PARTITION, conditions=0
    )
    table.create(placed({"1": "ab", "2": "a", "3": "b"}, 1))
    expected = {("1", "a"), ("1", "b"), ("2", "a"), ("3", "b")}

    def check(*, kept: bool) -> None:
        found = table.agree()
        assert sorted(zip(found["id"].to_pylist(), found["p"].to_pylist(), strict=True)) == sorted(expected)
        assert ("record_index" in table.open().config.built_metadata_partitions) is kept

    def hudi(places: dict[str, str], ts: int) -> None:
        for place in sorted(set("".join(places.values()))):
            table.upsert(placed({key: place for key, of in places.items() if place in of}, ts))

    check(kept=True)
    table.writer(placed({"1": "a", "3": "a", "4": "c"}, 2)).upsert(str(table.path))
    expected |= {("3", "a"), ("4", "c")}
    check(kept=False)
    hudi({"1": "ab", "4": "cd"}, 3)
    expected |= {("4", "d")}
    check(kept=True)
    table.writer(placed({"1": "a", "4": "c"}, 0)).delete(str(table.path))
    expected -= {("1", "a"), ("4", "c")}
    check(kept=False)
    hudi({"1": "a", "2": "a", "3": "ab", "4": "c"}, 4)
    expected |= {("1", "a"), ("4", "c")}
    check(kept=True)
    table.we_schedule()
    table.we_compact()
    check(kept=True)
    hudi({"1": "abc", "4": "cd"}, 5)
    expected |= {("1", "c")}
    check(kept=True)
