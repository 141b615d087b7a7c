"""Decides which file slices to compact, and how: a function of file groups, options, clock and pending services (pure).

Partitions are listed one by one on demand, so the cost of a limited plan depends on its content:

    group     can it be planned? (not: no log files, replaced, in a pending table service)
    due       by the trigger, or by the urgency of its partition
    pick      minor, major or not yet, by the runs of its slice
    check     would a compactor refuse it? Checked only for picked slices, while the plans are filled
    order     Hudi's strategies; without one: least recently compacted first under limits (with a goal of freshness: the
              oldest row first), else largest logs first
    bounds    plans are filled until their limits close them

Least recently compacted first means that no file group starves: once compacted, it is the last in its partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from ..format.instant import Instant, real_time
from ..instants.timeline import Timeline, pending_writer
from ..view.plain_slices import PlainSlice
from ..view.view import FileGroup, FileSlice, GroupKey, ViewFacts, is_replaced, latest_slice, newest_time, oldest_time
from .limits import Cost, MergeKind, fill, read_bytes, write_bytes
from .operation import Candidate, PackedPlan, SliceStats, candidate_of
from .options import ScheduleOptions
from .partition_walk import LeftOut, PlanNotes, Rule, Waiting
from .strategies import keep_partitions, keep_slices

SliceMeasure = Callable[[Iterable[FileSlice]], Iterator[tuple[FileSlice, SliceStats]]]
"""Looks up sizes and row counts, in order and on demand."""
Check = Callable[[Iterable[Candidate]], Iterator[tuple[Candidate, str | None]]]
"""The reason why a compactor would refuse each candidate, or None; in order and on demand."""
Plan: TypeAlias = tuple[Candidate, ...] | PackedPlan
"""The content of one plan."""
_ROUNDS_MAX = 5
"""How many times one of Hudi's strategies chooses again after a chosen slice was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGroups:
    """The file groups of one partition; `waiting.since` decides which of them count. `plain`: the newest slices of
    further groups, which a compactor would not refuse; see `schedule.plan_everything`."""

    waiting: Waiting
    groups: tuple[FileGroup, ...]
    plain: tuple[PlainSlice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The planner's input besides the partitions. `now`: the table's clock. `busy`: file groups in pending table
    services other than compactions, with the service. `all_due`: the trigger has fired; else only urgent groups are
    due. `no_minor`: why no log compaction may be planned, None if one may. `only`: the file groups that may be planned,
    None: all. `outside`: whether a partition is left out."""

    timeline: Timeline
    facts: ViewFacts
    now: datetime
    busy: Mapping[GroupKey, str] = field(default_factory=dict)
    all_due: bool = True
    no_minor: str | None = None
    only: Collection[GroupKey] | None = None
    outside: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plans, in order; `why`: the reason if there is none. `waits_for`: the pending write
    that prevents the plans. `again`: partitions in which something was left out. `closed_in`: where the last plan
    closed; later partitions were not examined."""

    plans: tuple[Plan, ...]
    why: str
    notes: PlanNotes
    waits_for: Instant | None = None
    again: tuple[str, ...] = ()
    closed_in: Waiting | None = None


def plan_compaction(
    looks: Iterable[PartitionGroups],
    situation: Situation,
    options: ScheduleOptions,
    measure: SliceMeasure,
    check: Check,
) -> Planned:
    """The plans to request now. Takes only as many partitions as the plans have capacity for."""
    planner = Planner(situation, options, measure, check)
    filled = fill(planner.ordered(looks), _cost, options)
    for candidate, why in filled.left:
        planner.leave(candidate.slice, Rule.LIMIT, why)
    for candidate in planner.queued:
        planner.leave(candidate.slice, Rule.LIMIT, f"after the end of the plan: {filled.closed}")
    for slice_, why in planner.outside:
        planner.leave(slice_, Rule.STRATEGY, why)
    merged = sum(_runs(c) - 1 for plan in filled.plans for c in plan)
    return planner.outcome(filled.plans, filled.total, merged, filled.closed)


def _nothing(left: Iterable[LeftOut]) -> str:
    """Why a plan is empty: the first reason other than a file group without log files; first what cannot be merged."""
    others = [o for o in left if o.rule is not Rule.NO_LOGS]
    if not others:
        return "no file group has log files that are not already in a plan"
    first = next((o for o in others if o.rule is Rule.UNMERGEABLE), others[0])
    more = f" ({len(others)} file groups are left out)" if len(others) > 1 else ""
    said = "logs wait that cannot be compacted" if first.rule is Rule.UNMERGEABLE else "nothing to plan"
    return f"{said}: {first.path}: {first.why}{more}"


def _refused(notes: PlanNotes) -> str:
    """The file groups left out because a compactor would refuse them, as text; empty if there are none."""
    left = notes.unmergeable
    return f"; {len(left)} left out that cannot be merged: {left[0].path}: {left[0].why}" if left else ""


def _cost(candidate: Candidate) -> Cost:
    if candidate.kind is MergeKind.MINOR:
        merged = sum(piece.log_bytes for piece in candidate.pieces)
        return Cost(slices=1, source_bytes=merged, io_bytes=2 * merged, rows=candidate.stats.log_rows or 0)
    slice_ = candidate.slice
    read = read_bytes(slice_)
    return Cost(slices=1, source_bytes=read, io_bytes=read + write_bytes(slice_), rows=candidate.stats.rows)


def _runs(candidate: Candidate) -> int:
    """The number of files that become one."""
    if candidate.kind is MergeKind.MINOR:
        return sum(len(piece.files) for piece in candidate.pieces)
    return len(candidate.slice.logs) + (candidate.slice.base is not None)


class Planner:
    """One planning: collects the file groups found and left out, partition by partition."""

    def __init__(self, situation: Situation, options: ScheduleOptions, measure: SliceMeasure, check: Check) -> None:
        self._in, self._options, self._measure, self._check = situation, options, measure, check
        self.left: list[LeftOut] = []
        self.here: Waiting | None = None
        self.queued: deque[Candidate] = deque()  # chosen before the plans are filled, not yet consumed
        self.outside: tuple[tuple[FileSlice, str], ...] = ()  # not chosen by that strategy
        self._seen: set[GroupKey] = set()
        self._partitions = 0
        self._runs = self._groups = 0

    def leave(self, of: FileSlice | FileGroup, rule: Rule, why: str) -> None:
        self.left.append(LeftOut(partition=of.partition, file_id=of.file_id, rule=rule, why=why))

    def ordered(self, looks: Iterable[PartitionGroups]) -> Iterator[Candidate]:
        if self._options.strategies:
            yield from self._by_strategy(looks)
        elif self._options.limited and self._options.freshness_s is not None:
            yield from self._oldest_first(looks)
        elif self._options.limited:
            for snapshot in looks:
                yield from self.candidates(snapshot)
        else:
            found = [c for snapshot in looks for c in self.candidates(snapshot)]
            yield from sorted(found, key=lambda c: -c.slice.log_bytes)

    def _oldest_first(self, looks: Iterable[PartitionGroups]) -> Iterator[Candidate]:
        """All candidates, the one with the oldest row first: the goal is broken there first."""
        found = [
            (oldest_time(c.slice, self._in.timeline) or "", c) for snapshot in looks for c in self._picked(snapshot)
        ]
        self.queued = deque(c for _, c in sorted(found, key=lambda one: one[0]))
        for candidate, refusal in self._check(tuple(self.queued)):
            self.queued.popleft()
            if refusal is None:
                yield candidate
            else:
                self.leave(candidate.slice, Rule.UNMERGEABLE, refusal)

    def _by_strategy(self, looks: Iterable[PartitionGroups]) -> Iterator[Candidate]:
        """The choice of Hudi's strategies, which need all candidates at once."""
        today = self._in.now.date()
        seen: dict[str, list[Candidate]] = {}
        for snapshot in looks:
            seen.setdefault(snapshot.waiting.folder, []).extend(self._picked(snapshot))
        partitions = keep_partitions(tuple(seen), self._options, today)
        for partition, why in partitions.left:
            for candidate in seen[partition]:
                self.leave(candidate.slice, Rule.STRATEGY, why)
        found = {c.slice.key: c for partition in partitions.kept for c in seen[partition]}
        given = set[GroupKey]()
        for _ in range(_ROUNDS_MAX):
            chosen = keep_slices([c.slice for c in found.values()], self._options, today)
            self.outside = chosen.left
            self.queued = deque(found[s.key] for s in chosen.kept if s.key not in given)
            if not self.queued:
                return
            for candidate, refusal in self._check(tuple(self.queued)):
                self.queued.popleft()
                if refusal is None:
                    given.add(candidate.slice.key)
                    yield candidate
                else:
                    del found[candidate.slice.key]  # the strategy chooses a replacement in the next round
                    self.leave(candidate.slice, Rule.UNMERGEABLE, refusal)

    def candidates(self, snapshot: PartitionGroups) -> Iterator[Candidate]:
        """The candidates of one partition that were picked and would not be refused."""
        for candidate, why in self._check(self._picked(snapshot)):
            if why is None:
                yield candidate
            else:
                self.leave(candidate.slice, Rule.UNMERGEABLE, why)

    def _picked(self, snapshot: PartitionGroups) -> Iterator[Candidate]:
        """The picked slices of one partition, least recently compacted first, then by log bytes."""
        self.here = snapshot.waiting
        self._partitions += 1
        slices = [s for g in snapshot.groups if (s := self._slice(g, snapshot.waiting)) is not None]
        slices.sort(key=lambda s: (s.base_instant, -s.log_bytes, s.file_id))
        is_idle = self._is_idle(snapshot.groups)
        for slice_, stats in self._measure(slices):
            if snapshot.waiting.since is not None and stats.merged_at >= snapshot.waiting.since:
                self._seen.discard(slice_.key)  # left out now, but a minor compaction of it may follow
                continue
            if stats.unreadable is not None:
                self.leave(slice_, Rule.UNMERGEABLE, stats.unreadable)
                continue
            found = candidate_of(slice_, stats, self._in.timeline, self._in.now, self._options)
            if is_idle:
                found = replace(
                    found, kind=MergeKind.MAJOR, pieces=(), why="its partition is idle: the last compaction"
                )
            elif not self._in.all_due and not self._options.is_due(slice_.partition, found.waited_s):
                self.leave(slice_, Rule.NOT_DUE, "the trigger has not fired, and it is not urgent")
                continue
            if found.kind is MergeKind.NONE:
                self.leave(slice_, Rule.NOT_PICKED, found.why)
            elif found.kind is MergeKind.MINOR and self._in.no_minor is not None:
                self.leave(slice_, Rule.BUSY, self._in.no_minor)
            else:
                yield found

    def _is_idle(self, groups: Iterable[FileGroup]) -> bool:
        """Whether the newest write in a partition is older than `partition_idle_s`, also one in a file group that is in
        a plan, or without log files. Files of archived writes are as old as the timeline at least."""
        idle_s, timeline = self._options.partition_idle_s, self._in.timeline
        if idle_s is None:
            return False
        slices = [slice_ for group in groups if (slice_ := latest_slice(group)) is not None]
        logs = (newest_time(slice_, timeline) for slice_ in slices)
        bases = (timeline.completed_writes.get(slice_.base_instant) for slice_ in slices)
        inserts = (timeline.completed_at(one) for one in bases if one is not None and one.family == "deltacommit")
        newest = max((*(time for time in logs if time is not None), *inserts), default=timeline.start)
        return bool(newest) and (self._in.now - real_time(newest)).total_seconds() >= idle_s

    def _slice(self, group: FileGroup, waiting: Waiting) -> FileSlice | None:
        """The slice of a group that may be planned; None: the group is left out."""
        last = latest_slice(group)
        if last is None or is_replaced(group, self._in.facts) or group.key in self._seen:
            return None
        if waiting.since is not None:  # the partition may be walked again, for later writes
            if group.pending_compaction is None and last.base_instant >= waiting.since:
                return None
            self._seen.add(group.key)
        self._groups += 1
        self._runs += len(last.logs) + (last.base is not None)
        busy = self._in.busy.get(group.key)
        if group.pending_compaction is not None:
            self.leave(group, Rule.BUSY, f"in the pending compaction {group.pending_compaction}")
        elif busy is not None:
            self.leave(group, Rule.BUSY, busy)
        elif last.flaws:
            self.leave(group, Rule.UNMERGEABLE, str(last.flaws[0].error()))
        elif not last.logs:
            self.leave(group, Rule.NO_LOGS, "it has no log files")
        elif self._in.only is not None and group.key not in self._in.only:
            self.leave(group, Rule.EXCLUDED, "it was not asked for")
        elif self._options.exclude and (pattern := self._options.excluded_by(group.partition, group.file_id)):
            self.leave(group, Rule.EXCLUDED, f"by the pattern {pattern}")
        elif self._in.outside is not None and self._in.outside(group.partition):
            self.leave(group, Rule.EXCLUDED, f"its partition is outside of {self._options.where}")
        else:
            return last
        return None

    def take(self, slices: Iterable[PlainSlice], partition: str) -> list[PlainSlice]:
        """The plain slices of a partition that were not seen before."""
        found = [s for s in slices if (partition, s.file_id) not in self._seen] if self._seen else list(slices)
        self._groups += len(found)
        self._runs += sum([1 + len(s.logs) for s in found])
        return found

    def outcome(self, plans: tuple[Plan, ...], total: Cost, merged: int, closed: str | None = None) -> Planned:
        """The result. `merged`: the decrease in the number of files; `closed`: the limit that closed the plans."""
        notes = PlanNotes(
            partitions=self._partitions,
            file_groups=self._groups,
            read_bytes=total.source_bytes,
            write_bytes=total.io_bytes - total.source_bytes,
            runs_before=self._runs,
            runs_after=self._runs - merged,
            left=tuple(self.left),
        )
        if not total.slices:
            return Planned(plans=(), why=_nothing(self.left), notes=notes)
        writer = pending_writer(self._in.timeline)
        if writer is not None:
            pending = f"{writer.action} {writer.requested_time} is pending"
            why = f"{pending}: version 6 is planned only without pending writes"
            return Planned(plans=(), why=why, notes=notes, waits_for=writer)
        many = "s" if total.slices > 1 else ""
        until = f", then {closed} was reached" if closed else ""
        why = f"{total.slices} file group{many} with log files{until}{_refused(notes)}"
        again = tuple(dict.fromkeys(o.partition for o in self.left if o.rule.comes_back))
        all_seen = bool(self._options.strategies) or self._options.freshness_s is not None
        closed_in = self.here if closed and not all_seen else None
        return Planned(plans=plans, why=why, notes=notes, again=again, closed_in=closed_in)
