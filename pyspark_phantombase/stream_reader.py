"""Reads a table as a stream: each batch holds the rows of the writes that completed in (start, end], as of its end.

    {"completed": <moment>}         an offset: all writes up to that moment are delivered; "" before everything
    {"requested": <moment>}         the same on version 6

The moment is a completion time; on version 6, which has none, a requested time before the first pending write. The
requested times of newer versions would not do: a write that completes late would be passed over. A batch holds the same
rows when it is read again, as long as no clean has removed the state at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.pins.pin import FIRST
from phantombase.timeline.pins.pins import HeldPin
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.windows.incremental import load_window
from phantombase.timeline.windows.state import moment_of_text
from phantombase.timeline.windows.streamed import StreamedWrite, writes_after

from .admission import batch_end
from .batch_reader import SliceTask, task_batches
from .options import EARLIEST
from .planned import plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .options import SourceOptions

_LATEST = "latest"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One process beside the driver keeps it for the whole stream; tasks get a copy."""

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns
        self._target: str | None = None
        self._known: dict[Instant, StreamedWrite | None] = {}
        self._pin: tuple[str, HeldPin] | None = None

    def initialOffset(self) -> dict[str, str]:
        """Where a stream without a checkpoint starts: at the option `begin`, else before everything."""
        begin, table = self._options.read.begin or EARLIEST, self._table()
        if begin == EARLIEST:
            return _offset(table, "")
        return _offset(table, _newest(table) if begin == _LATEST else moment_of_text(table, begin))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options set."""
        options = self._options
        if options.max_files:
            return ReadMaxFiles(options.max_files)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        return ReadMaxRows(options.max_rows) if options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """The end of the next batch; `start` if nothing was written since."""
        table = self._table()
        begin = _moment(table, start)
        self._hold(table, begin or FIRST)
        writes = consistent(lambda: writes_after(table.reload(), begin or EARLIEST, self._known))
        target = self._target
        waiting = [w for w in writes if target is None or w.moment <= target]
        return _offset(table, batch_end(begin, waiting, limit))

    def _hold(self, table: Table, moment: str) -> None:
        """Lets the pin follow the batches: what is before the begin of the next one is needed no more."""
        if self._options.pin is None:
            return
        if self._pin is None or self._pin[0] != moment:
            held = HeldPin(table, self._options.pin, self._options.pin_seconds) if self._pin is None else self._pin[1]
            held.put(moment)
            self._pin = moment, held
        self._pin[1].keep()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of a stream that stops when it has read what is there."""
        self._target = _newest(self._table())

    def reportLatestOffset(self) -> dict[str, str]:
        """What Spark shows as the newest offset of the source."""
        table = self._table()
        return _offset(table, _newest(table))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """The tasks of a batch. UsageError: the state at its end was cleaned, or a write below it is pending."""
        table = self._table()
        window = self._options.of_window(_moment(table, start), _moment(table, end))
        return [SliceTask(scan) for scan in plan_tasks(window, self._columns)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `task_batches`."""
        return task_batches(partition, self._columns)

    def _table(self) -> Table:
        return Table.open(self._options.path, self._options.storage)


def _newest(table: Table) -> str:
    return load_window(table, EARLIEST, None)[1].end


def _axis(table: Table) -> str:
    return "completed" if table.layout.has_completion_times else "requested"


def _offset(table: Table, moment: str) -> dict[str, str]:
    return {_axis(table): moment}


def _moment(table: Table, offset: dict[str, str]) -> str:
    """UsageError: the table was upgraded since, so that the offset says nothing of completion times, or the reverse."""
    if _axis(table) not in offset:
        raise UsageError(
            "the offset of this stream is of another version of the table",
            path=table.storage.base_path,
            expected=_axis(table),
            found=", ".join(f"{axis} {moment}" for axis, moment in offset.items()),
            todo="Start a new checkpoint, with the option `begin`: from there on rows may come a second time.",
        )
    return offset[_axis(table)]
