"""Reads a table for a batch query: Spark's planning worker asks for the tasks, its executors run them.

A query reads columns in Spark's types. Its tasks are file slices, and shares of large ones.

`spark_read`: a table as a DataFrame in two parts, what Spark's own Parquet reader reads, and the rest. Spark reads base
files without logs, if its reader gives exactly the same rows. Both parts are of one plan, made when the function is
called. Spark knows the columns and filters of a query when it reads Parquet, and reads only what they need; through
Python all columns of the DataFrame are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from phantombase.compactor_daemon.execution.spark_session import arrow_of_spark
from phantombase.timeline.codec.avro_schema import OPERATION
from phantombase.timeline.codec.calendar import old_calendar
from phantombase.timeline.codec.conform import NO_DEFAULTS, Defaults
from phantombase.timeline.codec.parquet_read import Share, open_parquet, readable
from phantombase.timeline.codec.stored_names import SAME_NAMES, Names
from phantombase.timeline.errors import MissingFileError, UnknownStateError, UnsupportedError, UsageError
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.pins import SharedPin, held_moment, renewing
from phantombase.timeline.read.table_read import Scan, plan_read
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.history import note_unpinned
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import FileSlice, GroupKey

from .options import SourceOptions, batch_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

try:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
except ImportError:  # PySpark 3.5 has no Python sources; `spark_read` uses the tasks alone
    DataSourceReader = object  # type: ignore[assignment, misc]

    class InputPartition:  # type: ignore[no-redef]
        """The same as Spark's own."""

        def __init__(self, value: object) -> None:
            self.value = value


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
        pin = take_pin(self._options, self._options.open)
        return [SlicePartition(scan, pin) for scan in plan_tasks(self._options, self._columns)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task_batches(partition, self._columns)


def take_pin(options: SourceOptions, open_table: Callable[[], Table]) -> SharedPin | None:
    """Takes the pin of a batch query before it is planned; tasks renew it. Nothing reports its end: it expires."""
    if options.pin is None:
        note_unpinned(open_table)
        return None
    table = open_table()
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


_SAME = frozenset(
    {pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()}
)
"""Types that are read alike if file and table have the same; also decimals and timestamps in UTC.

Timestamps in milliseconds are left out: Spark may round a filter's timestamp down to them.

Nested types are left out: readers differ in how they take the encodings of lists and maps.
"""
_GLOB = frozenset("{}[]*?\\")
"""Spark takes a path with one of these as a pattern."""
_HIDDEN = ("_", ".")
"""Spark ignores files whose names begin so."""
_OLD_MOMENT = "INT96"
"""Spark moves such timestamps between calendars and zones."""


def is_pattern(path: str) -> bool:
    return bool(_GLOB & set(path))


def only_base(slice_: FileSlice) -> bool:
    """Whether the slice is its base file alone, and Spark finds the file by its path."""
    if slice_.base is None or slice_.logs or is_pattern(slice_.base.path):
        return False
    return not any(part.startswith(_HIDDEN) for part in slice_.base.path.split("/"))


def read_alike(
    file: pq.ParquetFile, wanted: pa.Schema, names: Names = SAME_NAMES, defaults: Defaults = NO_DEFAULTS
) -> bool:
    """Whether the columns of a base file are those of the table unchanged. `names`: of the columns in the file. They
    have the table's types and are required where the table's are. A column that the file lacks is null, if the table's
    may be and has no other default. Spark finds columns whatever the case of their letters, so no two may differ by
    case alone."""
    found: pa.Schema = file.schema_arrow
    by_case = {name.lower(): name for name in found.names}
    if names or old_calendar(file) is not None:  # Spark moves its dates by other tables, and knows only today's names
        return False
    wanted_by_case = {name.lower() for name in wanted.names}
    if OPERATION in found.names or len(by_case) < len(found.names) or len(wanted_by_case) < len(wanted.names):
        return False
    physical = {leaf.path: leaf.physical_type for leaf in (file.schema.column(i) for i in range(len(file.schema)))}
    defaulted = {path[0] for path in defaults.values}
    if any(name in defaulted and name.lower() not in by_case for name in wanted.names):
        return False
    return all(_is_alike(field, found, by_case, physical) for field in wanted)


def _is_alike(wanted: pa.Field, found: pa.Schema, by_case: Mapping[str, str], physical: Mapping[str, str]) -> bool:
    name = by_case.get(wanted.name.lower())
    if name is None:
        return bool(wanted.nullable and _is_simple(wanted.type))
    field = found.field(name)
    required = wanted.nullable or not field.nullable
    same = name == wanted.name and field.type == wanted.type and _is_simple(wanted.type)
    return bool(required and same and physical[name] != _OLD_MOMENT)


def _is_simple(kind: pa.DataType) -> bool:
    moment = pa.types.is_timestamp(kind) and kind.tz == "UTC" and kind.unit == "us"
    return bool(kind in _SAME or pa.types.is_decimal128(kind) or moment)


Batches: TypeAlias = Iterator[pa.RecordBatch]
_EXACT = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
}
"""A session may be set to skip files that it cannot read, or to move old dates. Not here: no row is missing.

Parquet's filters by dictionary and by hash take 0.0 and -0.0 for different values, which Spark's `=` does not.
"""


def spark_read(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """The rows of a table as of now; every column may be null. Options: those of the source, for batch reads."""
    given = batch_options({**options, "path": path})
    table = given.open()
    pin = take_pin(given, lambda: table)
    scan, native = from_one_snapshot(lambda: _planned(table, given))
    columns = spark_columns(scan.schema)
    columns = StructType([StructField(field.name, field.dataType) for field in columns.fields])
    rest = replace(scan, slices=tuple(slice_ for slice_ in scan.slices if slice_ not in native))
    tasks = [SlicePartition(one, pin) for one in parted(rest, given.task_bytes)]
    parts = []
    if tasks:
        parts.append(spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_rows_of(tasks, columns), columns))
    if native:
        parts.append(_by_spark(spark, scan.table.storage, native, columns))
    if not parts:
        return spark.createDataFrame([], columns)
    return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])


def _planned(table: Table, options: SourceOptions) -> tuple[Scan, frozenset[FileSlice]]:
    """The scan, and those of its slices that Spark reads itself. phantombase evaluates a filter, the filter of a
    window, and a limit: with one of these Spark reads no slice itself."""
    scan = plan_read(table, options.read)
    scan = replace(scan, options=replace(scan.options, columns=tuple(shown(scan.schema, options).names)))
    if scan.where is not None or scan.options.limit is not None or _root(scan.table.storage) is None:
        return scan, frozenset()
    found = [slice_ for slice_ in scan.slices if only_base(slice_)]
    alike = prefetched(found, lambda slice_: _alike(scan, slice_))
    return scan, frozenset(slice_ for slice_, same in zip(found, alike, strict=True) if same)


def _root(storage: Storage) -> str | None:
    """The table's URL for Spark; None if Spark needs options that phantombase lacks, or would take it as a pattern."""
    base = storage.base_path
    if is_pattern(base):
        return None
    if "://" not in base:
        return f"file:{base}"
    return base if base.startswith("hdfs://") else None


def _alike(scan: Scan, slice_: FileSlice) -> bool:
    assert slice_.base is not None
    with (
        scan.table.storage.open_input(slice_.base.path, whole=False) as source,
        readable("base file", slice_.base.path),
    ):
        return read_alike(
            open_parquet(source), scan.schema, scan.rules.names.at(slice_.base.name.instant), scan.rules.defaults
        )


def _by_spark(spark: SparkSession, storage: Storage, slices: Iterable[FileSlice], columns: StructType) -> DataFrame:
    files = sorted(f"{_root(storage)}/{slice_.base.path}" for slice_ in slices if slice_.base is not None)
    frame = spark.read.schema(columns).options(**_EXACT).parquet(*files)
    found = len(frame.inputFiles())
    if found != len(files):
        raise UnknownStateError(
            "Spark does not find the base files of a table one for one",
            path=storage.base_path,
            expected=f"{len(files)} files",
            found=f"{found} files",
            todo='Read the table with spark.read.format("phantombase").',
        )
    return frame


def _rows_of(tasks: list[SlicePartition], columns: StructType) -> Callable[[Batches], Batches]:
    """Turns the numbers of tasks into their rows, in a task."""

    def rows(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from task_batches(tasks[number], columns)

    return rows
