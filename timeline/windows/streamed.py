"""The writes that a stream of a table has not delivered yet, with what each has written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..format.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from ..format.instant import Instant
from ..table.table import Table
from .incremental import load_window
from .retained import earliest_whole
from .window import completed_writes


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedWrite:
    """One completed write: when it became visible, and how many files, bytes and rows it wrote.

    The counts of an archived write are 0 if the archive does not have them.
    """

    moment: str
    files: int = 0
    bytes: int = 0
    rows: int = 0


def writes_after(table: Table, begin: str, known: dict[Instant, StreamedWrite | None]) -> list[StreamedWrite]:
    """The writes after a moment, by their moments; on version 6 up to the first pending write.

    A write that completed before the first state that is whole has that state's moment: no batch can end before it.
    Reads the commits that are not `known` yet, and keeps them there. UsageError: no moment, no meta columns.
    """
    timeline, window = load_window(table, begin, None)
    waiting = [w for w in completed_writes(timeline) if window.holds(timeline.moment_of(w))]
    new = [w for w in waiting if w not in known]
    archived = table.archived_commits([w for w in new if w not in timeline.instants])
    for write in new:
        metadata = table.commit_metadata(write) if write in timeline.instants else archived.get(write)
        known[write] = _streamed(timeline.moment_of(write), write, metadata)
    earliest = earliest_whole(table, timeline)
    found = (replace(one, moment=max(one.moment, earliest)) for w in waiting if (one := known[w]) is not None)
    return sorted(found, key=lambda w: w.moment)


def _streamed(moment: str, write: Instant, metadata: CommitMetadata | None) -> StreamedWrite | None:
    """None: a table service, which changes no row."""
    if write.action == "commit":
        return None
    if metadata is None:
        return StreamedWrite(moment=moment)
    if metadata.operation_type in SERVICE_OPERATIONS:
        return None
    stats = [stat for stats in metadata.partition_to_write_stats.values() for stat in stats]
    return StreamedWrite(
        moment=moment,
        files=len(stats),
        bytes=sum(stat.total_write_bytes for stat in stats),
        rows=sum(stat.num_writes + stat.num_deletes for stat in stats),
    )
