"""Reads what the choice of files to clean needs to know about a table. What cannot be read is an error."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.instants.instant_files import load_state_files
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.read.pins import all_pins, live_pins
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.pending import clustered_file_groups
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import TableView

from ..attempt.unfinished import unfinished_compactions
from ..undo.savepoint import savepoints, state_files
from .choice import CleanFacts
from .options import CleanOptions, Policy


def load_whole(table: Table) -> TableView:
    """A view whose timeline knows all writes that completed after the moment of a pin, archived ones too.

    On version 6 no archived instant has a completion time, and archiving does not pass a pin.
    """
    view = from_one_snapshot(table.load_view)
    if not table.layout.has_completion_times or view.timeline.archived:
        return view
    return replace(view, timeline=table.with_archive(view.timeline))


def without(view: TableView, gone: Collection[str]) -> TableView:
    """The view as it is when these paths are removed, which are whole file slices (pure)."""
    left = (
        replace(group, slices=tuple(s for s in group.slices if not all(file.path in gone for file in s.files)))
        for group in view.groups
    )
    return replace(view, groups=tuple(group for group in left if group.slices))


def gather_facts(table: Table, view: TableView, options: CleanOptions, *, dry_run: bool) -> CleanFacts:
    """Called with the view that is decided on.

    `dry_run`: puts nothing on storage; expired pins count then. MalformedError: an unreadable pin, savepoint or plan,
    which may forbid anything.
    """
    timeline, now_ms = view.timeline, clock_ms()
    hours = options.retained if options.policy is Policy.HOURS else 0
    return CleanFacts(
        # Subtracted as moments: times of day jump by an hour when the clocks change.
        hours_ago=table.times.moment(now_ms - hours * 3_600_000),
        floor=table.times.moment(now_ms - int(options.floor_s * 1000)),
        written=_written(table, timeline),
        holds=tuple(pin.holds for pin in (all_pins if dry_run else live_pins)(table.storage)),
        savepoints=frozenset(savepointed(table, view)),
        unfinished=frozenset(unfinished_compactions(table, timeline)),
        clustering=frozenset(clustered_file_groups(table, timeline)),
    )


def _written(table: Table, timeline: Timeline) -> dict[str, str]:
    """When the completed files were written. A completion time in a name may be much older: it is decided before."""
    return load_state_files(table.storage, table.config).written(timeline.completed, table.times.moment)


def savepointed(table: Table, view: TableView) -> Iterator[str]:
    """Paths that savepoints name, and those of their states: Hudi's names only some beside a pending compaction."""
    for kept in savepoints(table, view.timeline):
        for files in (kept.savepoint.files, state_files(view, kept.instant)):
            for partition, names in files.items():
                yield from (join(partition, name) for name in names)
