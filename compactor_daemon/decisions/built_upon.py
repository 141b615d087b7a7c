"""Whether others have built upon a completed compaction: its commit stays then, also one that came too late.

What they wrote, or plan to merge, shows with that commit alone, or the files it was made of are gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.compaction_plan import CompactionPlan, planned_paths
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.table import Table

from ..records.fate import Go
from .replaced import placed_group


def is_built_upon(table: Table, go: Go, *, stands: bool) -> bool:
    """Whether the commit of a decision cannot be taken away any more. `stands`: see `standing`."""
    timeline, plan = table.load_timeline(), _plan(table, go.instant)
    if _is_planned(table, go, timeline):
        return True
    for name in _written_since(table, go, timeline):
        # With the plan, readers find the logs on its slice also without the commit.
        if isinstance(name, BaseFileName) or (plan is None and name.instant == go.instant):
            return True
    return plan is not None and _lacks_inputs(table, timeline, plan, logs_too=stands)


def _plan(table: Table, instant: str) -> CompactionPlan | None:
    try:
        return table.compaction_plan(instant)
    except MissingFileError:
        return None


def _is_planned(table: Table, go: Go, timeline: Timeline) -> bool:
    finals = {p.final for p in go.placements}
    others = [i.requested_time for i in timeline.pending_merges if i.requested_time != go.instant]
    return any(not finals.isdisjoint(planned_paths(table.compaction_plan(other))) for other in others)


def _written_since(table: Table, go: Go, timeline: Timeline) -> Iterator[BaseFileName | LogFileName]:
    """Files of the same file groups that later writes name."""
    groups = {placed_group(p.final) for p in go.placements}
    for instant in timeline.completed:
        if instant.requested_time > go.instant:
            for path in table.commit_metadata(instant).named_files:
                partition, _, text = path.rpartition("/")
                name = parse_data_file(text)
                if name is not None and (partition, name.file_id) in groups:
                    yield name


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
