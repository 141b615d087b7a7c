"""Replays the history of a table under other settings: what its compactions would cost, and how fresh it would be.

The writes are the table's own. When a plan is requested, and of what, is decided by the code that daemons run:
`Control` with one table, the triggers, `plan_compaction`. Three things are assumed:

    writers     write the same rows to the same file groups, whatever is compacted when
    base files  grow by the same part of the merged log bytes as by the table's own compactions; if it had none, they
                do not grow
    time        a GB takes as many core-seconds as the table's own compactions took, or as the caller says

Nothing is read but the timeline, and nothing is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import State, format_time
from phantombase.timeline.instants.triggers import Trigger, TriggerStrategy, held_back, triggered
from phantombase.timeline.planning.limits import MergeKind, Picking
from phantombase.timeline.planning.operation import NO_STATS, Candidate, SliceStats
from phantombase.timeline.planning.options import Due, Pace, ScheduleOptions, due, goal_trigger, paced, past_runs
from phantombase.timeline.planning.partition_walk import Waiting
from phantombase.timeline.planning.planner import PartitionGroups, Situation, plan_compaction
from phantombase.timeline.planning.schedule import outside_partitions
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.option_group import group_of, shown
from phantombase.timeline.view.view import FileSlice, ViewFacts

from ..attempt.failures import RetryOptions
from ..fleet.pools import Pools, QuotaUsage
from .control import Control, Moment, PlanRequested, SnapshotTaken, Swept, WorkEnded
from .dispatch import UPKEEP_LEAST, Relist, Request, Rules, Sharing, Take, next_steps
from .past_state import Merge, PastTable, pending_instant, replay_recorded
from .past_writes import (
    History,
    PastKind,
    PastLog,
    PastWrite,
    Rates,
    Replay,
    ReplayCost,
    Replayed,
    ReplayOptions,
    clock_at,
    load_history,
    time_ms,
)
from .table_state import Pending, SeenLag, SeenTable, TableState

_T = "table"
_ASK_AGAIN_MS = 300_000
"""How soon a request that found nothing is made again, where time alone makes file groups due."""
_NO_FACTS = ViewFacts(pending_plans={}, replaced={}, compacted={})
_BY_LAG = Trigger(fired=False, why="the goal of freshness does not need a plan yet")


def replay_table(
    table: Table,
    options: ScheduleOptions,
    how: ReplayOptions | None = None,
    *,
    best: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Replayed:
    """Replays the history of a table. `best`: also under a small grid of other settings, for the freshness of
    `options`. `progress` takes the number of settings that were tried, and of all. UsageError: the table has no
    history, or `best` has no goal. Errors as of `load_history`."""
    how = how or ReplayOptions()
    if best and options.freshness_s is None:
        raise UsageError("the best settings are those that keep a goal", expected="--freshness, like 10m", found="none")
    history = from_one_snapshot(lambda: load_history(table))
    recorded, rates = replay_recorded(history)
    if how.core_s_per_gb is not None:
        rates = replace(rates, core_s_per_gb=how.core_s_per_gb, measured=False)
    goal_s = options.freshness_s
    every = dict.fromkeys([options, *(_grid(options, goal_s, history) if best and goal_s is not None else ())])
    outside = outside_partitions(table.snapshot(cached=False), options)
    tried = list[Replay]()
    for one in every:
        progress(len(tried), len(every))
        tried.append(_tried(history, rates, one, how.cores, goal_s, outside))
    if best:
        tried.sort(key=_rank)
    writes = history.writes
    return Replayed(
        since=writes[0].instant.requested_time,
        until=writes[-1].instant.requested_time,
        delta_commits=history.delta_commits,
        file_groups=len(history.groups),
        unknown_writes=history.unknown,
        rates=rates,
        goal_s=goal_s,
        recorded=replace(recorded, core_hours=rates.core_hours(recorded.bytes_read)),
        tried=tuple(tried),
        best=tried[0] if best and tried[0].keeps else None,
    )


def _tried(
    history: History,
    rates: Rates,
    options: ScheduleOptions,
    cores: int,
    goal_s: float | None,
    outside: Callable[[str], bool] | None,
) -> Replay:
    outcome = _Daemon(history, rates, options, cores, outside).run(history.writes)
    keeps = None if goal_s is None else outcome.lag_max_s <= goal_s
    return Replay(settings=_words(options), outcome=outcome, keeps=keeps)


def _rank(one: Replay) -> tuple[bool, float, float, int, int]:
    """The cheapest of those that keep the goal first, then the least late."""
    cost = one.outcome
    late_s = 0.0 if one.keeps else cost.lag_max_s
    return not one.keeps, late_s, cost.core_hours, cost.bytes_read + cost.bytes_written, cost.compactions


def _words(options: ScheduleOptions) -> str:
    """The options that differ from the defaults, as on a command line."""
    group = group_of(ScheduleOptions)
    assert group is not None
    found = list[str]()
    for flag, field in group.fields.items():
        value, name = getattr(options, field.name), f"--{flag.replace('_', '-')}"
        if value == field.default:
            continue
        each = value if isinstance(value, tuple) else (value,)
        found += [
            f"--no-{name[2:]}" if one is False else name if one is True else f"{name} {shlex.quote(shown(field, one))}"
            for one in each
        ]
    return " ".join(found) or f"--trigger {options.strategy.value}"


def _grid(options: ScheduleOptions, goal_s: float, history: History) -> Iterator[ScheduleOptions]:
    """Other settings for a goal, with all else as in the given ones."""
    own = replace(options, freshness_s=None, picking=Picking.ALL, max_source_bytes=None, max_file_slices=None)
    for part in (1.0, 0.9, 0.75, 0.5):
        yield replace(own, freshness_s=goal_s * part)
    for part in (4, 16):
        yield replace(own, freshness_s=goal_s, max_file_slices=max(1, len(history.groups) // part))
    triggers = TriggerStrategy
    for commits in (1, 2, 5, 10, 20):
        yield replace(own, strategy=triggers.NUM_COMMITS_AFTER_LAST_REQUEST, max_delta_commits=commits)
    for share in (0.75, 0.5, 0.25):
        seconds = max(1, int(goal_s * share))
        yield replace(own, strategy=triggers.TIME_ELAPSED, max_delta_seconds=seconds)
        if history.layout.has_completion_times:
            yield replace(
                own,
                strategy=triggers.TIME_ELAPSED,
                max_delta_seconds=max(1, int(goal_s / 10)),
                picking=Picking.UNIVERSAL,
                optimization_interval_s=float(seconds),
            )


class _Daemon:
    """A daemon with one table and one slot, which looks at it every `poll_s`."""

    def __init__(
        self,
        history: History,
        rates: Rates,
        options: ScheduleOptions,
        cores: int,
        outside: Callable[[str], bool] | None = None,
    ) -> None:
        self.past = PastTable(history, rates)
        self._options, self._cores, self._outside = options, cores, outside
        self._rules = Rules(sweep_s=1e9)
        use = QuotaUsage(pools=Pools(), slots=1, began=0)
        self._control = Control(rules=self._rules, retry=RetryOptions(), use=use, tables={_T: TableState()})
        self._merges: dict[str, Merge] = {}
        self._again_ms = self._last_ms = 0
        self._waiting: list[str] = []
        self._written: dict[str, None] = {}
        self._has_left_out, self._seen_lag = False, self.past.lag
        self._has_urgent = options.any_radical or options.least_wait_s is not None
        timed = options.least_wait_s is not None or options.optimization_interval_s is not None
        self._asks_again = timed or options.off_peak_hours is not None

    def run(self, writes: Sequence[PastWrite]) -> ReplayCost:
        """The whole history."""
        since_ms = self.past.now_ms
        for write in writes:
            self._until(write.at_ms)
            if write.kind is not PastKind.WRITE:
                continue
            self.past.write(write)
            self._written |= dict.fromkeys(self.past.groups[log.group].key[0] for log in write.logs)
            self._changed()
        return self.past.outcome(since_ms)

    def _until(self, to_ms: int) -> None:
        """Lets the daemon act until a moment."""
        while True:
            ends = [(m.ends_ms, time) for time, m in self._merges.items() if m.ends_ms is not None]
            ends_ms, time = min(ends, default=(to_ms, ""))
            asks_ms = self._first_asking(min(ends_ms, to_ms))
            if asks_ms is not None:
                self.past.advance(asks_ms)
                self._settle()
            elif time and ends_ms <= to_ms:
                self.past.advance(ends_ms)
                self._end(time)
            else:
                self.past.advance(to_ms)
                return

    def _first_asking(self, before_ms: int) -> int | None:
        """When the daemon looks at the table next and finds a plan due; None: not before that moment. Nothing changes
        until then but the time, which makes a plan due and never undue."""
        step = round(self._rules.poll_s * 1000)
        first, last = -(-self.past.now_ms // step), -(-before_ms // step) - 1
        if first > last or not self._asks(last * step):
            return None
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if self._asks(middle * step) else (middle + 1, last)
        return last * step

    def _asks(self, ms: int) -> bool:
        if ms < self._again_ms:
            return False
        at = _moment(ms)
        if self._options.freshness_s is not None:
            sharing = Sharing(use=self._control.use, epoch_ms=ms, upkeeps=UPKEEP_LEAST)
            steps = next_steps(self._control.tables, None, at.now_ms, self._rules, _first, sharing)
            if any(isinstance(action, Request) for action in steps.actions):
                return True
        return bool(self._due(ms, self._by_lag))

    @property
    def _by_lag(self) -> Trigger | None:
        return None if self._options.freshness_s is None else held_back(self.past.timeline, self._options) or _BY_LAG

    def _due(self, ms: int, trigger: Trigger | None) -> Due:
        if not self._has_urgent:  # the rest of `due` finds nothing, and takes most of its time
            trigger = trigger or triggered(self.past.timeline, clock_at(ms), self._options)
            return Due(everything=trigger.fired, urgent=False, why=trigger.why)
        return due(self.past.timeline, clock_at(ms), self._options, left_out=self._has_left_out, trigger=trigger)

    def _changed(self) -> None:
        self._again_ms = 0
        lag = self.past.lag
        is_news = lag.oldest is not self._seen_lag.oldest or lag.free is not self._seen_lag.free
        if self._options.freshness_s is not None and is_news:
            self._control.apply(
                SnapshotTaken(_T, seen=self._seen(due=False), available=True), _moment(self.past.now_ms)
            )

    def _settle(self) -> None:
        """The daemon acts until it has nothing to do at this moment."""
        control, at = self._control, _moment(self.past.now_ms)
        self._look(at)
        while actions := control.decide(at, _first, UPKEEP_LEAST).actions:
            for action in actions:
                match action:
                    case Request():
                        control.apply(PlanRequested(_T, instant=self._request(action.pace), why=""), at)
                    case Take():
                        merge = self._merges[action.instant]
                        slots = min(self._cores, max(1, len(merge.of)))
                        merge.ends_ms = at.now_ms + max(1, round(1000 * self.past.rates.core_s(merge.read) / slots))
                    case Relist():
                        self._look(at)
                    case _:
                        control.apply(Swept(_T), at)

    def _look(self, at: Moment) -> None:
        asks = at.now_ms >= self._again_ms and bool(self._due(at.now_ms, self._by_lag))
        self._control.apply(SnapshotTaken(_T, seen=self._seen(due=asks), available=True), at)

    def _seen(self, *, due: bool) -> SeenTable:
        pending = tuple(Pending(instant=one, requested_ms=time_ms(one)) for one in sorted(self._merges))
        goal_s, lag, found = self._options.freshness_s, self.past.lag, None
        self._seen_lag = lag
        if goal_s is not None:
            found = SeenLag(
                goal_s=goal_s,
                oldest=lag.oldest,
                oldest_ms=None if lag.oldest is None else time_ms(lag.oldest.time),
                free_ms=None if lag.free is None else time_ms(lag.free.time),
                source_bytes=lag.source_bytes,
                runs=past_runs(self.past.timeline),
            )
        return SeenTable(pending=pending, claimed=frozenset(), due=due, oldest_s=None, lag=found)

    def _request(self, pace: Pace | None) -> str | None:
        """The steps of `schedule_compaction`; returns the first instant."""
        past, options, now = self.past, self._options, clock_at(self.past.now_ms)
        trigger = self._by_lag
        if pace is not None and trigger is _BY_LAG:
            trigger = goal_trigger(past.lag.free, now, options.freshness_s or 0.0, pace.lead_s)
        asked = self._due(past.now_ms, trigger)
        plans = []
        if asked:
            everything = asked.everything
            if pace is not None and trigger is not None and trigger.fired:
                options, urgent_only = paced(options, pace)
                everything = not urgent_only
            plans = self._planned(options, now, everything=everything)
        if not plans:
            self._again_ms = past.now_ms + _ASK_AGAIN_MS if self._asks_again else 1 << 62
            return None
        return self._begin(plans)

    def _planned(self, options: ScheduleOptions, now: datetime, *, everything: bool) -> list[tuple[Candidate, ...]]:
        """Where the last plan left something out comes first, then what was written since, as in `Survey`."""
        past = self.past
        order = list(dict.fromkeys([*self._waiting, *self._written])) if options.incremental else sorted(past.with_logs)
        seen = 0

        def looks() -> Iterator[PartitionGroups]:
            nonlocal seen
            for partition in order:
                seen += 1
                groups = tuple(past.groups[number].shown() for number in sorted(past.with_logs.get(partition, ())))
                yield PartitionGroups(waiting=Waiting(folder=partition), groups=groups)

        situation = Situation(
            timeline=past.timeline, facts=_NO_FACTS, now=now, busy=past.busy, all_due=everything, outside=self._outside
        )
        planned = plan_compaction(looks(), situation, options, self._measured, lambda found: ((c, None) for c in found))
        # Packed plans are only those of `plan_everything`.
        plans = [plan for plan in planned.plans if isinstance(plan, tuple)]
        if plans:
            closed = [planned.closed_in.folder] if planned.closed_in is not None else []
            # A log compaction makes log files again.
            minor = [one.slice.partition for plan in plans for one in plan if one.kind is MergeKind.MINOR]
            self._waiting = [*closed, *order[seen:], *planned.again, *minor]
            self._written, self._has_left_out = {}, bool(self._waiting)
        return plans

    def _measured(self, slices: Iterable[FileSlice]) -> Iterator[tuple[FileSlice, SliceStats]]:
        options, past = self._options, self.past
        counted = options.picking is Picking.UNIVERSAL or options.max_source_rows is not None
        for slice_ in slices:
            yield slice_, past.groups[past.numbers[slice_.key]].measured() if counted else NO_STATS

    def _begin(self, plans: Iterable[tuple[Candidate, ...]]) -> str:
        """The plans as instants, one for each kind of merge in a plan; returns the first."""
        found = list[str]()
        for plan, minor in product(plans, (True, False)):
            chosen = [one for one in plan if (one.kind is MergeKind.MINOR) is minor]
            if not chosen:
                continue
            groups = {self.past.numbers[one.slice.key]: one for one in chosen}
            of = {number: self._merged(one, number) for number, one in groups.items()}
            read = sum(log.file.size for logs in of.values() for log in logs)
            read += 0 if minor else sum(self.past.groups[number].base_bytes for number in of)
            self._last_ms = max(self.past.now_ms, self._last_ms + 1)
            instant = pending_instant(format_time(clock_at(self._last_ms)), minor=minor)
            merge = self._merges[instant.requested_time] = Merge(instant=instant, of=of, read=read, minor=minor)
            self.past.begin(merge)
            found.append(instant.requested_time)
        return found[0]

    def _merged(self, chosen: Candidate, number: int) -> tuple[PastLog, ...]:
        logs = self.past.groups[number].logs
        if chosen.kind is not MergeKind.MINOR:
            return tuple(logs)
        files = {file for piece in chosen.pieces for file in piece.files}
        return tuple(log for log in logs if log.file in files)

    def _end(self, time: str) -> None:
        """A compaction completes."""
        merge = self._merges.pop(time)
        completed = replace(merge.instant, action=merge.instant.family, state=State.COMPLETED)
        if self.past.layout.has_completion_times:
            completed = replace(completed, completion_time=format_time(clock_at(self.past.now_ms)))
        self.past.end(merge, completed)
        self._again_ms = 0
        self._control.apply(WorkEnded(_T, time, bytes_read=merge.read), _moment(self.past.now_ms))
        self._settle()


def _moment(ms: int) -> Moment:
    return Moment(now_ms=ms, epoch_ms=ms)


def _first(_: int) -> int:
    return 0
