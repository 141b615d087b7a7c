"""A write that is larger than the limit of a batch comes in parts: each row once, whatever happens between them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from phantombase import ExecuteOptions, Executor, ReadOptions, UsageError, compact, read_table, schedule, writer
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.read.incremental import StreamedWrite, writes_after
from phantombase.timeline.read.table_read import Query
from phantombase.timeline.table.table import Table
from pyspark_phantombase.batch_reader import table_columns, task_batches
from pyspark_phantombase.options import SourceOptions, stream_options
from pyspark_phantombase.stream_reader import StreamReader, part_end
from tests.support.archived_tables import clean
from tests.support.selection import deep

Row = tuple[str, int, str]


def upsert(path: Path, ts: int, keys: list[str], version: int = 9) -> None:
    rows = pa.table({"id": keys, "ts": [ts] * len(keys), "p": [f"p{hash_of(key) % 2}" for key in keys]})
    described = writer(rows).table("rides", version=version).key("id").ordering("ts").partition("p")
    described.buckets(3).upsert(str(path))


def hash_of(key: str) -> int:
    return sum(key.encode())


def rows_of(batches: list[pa.RecordBatch]) -> list[Row]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["id"], row["ts"], row["_hoodie_commit_time"]) for row in rows]


class Consumer:
    """A stream without Spark: it keeps nothing but the offset, as a checkpoint does."""

    def __init__(self, path: Path, **options: str) -> None:
        self._options = stream_options({"path": str(path), **options})
        self._columns = table_columns(self._options.of_table())
        self.restart()
        self.offset = self.reader.initialOffset()
        self.parts: list[list[Row]] = []
        self.whole: list[tuple[str, str, list[Row]]] = []
        """What came between two offsets without a part, each a moment."""
        (self.axis,) = self.offset
        self._since: tuple[str, list[Row]] = (self.offset[self.axis], [])

    def restart(self) -> None:
        self.reader = StreamReader(self._options, self._columns)

    def between(self, start: dict[str, str], end: dict[str, str]) -> list[Row]:
        tasks: Any = self.reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
        return rows_of([batch for task in tasks for batch in task_batches(task, self._columns)])

    def step(self, limit: Any) -> bool:
        end = self.reader.latestOffset(self.offset, limit)
        if end == self.offset:
            return False
        self.parts.append(self.between(self.offset, end))
        self.last = (self.offset, end)
        self.offset = end
        self._since[1].extend(self.parts[-1])
        if "next" not in end:
            self.whole.append((self._since[0], end[self.axis], self._since[1]))
            self._since = (end[self.axis], [])
        return True


@pytest.mark.parametrize(
    ("seed", "version"), [(0, 9), (0, 6), *(deep(seed, version) for seed in range(1, 12) for version in (9, 6))]
)
def test_random_histories(seed: int, version: int, tmp_path: Path) -> None:
    """Each write comes in parts that are its window, and before the next write; a batch that is read again is equal."""
    chance, path = random.Random(seed), tmp_path / "rides"
    keys = [f"k{number}" for number in range(30)]
    upsert(path, 0, keys, version)
    consumer = Consumer(path)
    limits = [ReadMaxFiles(1), ReadMaxFiles(2), ReadMaxRows(8), ReadMaxBytes(500), ReadAllAvailable()]
    for ts in range(1, 25):
        act = chance.choice(["write", "write", "compact", "restart", "again", "step", "step", "step"])
        if act == "write":
            upsert(path, ts, chance.sample(keys, chance.randint(1, 20)), version)
        elif act == "compact" and schedule(str(path), sole_writer=True):
            if chance.random() < 0.7:
                compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
        elif act == "restart":
            consumer.restart()
        elif act == "again" and consumer.parts:
            assert sorted(consumer.between(*consumer.last)) == sorted(consumer.parts[-1])
        elif act == "step":
            consumer.step(chance.choice(limits))
    while consumer.step(chance.choice(limits[:4])):
        pass
    assert len(consumer.parts) > 3
    delivered = [row for part in consumer.parts for row in part]
    assert len({(key, time) for key, _, time in delivered}) == len(delivered)
    for begin, end, part in consumer.whole:
        wanted = ReadOptions(query=Query.INCREMENTAL, begin=begin or "earliest", end=end)
        assert sorted(part) == sorted(rows_of(read_table(str(path), wanted).to_batches()))
    newest = {key: (key, ts, time) for key, ts, time in delivered}
    assert sorted(newest.values()) == sorted(rows_of(read_table(str(path)).to_batches()))


@pytest.mark.parametrize("limit", [ReadMaxFiles(1), ReadMaxRows(8)], ids=["files", "rows"])
def test_the_parts_of_a_write_are_its_window(limit: Any, tmp_path: Path) -> None:
    """All are of the moment of the write, although the next write and a compaction come between."""
    path = tmp_path / "rides"
    keys = [f"k{number}" for number in range(30)]
    upsert(path, 0, keys)
    table = Table.open(str(path))
    (first,) = writes_after(table, "earliest", {})
    wanted = rows_of(read_table(str(path)).to_batches())
    consumer = Consumer(path)
    assert consumer.step(limit)
    assert consumer.offset["next"] == first.moment
    upsert(path, 1, keys)
    schedule(str(path), sole_writer=True)
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    consumer.restart()
    while "next" in consumer.offset:
        assert consumer.step(limit)
    assert consumer.offset == {"completed": first.moment}
    assert len(consumer.parts) > 2
    assert sorted(row for part in consumer.parts for row in part) == sorted(wanted)
    assert consumer.step(ReadAllAvailable())
    window = ReadOptions(query=Query.INCREMENTAL, begin=first.moment)
    assert sorted(consumer.parts[-1]) == sorted(rows_of(read_table(str(path), window).to_batches()))


def compacted_twice(path: Path, keys: list[str], version: int) -> None:
    """What lies before is old enough for a clean."""
    for ts in (1, 2):
        upsert(path, ts, keys, version)
        schedule(str(path), sole_writer=True)
        compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    upsert(path, 3, keys, version)


PARTED = pytest.mark.parametrize("version", [6, 9])
KEYS = [f"k{number}" for number in range(30)]


@PARTED
def test_a_clean_between_two_parts_is_an_error(version: int, tmp_path: Path) -> None:
    """The state of which the first part was delivered is gone, also for a stream that may pass over lost data."""
    path = tmp_path / "rides"
    upsert(path, 0, KEYS, version)
    consumer = Consumer(path, failOnDataLoss="false")
    assert consumer.step(ReadMaxFiles(1))
    assert "next" in consumer.offset
    compacted_twice(path, KEYS, version)
    planned = consumer.reader.latestOffset(consumer.offset, ReadMaxFiles(1))
    tasks: Any = consumer.reader.partitions(consumer.offset, planned)
    assert clean(path).files
    with pytest.raises(UsageError, match=r"the rest of a write.*`pin` prevents"):
        consumer.reader.latestOffset(consumer.offset, ReadMaxFiles(1))
    with pytest.raises(UsageError, match="have been cleaned"):  # the batch was planned before it
        consumer.reader.partitions(consumer.offset, planned)
    with pytest.raises(MissingFileError, match="a file was cleaned while a query read it"):  # so were its tasks
        rows_of([batch for task in tasks for batch in task_batches(task, table_columns(source(path)))])


def source(path: Path) -> SourceOptions:
    return stream_options({"path": str(path)}).of_table()


@PARTED
def test_a_pin_holds_the_parts(version: int, tmp_path: Path) -> None:
    """The stream finishes exactly, with a clean before each of its steps."""
    path = tmp_path / "rides"
    upsert(path, 0, KEYS, version)
    wanted = rows_of(read_table(str(path)).to_batches())
    consumer = Consumer(path, pin="copy")
    assert consumer.step(ReadMaxFiles(1))
    consumer.reader.commit(consumer.offset)
    compacted_twice(path, KEYS, version)
    consumer.restart()
    while "next" in consumer.offset:
        assert clean(path).files == 0
        assert consumer.step(ReadMaxFiles(1))
        consumer.reader.commit(consumer.offset)
    assert sorted(row for part in consumer.parts for row in part) == sorted(wanted)
    assert consumer.step(ReadAllAvailable())
    assert sorted(consumer.parts[-1]) == sorted(rows_of(read_table(str(path)).to_batches()))


@PARTED
def test_a_pin_holds_what_a_pending_compaction_takes_in(version: int, tmp_path: Path) -> None:
    """It completes, and a clean follows, after a batch was planned over it."""
    path = tmp_path / "rides"
    upsert(path, 0, KEYS, version)
    upsert(path, 1, KEYS, version)
    assert schedule(str(path), sole_writer=True)
    upsert(path, 2, KEYS[:20], version)
    consumer = Consumer(path, pin="copy")
    assert consumer.step(ReadAllAvailable())
    consumer.reader.commit(consumer.offset)
    upsert(path, 3, KEYS[:10], version)
    end = consumer.reader.latestOffset(consumer.offset, ReadAllAvailable())
    tasks: Any = consumer.reader.partitions(consumer.offset, end)
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    upsert(path, 4, KEYS, version)
    clean(path)
    rows = [b for task in tasks for b in task_batches(task, table_columns(source(path)))]
    assert sorted(key for key, *_ in rows_of(rows)) == sorted(KEYS[:10])


@PARTED
def test_a_write_that_replaces_file_groups_comes_in_parts(version: int, tmp_path: Path) -> None:
    """Its new rows, and none of those that it replaced; a deletion of partitions has no rows."""
    path = tmp_path / "rides"
    upsert(path, 0, KEYS, version)
    consumer = Consumer(path)
    while consumer.step(ReadMaxFiles(2)):
        pass
    new = [f"n{number}" for number in range(20)]
    rows = pa.table({"id": new, "ts": [1] * 20, "p": ["p0"] * 20})
    writer(rows).buckets(3).insert_overwrite(str(path))
    count = len(consumer.parts)
    while consumer.step(ReadMaxFiles(1)):
        pass
    assert len(consumer.parts) > count + 1
    assert sorted(row[0] for part in consumer.parts[count:] for row in part) == sorted(new)
    upsert(path, 2, ["n0", "k1"], version)
    writer(rows.slice(0, 0)).buckets(3).delete_partition(str(path), ["p0"])
    count = len(consumer.parts)
    while consumer.step(ReadMaxFiles(1)):
        pass
    assert sorted(row[0] for part in consumer.parts[count:] for row in part) == ["k1", "n0"]
    assert consumer.offset == consumer.reader.reportLatestOffset()


def test_a_rest_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """Also where a stream may pass over lost data: other file groups may hold the rest by now."""
    path = tmp_path / "rides"
    upsert(path, 0, ["a", "b", "c"])
    consumer = Consumer(path, failOnDataLoss="false")
    assert consumer.step(ReadMaxFiles(1))
    lost = {**consumer.offset, "next": "20200101000000000"}
    with pytest.raises(UsageError, match="the rest of a write"):
        consumer.reader.latestOffset(lost, ReadAllAvailable())


def test_how_much_a_part_takes() -> None:
    def written(rows: int) -> StreamedWrite:
        return StreamedWrite(moment="1", files=1, rows=rows)

    groups = [(("p", "a"), written(9)), (("p", "b"), written(1)), (("p", "c"), written(2))]
    assert part_end(groups, ReadMaxRows(1)) == ("p", "a")
    assert part_end(groups, ReadMaxRows(10)) == ("p", "b")
    assert part_end(groups, ReadMaxRows(12)) is None
    assert part_end(groups, ReadAllAvailable()) is None
    assert part_end([], ReadMaxRows(1)) is None
