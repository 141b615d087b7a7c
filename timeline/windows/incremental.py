"""Incremental reads: the rows as of the end of a window that the window's writes have written.

It is the merged slice, filtered afterwards. Merging the window's own log files would be wrong wherever the base file or
an older log wins, as with late rows under event time.

A log compaction of Hudi 1.2 puts its own time into the rows that it merges. They belong to the writes that the log
compaction took in: slices are read without the window's log compactions, whose originals are there beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..codec.avro_schema import COMMIT_TIME
from ..errors import UnsupportedError, UsageError
from ..event_log import get_logger
from ..filter.tree import And, Compare, Filter, In, Op, Or
from ..instants.timeline import Timeline
from ..table.table import Table
from ..view.view import FileSlice
from .retained import check_still_whole, earliest_whole
from .state import WindowState, load_state, moment_of_text, newest_state
from .window import EARLIEST, Window, completed_writes, fix_window
from .window_writes import WindowWrites, find_window_writes

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """What an incremental read reads. `timeline`: as it was first loaded. `rows`: None if every row belongs to it.

    `services`: the table services that may have put their time into its rows; those of which no clean has taken what
    went into them.
    """

    timeline: Timeline
    window: Window
    state: WindowState
    slices: tuple[FileSlice, ...]
    rows: Filter | None
    services: WindowWrites


def load_window(table: Table, begin: str | None, end: str | None) -> tuple[Timeline, Window]:
    """The timeline, with its archive where windows need it, and the window on it; UsageError for an impossible one."""
    if begin is None:
        raise UsageError("a window needs its begin", todo="Give --begin; `earliest` is before the first write.")
    if not table.config.populate_meta_fields:
        raise UnsupportedError(
            "the table has no meta columns, so the writes of its rows are unknown",
            path=table.storage.base_path,
            found="hoodie.populate.meta.fields=false",
        )
    timeline = table.load_timeline(archived=table.layout.has_completion_times)
    last = None if end is None else moment_of_text(table, end)
    window = fix_window(timeline, moment_of_text(table, begin), last)
    path = table.storage.base_path
    if window.begin_requested:
        _log.warning("begin_is_a_requested_time", table=path, begin=window.begin, expected="a completion time")
    if window.blocked_by is not None:
        _log.warning("window_ends_before_a_pending_write", table=path, end=window.end, pending=window.blocked_by)
    return timeline, window


def plan_increment(
    table: Table, begin: str | None, end: str | None, partition: str | None, *, full_scan: bool
) -> Increment:
    """The slices of a window and the filter of their rows; reads no data files.

    `full_scan`: if the state at the end is cleaned, reads the newest one instead, without rows that were overwritten
    since. UsageError: an impossible window, or a cleaned one.
    """
    timeline, window = load_window(table, begin, end)
    earliest = earliest_whole(table, timeline)
    scanned = window.end < earliest
    if scanned and not full_scan:
        raise _cleaned(table, window, earliest)
    if scanned:
        _log.warning("window_is_cleaned", table=table.storage.base_path, end=window.end, earliest=earliest)
    state = newest_state(table, partition) if scanned else load_state(table, window.end, partition, timeline)
    if not scanned:
        check_still_whole(table, timeline, window.end)
    found = find_window_writes(table, timeline, window)
    slices = tuple(s for g, s in state.slices() if scanned or found.groups is None or g.key in found.groups)
    everything = window.begin == EARLIEST and not scanned
    return Increment(
        timeline=timeline,
        window=window,
        state=state,
        slices=slices,
        rows=None if everything else wanted_rows(timeline, window, found),
        services=found if window.begin >= earliest else replace(found, compacted_logs={}, clusterings=frozenset()),
    )


def _cleaned(table: Table, window: Window, earliest: str) -> UsageError:
    return UsageError(
        "files of the table at the end of the window have been cleaned",
        path=table.storage.base_path,
        expected=f"an end from {earliest} on, with any begin",
        found=window.end or "earliest",
        todo="`full-scan` as fallback gives the rows of the window that were not overwritten since.",
    )


def wanted_rows(timeline: Timeline, window: Window, found: WindowWrites) -> Filter:
    """The rows of a window, by the commit times that they carry (pure)."""
    after = Compare(COMMIT_TIME, Op.GT, window.begin)
    if not timeline.layout.has_completion_times:
        return And((after, Compare(COMMIT_TIME, Op.LE, window.end)))
    wanted = In(COMMIT_TIME, tuple(sorted(found.writes | found.stamps)))
    oldest = min((w.requested_time for w in completed_writes(timeline)), default="")
    if window.begin >= oldest:
        return wanted
    # Rows of writes that even the archive no longer has: they completed after their requested time.
    return Or((wanted, And((after, Compare(COMMIT_TIME, Op.LT, oldest)))))
