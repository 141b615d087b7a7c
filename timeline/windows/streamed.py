"""The writes that a stream of a table has not delivered yet, with what each has written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..format.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat
from ..format.instant import Instant
from ..table.table import Table
from ..view.view import GroupKey
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
        known[write] = None if timeline.is_compaction(write) else _streamed(timeline.moment_of(write), metadata)
    earliest = earliest_whole(table, timeline)
    found = (replace(one, moment=max(one.moment, earliest)) for w in waiting if (one := known[w]) is not None)
    return sorted(found, key=lambda w: w.moment)


def groups_written(table: Table, begin: str, moment: str) -> list[tuple[GroupKey, StreamedWrite]]:
    """What the writes at a moment after `begin` have written to each file group, by partition and file id.

    Reads their commits; what is unknown of archived ones is left out.
    """
    timeline, _ = load_window(table, begin, moment)
    writes = [w for w in completed_writes(timeline) if timeline.moment_of(w) == moment]
    writes = [w for w in writes if not timeline.is_compaction(w)]
    found = {w: table.commit_metadata(w) for w in writes if w in timeline.instants}
    found |= table.archived_commits([w for w in writes if w not in found])
    stats: defaultdict[GroupKey, list[WriteStat]] = defaultdict(list)
    for metadata in found.values():
        if metadata.operation_type not in SERVICE_OPERATIONS:
            for partition, written in metadata.partition_to_write_stats.items():
                for stat in written:
                    stats[(partition, stat.file_id or "")].append(stat)
    return [(group, _counted(moment, stats[group])) for group in sorted(stats)]


def _counted(moment: str, stats: Sequence[WriteStat]) -> StreamedWrite:
    return StreamedWrite(
        moment=moment,
        files=len(stats),
        bytes=sum(stat.total_write_bytes for stat in stats),
        rows=sum(stat.num_writes + stat.num_deletes for stat in stats),
    )


def _streamed(moment: str, metadata: CommitMetadata | None) -> StreamedWrite | None:
    """None: a table service, which changes no row."""
    if metadata is None:
        return StreamedWrite(moment=moment)
    if metadata.operation_type in SERVICE_OPERATIONS:
        return None
    return _counted(moment, [stat for stats in metadata.partition_to_write_stats.values() for stat in stats])
