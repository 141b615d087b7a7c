"""Reads a table for a batch query: Spark's planning worker asks for the tasks, its executors run them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.pins.pins import HeldPin
from phantombase.timeline.read.rows import held_from
from phantombase.timeline.table.table import Table

from .planned import plan_tasks
from .spark_columns import arrow_columns, as_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from phantombase.timeline.read.table_read import Scan

    from .options import SourceOptions


class SliceTask(InputPartition):
    """One task: the scan of some file slices. It carries all that an executor needs, and no credentials."""

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan)
        self.scan = scan


class BatchReader(DataSourceReader):
    """Plans when Spark asks for the tasks, so that the timeline is read as late as it can be."""

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """The tasks. Spark turns an empty list into one task without a scan.

        With a pin the files of all tasks stay for its time: a task that Spark runs late, or again, finds them.
        """
        if self._options.pin is not None:
            self._put_pin(self._options.pin)
        return [SliceTask(scan) for scan in plan_tasks(self._options, self._columns)]

    def _put_pin(self, name: str) -> None:
        options = self._options
        plan_tasks(options, self._columns)  # what cannot be read leaves no pin
        table = Table.open(options.path, options.storage)
        HeldPin(table, name, options.pin_seconds).put(held_from(table, options.read))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `task_batches`."""
        return task_batches(partition, self._columns)


def task_batches(partition: InputPartition, columns: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of exactly the columns that were asked for.

    MissingFileError: a file was cleaned meanwhile; the task fails, so that no row is missing from an answer.
    """
    if not isinstance(partition, SliceTask):
        return
    schema = arrow_columns(columns)
    try:
        for batch in partition.scan.batches():
            yield as_spark(batch, schema)
    except MissingFileError as error:
        raise MissingFileError(
            "a file was cleaned while a query read it",
            path=error.path,
            todo="Run the query again; where that happens often, let the cleaner retain more commits.",
        ) from error
