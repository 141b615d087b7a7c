"""Reads a table as a stream: each batch holds the rows of the writes that completed in (start, end], as of its end.

A write that is larger than the limit of a batch comes in several: by file groups, all as of its moment, before the next
write. `offsets` says what an offset names. A batch holds the same rows when it is read again, as long as no clean has
removed the state at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from phantombase.timeline.pins.hold import HeldPin
from phantombase.timeline.pins.retain import moment_to_hold
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.view.view import GroupKey
from phantombase.timeline.windows.incremental import load_window
from phantombase.timeline.windows.state import moment_of_text
from phantombase.timeline.windows.streamed import StreamedWrite, groups_written, writes_after

from .admission import batch_end, part_end
from .batch_reader import SliceTask, task_batches
from .offsets import Batch, Offset, Part
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
        self._pin: HeldPin | None = None

    def initialOffset(self) -> dict[str, str]:
        """Where a stream without a checkpoint starts: at the option `begin`, else before everything."""
        begin, table = self._options.read.begin or EARLIEST, self._table()
        if begin == EARLIEST:
            return Offset(moment="").stored(table)
        moment = _newest(table) if begin == _LATEST else moment_of_text(table, begin)
        return Offset(moment=moment, begin=moment).stored(table)

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
        self._hold(start, moved=False)
        return consistent(lambda: self._end(start, limit))

    def _end(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        table = self._table()
        at = Offset.of(table, start)
        end = self._after(table, at, limit)
        if (end.moment, end.part) == (at.moment, at.part):
            return start
        return replace(end, begin=at.begin if at.is_first else None).stored(table)

    def _after(self, table: Table, at: Offset, limit: ReadLimit) -> Offset:
        writes = writes_after(table, at.moment or EARLIEST, self._known)
        if at.part is not None:
            return self._rest(table, at, at.part, writes, limit)
        target = self._target
        waiting = [w for w in writes if target is None or w.moment <= target]
        end = batch_end(at.moment, waiting, limit)
        if end == at.moment or end != waiting[0].moment:
            return Offset(moment=end)
        return _part_end(table, at, end, None, limit)

    def _rest(self, table: Table, at: Offset, part: Part, writes: Sequence[StreamedWrite], limit: ReadLimit) -> Offset:
        """UsageError: the write of which a part is delivered cannot be read any more, or not now."""
        if part.moment not in {w.moment for w in writes}:
            raise UsageError(
                "the rest of a write of which a batch has delivered a part cannot be read",
                path=table.storage.base_path,
                expected=f"a write at {part.moment}",
                found=", ".join(w.moment for w in writes[:5]) or "no write",
                todo="Where a write below it is pending, start again when that is over. Where it was cleaned or rolled "
                "back, or archived on version 6, start a new checkpoint with "
                f"begin={at.moment or EARLIEST}: rows may come a second time. A `pin` prevents that with cleaners and "
                "archivers of phantombase.",
            )
        return _part_end(table, at, part.moment, part.last, limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of a stream that stops when it has read what is there."""
        self._target = _newest(self._table())

    def reportLatestOffset(self) -> dict[str, str]:
        """What Spark shows as the newest offset of the source."""
        table = self._table()
        return Offset(moment=_newest(table)).stored(table)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """The tasks of a batch. UsageError: the state at its end was cleaned, or a write below it is pending."""
        table = self._table()
        batch = Batch.between(Offset.of(table, start), Offset.of(table, end))
        if batch is None:
            return []
        window = self._options.of_window(batch.begin, batch.end, part=batch.is_part)
        return [SliceTask(scan) for scan in plan_tasks(window, self._columns, batch.holds)]

    def commit(self, end: dict[str, str]) -> None:
        """Spark has stored that everything up to `end` is delivered: the pin holds what comes after it."""
        self._hold(end, moved=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `task_batches`."""
        return task_batches(partition, self._columns)

    def _hold(self, offset: dict[str, str], *, moved: bool) -> None:
        """Takes the pin, or renews it where it is due. It stays when the stream stops, so that it may go on later."""
        if self._options.pin is None:
            return
        if self._pin is not None and not moved:
            self._pin.renew()
            return
        table = self._table()
        moment = moment_to_hold(table.load_timeline(), Offset.of(table, offset).moment)
        if self._pin is None:
            self._pin = HeldPin(table.storage, self._options.pin, moment)
        else:
            self._pin.renew(moment)

    def _table(self) -> Table:
        return self._options.open()


def _newest(table: Table) -> str:
    return load_window(table, EARLIEST, None)[1].end


def _part_end(table: Table, at: Offset, moment: str, last: GroupKey | None, limit: ReadLimit) -> Offset:
    """The end of a batch of one write, of which the file groups up to `last` are delivered."""
    groups = groups_written(table, at.moment or EARLIEST, moment)
    end = part_end([(group, written) for group, written in groups if last is None or group > last], limit)
    if end is None:
        return Offset(moment=moment)
    return Offset(moment=at.moment, part=Part(moment=moment, last=end))
