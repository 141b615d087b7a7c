"""What a query reads: columns for the DataFrame, and file slices parted into the tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from phantombase.timeline.read.table_read import Scan, plan_read
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.view.view import FileSlice

from .options import SourceOptions
from .spark_columns import check_columns, spark_columns

_META = "_hoodie_"


def table_columns(options: SourceOptions) -> StructType:
    """The columns that a DataFrame has unless its user gives fewer."""
    return spark_columns(_shown(_scan(options).schema, options))


def _shown(schema: pa.Schema, options: SourceOptions) -> pa.Schema:
    if options.meta_columns or options.read.columns is not None:
        return schema
    return pa.schema([field for field in schema if not field.name.startswith(_META)])


def _scan(options: SourceOptions) -> Scan:
    table = Table.open(options.path, options.storage)
    return consistent(lambda: plan_read(table, options.read))


def plan_tasks(options: SourceOptions, columns: StructType) -> list[Scan]:
    """The scan of these columns, parted: each with the slices of one task. UsageError: columns unlike the table's."""
    scan = _scan(options)
    check_columns(columns, spark_columns(scan.rules.schema))
    scan = replace(scan, options=replace(options.read, columns=tuple(columns.names)))
    return [replace(scan, slices=slices) for slices in grouped(scan.slices, options.task_bytes)]


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
