"""How much a batch of a stream takes, up to a limit: whole writes as they completed, or a part of one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows, ReadMinRows

from phantombase.timeline.view.view import GroupKey
from phantombase.timeline.windows.streamed import StreamedWrite


def batch_end(start: str, writes: Sequence[StreamedWrite], limit: ReadLimit) -> str:
    """The moment up to which a batch reads: that of its last write; `start` if it takes none.

    `writes`: those after `start`, by their moments. Never less than one write, which `part_end` then splits.
    """
    if isinstance(limit, ReadMinRows) and sum(w.rows for w in writes) < limit.min_rows:
        return start
    taken, size, most = start, 0, _most(limit)
    for write in writes:
        size += _size(write, limit)
        if taken != start and size > most:
            break
        taken = write.moment
    return taken


def part_end(groups: Sequence[tuple[GroupKey, StreamedWrite]], limit: ReadLimit) -> GroupKey | None:
    """The last file group of a part of a write; None if the limit takes the rest of it.

    `groups`: those that are not delivered, in their order, each with what was written to it. A part is never less than
    one file group: a limit below its size would stop the stream.
    """
    taken, size, most = None, 0, _most(limit)
    for group, written in groups:
        size += _size(written, limit)
        if taken is not None and size > most:
            return taken
        taken = group
    return None


def _size(write: StreamedWrite, limit: ReadLimit) -> int:
    if isinstance(limit, ReadMaxFiles):
        return write.files
    return write.bytes if isinstance(limit, ReadMaxBytes) else write.rows


def _most(limit: ReadLimit) -> float:
    if isinstance(limit, ReadMaxFiles):
        return limit.max_files
    if isinstance(limit, ReadMaxBytes):
        return limit.max_bytes
    return limit.max_rows if isinstance(limit, ReadMaxRows) else float("inf")
