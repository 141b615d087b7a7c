"""Loads states of a table from storage: the first one in full, later ones from the state before.

    timeline -> what its instants record -> which partitions that touches -> their files

Which partitions are listed again when a timeline has changed:

    what changed                                   listed again
    an instant was added, changed or removed       the partitions that its file names: a write's statistics, the plan
                                                   of a compaction, clean or rollback
    a write was added, changed or removed          every partition with a file that has the write's time in its name
    an instant whose file names no partitions      all: a restore, a rollback whose plan cannot be read

Archiving an instant changes no file, and its writes count as before. Its records about file groups are removed from the
facts without a listing, see `forgotten`. After a restore, an upgrade, or a client's `refresh/` all is loaded again.
From time to time a load also lists the partition that was listed longest ago: that finds changes without an instant, as
a file removed by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..storage.contract import Entry, listed_if_there
from ..storage.snapshot import list_ahead
from ..table.table import Snapshot, Table, from_one_snapshot
from ..view.view_loader import is_partition, needs_archive
from .recorded import FactsByPartition, InstantRecords, Recorded, Records, load_records, planned_twice
from .table_state import PartitionFiles, PendingFiles, ServedState, digests, partition_files, pending_files


def touched(before: ServedState, timeline: Timeline, records: Records) -> frozenset[str] | None:
    """The partitions that may have changed since `before`; None: all may have."""
    if before.timeline.shared_times or timeline.shared_times:
        return None
    old, new = dict(before.records.records), dict(records)
    gone = old.keys() - new.keys()
    named = [_names(old[i], gone=True) for i in gone if not _archived(i, timeline)]
    named += [_names(new[i]) for i in new.keys() - old.keys()]
    named += [_back(before, old[i]) for i in gone]
    if None in named:
        return None
    moved = {i.requested_time for i in old.keys() ^ new.keys() if i.is_write and not _archived(i, timeline)}
    floor = sorted((before.timeline.start, timeline.start))

    def passes(files: PartitionFiles) -> bool:
        """Whether unknown writes lie between the two starts: before the start all count as completed."""
        times = (time for time in files.times if floor[0] <= time < floor[1])
        return any(time not in before.timeline.completed_writes for time in times)

    holding = (n for n, f in before.partitions.items() if not moved.isdisjoint(f.times) or passes(f))
    return frozenset(holding).union(*(found for found in named if found is not None))


def _names(recorded: Recorded, *, gone: bool = False) -> frozenset[str] | None:
    """The partitions that an instant names. A removed instant without any was undone by another, which names them."""
    return frozenset() if gone and recorded.partitions is None else recorded.partitions


def _archived(instant: Instant, now: Timeline) -> bool:
    """Whether an instant that is not active any more was archived, and its completion time is still known."""
    timed = instant.completion_time is not None or not now.layout.has_completion_times
    return instant.completed and instant.requested_time < now.start and (timed or not instant.is_write)


def _back(before: ServedState, recorded: Recorded) -> frozenset[str]:
    """The partitions that still have files of file groups that an instant replaced."""
    files = ((p, before.partitions[p], ids) for p, ids in recorded.replaced.items() if p in before.partitions)
    return frozenset(p for p, f, ids in files if any((g := f.by_file_id.get(i)) and g.slices for i in ids))


def forgotten(before: ServedState, records: Records) -> frozenset[str]:
    """The partitions with file groups in the records of instants that are not active any more."""
    now = {i for i, _ in records}
    gone = (r for i, r in before.records.records if i not in now)
    return frozenset(p for r in gone for p in (*r.bases, *r.replaced, *(r.named or ())) if p in before.partitions)


def above(partition: str, others: Iterable[str]) -> bool:
    return any(p != partition and (not p or partition.startswith(f"{p}/")) for p in others)


_OLDEST_LISTED = 1


def load_state(table: Table, before: ServedState | None = None, *, sweep: bool = True) -> ServedState:
    """The current state of the table. `before`: an earlier state; None: everything is read. `sweep`: also list one more
    partition. PhantombaseError: the table cannot be read. A partition with a lost or damaged file is `refused`."""
    return from_one_snapshot(lambda: _load(table.snapshot(records=False), before, sweep))


def state_at(table: Snapshot, before: ServedState | None = None) -> ServedState:
    """The state at a snapshot. `before`, errors: see `load_state`; MissingFileError, TableChangedError: see
    `from_one_snapshot`."""
    return _load(table, before, sweep=False)


def _load(table: Snapshot, before: ServedState | None, sweep: bool) -> ServedState:
    before = before if before is not None and before.config == table.config else None
    timeline = table.timeline
    records = load_records(table, before.records.known if before else {})
    if planned_twice(records.records):
        table.load_facts()  # says which
    again = None if before is None else touched(before, timeline, records.records)
    if before is None or again is None:
        return _whole(table, records)
    new = [p for p in again - before.partitions.keys() if not above(p, before.partitions)]
    if any(above(p, new) for p in before.partitions):
        return _whole(table, records)
    again |= before.refused  # restoring a file changes no instant
    asked = [*sorted(again & before.partitions.keys()), *sorted(new), *(_oldest(before, again) if sweep else ())]
    list_ahead(table.storage, asked)
    listed = {p: listed_if_there(table.storage, p) or [] for p in asked}
    facts = _facts(table, records)
    found = {
        p: entries for p, entries in listed.items() if is_partition(entries, table.config) or facts.of(p).partitions
    }
    if not _goes_out(before.timeline, timeline):
        timeline = replace(timeline, archived=before.timeline.archived)
    timeline, made = _made(table.with_timeline(timeline), records, found)
    kept = {p: files for p, files in before.partitions.items() if p not in listed}
    kept |= {p: replace(kept[p], facts=facts.of(p)) for p in forgotten(before, records.records) - listed.keys()}
    return ServedState(config=table.config, timeline=timeline, partitions={**kept, **made}, records=records)


def _whole(table: Snapshot, records: InstantRecords) -> ServedState:
    found = dict(table.listing.below(table.storage, table.config, ""))
    facts = _facts(table, records)
    named = {p for _, r in records.records for p in (*r.bases, *r.planned, *(r.named or ()))}
    for partition in sorted(p for p in named - found.keys() if facts.of(p).partitions):
        found[partition] = listed_if_there(table.storage, partition) or []
    timeline, made = _made(table, records, found)
    return ServedState(config=table.config, timeline=timeline, partitions=made, records=records)


def _made(
    table: Snapshot, records: InstantRecords, listed: Mapping[str, Sequence[Entry]]
) -> tuple[Timeline, dict[str, PartitionFiles]]:
    """The partitions of a listing, and the timeline, with its archived instants where the listing needs them."""
    timeline = table.timeline
    facts = _facts(table, records)
    if not timeline.archived and any(needs_archive(timeline, facts.of(p), p, entries) for p, entries in listed.items()):
        timeline = table.timelines.with_its_archive(timeline)
    made = {p: partition_files(p, entries, timeline, facts.of(p), table.storage) for p, entries in listed.items()}
    made = {p: files for p, files in made.items() if files.groups or is_partition(list(listed[p]), table.config)}
    table.views.check_unchanged()
    table.views.check_not_undone(timeline)
    table.views.check_not_cleaned(timeline, listed.values(), several=bool(table.config.partition_fields))
    return timeline, made


def _facts(table: Snapshot, records: InstantRecords) -> FactsByPartition:
    shared = {time: table.facts.named_files(table.timeline, time) for time in table.timeline.shared_times}
    return FactsByPartition(records.records, shared, table.facts.uncompleted(table.timeline))


def _goes_out(before: Timeline, now: Timeline) -> bool:
    """Whether an instant has left the timeline: then the archive as it was read may lack the instant."""
    return not set(before.completed) <= set(now.completed)


def _oldest(before: ServedState, without: Collection[str]) -> Iterable[str]:
    """The partitions that were listed longest ago: a state orders them by that."""
    return [p for p, _ in zip((p for p in before.partitions if p not in without), range(_OLDEST_LISTED), strict=False)]


def load_partitions(
    table: Table, state: ServedState, partitions: Collection[str]
) -> tuple[ServedState, Mapping[str, PendingFiles]]:
    """`state` with the current state of some partitions, also with the files of writes that began later, and these by
    partition. TableChangedError: the state is too old for the listing."""
    now = table.snapshot(records=False)
    timeline = replace(now.timeline, archived=state.timeline.archived)
    if digests(timeline) != state.digests:  # the client is answered from the timeline that it knows
        timeline = state.timeline
    list_ahead(now.storage, partitions)
    listed = {p: entries for p in partitions if (entries := _entries(now, state, p)) is not None}
    timeline, made = _made(now.with_timeline(timeline), state.records, listed)
    pending = {p: pending_files(p, listed[p], timeline, files) for p, files in made.items()}
    return replace(state, partitions={**state.partitions, **made}), pending


def _entries(table: Table, state: ServedState, partition: str) -> list[Entry] | None:
    """The listing of a partition that is known or new; None: no such partition."""
    known = partition in state.partitions
    if not known and (entry := table.storage.find(partition)) is not None and not entry.is_folder:
        return None
    entries = listed_if_there(table.storage, partition) or []
    return entries if known or is_partition(entries, table.config) else None
