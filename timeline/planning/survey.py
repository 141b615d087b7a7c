"""Reads a table for the planner: its partitions one by one, in planning order, and the content of slices.

Planning order: first the partitions where the last plan left something out, in its order, then those written since, by
their first write. If the last plan does not record this (it is Hudi's, or there is none): all partitions by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from ..codec.parquet_read import open_parquet
from ..errors import MalformedError, MissingFileError, PhantombaseError, StorageError
from ..event_log import get_logger
from ..format.file_name import parse_data_file
from ..format.instant import Instant
from ..format.log_block import BlockKind
from ..instants.timeline import Timeline
from ..instants.triggers import Trigger
from ..merge.rule import SliceRules
from ..merge.slice_log import KnownBlocks, log_entries
from ..merge.slice_stream import check_base, check_inputs
from ..merge.table_rules import slice_rules
from ..prefetch import prefetched, prefetched_when_slow
from ..storage.contract import Entry, OwnLock, list_of_table, listed_if_there
from ..storage.folders import join
from ..table.table import Snapshot
from ..view.grouping import file_groups
from ..view.plain_slices import PlainRules, PlainSlice
from ..view.view import FileSlice, GroupKey, ViewFacts
from ..view.view_loader import believed, is_partition, needs_archive, subfolders
from .limits import MergeKind, MissingSize, Picking
from .log_compaction import runs_of
from .operation import NO_STATS, Candidate, PackedPlan, SliceStats
from .options import Due, ScheduleOptions, due
from .partition_walk import NOTES, PartitionWalk, Waiting, WalkedPartition, decode_waiting, first_and_last
from .planner import PartitionGroups, Plan, Planned

_log = get_logger()
_FOOTERS_MAX = 10_000
"""Most footers of base files read for one planning; beyond them one for each instant that wrote base files."""


class Survey:
    """Reads a table for the planner. `facts`: of the same snapshot."""

    def __init__(self, table: Snapshot, facts: ViewFacts, options: ScheduleOptions) -> None:
        self._table, self._facts, self._options = table, facts, options
        known = _where_to_look(table) if options.incremental else None
        self._everywhere = known is None
        self._walk = PartitionWalk(table.storage, table.config, [Waiting(folder="")] if known is None else known)
        self._listed: set[str] = set()
        self._rules: tuple[Snapshot, SliceRules] | None = None
        self._known_blocks: KnownBlocks | None = None
        self._footers, self._base_instants = 0, set[str]()

    @property
    def finds_plain(self) -> bool:
        """Whether finding plain slices costs less: not where opening a file is a request."""
        return self._table.storage.own_lock is OwnLock.FILE

    def looks(self, aside: Collection[GroupKey] | None = None) -> Iterator[PartitionGroups]:
        """The partitions, listed on demand. `aside`: find plain slices, except in these file groups; None: find no
        plain slices. A complete survey also yields missing partitions that completed writes name."""
        if aside is None:
            for listed, timeline in self._walked():
                yield self._grouped(listed, listed.entries, timeline)
        else:
            yield from prefetched_when_slow(self._with_rules(aside), lambda one: self._with_plain(*one))
        if self._everywhere:  # missing partitions that completed writes name
            for folder, entries in self._table.views.unlisted("", self._listed, self._facts):
                gone = WalkedPartition(waiting=Waiting(folder=folder), entries=entries)
                yield self._grouped(gone, entries, self._table.timeline)

    def _walked(self) -> Iterator[tuple[WalkedPartition, Timeline]]:
        for listed in self._walk:
            if not (now := self._table.timeline).archived and needs_archive(
                now, self._facts, listed.waiting.folder, listed.entries
            ):
                self._table = self._table.with_timeline(self._table.timelines.with_its_archive(self._table.timeline))
            self._listed.add(listed.waiting.folder)
            yield listed, self._table.timeline

    def _with_rules(self, aside: Collection[GroupKey]) -> Iterator[tuple[WalkedPartition, PlainRules]]:
        rules = None
        for listed, timeline in self._walked():
            if rules is None or rules.timeline is not timeline:
                rules = PlainRules(timeline=timeline, facts=self._facts, aside=aside)
            yield listed, rules

    def _with_plain(self, listed: WalkedPartition, rules: PlainRules) -> PartitionGroups:
        """File groups that may have been seen before are never plain."""
        if listed.waiting.since is not None:
            return self._grouped(listed, listed.entries, rules.timeline)
        partition = listed.waiting.folder
        plain, others = rules.split(partition, listed.entries, lambda slice_: self._is_known(partition, slice_))
        return self._grouped(listed, others, rules.timeline, plain)

    def _is_known(self, partition: str, slice_: PlainSlice) -> bool:
        """Whether no file of the slice is a reason to refuse it; an unreadable file may be a reason."""
        storage, rules = self._table.storage, self._slice_rules()
        known = self._known_blocks = self._known_blocks or KnownBlocks(storage, rules)
        try:
            if not all(known.hold(join(partition, log.name)) for log in slice_.logs):
                return False
            if self._asks_footer(slice_.base_instant):
                check_base(storage, join(partition, slice_.base.name), rules, rules.names.at(slice_.base_instant))
            return True
        except PhantombaseError:
            return False

    def _grouped(
        self, listed: WalkedPartition, entries: list[Entry], timeline: Timeline, plain: Sequence[PlainSlice] = ()
    ) -> PartitionGroups:
        known, entries = {slice_.file_id for slice_ in plain}, list(self._with_sizes(listed.waiting.folder, entries))
        groups = file_groups(listed.waiting.folder, entries, timeline, self._facts, known)
        groups = believed(self._table.storage, groups)
        return PartitionGroups(waiting=listed.waiting, groups=groups, plain=tuple(plain))

    def waiting(self, planned: Planned) -> list[Waiting]:
        """Where the next planning must look, besides partitions written until then, in order. These are also the
        partitions of pending plans, and of all plans made now except the last: if one of them is cancelled, its file
        groups wait again, but only the last plan is read. And partitions where log files are merged with each other,
        since the results are log files again."""
        unseen = [planned.closed_in, *self._walk.rest] if planned.closed_in is not None else []
        last = len(planned.plans) - 1
        others = [p for n, plan in enumerate(planned.plans) for p in _waiting_in(plan, last=n == last)]
        again = [*planned.again, *(p for p, _ in self._facts.pending_plans), *others]
        return first_and_last([*(w for w in unseen if w is not None), *(Waiting(folder=p) for p in again)])

    def left_out(self, waiting: Iterable[Waiting]) -> list[str]:
        """The partitions where file groups wait, for Hudi, which would treat a folder above partitions as a partition.
        Lists only the levels above partitions, assuming all partitions are as deep as those found."""
        depth = max(map(_depth, self._listed), default=0)
        found, above = dict[str, None](), [w.folder for w in waiting]
        while above:
            found |= dict.fromkeys(f for f in above if _depth(f) >= depth or f in self._listed)
            upper = [f for f in above if f not in found]
            above = []
            listings = prefetched(upper, lambda folder: listed_if_there(self._table.storage, folder) or [])
            for folder, entries in zip(upper, listings, strict=True):
                if is_partition(entries, self._table.config):
                    found[folder] = None
                else:
                    above += subfolders(folder, entries)
        return list(found)

    def measure(self, slices: Iterable[FileSlice]) -> Iterator[tuple[FileSlice, SliceStats]]:
        """Rows, if an option needs them; a few slices ahead."""
        options = self._options
        counted = options.max_source_rows is not None or options.delete_ratio_threshold is not None
        if not (counted or options.picking is Picking.UNIVERSAL):
            yield from ((s, NO_STATS) for s in slices)
            return
        rules = self._slice_rules()
        yield from prefetched(slices, lambda s: self._measured(s, rules, counted))

    def refused(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, str | None]]:
        """Why a compactor would refuse each candidate, by `check_slice` and `check_base`; a few candidates ahead. An
        unreadable file is a reason, too. UnsupportedError, MalformedError: no slice of this table can be merged."""
        source = iter(candidates)
        first = next(source, None)
        if first is None:
            return  # a table without anything to merge may have no schema yet
        rules = self._slice_rules()
        yield from prefetched(chain([first], source), lambda c: (c, self._refusal(c, rules)))

    def _refusal(self, candidate: Candidate, rules: SliceRules) -> str | None:
        merged = candidate.merged
        footer = merged.base is not None and self._asks_footer(merged.base.name.instant)
        try:
            check_inputs(self._table.storage, merged, rules, footer=footer)
        except PhantombaseError as error:
            return str(error)
        return None

    def _asks_footer(self, instant: str) -> bool:
        """Whether the footer of a base file is read; above the limit one for each instant, with the same columns."""
        is_new = instant not in self._base_instants
        self._base_instants.add(instant)
        self._footers += 1
        return is_new or self._footers <= _FOOTERS_MAX

    def _slice_rules(self) -> SliceRules:
        table, known = self._table, self._rules
        if known is None or known[0] is not table:  # a later partition may have needed the archive
            known = self._rules = table, slice_rules(table, table.newest_schema())
        return known[1]

    def _measured(self, slice_: FileSlice, rules: SliceRules, counted: bool) -> tuple[FileSlice, SliceStats]:
        """Reads only headers of the logs. An unreadable file affects this slice only."""
        try:
            return slice_, self._stats(slice_, rules, counted)
        except PhantombaseError as error:
            return slice_, SliceStats(unreadable=str(error))

    def _stats(self, slice_: FileSlice, rules: SliceRules, counted: bool) -> SliceStats:
        storage, runs = self._table.storage, None
        if self._options.picking is Picking.UNIVERSAL:
            runs = runs_of(storage, slice_, rules, self._table.timeline.pending_delta_commits)
        if not counted:
            return SliceStats(runs=runs)
        base_rows = 0
        if slice_.base is not None:
            with storage.open_input(slice_.base.path, whole=False) as source:
                base_rows = open_parquet(source).metadata.num_rows
        entries = log_entries(storage, slice_, rules.visibility)
        deletes = entries[BlockKind.DELETE]
        return SliceStats(base_rows=base_rows, log_rows=entries.total(), deletes=deletes, runs=runs)

    def _with_sizes(self, folder: str, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries with their sizes; a size of 0 is looked up, since base files and most log files have bytes.
        StorageError: the listing gives no size, and sizes must not be looked up."""
        for entry in entries:
            if entry.size > 0 or entry.is_folder or parse_data_file(entry.name) is None:
                yield entry
                continue
            path = join(folder, entry.name)
            if self._options.missing_size is MissingSize.ERROR:
                todo = "Look up sizes (missing-size=stat), or find out why the file is empty."
                raise StorageError("the listing does not give the size of a file", path=path, todo=todo)
            _log.warning("size_looked_up", file=path)
            found = self._table.storage.find(path)
            if found is not None:
                yield found


def _waiting_in(plan: Plan, *, last: bool) -> Iterable[str]:
    """The partitions of a plan where the next planning must look, see `Survey.waiting`."""
    if isinstance(plan, PackedPlan):
        return () if last else plan.partitions
    return (c.slice.partition for c in plan if not last or c.kind is MergeKind.MINOR)


def _depth(folder: str) -> int:
    return folder.count("/") + 1 if folder else 0


def is_due(table: Snapshot, options: ScheduleOptions, trigger: Trigger | None = None) -> Due:
    """See `due`, also for `trigger`; whether the last request left something out is looked up only if this matters."""
    last = _last_plan(table) if options.any_radical else None
    left_out = last is not None and bool(last[1])
    return due(table.timeline, table.now(), options, left_out=left_out, trigger=trigger)


def _where_to_look(table: Snapshot) -> list[Waiting] | None:
    """The partitions where the last plan left something out, then those written since; None: not known."""
    last = _last_plan(table)
    if last is None:
        return None
    time, left = last
    try:
        return left + [Waiting(folder=p) for p in _written_since(table, time)]
    except MalformedError:
        return None  # a commit that a killed Hudi left torn: its rows count, in whichever partitions they are


def _last_plan(table: Snapshot) -> tuple[str, list[Waiting]] | None:
    """The last plan's time and what it left out; None: not recorded. Log compactions requested by Hudi are ignored."""
    compactions = [i.requested_time for i in table.timeline.instants if i.family == "commit"]
    last = max(compactions, default=None)
    entries = list_of_table(table.storage, table.config.timeline_folder)
    merges = (i for e in entries if (i := table.layout.parse(e.name)) is not None and i.action == "logcompaction")
    times = {i.requested_time for i in merges if last is None or i.requested_time > last}
    for time in [*sorted(times, reverse=True), *([last] if last is not None else [])]:
        try:
            plan = table.compaction_plan(time)
        except MissingFileError:
            continue  # a commit of another action
        except MalformedError:
            continue  # an earlier plan records its left-out groups, or they were written since
        notes = (plan.extra_metadata or {}).get(NOTES)
        left = decode_waiting(notes, time) if notes is not None else None
        if left is not None:
            return time, left
    return None


def _written_since(table: Snapshot, time: str) -> list[str]:
    """Partitions with completed delta commits since a plan, by the first of them (version 6: by requested times)."""
    by_completion = table.timeline.layout.has_completion_times
    since: list[tuple[str, Instant]] = []
    for requested, instant in table.timeline.completed_writes.items():
        when = table.timeline.completion_time(requested) if by_completion else requested
        if instant.family == "deltacommit" and when is not None and when > time:
            since.append((when, instant))
    since.sort(key=lambda pair: pair[0])
    found: dict[str, None] = {}
    for metadata in prefetched((i for _, i in since), table.commit_metadata):
        found.update(dict.fromkeys(sorted(metadata.partition_to_write_stats)))
    return list(found)
