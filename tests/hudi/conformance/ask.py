"""The questions of the matrix, and the readers that are asked: ours, real Hudi, hudi-rs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadMaxFiles

from phantombase.timeline.read.table_read import Query as Kind
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from pyspark_phantombase import DefaultSource
from tests.hudi.conformance import model
from tests.hudi.conformance.history import History
from tests.hudi.conformance.model import Row
from tests.hudi.judge.client import Judge

KINDS = ("snapshot", "read-optimized", "incremental", "time travel", "streaming")
WINDOWS = ("incremental", "streaming")
BEFORE_ALL = "0" * 17
_LONG_AGO = "20000101000000000"
"""Hudi 1.2 refuses a begin of zeros, and answers `earliest` with no rows."""
EMPTY = pa.schema(
    {"p": pa.string(), "id": pa.string(), "ts": pa.int64(), "v": pa.int64(), "_hoodie_commit_time": pa.string()}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question. `point`: of time travel; `begin` and `end`: of a window, None for no end."""

    kind: str
    point: str | None = None
    begin: str = BEFORE_ALL
    end: str | None = None

    def __str__(self) -> str:
        if self.point is not None:
            return f"as of {self.point}"
        return f"({self.begin.lstrip('0') or 'start'}, {self.end or 'end'}]" if self.kind in WINDOWS else self.kind

    def expected(self, history: History) -> set[Row]:
        """By the model."""
        if self.kind == "read-optimized":
            return model.read_optimized(history)
        if self.kind in WINDOWS:
            return model.window(history, self.begin, self.end)
        return model.snapshot(history) if self.point is None else model.as_of(history, self.point)


Reader: TypeAlias = Callable[[Path, Query], list[tuple[Query, pa.Table]]]
"""The rows of one question; a stream has one question for each of its batches."""


def queries(history: History) -> list[Query]:
    """All that is asked of one table."""
    windows = [Query(kind="incremental", begin=begin, end=end) for begin, end in model.windows(history)]
    points = [Query(kind="time travel", point=write.instant) for write in history.writes]
    return [Query(kind="snapshot"), Query(kind="read-optimized"), *windows, *points, Query(kind="streaming")]


def ours(path: Path, query: Query) -> list[tuple[Query, pa.Table]]:
    """What we read."""
    if query.kind == "streaming":
        return our_batches(path)
    options = {
        "snapshot": ReadOptions(),
        "read-optimized": ReadOptions(query=Kind.READ_OPTIMIZED),
        "incremental": ReadOptions(query=Kind.INCREMENTAL, begin=query.begin, end=query.end),
        "time travel": ReadOptions(as_of=query.point),
    }
    return [(query, read_table(Table.open(str(path)), options[query.kind]))]


def our_batches(path: Path) -> list[tuple[Query, pa.Table]]:
    """The batches of our stream, one write each, up to the newest. Spark's part is played here."""
    source = DefaultSource({"path": str(path)})
    reader = source.streamReader(source.schema())
    batches, start = list[tuple[Query, pa.Table]](), reader.initialOffset()
    while (found := stream_batch(reader, start)) is not None:
        start, query, rows = found
        batches.append((query, rows))
    return batches


def stream_batch(
    reader: DataSourceStreamReader, start: dict[str, str]
) -> tuple[dict[str, str], Query, pa.Table] | None:
    """What comes next of a stream, one write: its end, its window, its rows; None if nothing was written since. A write
    of several file groups comes in several batches."""
    [begin] = start.values()
    parts = list[pa.RecordBatch]()
    while (end := reader.latestOffset(start, ReadMaxFiles(1))) != start:
        parts += [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
        start = end
        if "next" not in end:
            [until] = end.values()
            query = Query(kind="streaming", begin=begin or BEFORE_ALL, end=until)
            return end, query, pa.Table.from_batches(parts, None if parts else EMPTY)
    assert not parts, "a write that is delivered in part goes on"
    return None


def hudi(judge: Judge) -> Reader:
    """Real Hudi."""

    def answer(path: Path, query: Query) -> list[tuple[Query, pa.Table]]:
        return [(query, read(path, query))]

    def read(path: Path, query: Query) -> pa.Table:
        if query.kind == "streaming":
            return judge.stream(path)
        if query.kind != "incremental":
            return judge.read(
                path, query="read_optimized" if query.kind == "read-optimized" else "snapshot", as_of=query.point
            )
        begin = _LONG_AGO if query.begin == BEFORE_ALL else query.begin
        window = {"hoodie.datasource.read.begin.instanttime": begin}
        end = {} if query.end is None else {"hoodie.datasource.read.end.instanttime": query.end}
        return judge.read(path, query="incremental", options={**window, **end})

    return answer


def hudi_rs(path: Path, query: Query) -> list[tuple[Query, pa.Table]]:
    """hudi-rs; it has no stream of windows."""
    if query.kind == "streaming":
        raise NotImplementedError("no streaming reads")
    options = HudiReadOptions()
    if query.kind == "incremental":
        options = options.with_query_type(HudiQueryType.Incremental).with_start_timestamp(query.begin)
        options = options if query.end is None else options.with_end_timestamp(query.end)
    elif query.point is not None:
        options = options.with_as_of_timestamp(query.point)
    elif query.kind == "read-optimized":
        options = options.with_hudi_option("hoodie.read.use.read_optimized.mode", "true")
    table = HudiTableBuilder.from_base_uri(str(path)).build()
    batches = [pa.record_batch(batch) for batch in table.read(options)]
    return [(query, pa.Table.from_batches(batches, None if batches else EMPTY))]
