"""Which past states of a table are still whole: what cleans have retained."""

from __future__ import annotations

from ..errors import TableChangedError, UsageError
from ..format.instant import Instant
from ..instants.instant_files import retained_by, retained_by_archived
from ..instants.timeline import Timeline
from ..prefetch import prefetched
from ..table.table import Table
from .window import completed_writes


def cleans(timeline: Timeline) -> list[Instant]:
    """The cleans of a timeline; files of one that is pending may be gone already."""
    return [i for i in timeline.instants if i.action == "clean"]


def retained_since(table: Table, timeline: Timeline) -> str:
    """The newest instant whose state, and all later ones, every clean retains; "" if nothing was cleaned.

    The requested time of a write as the cleaner recorded it. A cleaner that retains file versions records none: then it
    is the clean's own time. A later clean may have retained more again, but what is gone stays gone. Archived cleans
    count as far as the archive is loaded. MalformedError: unreadable clean metadata.
    """
    active = max(prefetched(cleans(timeline), lambda clean: retained_by(table.files, clean)), default="")
    archived = [i for i in timeline.archived if i.action == "clean" and i.requested_time > active]
    records = table.archived_records(archived)
    return max((active, *(retained_by_archived(clean, records.get(clean)) for clean in archived)))


def earliest_whole(table: Table, timeline: Timeline) -> str:
    """The earliest moment whose state no clean has touched; "" if nothing was cleaned."""
    retained = retained_since(table, timeline)
    return earliest_state(timeline, retained) if retained else ""


def check_still_whole(table: Table, before: Timeline, moment: str) -> None:
    """TableChangedError if a clean that is not in the timeline `before` may have touched the state at a moment.

    For states that were whole by `before`, once their files are listed: a file that goes later is missed when it is
    opened. A view of a past state does not show this, since the writes behind its moment are pending in it.
    """
    now = table.load_timeline(archived=table.layout.has_completion_times)
    if now.may_be_cleaned_since(before) and moment < earliest_whole(table, now):
        raise _cleaned_meanwhile(table)


def check_as_of_still(table: Table, before: Timeline, as_of: str) -> None:
    """As `check_still_whole`, for a point in time that `check_as_of` has let pass by the timeline `before`."""
    now = table.load_timeline(archived=table.layout.has_completion_times)
    if now.may_be_cleaned_since(before):
        retained = retained_since(table, now)
        if as_of < retained and _differs(table.with_archive(now), as_of, retained):
            raise _cleaned_meanwhile(table)


def _cleaned_meanwhile(table: Table) -> TableChangedError:
    return TableChangedError(
        "the table was cleaned while a past state of it was listed", path=table.storage.base_path, todo="Run it again."
    )


def earliest_state(timeline: Timeline, retained: str) -> str:
    """The earliest point of whole states, on the axis of `Timeline.counts_from` (pure).

    `retained`: see `retained_since`. A cleaner keeps the newest slice below it of every group, so the state just before
    it is whole too: that of the last of the writes that were requested before it.
    """
    before = (w for w in completed_writes(timeline) if w.requested_time < retained)
    # On version 6 archived writes are not known here: before the first known one there may have been others.
    unknown = "" if timeline.layout.has_completion_times else retained
    return max((timeline.counts_from(w) for w in before), default=unknown)


def check_as_of(table: Table, timeline: Timeline, as_of: str) -> None:
    """Refuses a point in time whose result would be incomplete or could still change, as Hudi does."""
    pending = [i.requested_time for i in timeline.inflight_writers]
    if pending and as_of >= min(pending):
        raise UsageError(
            "the as-of point is not before the first pending write",
            instant=as_of,
            expected=f"before {min(pending)}",
            found="a write that may still complete at or before it",
            todo="Let it end; if its writer is dead, the next write to the table rolls it back.",
        )
    if as_of < timeline.start and timeline.layout.has_completion_times:
        timeline = table.with_archive(timeline)
    retained = retained_since(table, timeline)
    if as_of < retained and _differs(table.with_archive(timeline), as_of, retained):
        raise UsageError(
            "files of that point in time may have been cleaned",
            instant=as_of,
            expected=f"{retained} or later",
        )


def _differs(timeline: Timeline, as_of: str, retained: str) -> bool:
    """Whether the state at a point may be another one than that at `retained`, which is whole (pure).

    It is the same if no write, plan or service was requested in between: so the newest write before a clean that
    retained file versions can be read. `timeline`: with its archive.
    """
    return any(i.is_write and as_of < i.requested_time <= retained for i in (*timeline.instants, *timeline.archived))
