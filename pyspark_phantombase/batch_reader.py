"""Reads a table for a batch query: Spark's planning worker asks for the tasks, its executors run them.

A query reads columns in Spark's types. Its tasks are file slices, and shares of large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
except ImportError:  # PySpark 3.5 has no Python sources; `frame` uses the tasks alone
    DataSourceReader = object  # type: ignore[assignment, misc]

    class InputPartition:  # type: ignore[no-redef]
        """The same as Spark's own."""

        def __init__(self, value: object) -> None:
            self.value = value


from phantombase.timeline.codec.parquet_read import Share
from phantombase.timeline.codec.spark_types import arrow_of_spark
from phantombase.timeline.errors import MissingFileError, UnsupportedError, UsageError
from phantombase.timeline.read.held_pins import SharedPin, held_moment, renewing
from phantombase.timeline.read.table_read import Scan, plan_read
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import FileSlice, GroupKey

from .options import SourceOptions


def spark_columns(schema: pa.Schema) -> StructType:
    """The Spark type of every column; UnsupportedError names one that Spark has no type for."""
    fields = []
    for field in schema:
        try:
            fields += from_arrow_schema(pa.schema([field.remove_metadata()])).fields
        except PySparkTypeError as error:
            raise UnsupportedError("Spark has no type for a column", found=f"{field.name}: {field.type}") from error
    return StructType(fields)


def check_columns(asked: StructType, of_table: StructType) -> None:
    """UsageError: a DataFrame's schema has a column that the table lacks, or has with another type."""
    types = {field.name: field.dataType for field in of_table.fields}
    for field in asked.fields:
        there = types.get(field.name)
        if there is None or there.simpleString() != field.dataType.simpleString():  # but for what may be null
            raise UsageError(
                "the schema of a DataFrame is not that of its table",
                expected=f"{field.name} {there.simpleString()}" if there else ", ".join(types),
                found=f"{field.name} {field.dataType.simpleString()}",
                todo="Where the schema was given, give the type of the table; else the table has changed: load again.",
            )


def as_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema, which has the same columns in any order."""
    if batch.schema.equals(schema):
        return batch
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_META = "_hoodie_"


def table_columns(options: SourceOptions) -> StructType:
    return spark_columns(shown(_scan(options).schema, options))


def shown(schema: pa.Schema, options: SourceOptions) -> pa.Schema:
    """The columns of a schema that the options select (pure)."""
    if options.meta_columns or options.read.columns is not None:
        return schema
    return pa.schema([field for field in schema if not field.name.startswith(_META)])


def _scan(options: SourceOptions) -> Scan:
    table = options.open()
    return from_one_snapshot(lambda: plan_read(table, options.read))


def plan_tasks(
    options: SourceOptions, columns: StructType, holds: Callable[[GroupKey], bool] = lambda _: True
) -> list[Scan]:
    """The scan of these columns by tasks. `holds`: which groups are read. UsageError: columns unlike the table's."""
    scan = _scan(options)
    scan = replace(scan, slices=tuple(one for one in scan.slices if holds(one.key)))
    check_columns(columns, spark_columns(scan.rules.schema))
    scan = replace(scan, options=replace(options.read, columns=tuple(columns.names)))
    return parted(scan, options.task_bytes)


def parted(scan: Scan, task_bytes: int) -> list[Scan]:
    """A scan split into those of the tasks: slices by `grouped`, a large one without logs by its row groups (pure)."""
    found = []
    for slices in grouped(scan.slices, task_bytes):
        part = replace(scan, slices=slices)
        count = _shares(slices, task_bytes)
        found += [replace(part, share=Share(number, count)) for number in range(count)] if count > 1 else [part]
    return found


def _shares(slices: tuple[FileSlice, ...], task_bytes: int) -> int:
    """How many tasks read these slices together; the footer, which is not read here, may have fewer row groups."""
    return 1 if len(slices) > 1 or slices[0].logs else -(-slices[0].base_bytes // task_bytes)


def grouped(slices: Iterable[FileSlice], task_bytes: int) -> Iterator[tuple[FileSlice, ...]]:
    """Slices in their order, as many together as stay within the bytes of a task; a larger slice alone (pure)."""
    held: list[FileSlice] = []
    total = 0
    for slice_ in slices:
        size = slice_.base_bytes + slice_.log_bytes
        if held and total + size > task_bytes:
            yield tuple(held)
            held, total = [], 0
        held.append(slice_)
        total += size
    if held:
        yield tuple(held)


class SlicePartition(InputPartition):
    """One task: the scan of some file slices. It carries all that an executor needs, and no credentials."""

    def __init__(self, scan: Scan, pin: SharedPin | None = None) -> None:
        """`pin`: the task renews it while it runs."""
        super().__init__(scan)
        self.scan = scan
        self.pin = pin


class BatchReader(DataSourceReader):
    """Plans when Spark asks for the tasks, so that the timeline is read as late as possible."""

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """The tasks. Spark turns an empty list into one task without a scan."""
        pin = None if self._options.pin is None else take_pin(self._options, self._options.open())
        return [SlicePartition(scan, pin) for scan in plan_tasks(self._options, self._columns)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task_batches(partition, self._columns)


def take_pin(options: SourceOptions, table: Table) -> SharedPin | None:
    """Takes the pin of a batch query before it is planned; tasks renew it. Nothing reports its end: it expires."""
    if options.pin is None:
        return None
    return SharedPin.take(table.storage, options.pin, held_moment(table, options.read))


def task_batches(partition: InputPartition, columns: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of exactly the columns that were asked for. MissingFileError: a file was cleaned
    since then; the task fails, so that no row is missing from an answer."""
    if not isinstance(partition, SlicePartition):
        return
    schema = arrow_of_spark(columns)  # Spark requires it of the first batch of a task
    try:
        with _renewing(partition):
            for batch in partition.scan.batches():
                yield as_spark(batch, schema)
    except MissingFileError as error:
        raise MissingFileError(
            "a file was cleaned while a query read it",
            path=error.path,
            todo="Run it again. Where that happens often, give it the option `pin` for cleaners of phantombase, and "
            "let Hudi's cleaner, which knows no pins, retain more commits.",
        ) from error


def _renewing(task: SlicePartition) -> AbstractContextManager[None]:
    if task.pin is None:
        return nullcontext()
    storage = task.scan.table.storage
    return renewing(storage, task.pin.options, partial(task.pin.renew, storage))
