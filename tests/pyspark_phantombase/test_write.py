"""`df.write.format("phantombase")`: tasks stage rows, one commit writes them. Most tests call what Spark calls."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from phantombase import MalformedError, NotATableError, Table, UnknownStateError, UsageError, read_table
from phantombase.compactor_daemon.cleaning.orphan_choice import OrphanOptions
from phantombase.compactor_daemon.cleaning.orphans import remove_orphans
from phantombase.compactor_daemon.status.check import check_table
from phantombase.timeline.dashboard.verdict import Health
from phantombase.timeline.storage.folders import ROWS
from phantombase.writer_hooks.engine import engine as staged_rows
from pyspark_phantombase import DefaultSource
from pyspark_phantombase.batch_reader import spark_columns
from tests.support.faults import make_old
from tests.support.golden_tables import LOCK

OPERATION, KEY = "hoodie.datasource.write.operation", "hoodie.datasource.write.recordkey.field"
TABLE = {
    "hoodie.table.name": "t",
    KEY: "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "zone",
}


INSERT: dict[str, Any] = {OPERATION: "insert"}
DELETE: dict[str, Any] = {OPERATION: "delete"}
streams = pytest.mark.skipif(
    not hasattr(datasource, "DataSourceStreamArrowWriter"), reason="PySpark 4.0 takes no Arrow batches of a stream"
)
METADATA: dict[str, Any] = {"hoodie.metadata.enable": "true"}


def rows(*values: tuple[str, int], zone: str = "a") -> pa.Table:
    """Rows of these keys and times."""
    keys, times = [key for key, _ in values], [ts for _, ts in values]
    return pa.table(
        {
            "id": pa.array(keys, pa.string()),
            "ts": pa.array(times, pa.int64()),
            "zone": pa.array([zone] * len(keys), pa.string()),
        }
    )


def sink(path: Path, schema: pa.Schema, *, overwrite: bool = False, stream: bool = False, **options: Any) -> Any:
    """The writer as Spark makes it: of options with names in lower case; its tasks get a copy."""
    source = DefaultSource({"path": str(path), **TABLE, **options})
    columns: StructType = spark_columns(schema)
    return source.streamWriter(columns, overwrite) if stream else source.writer(columns, overwrite)


def task(writer: Any, part: pa.Table) -> Any:
    """One run of a task."""
    return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter(part.to_batches()))))


def save(path: Path, *parts: pa.Table, overwrite: bool = False, operation: str | None = None, **options: Any) -> None:
    """A job with a task for each part."""
    named = options if operation is None else {**options, OPERATION: operation}
    writer = sink(path, parts[0].schema, overwrite=overwrite, **named)
    writer.commit([task(writer, part) for part in parts])


def found(path: Path) -> list[tuple[str, int]]:
    table = read_table(path)
    return sorted(zip(table["id"].to_pylist(), table["ts"].to_pylist(), strict=True))


def staged(path: Path) -> list[str]:
    return [str(one) for one in (path / ROWS).glob("**/*")]


def test_operations_and_modes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    save(path, rows(("1", 1), ("2", 1)), rows(("3", 1), zone="b"))
    save(path, rows(("1", 2), ("2", 0)), rows(("4", 1)))
    assert found(path) == [("1", 2), ("2", 1), ("3", 1), ("4", 1)]
    save(path, rows(("4", 1)).select(["id", "zone"]), operation="delete")
    save(path, rows(("1", 3)), operation="insert")
    save(path, rows(("5", 1)), operation="bulk_insert")
    assert found(path) == [("1", 2), ("1", 3), ("2", 1), ("3", 1), ("5", 1)]
    save(path, rows(("6", 1)), operation="insert_overwrite", overwrite=True)
    assert found(path) == [("3", 1), ("6", 1)]  # the partition of the rows
    save(path, rows(("7", 1)), rows(("7", 2)), overwrite=True)
    assert found(path) == [("7", 2)]  # the table; one row of a key, as an upsert
    save(path, rows(("7", 1)), rows(("7", 2)), overwrite=True, operation="insert")
    assert found(path) == [("7", 1), ("7", 2)]
    save(path, rows(), overwrite=True)
    assert found(path) == []
    assert staged(path) == []


def test_a_task_that_ran_twice_doubles_no_row(tmp_path: Path) -> None:
    """Spark takes one run of each task; what the other one staged goes with the job."""
    path = tmp_path / "t"
    writer = sink(path, rows().schema, **INSERT)
    task(writer, rows(("1", 1)))
    messages = [task(writer, rows(("1", 1))), task(writer, rows(("2", 1)))]
    with pytest.raises(NotATableError):
        read_table(path)
    writer.commit(messages)
    assert found(path) == [("1", 1), ("2", 1)]
    assert staged(path) == []


def test_an_aborted_job_leaves_nothing(tmp_path: Path) -> None:
    """Another job's rows stay; a task that fails removes its own; a retried job finds the folder free."""
    path = tmp_path / "t"
    writer, other = (sink(path, rows().schema) for _ in range(2))
    message = task(other, rows(("2", 1)))

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(("1", 1)).to_batches()
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        writer.write(failing())
    assert len(staged(path)) == 2  # the other's folder and file
    writer.abort([task(writer, rows(("1", 1))), None])
    assert len(staged(path)) == 2
    other.commit([message])
    assert found(path) == [("2", 1)]
    assert staged(path) == []


def test_a_first_write_that_is_not_committed_is_no_table(tmp_path: Path) -> None:
    """An aborted one leaves nothing; one that runs, or has died, is not a broken table, and keeps no path from others;
    its rows that are older than a day are orphans."""
    path = tmp_path / "lake/t"
    writer = sink(path, rows().schema)
    writer.abort([task(writer, rows(("1", 1)))])
    assert list(path.iterdir()) == []
    message = task(writer, rows(("1", 1)))
    found_there = check_table("t", str(path))
    assert (found_there.verdict.health, found_there.verdict.findings[0].name) == (Health.WELL, "not-made")
    save(path.parent, rows(("2", 1)))
    with pytest.raises(UsageError, match="a table cannot be made here"):
        writer.commit([message])
    writer.abort([message])
    assert list(path.iterdir()) == []
    other = sink(path.parent, rows().schema)
    for _ in range(2):
        task(other, rows(("3", 1)))
    (young, old) = sorted((path.parent / ROWS).iterdir())
    for folder, hours in ((young, 23), (old, 73)):
        make_old(set(folder.iterdir()), hours * 3600)
    for options in (OrphanOptions(older_than="1h"), OrphanOptions()):
        remove_orphans(Table.open(str(path.parent)), options, LOCK)
        assert list((path.parent / ROWS).iterdir()) == [young]
    assert found(path.parent) == [("2", 1)]


def test_rows_that_are_not_as_staged_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writer = sink(path, rows().schema)
    message = task(writer, rows(("1", 1)))
    with pytest.raises(UnknownStateError, match=r"2 tasks.*1 tasks"):
        writer.commit([message, None])
    file = path / message.part.path
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(MalformedError, match="damaged rows of a task"):
        writer.commit([message])
    with pytest.raises(NotATableError):
        read_table(path)


def test_refused_before_any_row(tmp_path: Path) -> None:
    """By the driver, before a task begins: unknown names, contradictions, another table, other columns."""
    path = tmp_path / "t"
    save(path, rows(("1", 1)))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"hoodie.datasource.write.operatoin": "upsert"}, "Did you mean hoodie.datasource.write.operation"),
        ({"mergeSchema": "true"}, "not a known configuration.*mergeSchema"),
        ({KEY: "zone"}, "another table is at this path"),
        ({OPERATION: "delete", "overwrite": True}, "deletes of keys do not overwrite"),
    ]
    for options, message in wrong:
        with pytest.raises(UsageError, match=f"(?s){message}"):
            sink(path, rows().schema, **options)
    with pytest.raises(UsageError, match="ts"):
        sink(path, rows().set_column(1, "ts", pa.array([], pa.string())).schema)
    with pytest.raises(UsageError, match="no table"):
        DefaultSource(TABLE).writer(from_arrow_schema(rows().schema), False)
    with pytest.raises(NotATableError):
        sink(tmp_path / "none", rows().schema, **DELETE)
    assert found(path) == [("1", 1)]


class _Task:
    """What a task of a stream knows of its query."""

    def __init__(self, query: str, run: str, number: int) -> None:
        self.properties = {
            "sql.streaming.queryId": query,
            "spark.jobGroup.id": run,
            "streaming.sql.batchId": str(number),
        }

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@streams
def test_each_batch_of_a_stream_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that comes again adds nothing; another query is refused under the same name; a name of its own works."""
    path = tmp_path / "t"

    def batch(query: str, run: str, number: int, part: pa.Table, **options: Any) -> None:
        monkeypatch.setattr(TaskContext, "get", lambda: _Task(query, run, number))
        made = [sink(path, part.schema, stream=True, **INSERT, **options) for _ in range(2)]
        made[1].commit([task(made[0], part)], number)

    batch("q", "run1", 0, rows(("1", 1)))
    batch("q", "run1", 1, rows(("2", 1)), checkpointlocation="/c", queryname="n")
    batch("q", "run2", 1, rows(("2", 1)))
    assert found(path) == [("1", 1), ("2", 1)]
    with pytest.raises(UsageError, match="another query writes under the name"):
        batch("r", "run3", 0, rows(("3", 1)))
    with pytest.raises(UnknownStateError, match="did not name the query"):
        batch("", "", 0, rows(("3", 1)))
    batch("r", "run3", 0, rows(("3", 1)), **{"hoodie.datasource.write.streaming.checkpoint.identifier": "r"})
    assert found(path) == [("1", 1), ("2", 1), ("3", 1)]


@pytest.mark.spark
def test_by_spark(spark: Any, tmp_path: Path) -> None:
    """Through Spark: types and the session's time zone, both modes, errors before any task."""
    path = tmp_path / "t"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.range(4).selectExpr(
            "string(id) id",
            "1L ts",
            "'a' zone",
            "timestamp'2026-07-01 10:00:00' at",
            "timestamp_ntz'2026-07-01 10:00:00' wall",
            "1.25BD dec",
            "array(named_struct('x', id, 'm', map('k', 1.5D))) nested",
        )
        frame.write.format("phantombase").mode("append").options(**TABLE).save(str(path))
        back = spark.read.format("phantombase").load(str(path)).select(frame.columns)
        assert back.orderBy("id").collect() == frame.orderBy("id").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame.where("id > 1").write.format("phantombase").mode("overwrite").save(str(path))
    assert found(path) == [("2", 1), ("3", 1)]
    with pytest.raises(PySparkException, match=r"Did you mean hoodie\.table\.name"):
        frame.write.format("phantombase").mode("append").option("hoodie.table.nam", "t").save(str(path))
    with pytest.raises(PySparkException, match="Append"):
        frame.write.format("phantombase").save(str(path))
    assert staged(path) == []


@streams
@pytest.mark.spark
@pytest.mark.deep
def test_a_stream_by_spark(spark: Any, tmp_path: Path) -> None:
    """A query that lost the record of its last batch writes that again: nothing is added."""
    path, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    names = "id string, ts long, zone string"

    def run(number: int) -> None:
        spark.createDataFrame([(str(number), 1, "a")], names).write.mode("append").parquet(str(tmp_path / "in"))
        again()

    def again() -> None:
        stream = spark.readStream.schema(names).parquet(str(tmp_path / "in"))
        query = stream.writeStream.format("phantombase").options(**TABLE, **INSERT).trigger(availableNow=True)
        query.option("checkpointLocation", str(checkpoint)).start(str(path)).awaitTermination()

    for number in range(3):
        run(number)
    assert found(path) == [("0", 1), ("1", 1), ("2", 1)]
    for file in checkpoint.glob("commits/*2*"):
        file.unlink()
    again()
    assert found(path) == [("0", 1), ("1", 1), ("2", 1)]
    shutil.rmtree(checkpoint)
    with pytest.raises(PySparkException, match="another query writes under the name"):
        again()
    assert staged(path) == []


def test_all_pieces_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a write holds in memory is in files: also the records of its files, which are large for wide tables."""
    monkeypatch.setattr(staged_rows, "_MEMORY_BYTES", 0)
    path = tmp_path / "t"
    save(path, rows(*((f"k{n}", 1) for n in range(50))), rows(("k1", 2)), **METADATA)
    save(path, rows(("k2", 2), ("new", 1)), rows(zone="b"))
    save(path, rows(*((f"k{n}", 1) for n in range(49))).select(["id", "zone"]), operation="delete")
    assert found(path) == [("k49", 1), ("new", 1)]
    assert staged(path) == []
