"""What happened in a window: its writes, the file groups that they named, and the table services among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import MissingFileError
from ..format.commit_metadata import CLUSTER, LOG_COMPACT, SERVICE_OPERATIONS, CommitMetadata
from ..format.file_name import LogFileName, parse_data_file
from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..table.table import Table
from ..view.view import GroupKey
from .window import Window, completed_writes


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWrites:
    """`writes`: requested times of the window's writes. `groups`: the file groups that hold their rows; None: any may.
    `replaced`: those that its writes have replaced with other data, as far as their commits are known.

    A log compaction of Hudi 1.2 writes its own time into the rows that it merges, as a clustering may. `stamps`: table
    services of the window whose time may stand for one of its writes; left out are log compactions that merged only
    writes from before the window. `log_compactions`: all of the window. `compacted_logs`: paths of the log files that
    these wrote, each with its instant. `clusterings`: those of the window. `unlisted`: it begins before the earliest
    known write, so it may hold others, which were archived.
    """

    writes: frozenset[str]
    groups: frozenset[GroupKey] | None
    replaced: frozenset[GroupKey]
    stamps: frozenset[str]
    log_compactions: frozenset[str]
    compacted_logs: Mapping[str, str]
    clusterings: frozenset[str]
    unlisted: bool


def find_window_writes(table: Table, timeline: Timeline, window: Window) -> WindowWrites:
    """Reads the commits of the window, and the plans of its log compactions."""
    inside = [
        w for w in completed_writes(timeline) if window.begin < timeline.moment_of(w) and _counts(timeline, w, window)
    ]
    active = ((i, table.files.recorded(i)) for i in inside if i in timeline.instants)
    found = {i: metadata for i, metadata in active if metadata is not None}
    found |= table.archived_commits([i for i in inside if i not in timeline.instants])
    services = {i for i in inside if timeline.is_compaction(i) or (i in found and _is_service(found[i]))}
    writes = frozenset(i.requested_time for i in inside if i not in services)
    compacting = {i for i in services & found.keys() if found[i].operation_type == LOG_COMPACT}
    logs = {i.requested_time for i in compacting}
    merged = {log: _originals(table, log, logs) for log in logs}
    outside = {log for log, times in merged.items() if times is not None and times.isdisjoint(writes)}
    known = timeline.start
    if table.layout.has_completion_times:  # the archive is loaded; its oldest part may be gone
        known = min((timeline.moment_of(w) for w in completed_writes(timeline)), default="")
    unlisted = window.begin < known
    complete = len(found) == len(inside) and not unlisted
    return WindowWrites(
        writes=writes,
        groups=frozenset().union(*(m.written_groups for m in found.values())) if complete else None,
        replaced=frozenset().union(*(found[i].replaced_groups for i in found.keys() - services)),
        stamps=frozenset(i.requested_time for i in services) - outside,
        log_compactions=frozenset(logs),
        compacted_logs={path: i.requested_time for i in compacting for path in found[i].named_files},
        clusterings=frozenset(i.requested_time for i in services & found.keys() if found[i].operation_type == CLUSTER),
        unlisted=unlisted,
    )


def _counts(timeline: Timeline, write: Instant, window: Window) -> bool:
    """Whether the state at the end of the window has the write; a compaction may be there before it completed."""
    return timeline.counts_from(write) <= window.end


def _is_service(metadata: CommitMetadata) -> bool:
    return metadata.operation_type in SERVICE_OPERATIONS


def _originals(table: Table, log_compaction: str, others: set[str]) -> frozenset[str] | None:
    """The writes whose log files a log compaction merged; None if its plan does not show them.

    It does on versions 8 and 9 only, where a log file carries its delta commit's time. If it merged what `others`
    had made, their originals are in its plan too.
    """
    if not table.layout.has_completion_times:
        return None
    try:
        operations = table.compaction_plan(log_compaction).operations
    except MissingFileError:
        return None
    names = [parse_data_file(name) for operation in operations for name in operation.delta_file_paths]
    times = {name.instant for name in names if isinstance(name, LogFileName)}
    return frozenset(times - others)
