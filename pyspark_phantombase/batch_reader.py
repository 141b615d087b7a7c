"""Reads a table for a batch query: Spark's planning worker asks for the tasks, its executors run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
except ImportError:  # PySpark 3.5 has no Python sources; `frame` uses the tasks alone
    DataSourceReader = object  # type: ignore[assignment, misc]

    class InputPartition:  # type: ignore[no-redef]
        """The same as Spark's own."""

        def __init__(self, value: object) -> None:
            self.value = value


from phantombase.timeline.codec.spark_types import arrow_of_spark
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.read.held_pins import SharedPin, held_moment, renewing

from .planned import as_spark, plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from phantombase.timeline.read.table_read import Scan
    from phantombase.timeline.table.table import Table

    from .options import SourceOptions


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
