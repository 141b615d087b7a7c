"""The file-system view of the metadata table.

When Hudi builds an index anew, it removes the partition's folder, with base files that a completed compaction names.
It fills the new one under made-up times with the same file ids. So that compaction names nothing there any more.
Version 6 shows no order of the two: there a base file that is gone stays an error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..instants.timeline import Timeline
from ..table.table import Table
from ..view.view import FileGroup, TableView, ViewFacts
from .location import anew_if_unreadable
from .valid_instants import MADE_UP


def load_metadata_view(metadata: Table, partitions: Collection[str]) -> TableView:
    """Timeline, facts, then the listing of these partitions. MissingFileError: no such folder; see `file_groups`."""
    timeline = metadata.load_timeline()
    with anew_if_unreadable(metadata):
        facts = without_rebuilt(metadata, timeline, metadata.facts.load(timeline, witness=False))
    groups = list[FileGroup]()
    for partition in sorted(partitions):
        found = metadata.views.partition_groups(partition, timeline, facts)
        if not found:
            metadata.storage.list(partition)  # a folder that is not there has no groups either
        for slice_ in (s for group in found for s in group.slices):
            slice_.check_whole()
        groups += found
    metadata.check_unchanged()
    return TableView(timeline=timeline, facts=facts, groups=tuple(groups))


def without_rebuilt(metadata: Table, timeline: Timeline, facts: ViewFacts) -> ViewFacts:
    """The facts without base files that compactions wrote to a partition before it was last filled."""
    if not facts.compacted or not timeline.layout.has_completion_times:
        return facts
    filled: dict[str, str] = {}
    for instant in timeline.completed:
        if instant.action == "deltacommit" and instant.requested_time.startswith(MADE_UP):
            for partition in metadata.commit_metadata(instant).partition_to_write_stats:
                filled[partition] = max(filled.get(partition, ""), timeline.completed_at(instant))
    kept = {
        (partition, file_id): {time: name for time, name in names.items() if time > filled.get(partition, "")}
        for (partition, file_id), names in facts.compacted.items()
    }
    return replace(facts, compacted={key: names for key, names in kept.items() if names})
