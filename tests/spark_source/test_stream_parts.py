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
from phantombase.timeline.read.table_read import Query
from phantombase.timeline.table.table import Table
from phantombase.timeline.windows.streamed import StreamedWrite, writes_after
from pyspark_phantombase.admission import part_end
from pyspark_phantombase.batch_reader import task_batches
from pyspark_phantombase.options import stream_options
from pyspark_phantombase.planned import table_columns
from pyspark_phantombase.stream_reader import StreamReader
from tests.support.selection import deep

Row = tuple[str, int, str]


def upsert(path: Path, ts: int, keys: list[str]) -> None:
    rows = pa.table({"id": keys, "ts": [ts] * len(keys), "p": [f"p{hash_of(key) % 2}" for key in keys]})
    writer(rows).table("rides").key("id").ordering("ts").partition("p").buckets(3).upsert(str(path))


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
        self._since: tuple[str, list[Row]] = (self.offset["completed"], [])

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
            self.whole.append((self._since[0], end["completed"], self._since[1]))
            self._since = (end["completed"], [])
        return True


@pytest.mark.parametrize("seed", [0, *(deep(seed) for seed in range(1, 12))])
def test_random_histories(seed: int, tmp_path: Path) -> None:
    """Each write comes in parts that are its window, and before the next write; a batch that is read again is equal."""
    chance, path = random.Random(seed), tmp_path / "rides"
    keys = [f"k{number}" for number in range(30)]
    upsert(path, 0, keys)
    consumer = Consumer(path)
    limits = [ReadMaxFiles(1), ReadMaxFiles(2), ReadMaxRows(8), ReadMaxBytes(500), ReadAllAvailable()]
    for ts in range(1, 25):
        act = chance.choice(["write", "write", "compact", "restart", "again", "step", "step", "step"])
        if act == "write":
            upsert(path, ts, chance.sample(keys, chance.randint(1, 20)))
        elif act == "compact" and schedule(str(path)):
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
    schedule(str(path))
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
