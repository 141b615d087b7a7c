"""One state of a table, from which requests are answered (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..format.compaction_plan import CompactionPlan
from ..format.file_name import BaseFileName, parse_data_file
from ..format.instant import Instant, State
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..storage.contract import Entry
from ..view.view import FileGroup, GroupKey, ViewFacts, file_groups
from .synchronisation import digests


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """The file groups of a partition, three times; one and the same tuple while no write is pending.

    `groups`: as readers see them. `with_logs`: also with log files of pending writes. `with_all`: also with their base
    files. `modified`: file name -> milliseconds since the epoch.
    """

    groups: tuple[FileGroup, ...]
    with_logs: tuple[FileGroup, ...]
    with_all: tuple[FileGroup, ...]
    modified: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class TableState:
    """What one load found. `partitions`: also empty ones.

    `plans`, `log_plans`: of pending compactions and log compactions, by instant. `clusterings`: file group -> the
    pending instant that will replace it.
    """

    timeline: Timeline
    facts: ViewFacts
    partitions: Mapping[str, PartitionFiles]
    plans: Mapping[str, CompactionPlan]
    log_plans: Mapping[str, CompactionPlan]
    clusterings: Mapping[GroupKey, Instant]

    @cached_property
    def digests(self) -> frozenset[str]:
        """See `synchronisation.digests`."""
        return digests(self.timeline)

    @cached_property
    def modified(self) -> Mapping[str, Mapping[str, int]]:
        """See `PartitionFiles`, by partition."""
        return {name: files.modified for name, files in self.partitions.items()}

    def with_partition(self, partition: str, files: PartitionFiles) -> TableState:
        """This state with one partition listed later."""
        return replace(self, partitions={**self.partitions, partition: files})


def partition_files(
    partition: str, entries: Iterable[Entry], timeline: Timeline, facts: ViewFacts, groups: tuple[FileGroup, ...]
) -> PartitionFiles:
    """A partition's files. `groups`: what `view.file_groups` makes of the listing."""
    entries = tuple(entries)
    with_logs = with_all = groups
    if any(_writes_files(i) for i in timeline.instants):
        shown = _as_completed(timeline, _writes_files)
        pending = shown.completed_writes.keys() - timeline.completed_writes.keys()
        with_all = file_groups(partition, _one_base_each(entries, pending, keep=True), shown, facts)
        with_logs = file_groups(partition, _one_base_each(entries, pending, keep=False), shown, facts)
    return PartitionFiles(
        groups=groups,
        with_logs=with_logs,
        with_all=with_all,
        modified={e.name: e.modified_ms for e in entries if not e.is_folder},
    )


def groups_with(
    partition: str, entries: Iterable[Entry], timeline: Timeline, facts: ViewFacts, pending: str
) -> tuple[FileGroup, ...]:
    """A partition's file groups with the files of one pending write."""
    shown = _as_completed(timeline, lambda i: i.requested_time == pending and _writes_files(i))
    return file_groups(partition, _one_base_each(tuple(entries), {pending}, keep=True), shown, facts)


def _writes_files(instant: Instant) -> bool:
    """Whether an instant's files are shown before it completes. A compaction's base file never is."""
    return instant.is_write and not instant.completed and instant.action != "compaction"


def _as_completed(timeline: Timeline, which: Callable[[Instant], bool]) -> Timeline:
    """The timeline with some pending instants as if completed last: Hudi puts their log files on the newest slice."""
    return replace(
        timeline,
        instants=tuple(
            replace(i, action=i.family, state=State.COMPLETED, completion_time=UNKNOWN_COMPLETION) if which(i) else i
            for i in timeline.instants
        ),
    )


def _one_base_each(entries: tuple[Entry, ...], pending: Iterable[str], *, keep: bool) -> list[Entry]:
    """The listing with at most one base file of each file group and pending instant: attempts of one task may leave
    several. `keep`: False leaves out all of them."""
    pending = frozenset(pending)
    found: dict[object, Entry] = {}
    for entry in entries:
        name = None if entry.is_folder else parse_data_file(entry.name)
        if isinstance(name, BaseFileName) and name.instant in pending:
            if keep:
                found[name.file_id, name.instant] = entry
        else:
            found[entry.name] = entry
    return list(found.values())
