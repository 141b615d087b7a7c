"""The steps of a write as Spark stages over Arrow (see `engine`); pyspark is imported only when it is needed.

The driver fetches the rows of a small DataFrame as Arrow, so that a small write needs no Python worker. The first
Python stage of a Spark session costs its workers 5 to 6 seconds of processor time: each of them compiles PySpark, which
is in an archive there, and imports pyarrow and pandas."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.execution.runners import SparkRunner, spark_todo, spark_words
from phantombase.compactor_daemon.execution.spark_session import RunningSpark, arrow_of_spark, hadoop_conf, threads_of
from phantombase.timeline.errors import PhantombaseError, SparkError, UsageError
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.record_fields import gathered
from phantombase.timeline.storage.contract import Storage

from .engine import LocalEngine, LocalPieces, Pieces, Prepare, RowCounts, Step, summed
from .parquet_scan import ParquetScan, bare_scan
from .row_blobs import SPARK_PIECE, Piece, Spool, fact, from_batches, to_batch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


T = TypeVar("T")


def from_spark(schema: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark gives to Python. UsageError: a type that Arrow does not have."""
    from pyspark.errors import PySparkException

    try:
        return arrow_of_spark(schema)
    except PySparkException as error:
        raise UsageError(
            "a Spark type that no column can have", found=str(error), todo="Cast the column, or leave it out."
        ) from error


def run(action: Callable[[], T]) -> T:
    """What an action yields; SparkError if its job fails."""
    try:
        return action()
    except PhantombaseError:
        raise
    except Exception as error:
        words, todo = spark_words(error), "Nothing of the write is visible; the next writer rolls it back."
        raise SparkError("a Spark job of the write failed", found=words, todo=spark_todo(words, todo)) from error


def estimated_bytes(plan: Any) -> int:
    """The size of what an optimized plan yields, as Spark estimates it."""
    return int(str(plan.stats().sizeInBytes()))


def to_arrow(frame: Any) -> pa.Table:
    """All rows of a DataFrame; PySpark before 4.0 has no public way to Arrow."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    return pa.Table.from_batches(frame._collect_as_arrow(), schema=from_spark(frame.schema))


_ROWS_BYTES = 32 << 20
_OF_THE_HEAP = 64
"""Fetched rows may take the driver's memory divided by this number, by Spark's estimate. For files Spark estimates the
compressed size, and their rows may be many times as large."""
_HELD_BYTES = 128 << 20
"""Fetched rows that take more bytes are left to tasks: the pieces of a write are copies of the rows."""
_ESTIMATED = {"LogicalRelation", "LocalRelation", "Project", "Filter"}
"""Plan nodes whose estimate is at least the size of their output. `explode` is estimated at one row per input row."""
_LIMIT, _LIMIT_DEFAULT, _UNLIMITED = "spark.driver.maxResultSize", "1g", ("0", "0b")


def fetched(frame: Any) -> pa.Table | None:
    """All rows, if Spark's estimate holds and is small; None: the rows are many, or their number is not known. Spark
    ends the job at its own limit of results if there are more than estimated. SparkError: the job fails."""
    context, plan = frame.sparkSession.sparkContext, frame._jdf.queryExecution().optimizedPlan()
    if str(context.getConf().get(_LIMIT, _LIMIT_DEFAULT)).lower() in _UNLIMITED:
        return None
    heap = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())
    if estimated_bytes(plan) > min(_ROWS_BYTES, heap // _OF_THE_HEAP) or not _estimated(plan):
        return None
    try:
        rows = run(partial(to_arrow, frame))
    except SparkError as error:
        if _LIMIT in str(error.__cause__):
            return None
        raise
    return rows if rows.nbytes <= _HELD_BYTES else None


def _estimated(plan: Any) -> bool:
    """Whether all nodes of a logical plan are of a kind whose estimate holds."""
    if str(plan.nodeName()) not in _ESTIMATED:
        return False
    below = plan.children()
    return all(_estimated(below.apply(number)) for number in range(below.size()))


_BATCH_BYTES = 64 << 20
"""The size of a batch of pieces that is given to Spark at a time."""
_HERE_BYTES = 64 << 20
"""The most bytes of rows of which this process makes the files itself, in a second or less."""
_FETCHED_BYTES = 16 << 20
"""The most bytes fetched from Spark for that: references, and pieces of few rows."""
_PIECE_BYTES = 200
"""What a piece takes beside its texts."""
_SLOT_BYTES = 16 << 20
_SLOTS_MAX = 2000
_UNKNOWN_BYTES = 1 << 50
_DESCRIPTION = "spark.job.description"
"""What `SparkContext.setJobDescription` sets."""
_HAND_OVER = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
}
"""How Spark cuts rows into Arrow batches for Python, unless the session sets it: by their number alone. Spark 4.3 has a
limit in bytes too, for which it adds up the buffers of all columns after each row: a third of the processor time of a
hand-over. Spark 3.5 cuts at 10,000 rows only. Columns of bytes may hold large objects: with these the limit is kept."""


def default_slots(frame: Any) -> int:
    """The default number of tasks of a shuffle: by Spark's estimate of the input's size, at least two per core. A
    slot's rows are held in memory. If the input is files, Spark estimates compressed bytes."""
    cores = int(frame.sparkSession.sparkContext.defaultParallelism)
    size = estimated_bytes(frame._jdf.queryExecution().optimizedPlan())
    wanted = size // _SLOT_BYTES if 0 <= size < _UNKNOWN_BYTES else 0
    return max(2 * cores, min(wanted, _SLOTS_MAX))


class SparkEngine:
    """Runs the steps over a DataFrame. `slots`: tasks of each shuffle (`hoodie.upsert.shuffle.parallelism`)."""

    def __init__(self, frame: Any, *, slots: int) -> None:
        self._frame = frame
        self.slots = slots

    @property
    def schema(self) -> pa.Schema:
        return from_spark(self._frame.schema)

    def prepare(self, prepare: Prepare, storage: Storage, *, here: bool = False) -> Pieces:
        scan = bare_scan(self._frame, storage)
        rows = None
        if here and scan is None:
            rows = fetched(self._frame)
        elif here and scan is not None and scan.stored_bytes <= _ROWS_BYTES:
            rows = scan.fetched(_HELD_BYTES)
        if rows is not None:
            return LocalEngine(rows, slots=_threads(self.slots)).prepare(prepare, storage)
        spool, context = Spool.new(storage), self._frame.sparkSession.sparkContext
        if scan is None:
            pieces = _mapped(self._frame, partial(_prepared, prepare, spool))
            return SparkPieces(pieces, self.slots, spool, first=True, here=here)
        if here and (found := _scan_pieces(scan, prepare, spool, context, self.slots)) is not None:
            return found
        numbers = self._frame.sparkSession.range(0, len(scan.shares), 1, len(scan.shares))
        return SparkPieces(_mapped(numbers, partial(_scanned, scan, prepare, spool)), self.slots, spool, first=True)

    def runner(self) -> Runner:
        """See `Engine`: runs in the session of the DataFrame."""
        return SparkRunner(RunningSpark(self._frame.sparkSession.sparkContext))

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        """See `Engine`. The jobs also use the properties of `_HAND_OVER`; afterwards the user's own are restored."""
        context = self._frame.sparkSession.sparkContext
        limited = "binary" in self._frame.schema.simpleString()
        given = {_DESCRIPTION: text, **({} if limited else _HAND_OVER)}
        before = {name: context.getLocalProperty(name) for name in given}
        try:
            for name, value in given.items():
                context.setLocalProperty(name, value)
            yield
        finally:
            for name, value in before.items():
                context.setLocalProperty(name, value)

    def hadoop_conf(self, path: str) -> dict[str, str]:
        return hadoop_conf(self._frame.sparkSession.sparkContext, path)


class SparkPieces:
    """Pieces as a DataFrame; large ones are in `spool`, which the `first` remove. `here`: see `Engine.prepare`."""

    def __init__(self, frame: Any, slots: int, spool: Spool, *, first: bool = False, here: bool = False) -> None:
        self._frame = frame
        self._slots = slots
        self._spool = spool
        self._first = first
        self._here = here

    def map(self, step: Step) -> Pieces:
        return self._of(_mapped(self._frame, partial(_stepped, step, self._spool)))

    def regroup(self, step: Step) -> Pieces:
        order = ("partition", "target", "source", "number")
        sorted_ = self._frame.repartition(self._slots, "partition", "target").sortWithinPartitions(*order)
        return self._of(_mapped(sorted_, partial(_stepped, step, self._spool)))

    def union(self, other: Pieces) -> Pieces:
        assert isinstance(other, SparkPieces)
        return self._of(self._frame.unionByName(other._frame))

    @contextmanager
    def kept(self) -> Iterator[Pieces]:
        from pyspark import StorageLevel

        frame = self._frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            kept = self._of(frame)
            yield (kept._fetched() if self._here else None) or kept
        finally:
            frame.unpersist()
            if self._first:
                self._spool.remove()

    def _fetched(self) -> LocalPieces | None:
        """The pieces in this process. Their rows stay in the spool, and are mapped; if they are few, steps run here, as
        a job would take longer. None: the pieces are very many."""
        sizes = run(partial(to_arrow, self._frame.selectExpr("octet_length(payload) AS size"))).column("size")
        if (pc.sum(sizes).as_py() or 0) > _FETCHED_BYTES:
            return None
        pieces = list(from_batches(run(partial(to_arrow, self._frame)).to_batches()))
        if any(piece.target == _ERROR for piece in pieces):
            return None  # `row_counts` raises it
        if sum(map(self._spool.bytes_of, pieces)) > _HERE_BYTES:
            return SpooledPieces(pieces, self._slots, self._spool, self._frame.sparkSession.sparkContext)
        return LocalPieces(list(self._spool.get(iter(pieces))), _threads(self._slots))

    def _of(self, frame: Any) -> SparkPieces:
        return SparkPieces(frame, self._slots, self._spool)

    def row_counts(self) -> RowCounts:
        done = run(partial(to_arrow, self._frame.select("partition", "target", "rows")))
        if _ERROR in pc.unique(done.column("target")).to_pylist():
            self.collect()  # raises the error
        return summed(*(done.column(name).to_pylist() for name in ("partition", "target", "rows")))

    def collect(self) -> list[bytes]:
        done = run(partial(to_arrow, self._frame.select("target", "payload")))
        for target, payload in zip(done.column("target"), done.column("payload"), strict=True):
            if target.as_py() == _ERROR:
                raise pickle.loads(payload.as_py())
        given = self._spool.get(fact(value.as_py()) for value in done.column("payload"))
        return [bytes(piece.payload) for piece in given]  # the record of a wide file is large, too


class SpooledPieces(LocalPieces):
    """Pieces that are known in this process, where their rows are not: these are in the spool. Steps run in plain jobs:
    without frames the JVM has next to nothing to do."""

    def __init__(self, pieces: list[Piece], slots: int, spool: Spool, context: Any, *, first: bool = False) -> None:
        super().__init__(pieces, slots, spool, first=first)
        self._tasks = spool, context

    def _of(self, pieces: list[Piece]) -> SpooledPieces:
        return SpooledPieces(pieces, self._slots, *self._tasks)

    def map(self, step: Step) -> Pieces:
        shares = gathered((piece.source, piece) for piece in self._pieces)
        return self._of([piece for part in self._done(step, [*map(list, shares.values())]) for piece in part])

    def _done(self, step: Step, tasks: list[list[Piece]]) -> list[list[Piece]]:
        spool, context = self._tasks
        given = [(slot, pieces) for slot, pieces in enumerate(tasks) if pieces]
        return [found or [] for found in _job(context, given, partial(_step_task, step, spool))]


def _scan_pieces(scan: ParquetScan, prepare: Prepare, spool: Spool, context: Any, slots: int) -> SpooledPieces | None:
    """The pieces of a scan; None: they are too many to be known in this process. Errors in the rows are raised."""
    shares = list(range(len(scan.shares)))
    task = partial(_scan_task, scan, prepare, replace(spool, small_bytes=0), _FETCHED_BYTES // len(shares))
    try:
        found = _job(context, shares, task)
    except BaseException:
        spool.remove()
        raise
    if any(pieces is None for pieces in found):
        spool.remove()
        return None
    return SpooledPieces([piece for pieces in found for piece in pieces or ()], slots, spool, context, first=True)


def _job(context: Any, given: list[T], task: Callable[[T], list[Piece] | None]) -> list[list[Piece] | None]:
    """What a task makes of each item. The tasks of a Spark that is one process are threads of this one: the machine is
    the same, and other processes would have to start. The first error of the tree is raised."""
    if not given:
        return []
    if threads := threads_of(context):
        done = run(lambda: at_once(given, task, threads))
    else:
        done = run(lambda: list(context.parallelize(given, len(given)).map(task).collect()))
    for piece in (piece for pieces in done for piece in pieces or () if piece.target == _ERROR):
        raise pickle.loads(piece.payload)
    return done


def _scan_task(scan: ParquetScan, prepare: Prepare, spool: Spool, most_bytes: int, share: int) -> list[Piece] | None:
    pieces, size = list[Piece](), 0
    for piece in _prepared_shares(scan, prepare, spool, [share]):
        pieces.append(piece)
        size += _PIECE_BYTES + len(piece.partition) + len(memoryview(piece.payload))
        if size > most_bytes and piece.target != _ERROR:
            return None
    return pieces


def _step_task(step: Step, spool: Spool, given: tuple[int, list[Piece]]) -> list[Piece]:
    slot, pieces = given
    return list(_caught(spool.put(step(slot, spool.get(iter(pieces))))))


def _threads(slots: int) -> int:
    return min(slots, os.cpu_count() or 1)


def _mapped(frame: Any, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> Any:
    with warnings.catch_warnings():
        # Spark looks for pandas even if only Arrow is used, and warns about releases that it does not know.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return frame.mapInArrow(function, SPARK_PIECE)


_ERROR = "\0error"
"""The target of a task's error. As a piece it keeps all its fields; an exception would become a Java trace."""


def _prepared(prepare: Prepare, spool: Spool, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return _batched(_caught(spool.put(prepare(_slot(), batches))))


def _scanned(
    scan: ParquetScan, prepare: Prepare, spool: Spool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The pieces of the shares that the rows number. The number of the task would not do: it is another one where Spark
    computes lost pieces again as part of a union."""
    shares = [share for batch in batches for share in batch.column(0).to_pylist()]
    return _batched(_prepared_shares(scan, prepare, spool, shares))


def _prepared_shares(scan: ParquetScan, prepare: Prepare, spool: Spool, shares: Iterable[int]) -> Iterator[Piece]:
    return _caught(spool.put(piece for share in shares for piece in prepare(share, scan.ahead(share))))


def _stepped(step: Step, spool: Spool, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes errors of earlier steps through."""
    errors: list[Piece] = []
    given = spool.get(_without_errors(from_batches(batches), errors))
    yield from _batched(_caught(spool.put(step(_slot(), given))))
    yield from _batched(iter(errors))


def _without_errors(pieces: Iterator[Piece], errors: list[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if piece.target == _ERROR:
            errors.append(piece)
        else:
            yield piece


def _slot() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _caught(pieces: Iterator[Piece]) -> Iterator[Piece]:
    try:
        yield from pieces
    except PhantombaseError as error:
        yield fact(pickle.dumps(error), target=_ERROR)


def _batched(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece.payload)
        if size >= _BATCH_BYTES:
            yield to_batch(held)
            held, size = [], 0
    if held:
        yield to_batch(held)
