"""Whether others have built upon a completed compaction: its commit stays then, also one that came too late.

What they wrote, or plan to merge, shows with that commit alone, or the files it was made of are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.clean import decode_clean_plan
from phantombase.timeline.format.compaction_plan import CompactionPlan, planned_paths
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.look.look import list_ahead
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.traces.find import data_files
from phantombase.timeline.view.view import GroupKey
from phantombase.timeline.windows.retained import cleans

from ..records.fate import Go
from .replaced import placed_group


def is_built_upon(table: Table, go: Go, *, stands: bool) -> bool:
    """Whether the commit of a decision cannot be taken away any more. `stands`: see `standing`."""
    timeline, plan = table.load_timeline(), _plan(table, go.instant)
    if _is_planned(table, go, timeline):
        return True
    later = list(_written_since(table, go, timeline))
    # With the plan, readers find the logs on its slice also without the commit.
    if plan is None and any(name.instant == go.instant for _, name in later):
        return True
    below = {group for group, name in later if isinstance(name, BaseFileName)}
    if plan is not None:
        return bool(below) or _lacks_inputs(table, timeline, plan, logs_too=stands)
    # Of a plan that is gone nothing tells what was merged.
    shown = {placed_group(p.final) for p in go.placements} - below - set(table.facts.replaced_groups(timeline))
    partitions = sorted({partition for partition, _ in shown})
    list_ahead(table.storage, partitions)
    found = {join(p, entry.name): name for p in partitions for entry, name in data_files(table, p)}
    if any(placed_group(p.final) in shown and p.final not in found for p in go.placements):
        return False  # it was taken back before the commit was put: readers would miss this file
    return bool(below) or _is_cleaned(table, go, timeline, shown, found)


def _plan(table: Table, instant: str) -> CompactionPlan | None:
    try:
        return table.compaction_plan(instant)
    except MissingFileError:
        return None


def _is_planned(table: Table, go: Go, timeline: Timeline) -> bool:
    finals = {p.final for p in go.placements}
    others = [i.requested_time for i in timeline.pending_merges if i.requested_time != go.instant]
    return any(not finals.isdisjoint(planned_paths(table.compaction_plan(other))) for other in others)


def _written_since(table: Table, go: Go, timeline: Timeline) -> Iterator[tuple[GroupKey, BaseFileName | LogFileName]]:
    """Files of the same file groups that later writes name."""
    groups = {placed_group(p.final) for p in go.placements}
    for instant in timeline.completed:
        if instant.requested_time > go.instant:
            for path in table.commit_metadata(instant).named_files:
                partition, _, text = path.rpartition("/")
                name = parse_data_file(text)
                if name is not None and (partition, name.file_id) in groups:
                    yield (partition, name.file_id), name


def _is_cleaned(
    table: Table,
    go: Go,
    timeline: Timeline,
    groups: Collection[GroupKey],
    found: Mapping[str, BaseFileName | LogFileName],
) -> bool:
    """Whether a cleaner took all that a file group had before the compaction, which it saw completed."""
    left = {(path.rpartition("/")[0], name.file_id) for path, name in found.items() if name.instant < go.instant}
    bare = set(groups) - left
    for clean in cleans(timeline) if bare else ():
        if clean.requested_time > go.instant:
            path = table.instant_path(clean.at(State.REQUESTED))
            files = decode_clean_plan(table.storage.read(path), path).files
            named = ((p, parse_data_file(text)) for p, texts in files.items() for text in texts)
            if any(name is not None and (p, name.file_id) in bare for p, name in named):
                return True
    return False


def _lacks_inputs(table: Table, timeline: Timeline, plan: CompactionPlan, *, logs_too: bool) -> bool:
    """Whether a cleaner took what was merged. The log of a write that was rolled back is gone, too."""
    replaced = table.facts.replaced_groups(timeline)
    for operation in plan.operations:
        if (operation.partition_path, operation.file_id) not in replaced:
            for path in planned_paths(CompactionPlan(operations=(operation,))):
                is_base = isinstance(parse_data_file(path.rpartition("/")[2]), BaseFileName)
                if (is_base or logs_too) and table.storage.find(path) is None:
                    return True
    return False
