"""Moments and windows of incremental reads, points in time given by users, and whether cleans have retained them.

A window (begin, end] holds the completed writes whose moment is in it: their completion time on versions 8 and 9, their
requested time on version 6. Table services in it change no rows. A past state can be read until a clean removes a file
of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..errors import TableChangedError, UsageError
from ..format.instant import Instant
from ..instants.instant_files import retained_by, retained_by_archived
from ..instants.timeline import Timeline
from ..prefetch import prefetched
from ..table.table import Snapshot, Table
from ..view.view import FileGroup, FileSlice, TableView, latest_slice

EARLIEST = ""
"""A begin before all moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window with a fixed end: no write that completes from now on is in it.
    `blocked_by`: on version 6 the first pending write; the window ends before it, since its rows may still appear.
    `begin_requested`: begin is the requested time of a write and not a completion time, so it may be a mistake."""

    begin: str
    end: str
    blocked_by: str | None = None
    begin_requested: bool = False

    def holds(self, moment: str) -> bool:
        return self.begin < moment <= self.end


def fix_window(timeline: Timeline, begin: str, end: str | None) -> Window:
    """The window up to `end`, or up to the newest write. `timeline`: with its archive if it has completion times.
    UsageError: the end is before the begin. An end in the future is replaced by the newest write's: writes that
    complete after this read belong to the next window."""
    if end is not None and end < begin:
        raise UsageError("the window ends before it begins", expected=f"an end from {begin} on", found=end)
    writes = completed_writes(timeline)
    pending = min((i.requested_time for i in timeline.inflight_writers), default=None)
    blocked = None
    if not timeline.layout.has_completion_times and pending is not None and (end is None or pending <= end):
        blocked = pending
        writes = [w for w in writes if w.requested_time < pending]
    moments = {timeline.moment_of(w) for w in writes}
    newest = max(moments, default="")
    return Window(
        begin=begin,
        end=max(begin, newest if end is None else min(end, newest)),
        blocked_by=blocked,
        begin_requested=begin not in moments and begin in {w.requested_time for w in writes},
    )


def completed_writes(timeline: Timeline) -> list[Instant]:
    """Completed writes and table services, of the archive too as far as it is loaded, each once."""
    found = {i.identity: i for i in (*timeline.archived, *timeline.instants)}
    return [i for i in found.values() if i.is_write and i.completed]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """A table at a moment. `as_of`: on version 6 the moment (requested time); else the view itself is of that moment.
    `hidden`: instants whose log blocks do not count."""

    view: TableView
    as_of: str | None = None
    hidden: frozenset[str] = frozenset()

    def slices(self) -> tuple[tuple[FileGroup, FileSlice], ...]:
        """The file groups that existed, each with the slice that a reader merges (pure)."""
        found = ((g, latest_slice(g, self.as_of)) for g in self.view.living(self.as_of))
        return tuple((g, s) for g, s in found if s is not None)


def load_state(table: Snapshot, moment: str, partition: str | None) -> WindowState:
    """The state at a moment, which must be complete, see `earliest_whole`. The timeline of `table` has its archive: it
    shows what each write wrote.
    TableChangedError: a clustering counts in only one of the two. It may complete at a time that was decided long
    before, also at or before the moment; then its own file groups hold the rows of those that it replaced."""
    if not table.layout.has_completion_times:
        return WindowState(view=table.load_view(partition, as_of=moment), as_of=moment)
    view = table.load_view(partition, completed_by=moment)
    if changed := _replacing(table.timeline.completed_by(moment)) ^ _replacing(view.timeline):
        what = "a clustering completed, or was rolled back, while the table was read"
        raise TableChangedError(what, path=table.storage.base_path, instant=min(changed), todo="Run it again.")
    return WindowState(view=view, hidden=frozenset(view.timeline.pending_writes))


def _replacing(timeline: Timeline) -> set[str]:
    """Requested times of the completed replace commits, of the archive too."""
    return {i.requested_time for i in completed_writes(timeline) if i.family == "replacecommit"}


def moment_of_text(table: Table, text: str) -> str:
    """A begin or end: every form of `parse_as_of`, and `earliest` or zeros for a begin before all moments."""
    if text.lower() == "earliest" or not text.strip("0"):
        if not text:
            raise UsageError("an empty point in time", expected="a time, or `earliest`")
        return EARLIEST
    return table.point_in_time(text)


def cleans(timeline: Timeline) -> list[Instant]:
    """The cleans of a timeline; files of a pending clean may be removed already."""
    return [i for i in timeline.instants if i.action == "clean"]


def retained_since(table: Snapshot) -> str:
    """The newest instant such that every clean retains its state and all later ones; "" if there was no clean.
    It is the requested time of a write that the cleaner recorded, or the clean's own time for a cleaner that retains
    file versions, which records none. An earlier clean still counts if a later one retained more. Archived cleans count
    as far as the archive is loaded. MalformedError: unreadable clean metadata."""
    active = max(prefetched(cleans(table.timeline), lambda clean: retained_by(table.files, clean)), default="")
    archived = [i for i in table.timeline.archived if i.action == "clean" and i.requested_time > active]
    records = table.archived_records(archived)
    return max((active, *(retained_by_archived(clean, records.get(clean)) for clean in archived)))


def earliest_whole(table: Snapshot) -> str:
    """The earliest moment of a state without files removed by cleans; "" if there was no clean."""
    retained = retained_since(table)
    return earliest_state(table.timeline, retained) if retained else ""


def check_still_whole(table: Snapshot, moment: str) -> None:
    """TableChangedError if a clean since the snapshot may have removed files of a moment's state. For states that were
    complete then, after their files are listed: a file removed later is missing when it is opened. A view of a past
    state does not show this, since the writes after its moment are pending in it."""
    now = table.load_timeline(archived=table.layout.has_completion_times)
    if now.may_be_cleaned_since(table.timeline) and moment < earliest_whole(table.with_timeline(now)):
        raise _cleaned_concurrently(table)


def check_as_of_still(table: Snapshot, as_of: str) -> None:
    """As `check_still_whole`, for a point in time that `check_as_of` has accepted by the same snapshot."""
    now = table.load_timeline(archived=table.layout.has_completion_times)
    if now.may_be_cleaned_since(table.timeline):
        retained = retained_since(table.with_timeline(now))
        if as_of < retained and _differs(table.with_archive(now), as_of, retained):
            raise _cleaned_concurrently(table)


def _cleaned_concurrently(table: Table) -> TableChangedError:
    return TableChangedError(
        "the table was cleaned while a past state of it was listed", path=table.storage.base_path, todo="Run it again."
    )


def earliest_state(timeline: Timeline, retained: str) -> str:
    """The earliest point of complete states, on the axis of `Timeline.counts_from` (pure).
    `retained`: see `retained_since`. A cleaner keeps the newest slice below it of every group, so the state just before
    it is complete too: the state of the last write requested before it."""
    before = (w for w in completed_writes(timeline) if w.requested_time < retained)
    # On version 6 archived writes are unknown here: there may have been writes before the first known one.
    unknown = "" if timeline.layout.has_completion_times else retained
    return max((timeline.counts_from(w) for w in before), default=unknown)


def check_as_of(table: Snapshot, as_of: str) -> None:
    """Refuses a point in time whose result would be incomplete or could still change, as Hudi does."""
    timeline = table.timeline
    pending = [i.requested_time for i in timeline.inflight_writers]
    if pending and as_of >= min(pending):
        what = "the as-of point is not before the first pending write"
        found = "a write that may still complete at or before it"
        todo = "Let it end; if its writer is dead, the next write to the table rolls it back."
        raise UsageError(what, instant=as_of, expected=f"before {min(pending)}", found=found, todo=todo)
    if as_of < timeline.start and timeline.layout.has_completion_times:
        timeline = table.with_archive(timeline)
    retained = retained_since(table.with_timeline(timeline))
    if as_of < retained and _differs(table.with_archive(timeline), as_of, retained):
        raise UsageError(
            "files of that point in time may have been cleaned", instant=as_of, expected=f"{retained} or later"
        )


def _differs(timeline: Timeline, as_of: str, retained: str) -> bool:
    """Whether the state at a point in time may differ from that at `retained`, which is complete (pure).
    The states are equal if no write, plan or service was requested in between: so the newest write before a clean that
    retained file versions can be read. `timeline`: with its archive."""
    return any(i.is_write and as_of < i.requested_time <= retained for i in (*timeline.instants, *timeline.archived))


def moment_to_hold(timeline: Timeline, moment: str) -> str:
    """The moment that a pin holds for a reader of the state at `moment`, on the axis of `Timeline.counts_from`. Pending
    instants may complete during the read and count from before `moment`: a compaction counts from its requested time
    on, a clustering from the completion time that it has decided, and on version 6 every write from its requested time
    on. The state at `moment` then changes, and a cleaner may remove files that the reader still reads. So the moment
    held is before all of these."""
    pending: Collection[Instant] = timeline.pending_writes.values()
    if timeline.layout.has_completion_times:
        pending = [i for i in pending if i.action in ("compaction", "clustering")]
    first = min((i.requested_time for i in pending), default=None)
    if first is None or moment < first:
        return moment
    counted = (timeline.counts_from(w) for w in timeline.completed_writes.values())
    return max((m for m in counted if m < first), default="")


def earliest_to_retain(timeline: Timeline, holds: Iterable[str]) -> str | None:
    """The greatest R that retains the states at these moments, and all later ones; None: any R does.
    R is the first requested time of a write that is not in the earliest of the states: one that completed later, or is
    pending. `timeline`: with its archive if it has completion times, so that no archived write is missed."""
    earliest = min(holds, default=None)
    if earliest is None:
        return None
    completed = {i.requested_time: i for i in (*timeline.archived, *timeline.instants) if i.is_write and i.completed}
    later = (time for time, write in completed.items() if timeline.counts_from(write) > earliest)
    return min((*later, *timeline.pending_writes), default=None)
