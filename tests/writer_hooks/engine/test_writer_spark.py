"""Writes of Spark DataFrames: the same rows as in-process, errors as they are, and nothing left on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, Tasks
from phantombase.compactor_daemon.execution.runners import SparkRunner
from phantombase.compactor_daemon.execution.spark_session import threads_of
from phantombase.timeline.errors import PhantombaseError, SparkError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.merge.rule import IS_DELETED
from phantombase.timeline.metadata_table.record_index import GLOBAL_KEYS_MARK
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import ROWS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import is_replaced
from phantombase.writer_hooks.engine import spark as spark_engine
from phantombase.writer_hooks.engine.row_blobs import Piece, Spool, pack, piece_of, remove_old
from phantombase.writer_hooks.engine.spark import SparkEngine, SparkPieces, default_slots
from phantombase.writer_hooks.options import Operation
from tests.hudi.cases.rows import partition
from tests.support.evolved_tables import contents
from tests.support.golden_tables import unzip_golden
from tests.support.record_indexes import check_index
from tests.support.record_indexes import rows as keyed_rows
from tests.support.selection import ALL, deep
from tests.support.trips import read, rows, trips

ROWS_BYTES = "phantombase.writer_hooks.engine.spark._ROWS_BYTES"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("buckets", "fetched", "here"),
    [
        pytest.param(None, True, True, id="key index"),
        deep(2, True, True, id="buckets"),
        deep(2, False, True, id="buckets, prepared in tasks"),
        deep(2, False, False, id="buckets in tasks"),
    ],
)
def test_spark_writes_what_is_written_in_process(
    spark: Any, buckets: int | None, fetched: bool, here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation, on both, step by step; pieces small enough to travel and large ones in files."""
    if not fetched:
        monkeypatch.setattr(ROWS_BYTES, 0)
    if not here:
        monkeypatch.setattr("phantombase.writer_hooks.engine.spark._FETCHED_BYTES", 0)
    many = [(n, 1, n / 7) for n in range(5000)]
    steps = [
        ("upsert", rows(*many)),
        ("upsert", rows(*((n, 2, 2.0) for n in range(0, 6000, 3)))),
        ("upsert", rows((3, 3, 0.0), (9999, 3, 0.0), deleted=True)),
        ("delete", rows((6, 0, 0.0), (9998, 0, 0.0)).select(["id", "day"])),
    ]
    if ALL:  # other tests insert in tasks
        steps.append(("insert", rows(*((n, 1, 3.0) for n in range(7000, 7100)))))
        steps.append(("bulk_insert", rows(*((n, 1, 4.0) for n in range(8000, 8100)))))
    for operation, batch in steps:
        for source, name in ((batch, "here"), (spark.createDataFrame(batch), "spark")):
            getattr(trips(source, 9, buckets), operation)(str(tmp_path / name))
        assert read(tmp_path / "here") == read(tmp_path / "spark"), operation
    assert len(read(tmp_path / "spark")) == 5000 + 333 + (200 if ALL else 0) - 2
    batch = rows(*((n, 9, 9.0) for n in range(1, 6000, 5))).rename_columns(["id", "day", "ts", "new fare", "gone"])
    batch = batch.set_column(4, "gone", pc.starts_with(batch.column("id"), "k002"))
    merged = tmp_path / "without marks"
    for source, name in ((batch, "here"), (spark.createDataFrame(batch), "spark")):
        trips(rows(*many).drop_columns([IS_DELETED]), 9, buckets).upsert(str(merged / name))
        merging = trips(source, 9, buckets)
        merging.merge_into(str(merged / name), update=["ts"], set={"fare": "new fare"}, insert=True, delete="gone")
    assert read(merged / "here") == read(merged / "spark")
    assert list(read(merged / "spark").values()).count(9.0) == 1199  # k0063 had it before
    replacing = [
        ("insert_overwrite", rows(*((n, 4, 5.0) for n in range(0, 90, 3)))),
        ("delete_partition", rows((1, 0, 0.0)).select(["id", "day"])),
        ("insert_overwrite_table", rows(*((n, 5, 6.0) for n in range(30)))),
    ]
    for operation, batch in replacing:
        conf = {"hoodie.datasource.write.operation": operation}
        for source, folder in ((batch, "here"), (spark.createDataFrame(batch), "spark")):
            trips(source, 9, buckets).conf(conf).write(str(tmp_path / folder))
        assert read(tmp_path / "here") == read(tmp_path / "spark"), operation
    assert len(read(tmp_path / "spark")) == 30
    assert list((tmp_path / "spark" / ROWS).glob("*")) == []


@pytest.mark.spark
@pytest.mark.parametrize("operation", ["bulk_insert", deep("upsert"), deep("insert")])
def test_files_are_read_by_tasks_or_here(
    spark: Any, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a frame is a bare scan of them: each row group by one task; the same rows as through Spark. Where Spark is
    this process, its tasks are threads."""
    source, many = tmp_path / "rows", [(n, n % 7, n / 7) for n in range(3000)]
    source.mkdir()
    for part in range(3):
        batch = rows(*many[part * 1000 : part * 1000 + 1000])
        pq.write_table(batch, source / f"part {part}%20.parquet", row_group_size=300)
    (source / "_SUCCESS").touch()
    seen = list[str]()
    mapped, job = spark_engine._mapped, spark_engine._job

    def noted(frame: Any, function: Any) -> Any:
        seen.append("frame")
        return mapped(frame, function)

    def noted_job(context: Any, given: list[Any], task: Any) -> Any:
        seen.append(f"job of {len(given)}")
        return job(context, given, task)

    monkeypatch.setattr(spark_engine, "_mapped", noted)
    monkeypatch.setattr(spark_engine, "_job", noted_job)
    cluster = {"threads_of": lambda context: 0}
    half = "phantombase.writer_hooks.engine.parquet_scan._task_bytes"
    monkeypatch.setattr(half, lambda conf, size, cores: -(-size // 2))
    for way, changed, expected in (
        ("here", {}, []),
        ("usual", {"bare_scan": lambda frame, storage: None}, []),
        ("threads", {"_ROWS_BYTES": 0}, ["job of 2", "job of 4"]),
        ("jobs", {"_ROWS_BYTES": 0, **cluster}, ["job of 2", "job of 4"]),
        ("frames", {"_ROWS_BYTES": 0, "_FETCHED_BYTES": 0, **cluster}, ["job of 2", "frame", "frame"]),
    ):
        with monkeypatch.context() as patch:
            for name, value in changed.items():
                patch.setattr(spark_engine, name, value)
            seen.clear()
            getattr(trips(spark.read.parquet(str(source)), 9, 2), operation)(str(tmp_path / way))
            assert seen == expected, way
        assert read(tmp_path / way) == {f"k{n:04d}": n / 7 for n in range(3000)}, way
        assert list((tmp_path / way / ROWS).glob("*")) == []
    bad = rows((1, 2, 2.0), (2, 2, 2.0)).set_column(0, "id", pa.array(["k", None], pa.string()))
    pq.write_table(bad, tmp_path / "bad.parquet")
    monkeypatch.setattr(spark_engine, "_ROWS_BYTES", 0)
    for way in ("threads", "jobs"):
        monkeypatch.setattr(spark_engine, "threads_of", lambda context, here=way == "threads": 2 if here else 0)
        with pytest.raises(UsageError, match="rows without a record key"):
            getattr(trips(spark.read.parquet(str(tmp_path / "bad.parquet")), 9, 2), operation)(str(tmp_path / way))
        assert list((tmp_path / way / ROWS).glob("*")) == []


@pytest.mark.spark
def test_what_is_wrong_with_rows_is_told_as_it_is(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    trips(rows((1, 1, 1.0)), 9).upsert(str(path))
    before = contents(path)
    bad = rows((1, 2, 2.0), (2, 2, 2.0)).set_column(0, "id", pa.array(["k", None], pa.string()))
    with pytest.raises(UsageError, match="rows without a record key") as caught:
        trips(spark.createDataFrame(bad), 9).upsert(str(path))
    assert "\n" not in str(caught.value)
    assert contents(path) == before


@pytest.mark.spark
def test_tasks_cluster_after_a_write(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the session of the job."""
    path, jobs = tmp_path / "trips", list[str]()
    run = SparkRunner.__call__

    def noted(self: SparkRunner, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        jobs.extend(task.job for task in tasks)
        return run(self, storage, tasks, progress)

    monkeypatch.setattr(SparkRunner, "__call__", noted)
    for start in (0, 10):
        batch = rows(*((n, 1, float(n)) for n in range(start, start + 10)))
        written = (
            trips(spark.createDataFrame(batch), 9).option(small_file_bytes=0).cluster(after_commits=2, min_files=2)
        )
        assert written.insert(str(path)).after.error is None
    assert jobs == ["clustering"] * 3  # one for each day
    assert read(path) == {f"k{n:04d}": float(n) for n in range(20)}
    view = Table.open(str(path)).load_view()
    assert sum(not is_replaced(group, view.facts) for group in view.groups) == 3


@pytest.mark.spark
def test_keys_of_other_partitions_are_found_by_tasks(spark: Any, tmp_path: Path) -> None:
    """Every task gets every key; one of the file slices is in each."""
    path = tmp_path / "trips"
    trips(rows(*((n, 1, 1.0) for n in range(30))), 9).upsert(str(path))
    (path / GLOBAL_KEYS_MARK).touch()
    before = contents(path)
    moved = rows((0, 2, 2.0), (1, 2, 2.0), (2, 2, 2.0), (99, 2, 2.0))
    moved = moved.set_column(1, moved.schema.field(1), pa.array(["mon"] * 4))
    with pytest.raises(
        UnsupportedError, match="2 of them, such as 'k0001' in partition 'mon': the table has it in 'tue'"
    ):
        trips(spark.createDataFrame(moved), 9).upsert(str(path))
    assert contents(path) == before
    assert trips(spark.createDataFrame(moved.slice(3)), 9).upsert(str(path)).inserts == 1
    done = trips(spark.createDataFrame(moved), 9).global_keys().upsert(str(path))
    assert done.deletes == 2
    found = [(r["id"], r["day"]) for r in read_table(Table.open(str(path))).to_pylist() if r["fare"] == 2.0]
    assert sorted(found) == [("k0000", "mon"), ("k0001", "mon"), ("k0002", "mon"), ("k0099", "mon")]


@pytest.mark.spark
def test_tasks_stage_the_keys_of_hudis_record_index(spark: Any, tmp_path: Path) -> None:
    """New keys in all file groups, keys that are deleted, and some that come again elsewhere."""
    path = unzip_golden("more/v9_record_index", tmp_path)
    for some, ts, operation in (
        (range(3000), 10, "upsert"),
        (range(0, 3000, 3), 11, "delete"),
        *([(range(5000, 5300), 12, "bulk_insert")] if ALL else []),
        (range(0, 3000, 5), 13, "upsert"),
        ([n for n in range(6000, 6300) if partition(n) == partition(0)], 14, "insert_overwrite"),
    ):
        batch = spark.createDataFrame(keyed_rows(some, ts))
        getattr(writer(batch).option(small_file_bytes=0), operation)(str(path))
        check_index(path)
    assert "06002" in check_index(path)
    batch = keyed_rows(range(0, 100, 2), 15).set_column(1, "p", pa.array(["new"] * 50))
    writer(spark.createDataFrame(batch)).global_keys().upsert(str(path))
    assert sum(place == "new" for place, _ in check_index(path).values()) == 50


@pytest.mark.spark
def test_few_rows_of_a_bucket_index_become_files_in_this_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows in plain jobs. Pieces are a frame where they are very many, or where a step reads the table: with a key
    index, or a global one."""
    regrouped: list[str] = []
    regroup = SparkPieces.regroup

    def noted(pieces: SparkPieces, step: Any) -> Any:
        regrouped.append(type(step).__name__)
        return regroup(pieces, step)

    job = spark_engine._job

    def noted_job(context: Any, given: list[Any], task: Any) -> Any:
        regrouped.append("job")
        return job(context, given, task)

    monkeypatch.setattr(SparkPieces, "regroup", noted)
    monkeypatch.setattr(spark_engine, "_job", noted_job)
    monkeypatch.setattr(ROWS_BYTES, 0)
    batch = spark.createDataFrame(rows(*((n, 1, 1.0) for n in range(3000))))
    trips(batch, 9, 2).upsert(str(tmp_path / "few"))
    assert regrouped == []
    trips(batch, 9, None).upsert(str(tmp_path / "keys"))
    assert "JoinStep" in regrouped
    for limit, here, expected in (("_HERE", True, "job"), ("_HERE", False, "job"), ("_FETCHED", True, "BucketStep")):
        regrouped.clear()
        path = tmp_path / f"{limit} {here}"
        with monkeypatch.context() as less:
            less.setattr(spark_engine, f"{limit}_BYTES", 10)
            less.setattr(spark_engine, "threads_of", lambda context, here=here: 2 if here else 0)
            trips(batch, 9, 2).upsert(str(path))
        assert regrouped == [expected]
        assert read(path) == read(tmp_path / "few")
    regrouped.clear()
    monkeypatch.setattr("phantombase.writer_hooks.index.global_keys.keys_are_global", lambda table: True)
    trips(batch, 9, 2).upsert(str(tmp_path / "few"))
    assert {"MisplacedStep", "BucketStep"} <= set(regrouped)


@pytest.mark.spark
def test_rows_that_spark_knows_to_be_few_are_fetched(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of files and of local data, not those whose number Spark does not estimate; and by Spark's own limit."""
    file = str(tmp_path / "rows.parquet")
    pq.write_table(rows(*((n, 1, 1.0) for n in range(300))), file)
    few = spark.read.parquet(file).where("ts > 0").selectExpr("*", "current_timestamp() AS at")
    assert (spark_engine.fetched(few) or pa.table({})).num_rows == 300
    for many in (
        few.selectExpr("explode(sequence(1, 1000))"),
        few.repartition(3),
        few.mapInArrow(lambda batches: batches, few.schema),
    ):
        assert spark_engine.fetched(many) is None
    for name, less in (("_ROWS_BYTES", 10), ("_HELD_BYTES", 10), ("_OF_THE_HEAP", 1 << 40), ("_LIMIT_DEFAULT", "0")):
        with monkeypatch.context() as patch:
            patch.setattr(spark_engine, name, less)
            assert spark_engine.fetched(few) is None, name

    def too_large(frame: Any) -> pa.Table:
        raise RuntimeError("results is bigger than spark.driver.maxResultSize 1024.0 MiB")

    with monkeypatch.context() as patch:
        patch.setattr(spark_engine, "to_arrow", too_large)
        assert spark_engine.fetched(few) is None
    with pytest.raises(SparkError, match="a Spark job of the write failed"):
        spark_engine.fetched(few.selectExpr("raise_error('broken')"))


@pytest.mark.spark
def test_a_small_write_needs_no_python_worker(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its steps need nothing but the rows."""
    started: list[str] = []
    mapped = spark_engine._mapped

    def noted(frame: Any, function: Any) -> Any:
        started.append(type(function).__name__)
        return mapped(frame, function)

    monkeypatch.setattr(spark_engine, "_mapped", noted)
    path, batch = str(tmp_path / "trips"), spark.createDataFrame(rows(*((n, 1, 1.0) for n in range(3000))))
    trips(batch, 9, 2).bulk_insert(path)
    trips(batch, 9, 2).upsert(path)
    assert started == []
    trips(batch, 9, None).upsert(str(tmp_path / "keys"))
    assert started


@pytest.mark.spark
@pytest.mark.parametrize("operation", ["insert", deep("bulk_insert")])
def test_rows_of_tasks_get_keys_of_their_own(spark: Any, operation: str, tmp_path: Path) -> None:
    """In a keyless table; equal rows too, in new files and behind those of small ones."""
    path, batch = str(tmp_path / "events"), rows(*((n % 50, 1, 1.0) for n in range(500)))
    frame = spark.createDataFrame(batch).repartition(5)
    for _ in range(2):
        described = writer(frame).table("events").key().partition("day").option(slots=4)
        getattr(described, operation)(path)
    table = read_table(Table.open(path))
    assert table.num_rows == 1000 == len(pc.unique(table.column("_hoodie_record_key")))
    assert sorted(table.column("id").to_pylist()) == sorted(2 * batch.column("id").to_pylist())


@pytest.mark.spark
def test_jobs_are_described_in_sparks_pages(spark: Any, tmp_path: Path) -> None:
    """By operation and table. The user's own description is there again afterwards, also after an error."""
    context, path = spark.sparkContext, str(tmp_path / "trips")
    frame = spark.createDataFrame(rows(*((n, 1, 1.0) for n in range(100))))
    context.setJobDescription("mine")
    try:
        trips(frame, 9).upsert(path)
        with pytest.raises(PhantombaseError):
            trips(frame.withColumnRenamed("id", "other"), 9).delete(path)
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setJobDescription(None)
    context._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = context._jsc.sc().statusStore().jobsList(None)
    shown = [jobs.apply(n).description() for n in range(jobs.size())]
    assert f"phantombase upsert {path}" in [one.get() for one in shown if one.isDefined()]
    assert all(path in one.get() for one in shown if one.isDefined() and str(tmp_path) in one.get())


@pytest.mark.spark
def test_rows_reach_python_in_batches_by_their_number(spark: Any, tmp_path: Path) -> None:
    """During a write, unless the session has its own number, or a column may hold large objects; not afterwards."""

    def sizes(source: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        for number, batch in enumerate(batches):
            text = str(batch.num_rows).encode()
            yield Piece(partition="", target="0", source=source, number=number, rows=batch.num_rows, payload=text)

    frame = spark.range(10_000).coalesce(1)
    engine, objects = SparkEngine(frame, slots=2), SparkEngine(frame.selectExpr("id", "x'00' AS object"), slots=2)

    def found(engine: SparkEngine = engine) -> list[int]:
        return sorted(int(size) for size in engine.prepare(sizes, LocalStorage(str(tmp_path))).collect())

    with engine.described("a write"):
        assert found() == [1808, 4096, 4096]
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 6000)
        try:
            assert found() == [4000, 6000]
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert found() == [10_000]
    with objects.described("a write"):
        assert found(objects) == [10_000]


@pytest.mark.spark
def test_slots_follow_the_size_of_the_input(spark: Any) -> None:
    assert default_slots(spark.range(10)) == 4
    assert default_slots(spark.range(10**9)) > 100


def test_pieces_in_files(tmp_path: Path) -> None:
    """Large payloads lie in files and come back; what a killed write left goes after a day."""
    storage = LocalStorage(str(tmp_path))
    spool = Spool.new(storage)
    large, small = pa.table({"a": list(range(10_000))}), pa.table({"a": [1]})
    pieces = [
        Piece(partition="", target="0", source=0, number=n, rows=t.num_rows, payload=pack(t))
        for n, t in enumerate((large, small, large.slice(5000)))
    ]
    sent = list(spool.put(iter(pieces)))
    assert [bytes(s.payload) == bytes(p.payload) for s, p in zip(sent, pieces, strict=True)] == [False, True, False]
    assert [p.table() for p in spool.get(iter(sent))] == [large, small, large.slice(5000)]
    since = int(spool.folder.rpartition("/")[2].partition("-")[0])
    remove_old(storage, since + 1000)
    assert len(list((tmp_path / ROWS).iterdir())) == 1
    remove_old(storage, since + 25 * 3600 * 1000)
    assert list((tmp_path / ROWS).iterdir()) == []


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces are in a buffer until the file is closed."""
    monkeypatch.setattr(
        LocalStorage, "open_output", lambda storage, path: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    )
    spool = replace(Spool.new(LocalStorage(str(tmp_path))), small_bytes=0)
    with pytest.raises(StorageError, match="could not be kept"):
        list(spool.put(iter([piece_of(pa.table({"a": [1]}), target="0", source=0, number=0)])))


def test_errors_that_are_not_of_the_spool(tmp_path: Path) -> None:
    """Those of the rows' source are not the spool's; a thread's leave the write as those of a Spark job do."""

    def lost(number: int = 0) -> Iterator[Piece]:
        raise FileNotFoundError(f"the source {number}")
        yield

    with pytest.raises(FileNotFoundError):
        list(Spool.new(LocalStorage(str(tmp_path))).put(lost()))
    one_process = SimpleNamespace(master="local[2]", defaultParallelism=2)
    with pytest.raises(SparkError, match="the source 0"):
        spark_engine._job(one_process, [0, 1], lambda number: list(lost(number)))


def test_threads_are_as_many_as_the_tasks_of_spark() -> None:
    """Not as its parallelism, by which a user may ask for small tasks; none where tasks may run elsewhere."""
    of = {"local[2]": 2, "local[3,4]": 3, "local[*]": os.cpu_count(), "local-cluster[2,1,1024]": 0, "yarn": 0}
    for master, threads in of.items():
        assert threads_of(SimpleNamespace(master=master, defaultParallelism=1000)) == threads


@pytest.mark.spark
def test_a_checkpoint_that_was_deleted(spark: Any, tmp_path: Path) -> None:
    """Spark's id of the query changes with the checkpoint: the new batch 0 is not passed over."""
    path = tmp_path / "t"
    sink = writer().table("t").key("id").foreach_batch(str(path), stream="s")

    def run(name: str, checkpoint: str) -> None:
        source = spark.createDataFrame([(name,)], "id string")
        source.write.parquet(str(tmp_path / name))
        stream = spark.readStream.schema(source.schema).parquet(str(tmp_path / name))
        query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    run("a", "first")
    with pytest.raises(Exception, match="another query writes under the name of this stream"):
        run("b", "second")
    assert read_table(Table.open(str(path)))["id"].to_pylist() == ["a"]


@pytest.mark.spark
def test_a_batch_that_a_thread_has_written_is_known_after_a_restart(spark: Any, tmp_path: Path) -> None:
    """A thread of a function of `foreachBatch` has no id of the query: the rows tell, not their plan."""
    path = tmp_path / "t"

    def sink() -> Callable[[Any, int], None]:
        return writer().table("t").key("id").foreach_batch(str(path), stream="s", operation=Operation.INSERT)

    def run() -> None:
        one = sink()  # as of another process

        def in_thread(frame: Any, number: int) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(one, frame, number).result()

        stream = spark.readStream.schema("id string").parquet(str(tmp_path / "in"))
        query = stream.writeStream.foreachBatch(in_thread).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    for name in ("a", "b"):
        spark.createDataFrame([(name,)], "id string").write.mode("append").parquet(str(tmp_path / "in"))
        run()
    for file in (tmp_path / "checkpoint/commits").glob("*1*"):
        file.unlink()
    run()
    with pytest.raises(UsageError, match="other rows are written under this number already"):
        sink()(spark.createDataFrame([("c",)], "id string"), 1)
    assert sorted(read_table(Table.open(str(path)))["id"].to_pylist()) == ["a", "b"]


@pytest.mark.spark
@pytest.mark.parametrize("operation", ["upsert", deep("bulk_insert")])
def test_a_refused_first_write_leaves_nothing(spark: Any, operation: str, tmp_path: Path) -> None:
    """Else there would be a table that refuses the right one. Rows are computed once, for the check and the write."""
    seen = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    schema = "id string, zone string, ts bigint"
    frame = spark.createDataFrame([("a", "x", 1), ("b", None, 2)], schema).mapInArrow(counted, schema)
    path = str(tmp_path / "t")
    with pytest.raises(UsageError, match="rows without a record key"):
        getattr(writer(frame).table("t").key("zone"), operation)(path)
    assert list(tmp_path.iterdir()) == []
    before = seen.value
    getattr(writer(frame).table("t").key("id").ordering("ts"), operation)(path)
    assert seen.value - before == 2
    assert sorted(read_table(Table.open(path)).column("id").to_pylist()) == ["a", "b"]
