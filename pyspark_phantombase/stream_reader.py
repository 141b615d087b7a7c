"""Reads a table as a stream: each batch holds the rows of the writes that completed in (start, end], as of its end.

A batch takes writes in the order in which they completed, up to a limit. A write above the limit is read in several
batches: by file groups, all as of its completion, before the next write. A batch holds the same rows when it is read
again, as long as no clean has removed the state at its end.

An offset is JSON:

    {"completed": <time>}           all writes up to that time are delivered; "" before everything
    {"requested": <time>}           the same on version 6
    {..., "next": <time>, "partition": <path>, "file_id": <id>}
                                    and of the write after it those file groups that are not after this one
    {..., "begin": <time>}          the stream began there, and this is its first offset, or the end of its first batch

Spark stores the end of each batch only, and asks for the first offset again at each start until its first batch is
delivered. So that end names where its batch began.

The time is a completion time; on version 6, which has none, a requested time before the first pending write. Requested
times of newer versions would skip a write that completes after later ones. File groups are in the order of partition
and file id; all parts of a write are read as of its completion, where its file groups never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.read.incremental import StreamedWrite, groups_written, load_window, writes_after
from phantombase.timeline.read.pins import HeldPin
from phantombase.timeline.read.windows import moment_of_text, moment_to_hold
from phantombase.timeline.table.history import note_read
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import GroupKey

from .batch_reader import SlicePartition, plan_tasks, task_batches
from .options import EARLIEST

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .options import SourceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """The part of the write at `moment` that is delivered: the file groups up to and with `last`."""

    moment: str
    last: GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Everything up to `moment` is delivered, and a part of the next write. `begin`: of the stream's first batch."""

    moment: str
    part: StreamPart | None = None
    begin: str | None = None

    @property
    def is_first(self) -> bool:
        """Whether the stream has delivered nothing yet."""
        return self.part is None and self.begin == self.moment

    @staticmethod
    def of(table: Table, stored: Mapping[str, str]) -> Offset:
        """UsageError: the table was upgraded or downgraded since then, and the offset is of the other kind of times."""
        axis = _axis(table)
        if axis not in stored:
            raise UsageError(
                "the offset of this stream is of another version of the table",
                path=table.storage.base_path,
                expected=axis,
                found=", ".join(f"{name} {value}" for name, value in stored.items()),
                todo="Start a new checkpoint, with the option `begin`: from there on rows may come a second time.",
            )
        part = None
        if "next" in stored:
            part = StreamPart(moment=stored["next"], last=(stored["partition"], stored["file_id"]))
        return Offset(moment=stored[axis], part=part, begin=stored.get("begin"))

    def stored(self, table: Table) -> dict[str, str]:
        found = {_axis(table): self.moment}
        if self.part is not None:
            partition, file_id = self.part.last
            found |= {"next": self.part.moment, "partition": partition, "file_id": file_id}
        return found if self.begin is None else {**found, "begin": self.begin}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What lies between two offsets: the window (begin, end], and of it the file groups after `after`, up to `upto`."""

    begin: str
    end: str
    after: GroupKey | None = None
    upto: GroupKey | None = None

    @staticmethod
    def between(start: Offset, end: Offset) -> Batch | None:
        """The offsets are one after the other, as `latestOffset` gives them; or `start` is where the stream would begin
        now, and `end` that of its first batch, planned at an earlier start. None: an empty batch."""
        begin, upto = start.moment, end.moment if end.part is None else end.part.moment
        if start.is_first and end.begin is not None:
            begin = end.begin
        elif start.is_first and begin > upto:  # of a release that did not keep the begin
            return None
        return Batch(
            begin=begin,
            end=upto,
            after=None if start.part is None else start.part.last,
            upto=None if end.part is None else end.part.last,
        )

    @property
    def is_part(self) -> bool:
        """Whether some file groups of the window belong to another batch."""
        return self.after is not None or self.upto is not None

    def holds(self, group: GroupKey) -> bool:
        return (self.after is None or group > self.after) and (self.upto is None or group <= self.upto)


def _axis(table: Table) -> str:
    return "completed" if table.layout.has_completion_times else "requested"


def batch_end(start: str, writes: Sequence[StreamedWrite], limit: ReadLimit) -> str:
    """The time up to which a batch reads: that of its last write; `start` if it takes none. `writes`: those after
    `start`, by their times. A batch takes at least one write, which `part_end` then splits."""
    if isinstance(limit, ReadMinRows) and sum(w.rows for w in writes) < limit.min_rows:
        return start
    count = _fitting(writes, limit)
    return writes[count - 1].moment if count else start


def part_end(groups: Sequence[tuple[GroupKey, StreamedWrite]], limit: ReadLimit) -> GroupKey | None:
    """The last file group of a part of a write; None: the limit takes the rest. `groups`: what is not delivered, in
    order. At least one is taken: a limit below its size would stop the stream."""
    count = _fitting([written for _, written in groups], limit)
    return None if count == len(groups) else groups[count - 1][0]


def _fitting(writes: Sequence[StreamedWrite], limit: ReadLimit) -> int:
    """How many of these, from the first on, are within the limit; at least one, if there is any."""
    match limit:
        case ReadMaxFiles(most):
            sizes = [write.files for write in writes]
        case ReadMaxBytes(most):
            sizes = [write.bytes for write in writes]
        case ReadMaxRows(most):
            sizes = [write.rows for write in writes]
        case _:
            return len(writes)
    return min(len(writes), max(1, sum(size <= most for size in accumulate(sizes))))


_LATEST = "latest"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One process keeps it for all of the stream, concurrently with the driver; tasks get a copy."""

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns
        self._target: str | None = None
        self._known: dict[Instant, StreamedWrite | None] = {}
        self._pin: HeldPin | None = None

    def initialOffset(self) -> dict[str, str]:
        """Where a stream without a checkpoint starts: at the option `begin`, else before everything."""
        begin, table = self._options.read.begin or EARLIEST, self._options.open()
        if begin == EARLIEST:
            return Offset(moment="").stored(table)
        moment = _newest(table) if begin == _LATEST else moment_of_text(table, begin)
        return Offset(moment=moment, begin=moment).stored(table)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_files:
            return ReadMaxFiles(options.max_files)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        return ReadMaxRows(options.max_rows) if options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """The end of the next batch; `start` if nothing was written since."""
        self._hold(start, moved=False)
        return from_one_snapshot(lambda: self._end(start, limit))

    def _end(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        table = self._options.open()
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

    def _rest(
        self, table: Table, at: Offset, part: StreamPart, writes: Sequence[StreamedWrite], limit: ReadLimit
    ) -> Offset:
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
        """Fixes the end of a stream that stops when it has read all existing writes."""
        self._target = _newest(self._options.open())

    def reportLatestOffset(self) -> dict[str, str]:
        """The offset that Spark shows as the newest of the source."""
        table = self._options.open()
        return Offset(moment=_newest(table)).stored(table)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """The tasks of a batch. UsageError: the state at its end was cleaned, or a write below it is pending."""
        table = self._options.open()
        batch = Batch.between(Offset.of(table, start), Offset.of(table, end))
        if batch is None:
            return []
        window = self._options.of_window(batch.begin, batch.end, part=batch.is_part)
        return [SlicePartition(scan) for scan in plan_tasks(window, self._columns, batch.holds)]

    def commit(self, end: dict[str, str]) -> None:
        """Spark has stored that everything up to `end` is delivered: the pin holds what is after it."""
        self._hold(end, moved=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task_batches(partition, self._columns)

    def _hold(self, offset: dict[str, str], *, moved: bool) -> None:
        """Takes the pin, or renews it if that is due. The pin is kept when the stream stops: the stream may resume."""
        if self._options.pin is None:
            return
        if self._pin is not None and not moved:
            self._pin.renew()
            return
        table = self._options.open()
        moment = moment_to_hold(table.load_timeline(), Offset.of(table, offset).moment)
        if self._pin is None:
            self._pin = HeldPin(table.storage, self._options.pin, moment)
            note_read(table.storage)
        else:
            self._pin.renew(moment)


def _newest(table: Table) -> str:
    return load_window(table, EARLIEST, None)[1].end


def _part_end(table: Table, at: Offset, moment: str, last: GroupKey | None, limit: ReadLimit) -> Offset:
    """The end of a batch of one write, of which the file groups up to `last` are delivered."""
    groups = groups_written(table, at.moment or EARLIEST, moment)
    end = part_end([(group, written) for group, written in groups if last is None or group > last], limit)
    if end is None:
        return Offset(moment=moment)
    return Offset(moment=at.moment, part=StreamPart(moment=moment, last=end))
