"""`spark.readStream.format("phantombase")`: each row once, whole writes, restarts exactly."""

from __future__ import annotations

import json
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from phantombase import ExecuteOptions, Executor, compact, read_table, schedule, writer
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.read.incremental import StreamedWrite, writes_after
from phantombase.timeline.read.pins import live_pins
from phantombase.timeline.read.table_read import Fallback, Query
from phantombase.timeline.table.table import Table
from pyspark_phantombase.batch_reader import BatchReader, table_columns, task_batches
from pyspark_phantombase.options import batch_options, source_options, stream_options
from pyspark_phantombase.stream_reader import StreamReader, batch_end
from tests.hudi.conformance.history import History
from tests.hudi.conformance.model import window
from tests.hudi.conformance.stored import unpack
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

pytestmark = pytest.mark.spark


def upsert(path: Path, ts: int, *keys: str) -> None:
    rows = pa.table({"id": list(keys), "ts": [ts] * len(keys)})
    writer(rows).table("rides").key("id").ordering("ts").buckets(1).upsert(str(path))


def delivered(spark: Any, path: Path, folder: Path, **options: str) -> list[list[tuple[str, int]]]:
    """The batches of a stream that stops when it has read what is there; (id, ts) of each row."""
    batches: list[list[tuple[str, int]]] = []

    def keep(frame: Any, _: int) -> None:
        batches.append(sorted((row.id, row.ts) for row in frame.select("id", "ts").collect()))

    source = spark.readStream.format("phantombase").options(**options).load(str(path))
    query = source.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint"))
    for tries_left in reversed(range(10)):
        try:
            query.trigger(availableNow=True).start().awaitTermination()
            break
        except StreamingQueryException as error:
            # Spark gives the process that plans a stream ten seconds to start; a busy machine may need more.
            if not tries_left or "failed to connect back" not in str(error) or batches:
                raise
    return batches


class Followed:
    """A stream by the calls that Spark makes of its source, without Spark: of a run it keeps nothing but the offset."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._checkpoint: str | None = None

    def batches(self, **options: str) -> list[pa.Table]:
        """Those of one run, which stops when it has read what is there."""
        chosen = stream_options({"path": str(self._path), **options})
        columns = table_columns(chosen.of_table())
        reader = StreamReader(chosen, columns)
        at = json.loads(self._checkpoint) if self._checkpoint else reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        found = []
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            batches = [b for task in reader.partitions(at, end) for b in pickle.loads(pickle.dumps(reader)).read(task)]
            found.append(pa.Table.from_batches(batches) if batches else pa.table({n: [] for n in columns.names}))
            reader.commit(end)
            at = end
        self._checkpoint = json.dumps(at)
        return found

    def rows(self, **options: str) -> list[list[tuple[str, int]]]:
        """(id, ts) of each row of the batches of one run."""
        return [sorted((r["id"], r["ts"]) for r in batch.to_pylist()) for batch in self.batches(**options)]


def test_copy_on_write(tmp_path: Path) -> None:
    """What came after the first write, as it is now."""
    path = unzip_golden("more/v9_copy_on_write", tmp_path)
    first = min(Table.open(str(path), reading=True).load_timeline().completed, key=lambda w: w.requested_time)
    (rows,) = Followed(path).rows(begin=str(first.completion_time))
    assert rows == sorted([(f"k{n:02d}", 8) for n in range(10, 24)] + [(f"k{n:02d}", 6) for n in (6, 9, 24, 27)])


def test_each_write_once_across_restarts_and_compactions(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "rides"
    upsert(path, 1, "a", "b")
    upsert(path, 2, "b", "c")
    assert delivered(spark, path, tmp_path) == [[("a", 1), ("b", 2), ("c", 2)]]
    assert delivered(spark, path, tmp_path) == []
    upsert(path, 3, "c")
    schedule(path, sole_writer=True)
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    upsert(path, 4, "d")
    assert delivered(spark, path, tmp_path) == [[("c", 3), ("d", 4)]]
    schedule(path, sole_writer=True)
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    assert delivered(spark, path, tmp_path) == []


def test_a_limit_parts_the_writes_into_batches(tmp_path: Path) -> None:
    path = tmp_path / "rides"
    for ts, keys in enumerate(("ab", "bc", "c"), 1):
        upsert(path, ts, *keys)
    found = Followed(path).rows(maxFilesPerTrigger="1")
    assert found == [[("a", 1), ("b", 1)], [("b", 2), ("c", 2)], [("c", 3)]]


@pytest.mark.parametrize("version", [9, deep(6)])
def test_partitions_that_are_replaced_or_deleted(version: int, tmp_path: Path) -> None:
    """A replacement brings its own rows; what it took away, and a deletion, are no rows of a stream."""
    path = tmp_path / "rides"
    stream = Followed(path)

    def described(ts: int, *keys: str) -> Any:
        rows = pa.table({"id": list(keys), "ts": [ts] * len(keys), "p": [key[0] for key in keys]})
        return writer(rows).table("rides", version=version).key("id").ordering("ts").partition("p").buckets(2)

    described(1, "a1", "a2", "b1", "b2").upsert(str(path))
    assert stream.rows() == [[("a1", 1), ("a2", 1), ("b1", 1), ("b2", 1)]]
    described(2, "a3", "a4").insert_overwrite(str(path))
    assert stream.rows() == [[("a3", 2), ("a4", 2)]]
    described(3, "b2", "a3").upsert(str(path))
    described(3).delete_partition(str(path), ["a"])
    assert sorted(row for batch in stream.rows() for row in batch) == [("b2", 3)]
    described(4, "a1").upsert(str(path))
    described(5, "b5").insert_overwrite_table(str(path))
    found = stream.rows(maxFilesPerTrigger="1")
    assert [batch for batch in found if batch] == [[("a1", 4)], [("b5", 5)]]


def test_a_stream_from_now_on(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "rides"
    upsert(path, 1, "a")
    assert delivered(spark, path, tmp_path, begin="latest") == [[]]  # Spark begins a new stream with a batch
    upsert(path, 2, "b")
    assert delivered(spark, path, tmp_path, begin="latest") == [[("b", 2)]]


@pytest.mark.parametrize("name", ["v6_two_pending", deep("v9_two_pending")])
def test_all_batches_together_are_the_table(name: str, tmp_path: Path) -> None:
    """In the batches of one write each, the last row of a key is that of the table."""
    path = unzip_golden(name, tmp_path)
    kept = Followed(path).batches(maxFilesPerTrigger="1")
    assert len(kept) > 1
    newest: dict[str, dict[str, Any]] = {}
    for batch in kept:
        newest |= {row["_hoodie_record_key"]: row for row in batch.to_pylist()}
    wanted = read_table(path)
    there = set(wanted.column("_hoodie_record_key").to_pylist())  # a stream does not report deletes
    found = [row for key, row in newest.items() if key in there]
    assert_same_rows(pa.Table.from_pylist(found, schema=kept[0].schema), wanted)


@pytest.mark.parametrize(("version", "state"), [(9, "overlapping writers"), deep(6, "two compactions pending")])
def test_each_batch_is_the_model_of_its_window(version: int, state: str, tmp_path: Path) -> None:
    """Of a table of the matrix: one write after the other as they completed, each in one batch or several."""
    folder = unpack(version, tmp_path / "tables")[state]
    history = History.load(folder / "history.json")
    columns = ["p", "id", "ts", "v", "_hoodie_commit_time"]
    batches = Followed(folder / "table").batches(maxFilesPerTrigger="1")
    found = [{tuple(row.values()) for row in batch.select(columns).to_pylist()} for batch in batches]
    moments = sorted(write.moment for write in history.writes)
    parts = iter(found)
    for wanted in (window(history, begin, end) for begin, end in pairwise(["", *moments])):
        got: set[tuple[Any, ...]] = set()
        while len(got) < len(wanted):
            part = next(parts)
            assert not part & got
            got |= part
        assert got == wanted
    assert not any(parts)


def test_a_window(spark: Any, tmp_path: Path) -> None:
    """A batch query of the rows that were written since."""
    path = tmp_path / "rides"
    upsert(path, 1, "a", "b")
    table = read_table(path)
    upsert(path, 2, "b")
    frame = spark.read.format("phantombase").options(query="incremental", begin="earliest", filter="ts > 1")
    assert [row.id for row in frame.load(str(path)).collect()] == ["b"]
    assert table.num_rows == 2


def test_a_table_without_meta_columns_is_refused(tmp_path: Path) -> None:
    path = unzip_golden("v9_virtual_keys", tmp_path)
    with pytest.raises(UnsupportedError, match="no meta columns"):
        Followed(path).batches()


WRITES = [
    StreamedWrite(moment="1", files=1, bytes=10, rows=3),
    StreamedWrite(moment="2", files=2, bytes=10, rows=3),
    StreamedWrite(moment="3", files=1, bytes=90, rows=3),
]


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (ReadAllAvailable(), "3"),
        (ReadMaxFiles(1), "1"),
        (ReadMaxFiles(3), "2"),
        (ReadMaxBytes(5), "1"),
        (ReadMaxBytes(109), "2"),
        (ReadMaxRows(9), "3"),
        (ReadMinRows(9), "3"),
        (ReadMinRows(10), "0"),
    ],
)
def test_how_much_a_batch_takes(limit: Any, end: str) -> None:
    assert batch_end("0", WRITES, limit) == end


def test_without_writes_a_stream_stays_where_it_is() -> None:
    assert batch_end("7", [], ReadAllAvailable()) == "7"


def test_a_stream_refuses_what_it_cannot_follow() -> None:
    for name in ("end", "as_of", "query", "hoodie.datasource.read.end.instanttime"):
        with pytest.raises(UsageError, match="a stream has no such option"):
            stream_options({"path": "p", name: "snapshot"})
    twice = {"query": "snapshot", "hoodie.datasource.query.type": "incremental"}
    for names in (twice, dict(reversed(twice.items()))):
        with pytest.raises(UsageError, match=r"a stream has no such option.*query=snapshot"):
            stream_options({"path": "p", **names})
    assert stream_options({"path": "p", "query": "incremental"}).read.query is Query.SNAPSHOT


@pytest.mark.parametrize("name", ["maxFilesPerTrigger", "maxbytespertrigger", "maxRowsPerTrigger"])
def test_a_query_that_is_no_stream_refuses_what_only_streams_follow(name: str) -> None:
    assert batch_options({"path": "p"}) == source_options({"path": "p"})
    with pytest.raises(UsageError, match=f"{name}=5"):
        batch_options({"path": "p", name: "5"})


def test_options_of_both_kinds() -> None:
    found = stream_options(
        {"path": "p", "failOnDataLoss": "false", "memory_limit": "64m", "spill_dir": "/s", "timezone": "UTC"}
    )
    assert (found.read.fallback, found.read.memory_limit, found.read.spill_dir) == (Fallback.FULL_SCAN, 64 << 20, "/s")
    assert found.timezone == "UTC"
    assert source_options({"path": "p", "hoodie.memory.merge.max.size": "64000000"}).read.memory_limit == 64_000_000
    with pytest.raises(UsageError, match="pin_for belongs to a pin"):
        source_options({"path": "p", "pin_for": "2h"})


@pytest.mark.parametrize("same", ["true", "false"])
def test_two_options_for_files_that_were_cleaned_agree(same: str) -> None:
    with pytest.raises(UsageError, match=f"contradict.*failOnDataLoss={same}.*full_scan={same}"):
        source_options({"path": "p", "failOnDataLoss": same, "full_scan": same})
    other = {"true": "false", "false": "true"}[same]
    found = source_options({"path": "p", "failOnDataLoss": same, "full_scan": other})
    assert found == source_options({"path": "p", "full_scan": other})


def test_a_stream_holds_what_it_has_not_delivered(tmp_path: Path) -> None:
    """The pin moves with the committed offset, and stays when the stream stops."""
    path = tmp_path / "rides"
    upsert(path, 1, "a")
    storage = Table.open(str(path)).storage
    reader = StreamReader(stream_options({"path": str(path), "pin": "copy"}), StructType())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [pin.holds for pin in live_pins(storage)] == [""]
    reader.commit(end)
    assert [pin.holds for pin in live_pins(storage)] == list(end.values())
    reader.latestOffset(end, ReadAllAvailable())
    assert [pin.holds for pin in live_pins(storage)] == list(end.values())


def test_a_query_leaves_its_pin(spark: Any, tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    assert spark.read.format("phantombase").options(pin="report", pin_for="1h").load(str(path)).count()
    pins = live_pins(Table.open(str(path)).storage)
    assert {(pin.name, pin.for_s) for pin in pins} == {("report", 3600)}


def test_a_task_renews_the_pin_of_its_query(tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    storage = Table.open(str(path)).storage
    options = source_options({"path": str(path), "pin": "report", "pin_for": "1h"})
    columns = table_columns(options)
    reader = BatchReader(options, columns)
    task = reader.partitions()[0]
    (pin,) = live_pins(storage)
    os.utime(path / pin.path, (pin.taken_ms / 1000 - 2000,) * 2)
    assert list(reader.read(task))
    (renewed,) = live_pins(storage)
    assert renewed.path != pin.path
    assert renewed.holds == pin.holds


@pytest.mark.parametrize("name", ["v9_compacted_cleaned", deep("v9_archived"), deep("v6_compacted_cleaned")])
def test_a_limit_does_not_stop_a_stream_at_a_cleaned_state(name: str, tmp_path: Path) -> None:
    """A batch ends at a state that is whole: the writes before the first such state come together."""
    options = stream_options({"path": str(unzip_golden(name, tmp_path))})
    columns = table_columns(options.of_table())
    reader = StreamReader(options, columns)
    offset, rows = reader.initialOffset(), 0
    while (end := reader.latestOffset(offset, ReadMaxFiles(1))) != offset:
        rows += sum(b.num_rows for task in reader.partitions(offset, end) for b in task_batches(task, columns))
        offset = end
    assert offset == reader.reportLatestOffset()
    assert rows >= read_table(options.path).num_rows


def test_archived_writes_count(tmp_path: Path) -> None:
    """The archive of versions 8 and 9 has what they wrote."""
    table = Table.open(str(unzip_golden("v9_archived", tmp_path)))
    found = writes_after(table, "earliest", {})
    assert len(found) > len(table.load_timeline().completed)
    assert all(write.files and write.bytes and write.rows for write in found)
