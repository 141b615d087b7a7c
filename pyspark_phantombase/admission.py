"""How much a batch of a stream takes: whole writes in the order of their completion, up to a limit."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows, ReadMinRows

from phantombase.timeline.windows.streamed import StreamedWrite


def batch_end(start: str, writes: Sequence[StreamedWrite], limit: ReadLimit) -> str:
    """The moment up to which a batch reads: that of its last write; `start` if it takes none.

    `writes`: those after `start`, by their moments. A batch is never less than one write: a limit below the size of a
    write would stop the stream.
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
