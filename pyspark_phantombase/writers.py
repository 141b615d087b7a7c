"""Writes a DataFrame, or the batches of a stream, by the source: tasks stage their rows, one commit writes them.

Spark gives a source no shuffle, so tasks only stage the rows that they get (`engine.engine`). Spark names the files of
those runs of tasks that it took, one of each task, to `commit`, in a process of Spark's driver; there one write takes
the rows from the files. Until it is completed no reader sees anything. What tasks staged is removed when the job ends;
what a dead driver left, by a later write, a day after it was staged."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # PySpark 4.0 has none; `streamWriter` says so
    DataSourceStreamArrowWriter = object  # type: ignore[assignment, misc]

from phantombase.timeline.errors import UnknownStateError, UsageError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.writer_hooks.engine.engine import StagedPart, StagedRows, remove_job, stage
from phantombase.writer_hooks.engine.spark import from_spark
from phantombase.writer_hooks.options import Operation
from phantombase.writer_hooks.write.writer import Writer

from .options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY, _RUN, _BATCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Properties of the tasks of a stream: Spark's ids of the query, of its run, and the number of the batch."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one run of a task has staged. `part`: None if it got no rows. `job`: in the names of the job's folders.
    `query`, `run`: see `StagedRows`."""

    job: str
    part: StagedPart | None
    query: str = ""
    run: str = ""


@dataclass(frozen=True)
class _Sink:
    """The write of a DataFrame, or of all batches of a stream. Picklable; tasks get a copy."""

    options: SinkOptions
    columns: StructType
    overwrite: bool

    def storage(self) -> Storage:
        return open_storage(self.options.path, self.options.storage)

    def writer(self, staged: Sequence[Staged] = ()) -> Writer:
        """The write of these rows. UsageError, UnsupportedError: see `Writer.conf`."""
        rows = StagedRows(
            storage=self.storage(),
            schema=from_spark(self.columns),
            parts=tuple(one.part for one in staged if one.part is not None),
            query=next((one.query for one in staged), ""),
            run=next((one.run for one in staged), ""),
        )
        described = Writer(source=rows, storage_options=self.options.storage)
        if self.options.timezone is not None:
            described = described.timezone(self.options.timezone)
        described = described.conf(self.options.conf)
        return overwriting(described) if self.overwrite else described


def overwriting(described: Writer) -> Writer:
    """The write that replaces rows under the mode `overwrite`: of partitions if its operation says so, else of the
    complete table. Of rows of one key it keeps one where the operation would have. UsageError: a delete."""
    named = described.operation or Operation.UPSERT
    if named.replaces:
        return described
    if named is Operation.DELETE:
        raise UsageError(
            "deletes of keys do not overwrite a table",
            found="mode overwrite, hoodie.datasource.write.operation=delete",
            todo='Use mode("append") to delete the rows of these keys.',
        )
    options = described.options
    if named is Operation.UPSERT:
        one = options.one_row_per_upserted_key
        options = replace(options, combine=None, combine_upserts=None, combine_inserts=one)
    return replace(described, operation=Operation.INSERT_OVERWRITE_TABLE, options=options)


def _all_of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """UnknownStateError: of a task it is not known what it staged."""
    staged = [one for one in messages if isinstance(one, Staged)]
    if len(staged) < len(messages):
        raise UnknownStateError(
            "tasks of the write did not say what they staged",
            expected=f"{len(messages)} tasks",
            found=f"{len(staged)} tasks",
            todo="Nothing was written. Write again.",
        )
    return staged


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. The driver makes it before any task; UsageError, UnsupportedError: what the write is refused for."""

    def __init__(self, options: SinkOptions, columns: StructType, overwrite: bool) -> None:
        self._sink = _Sink(options, columns, overwrite)
        self._job = uuid.uuid4().hex
        self._sink.writer().check(options.path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Staged(self._job, stage(self._sink.storage(), iterator, self._job))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Writes what the tasks staged. Errors: those of `write.write`, after which the table reads as before."""
        described = self._sink.writer(_all_of(messages))
        described.write(self._sink.options.path)
        remove_job(described.source.storage, self._job)  # no new storage: one that fails now would fail the write

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        remove_job(self._sink.storage(), self._job)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch is one commit, exactly once by its number. Spark makes a writer for the tasks of
    each batch and another one for its commit."""

    def __init__(self, options: SinkOptions, columns: StructType, overwrite: bool) -> None:
        self._sink = _Sink(options, columns, overwrite)
        self._sink.writer().check(options.path, streams=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, run, number = ((context.getLocalProperty(name) or "") for name in (_QUERY, _RUN, _BATCH))
        job = f"{run or uuid.uuid4().hex}.{number}"
        return Staged(job, stage(self._sink.storage(), iterator, job), query, run)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Writes the batch, unless an earlier try did. Errors: those of `write.write_batch`."""
        staged, options = _all_of(messages), self._sink.options
        if not staged or not all(one.query for one in staged):
            raise UnknownStateError(
                "Spark did not name the query of a stream, by which a batch that comes again is known",
                found=f"batch {batchId}",
                todo="Nothing was written. Write it with foreachBatch(writer()...foreach_batch(PATH)).",
            )
        described = self._sink.writer(staged)
        described.foreach_batch(options.path, take_over=options.take_over)(described.source, batchId)
        self._remove(described.source.storage, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._remove(self._sink.storage(), [one for one in messages if isinstance(one, Staged)])

    @staticmethod
    def _remove(storage: Storage, staged: Sequence[Staged]) -> None:
        for job in {one.job for one in staged}:
            remove_job(storage, job)
