"""The state of a table at a moment on the axis of incremental reads, and the point in time that a user gave."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TableChangedError, UsageError
from ..instants.timeline import Timeline
from ..table.table import Table
from ..view.view import FileGroup, FileSlice, TableView, is_replaced, latest_slice
from .window import EARLIEST, completed_writes


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """A table at a moment. `as_of`: on version 6 the moment, by requested time; else the view itself is of that moment.

    `hidden`: instants whose log blocks do not count.
    """

    view: TableView
    as_of: str | None
    hidden: frozenset[str]

    def slices(self) -> tuple[tuple[FileGroup, FileSlice], ...]:
        """The file groups that were there, each with the slice that a reader merges (pure)."""
        groups = (g for g in self.view.groups if not is_replaced(g, self.view.facts, self.as_of))
        found = ((g, latest_slice(g, self.as_of)) for g in groups)
        return tuple((g, s) for g, s in found if s is not None)


def load_state(table: Table, moment: str, partition: str | None, known: Timeline) -> WindowState:
    """The state at a moment, which must be whole, see `earliest_whole`. `known`: the timeline, with its archive, by
    which the reader knows what each write has written.

    TableChangedError: a clustering counts in one of the two only. It may complete at a time that was decided long
    before, also at or before the moment; then the rows of the file groups that it replaced are in one of its own.
    """
    if not table.layout.has_completion_times:
        return WindowState(view=table.load_view(partition, as_of=moment), as_of=moment, hidden=frozenset())
    view = table.load_view(partition, completed_by=moment)
    if changed := _replacing(known.completed_by(moment)) ^ _replacing(view.timeline):
        raise TableChangedError(
            "a clustering completed, or was taken back, while the table was read",
            path=table.storage.base_path,
            instant=min(changed),
            todo="Run it again.",
        )
    return WindowState(view=view, as_of=None, hidden=frozenset(view.timeline.pending_writes))


def _replacing(timeline: Timeline) -> set[str]:
    """Requested times of the completed replace commits, of the archive too."""
    return {i.requested_time for i in completed_writes(timeline) if i.family == "replacecommit"}


def newest_state(table: Table, partition: str | None) -> WindowState:
    """The state that a snapshot reads."""
    return WindowState(view=table.load_view(partition), as_of=None, hidden=frozenset())


def moment_of_text(table: Table, text: str) -> str:
    """A begin or end: every form of `parse_as_of`, and `earliest` or zeros for a begin before everything."""
    if text.lower() == "earliest" or not text.strip("0"):
        if not text:
            raise UsageError("an empty point in time", expected="a time, or `earliest`")
        return EARLIEST
    return table.point_in_time(text)
