"""A table at a moment of its history: its file groups, how old its oldest row in no base file is, and what its
compactions have cost until then (no I/O)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.planning.log_compaction import LogPiece, LogRun
from phantombase.timeline.planning.operation import SliceStats
from phantombase.timeline.view.view import (
    BaseFile,
    DataFile,
    FileGroup,
    FileSlice,
    GroupKey,
    Lag,
    table_lag,
    with_write,
)

from .past_writes import GB, History, PastKind, PastLog, PastWrite, Rates, ReplayCost, time_ms

_KEPT_RUNS = 6
"""How many compactions the timeline keeps at least: estimates are made of the last five."""


class Group:
    """A file group. `plan`: the pending compaction that contains it; `minor`: the pending log compaction. `later`: logs
    that were written since the plan of the compaction."""

    __slots__ = ("base", "gone", "key", "later", "logs", "minor", "number", "plan", "rows", "seen", "shape", "stats")

    def __init__(self, number: int, key: GroupKey) -> None:
        self.number, self.key = number, key
        self.base: BaseFile | None = None
        self.rows = 0
        self.logs: list[PastLog] = []
        self.later: list[PastLog] = []
        self.plan: str | None = None
        self.minor: str | None = None
        self.seen = self.gone = False
        self.shape: FileGroup | None = None
        self.stats: SliceStats | None = None

    @property
    def depth(self) -> int:
        return len(self.logs) + len(self.later)

    @property
    def base_bytes(self) -> int:
        return 0 if self.base is None else self.base.size

    def shown(self) -> FileGroup:
        """As a view has it; one with logs."""
        if self.shape is None:
            self.stats = None
            first = self.base.name.instant if self.base is not None else (self.logs or self.later)[0].file.name.instant
            slices = [self._slice(first, self.base, self.logs)]
            if self.plan is not None:
                slices.append(self._slice(self.plan, None, self.later))
            partition, file_id = self.key
            self.shape = FileGroup(
                partition=partition, file_id=file_id, slices=tuple(slices), pending_compaction=self.plan
            )
        return self.shape

    def _slice(self, instant: str, base: BaseFile | None, logs: Iterable[PastLog]) -> FileSlice:
        partition, file_id = self.key
        files = tuple([log.file for log in logs])
        return FileSlice(partition=partition, file_id=file_id, base_instant=instant, base=base, logs=files)

    def measured(self) -> SliceStats:
        """Its rows, and the logs of each write, oldest first; of what was `shown`."""
        if self.stats is None:
            of: dict[str, list[PastLog]] = {}
            for log in self.logs:
                of.setdefault(log.instant, []).append(log)
            pieces = tuple(
                LogPiece(
                    instant=instant,
                    files=tuple(log.file for log in logs),
                    replaced=logs[0].merged if len(logs) == 1 else tuple(file for log in logs for file in log.merged),
                    deletes=any(log.deletes for log in logs),
                    partial=False,
                    place=instant,
                    whole=True,
                )
                for instant, logs in of.items()
            )
            rows, deletes = sum(log.rows for log in self.logs), sum(log.deletes for log in self.logs)
            runs = (LogRun(pieces=pieces, bottom=True),)
            self.stats = SliceStats(base_rows=self.rows, log_rows=rows, deletes=deletes, runs=runs)
        return self.stats


@dataclass(kw_only=True)
class Merge:
    """A compaction in progress, of whole file groups, or `minor`: of some log files of each."""

    instant: Instant
    of: dict[int, tuple[PastLog, ...]]
    read: int
    minor: bool = False
    ends_ms: int | None = None


class PastTable:
    """See the module. `now_ms`: the moment."""

    def __init__(self, history: History, rates: Rates) -> None:
        self.rates, self.layout = rates, history.layout
        self.groups = [Group(number, key) for number, key in enumerate(history.groups)]
        self.numbers = {key: number for number, key in enumerate(history.groups)}
        self.with_logs: dict[str, dict[int, None]] = {}
        """By partition, the numbers of its file groups with log files."""
        self.lag = Lag()
        self.now_ms = history.writes[0].at_ms
        self._instants: list[Instant] = []
        self._timeline: Timeline | None = None
        self._majors = self._minors = self._read = self._written = 0
        self._living = self._logs = self._deepest = self._group_ms = self._log_ms = 0
        self._spans: list[tuple[int, int]] = []
        self._oldest_ms: int | None = None
        self._since_ms = self.now_ms
        for base in history.first:
            self._based(base.group, base.file, base.rows)

    @property
    def timeline(self) -> Timeline:
        if self._timeline is None:
            self._timeline = Timeline(layout=self.layout, instants=tuple(self._instants))
        return self._timeline

    def put(self, instant: Instant, *, instead: Instant | None = None) -> None:
        """Adds an instant; `instead`: of its pending state."""
        if instead is not None:
            del self._instants[bisect_left(self._instants, instead.identity, key=_identity)]
        insort(self._instants, instant, key=_identity)
        self._timeline = None

    def advance(self, to_ms: int) -> None:
        """Time passes until another moment."""
        self._group_ms += (to_ms - self.now_ms) * self._living
        self._log_ms += (to_ms - self.now_ms) * self._logs
        self.now_ms = to_ms

    def write(self, write: PastWrite) -> None:
        """A write becomes visible."""
        self.put(write.instant)
        for base in write.bases:
            self._based(base.group, base.file, base.rows)
        for log in write.logs:
            self._logged(log)
        for number in write.replaced:
            group = self.groups[number]
            self._living -= group.seen and not group.gone
            self._logs -= group.depth
            group.gone, group.logs, group.later = True, [], []
            self.with_logs.get(group.key[0], {}).pop(number, None)
        if write.replaced:
            self.look()
        elif write.logs:
            self.lag = with_write(self.lag, self.timeline.completed_at(write.instant))
            self._note()

    def _logged(self, log: PastLog) -> None:
        group = self.groups[log.group]
        if group.gone:
            return
        (group.logs if group.plan is None else group.later).append(log)
        group.shape = None
        self._living += not group.seen
        group.seen = True
        self.with_logs.setdefault(group.key[0], {})[log.group] = None
        self._logs += 1
        self._deepest = max(self._deepest, group.depth)

    def _based(self, number: int, file: BaseFile, rows: int) -> None:
        group = self.groups[number]
        self._living += not group.seen
        group.base, group.rows, group.shape, group.seen = file, rows, None, True

    def begin(self, merge: Merge) -> None:
        """The plan of a compaction is made."""
        self.put(merge.instant)
        for number in merge.of:
            group, time = self.groups[number], merge.instant.requested_time
            group.plan, group.minor, group.shape = (None, time, None) if merge.minor else (time, None, None)
        self.look()

    def end(self, merge: Merge, completed: Instant, made: Mapping[int, tuple[BaseFile, int]] | None = None) -> None:
        """A compaction completes. `made`: its base files with their rows, where they are known."""
        self.put(completed, instead=merge.instant)
        written = 0
        for number, merged in merge.of.items():
            group = self.groups[number]
            if group.gone:
                continue
            if merge.minor:
                written += self._merged(group, completed, merged)
                group.minor = None
            else:
                file, rows = (made or {}).get(number) or self._grown(group, completed, merged)
                written += file.size
                self._based(number, file, rows)
                gone = set(merged)
                kept = [log for log in group.logs if log not in gone]
                group.logs, group.later, group.plan = kept + group.later, [], None
            self._logs -= len(merged) - merge.minor
            group.shape = None
            if not group.logs:
                self.with_logs[group.key[0]].pop(number, None)
        self._majors += not merge.minor
        self._minors += merge.minor
        self._read += merge.read
        self._written += written
        self.look()
        self._forget()

    def _merged(self, group: Group, completed: Instant, merged: tuple[PastLog, ...]) -> int:
        """Log files become one, with all their bytes. Only its oldest row is known by its write."""
        size = sum(log.file.size for log in merged)
        name = LogFileName(file_id=group.key[1], instant=completed.requested_time, version=1)
        oldest = min(merged, key=lambda log: log.at_ms)
        one = PastLog(
            group=group.number,
            file=DataFile(partition=group.key[0], name=name, size=size, marks=oldest.file.marks),
            instant=completed.requested_time,
            at_ms=oldest.at_ms,
            rows=sum(log.rows for log in merged),
            deletes=sum(log.deletes for log in merged),
            inserts=sum(log.inserts for log in merged),
            merged=tuple(file for log in merged for file in log.merged or (log.file,)),
        )
        group.logs[group.logs.index(merged[-1])] = one
        gone = set(merged)
        group.logs = [log for log in group.logs if log not in gone]
        return size

    def _grown(self, group: Group, completed: Instant, merged: tuple[PastLog, ...]) -> tuple[BaseFile, int]:
        """The base file that a compaction makes, by the rates."""
        by = self.rates.fresh if group.base is None else self.rates.growth
        size = max(1, round(group.base_bytes + by * sum(log.file.size for log in merged)))
        name = BaseFileName(file_id=group.key[1], token="", instant=completed.requested_time)
        rows = group.rows + sum(log.inserts - log.deletes for log in merged)
        return DataFile(partition=group.key[0], name=name, size=size), max(0, rows)

    def open_groups(self) -> Iterator[Group]:
        """Those with log files."""
        return (self.groups[number] for of in self.with_logs.values() for number in of)

    @property
    def busy(self) -> dict[GroupKey, str]:
        """The file groups in pending log compactions, with the reason."""
        found = (group for group in self.open_groups() if group.minor is not None)
        return {group.key: f"in the pending log compaction {group.minor}" for group in found}

    def look(self) -> None:
        """Takes the lag of all file groups: more has changed than that rows were added."""
        self.lag = table_lag((group.shown() for group in self.open_groups()), self.timeline, self.busy)
        self._note()

    def _note(self) -> None:
        """Keeps for how long the oldest row was the oldest, if it is another one now."""
        oldest_ms = None if self.lag.oldest is None else time_ms(self.lag.oldest.time)
        if oldest_ms != self._oldest_ms:
            self._close_span()
            self._oldest_ms = oldest_ms

    def _close_span(self) -> None:
        """A span: the lag at its beginning and its end; nothing while all rows were in base files."""
        if self._oldest_ms is not None and self.now_ms > self._since_ms:
            self._spans.append((self._since_ms - self._oldest_ms, self.now_ms - self._oldest_ms))
        self._since_ms = self.now_ms

    def _forget(self) -> None:
        """Removes the instants that no trigger, estimate or log file needs any more."""
        done = [i.requested_time for i in self._instants if i.action == "commit"]
        if len(done) < _KEPT_RUNS:
            return
        oldest = self.lag.oldest.time if self.lag.oldest is not None else "9"
        since, completed_at = done[-_KEPT_RUNS], self.timeline.completed_at
        kept = (i for i in self._instants if not i.completed or i.requested_time >= since or completed_at(i) >= oldest)
        self._instants = list(kept)
        self._timeline = None

    def outcome(self, since_ms: int) -> ReplayCost:
        """What happened from a moment until now."""
        self._close_span()
        return ReplayCost(
            compactions=self._majors,
            log_compactions=self._minors,
            bytes_read=self._read,
            bytes_written=self._written,
            log_depth_max=self._deepest,
            log_depth_mean=round(self._log_ms / max(1, self._group_ms), 3),
            lag_max_s=max((end for _, end in self._spans), default=0) / 1000,
            lag_p95_s=round(_below(self._spans, self.now_ms - since_ms, 0.95) / 1000, 3),
            core_hours=self.rates.core_hours(self._read),
        )


def replay_recorded(history: History) -> tuple[ReplayCost, Rates]:
    """What the table's own compactions did, and how much base files grew and tasks took by them."""
    past = PastTable(history, Rates())
    grown, merged, timed_s, timed_bytes = [0, 0], [0, 0], 0.0, 0
    for write in history.writes:
        past.advance(write.at_ms)
        if write.kind is PastKind.WRITE:
            past.write(write)
            continue
        minor = write.kind is PastKind.MINOR
        numbers = dict.fromkeys([*(base.group for base in write.bases), *(log.group for log in write.logs)])
        of = {n: tuple(log for log in past.groups[n].logs if log.at_ms < write.requested_ms) for n in numbers}
        of = {n: logs for n, logs in of.items() if logs or not minor}
        sizes = {n: sum(log.file.size for log in logs) for n, logs in of.items()}
        read = sum(sizes.values()) + (0 if minor else sum(past.groups[n].base_bytes for n in of))
        for base in write.bases:
            group = past.groups[base.group]
            grown[group.base is not None] += base.file.size - group.base_bytes
            merged[group.base is not None] += sizes[base.group]
        if write.work_s and not minor:
            timed_s, timed_bytes = timed_s + write.work_s, timed_bytes + read
        pending = pending_instant(write.instant.requested_time, minor=minor)
        past.put(pending)
        made = {base.group: (base.file, base.rows) for base in write.bases}
        past.end(Merge(instant=pending, of=of, read=read, minor=minor), write.instant, made)
    growth, fresh = (max(0.0, grown[n] / merged[n]) if merged[n] else usual for n, usual in ((1, 0.0), (0, 1.0)))
    rates = Rates(growth=growth, fresh=fresh)
    if timed_bytes:
        rates = replace(rates, core_s_per_gb=timed_s / timed_bytes * GB, measured=True)
    return past.outcome(history.writes[0].at_ms), rates


def pending_instant(time: str, *, minor: bool) -> Instant:
    return Instant(requested_time=time, action="logcompaction" if minor else "compaction", state=State.REQUESTED)


def _identity(instant: Instant) -> tuple[str, str]:
    return instant.identity


def _below(spans: Collection[tuple[int, int]], whole: int, part: float) -> float:
    """The value below which a quantity is for a part of the whole time; in each span it rises by 1 per unit of time,
    outside of them it is 0."""
    if not spans:
        return 0.0
    begins, ends = (np.sort(np.array(side, dtype=np.float64)) for side in zip(*spans, strict=True))
    points = np.unique(np.concatenate([[0.0], begins, ends]))
    passed = _risen(points, begins) - _risen(points, ends) + (whole - (ends.sum() - begins.sum()))
    return float(np.interp(part * whole, passed, points))


def _risen(points: npt.NDArray[np.float64], starts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By point, the sum of its distances to the starts before it."""
    count = np.searchsorted(starts, points)
    before: npt.NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(starts)])[count]
    return points * count - before
