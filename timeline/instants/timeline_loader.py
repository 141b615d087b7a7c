"""Loads a table's timeline from its folder."""

from __future__ import annotations

from dataclasses import dataclass

from ..clock.evidence import written
from ..format.instant import hidden_writes, highest_states
from ..format.table_config import TableConfig
from ..storage.contract import Storage, list_of_table
from .table_clock import TableClock
from .timeline import Timeline


@dataclass(frozen=True, slots=True)
class TimelineLoader:
    """`clock`: converts a file's modification time to an instant time."""

    storage: Storage
    config: TableConfig
    clock: TableClock

    def load(self, *, archived: bool = False) -> Timeline:
        """The active timeline; with `archived` the archived instants too.

        Always with these where no active write is completed: all of them may be rolled back, and earlier ones archived.

        UnknownStateError: an archived timeline exists and cannot be read.
        """
        entries = list_of_table(self.storage, self.config.timeline_folder)
        parsed = {e.name: self.config.layout.parse(e.name) for e in entries if not e.is_folder}
        files = [(i, e.modified_ms) for e in entries if (i := parsed.get(e.name)) is not None]
        legacy = {
            instant.requested_time: self.clock.moment(modified_ms)
            for instant, modified_ms in files
            if instant.completed and instant.completion_time is None and self.config.layout.has_completion_times
        }
        instants = highest_states(i for i, _ in files)
        timeline = Timeline(
            layout=self.config.layout,
            instants=instants,
            hidden=hidden_writes((i for i, _ in files), instants),
            legacy_completions=legacy,
            written=written(files),
            commits_are_writes=not self.config.has_logs,
        )
        return self.with_its_archive(timeline) if archived or not timeline.completed else timeline

    def with_archive(self, timeline: Timeline) -> Timeline:
        """The timeline with its archived instants loaded, also those that were archived since it was listed."""
        from .archived_timeline import with_archive  # late: few commands need the archive

        return with_archive(self.storage, self.config, timeline)

    def with_its_archive(self, timeline: Timeline) -> Timeline:
        """The timeline with the archived instants of its own moment, see `Timeline.with_its_archived`."""
        return timeline.with_its_archived(self.with_archive(timeline).archived)
