"""The timeline as a value: active instants, archived ones that were loaded, delta commits since a compaction (pure).

Counting delta commits follows ScheduleCompactionActionExecutor and CompactionUtils of Hudi 0.15.0 (version 6) and 1.2.0
(8, 9):

    since the last completed compaction   version 6: delta commits requested after it, pending ones too
                                          8 and 9: completed ones, by completion time after its requested time
    since the last request                delta commits requested after the last pending compaction, or if none is
                                          pending after the last completed one; pending delta commits too
    seconds                               from the requested time of the last completed compaction, in full seconds

If no compaction is completed (or requested) yet, all delta commits count, and time runs from the first one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from ..format.instant import MERGES, SERVICES, Instant, State, real_time
from ..format.layout import Layout
from ..record_fields import gathered
from .clock_check import ClockEvidence

UNKNOWN_COMPLETION = "9" * 17
"""Greater than every instant time."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One instant per (time, family) at its highest state, ordered by time. `archived`: completed instants that were
    moved out of the active timeline, as far as they are loaded. `legacy_completions`: for completed files without a
    completion time in their name (tables upgraded from version 6) the files' modification times, as instant times.
    `written`: what modification times show about the writers' clocks; it does not take part in comparisons of
    timelines. `commits_are_writes`: the table is COPY_ON_WRITE; otherwise a completed commit is a compaction. `hidden`:
    completed delta commits that `instants` lacks, since it has another instant of that time (a write and a log
    compaction); their files count. `starts_behind`: version 6, whether the first write may have completed after later
    ones were archived."""

    layout: Layout
    instants: tuple[Instant, ...]
    archived: tuple[Instant, ...] = ()
    legacy_completions: dict[str, str] = field(default_factory=dict)
    written: ClockEvidence = field(default_factory=ClockEvidence, compare=False)
    commits_are_writes: bool = False
    hidden: tuple[Instant, ...] = ()
    starts_behind: bool = field(default=False, compare=False)

    @cached_property
    def completed(self) -> tuple[Instant, ...]:
        """Completed commits, delta commits and replace commits of the active timeline, earliest first."""
        return tuple(i for i in self.instants if i.is_write and i.completed)

    @cached_property
    def shared_times(self) -> tuple[str, ...]:
        """Times that several writes share, table services included."""
        count = Counter(i.requested_time for i in self.instants if i.is_write)
        return tuple(time for time, writes in count.items() if writes > 1)

    @cached_property
    def _writes(self) -> dict[str, Instant]:
        """Writes by requested time; if a writer and a table service have the same time, the writer's instant. A writer
        that takes no lock may start in the same millisecond as a plan. Files and blocks contain only the time. The plan
        and the commit name the files of the compaction (`ViewFacts`); all others of that time are the writer's."""
        found: dict[str, Instant] = {}
        for instant in self.instants:
            other = found.get(instant.requested_time)
            if instant.is_write and (other is None or _rank(other) < _rank(instant)):
                found[instant.requested_time] = instant
        return found

    @cached_property
    def completed_writes(self) -> dict[str, Instant]:
        """Completed commits, delta commits and replace commits of the active timeline, by requested time. If two have
        the same time, see `_writes`; `completed` contains both."""
        return {t: i for t, i in self._writes.items() if i.completed}

    @property
    def has_rows(self) -> bool:
        """Whether there is a completed write that was not undone: an active or an archived one."""
        return bool(self.completed) or self.has_archived_writes

    @property
    def has_archived_writes(self) -> bool:
        """Whether writes were archived, as far as the archive is loaded."""
        return any(i.is_write for i in self.archived)

    @cached_property
    def pending_writes(self) -> dict[str, Instant]:
        """Requested and inflight writes, pending compactions and clusterings included, by requested time."""
        return {t: i for t, i in self._writes.items() if not i.completed}

    def at(self, time: str) -> tuple[Instant, ...]:
        return self._by_time.get(time, ())

    @cached_property
    def _by_time(self) -> dict[str, tuple[Instant, ...]]:
        return gathered((i.requested_time, i) for i in self.instants)

    def pending(self, action: str) -> tuple[Instant, ...]:
        """Pending instants of one action, earliest first."""
        return self._pending.get(action, ())

    @cached_property
    def _pending(self) -> dict[str, tuple[Instant, ...]]:
        return gathered((i.action, i) for i in self.instants if not i.completed)

    @cached_property
    def pending_compactions(self) -> tuple[Instant, ...]:
        """Pending compactions, earliest first. On layout 1 an inflight compaction is named `<t>.compaction.inflight`;
        its requested file with the plan still exists."""
        return self.pending("compaction")

    @cached_property
    def pending_merges(self) -> tuple[Instant, ...]:
        """Pending compactions and log compactions, earliest first: those that an executor may work on."""
        return tuple(i for i in self.instants if i.action in MERGES and not i.completed)

    @cached_property
    def start(self) -> str:
        """The first write of the active timeline, in any state; "" if none exists. An older instant that is not in the
        active timeline was archived: archival removes the oldest completed instants and never passes a pending one."""
        return min((i.requested_time for i in self.instants if i.is_write), default="")

    @cached_property
    def _archived_writes(self) -> dict[str, Instant]:
        return {i.requested_time: i for i in self.archived if i.is_write}

    @cached_property
    def shared_with_archived(self) -> dict[str, Instant]:
        """The times that a completed write and an archived one of another action share, as far as the archive is
        loaded, each with the one that ranks highest, see `_writes`."""
        found: dict[str, Instant] = {}
        for other in self.archived:
            mine = self.completed_writes.get(other.requested_time)
            if mine is not None and other.is_write and other.family != mine.family:
                found[mine.requested_time] = max(found.get(mine.requested_time, mine), other, key=_rank)
        return found

    def is_committed(self, time: str) -> bool:
        """Whether a write is visible: completed, or archived (older than the start, or found in the archive)."""
        if time in self.completed_writes:
            return True
        return time not in self.pending_writes and (time < self.start or time in self._archived_writes)

    def completion_time(self, time: str) -> str | None:
        """When a write completed; None while it is pending, and for unknown instants. An instant older than the active
        timeline that the archive lacks counts as the last: Hudi puts its logs on the newest slice."""
        shared = self.shared_with_archived.get(time)
        instant = shared or self.completed_writes.get(time) or self._archived_writes.get(time)
        if instant is not None:
            return self.completed_at(instant)
        return UNKNOWN_COMPLETION if self.is_committed(time) else None

    def completed_at(self, instant: Instant) -> str:
        """When a completed instant completed; its requested time if no completion time is known (version 6)."""
        time = instant.requested_time
        return instant.completion_time or self.legacy_completions.get(time) or time

    def moment_of(self, write: Instant) -> str:
        """When a completed write became visible: its completion time, on version 6 its requested time."""
        return self.completed_at(write) if self.layout.has_completion_times else write.requested_time

    def counts_from(self, write: Instant) -> str:
        """The time from which `completed_by` counts a completed write: of a compaction its requested time."""
        return write.requested_time if self.is_compaction(write) else self.moment_of(write)

    def is_compaction(self, completed: Instant) -> bool:
        return completed.action == "commit" and not self.commits_are_writes

    def needs_archive(self, time: str) -> bool:
        """Whether only the archived timeline shows when, or whether, a write completed. Archived instants are older
        than the start. Later ones exist only where `may_be_archived_later` says so."""
        if time in self.completed_writes or time in self.pending_writes:
            return False
        if time < self.start:
            return self.layout.has_completion_times
        return self.may_be_archived_later

    @cached_property
    def may_be_archived_later(self) -> bool:
        """Whether archived instants may be later than the start. Archival continues beyond savepoints, whose own
        instants stay. And a writer with a slow clock may begin a write before archived instants, and complete it
        (`starts_behind`); Hudi counts from the first completed."""
        return self.start in self.pending_writes or bool(self._saved) or self.starts_behind

    @cached_property
    def _saved(self) -> frozenset[str]:
        """The times of savepoints, which are those of writes."""
        return frozenset(i.requested_time for i in self.instants if i.action == "savepoint")

    def is_unknown(self, time: str) -> bool:
        """Whether the start does not show what became of a write: it was undone, or it is archived behind a completed
        write of a slow clock, from which the timeline starts then."""
        known = time in self.completed_writes or time in self.pending_writes or time in self._archived_writes
        return time > self.start and time.isdecimal() and not known

    @cached_property
    def before_archived(self) -> Instant | None:
        """The first completed write, if one that is archived is later: a writer with a slow clock made it. A savepoint
        keeps its write while later ones are archived."""
        first = next((i for i in self.completed if i.requested_time not in self._saved), None)
        newest = max(self._archived_writes.keys() - self.completed_writes.keys(), default="")
        return first if first is not None and first.requested_time < newest else None

    def may_be_cleaned_since(self, before: Timeline) -> bool:
        """Whether a clean may have started after the earlier timeline `before`: it is listed or may be archived."""
        cleans = ({i.requested_time for i in t.instants if i.action == "clean"} for t in (self, before))
        return self.start != before.start or not next(cleans) <= next(cleans)

    def superseding_since(self, before: Timeline, seen: Collection[str] | None, *, below: str) -> list[str]:
        """Requested times of the writes completed since the earlier timeline `before` that may supersede files: all
        except delta commits without a base file. `seen`: the instants of listed base files; None: each may have one.
        This timeline has its archive loaded if instants were archived since `before`."""
        known = {i.identity for i in before.completed}
        mine = (i for i in (*self.archived, *self.instants) if i.is_write and i.completed)
        new = (i for i in mine if i.identity not in known and before.start <= i.requested_time < below)
        with_base = (i for i in new if i.family != "deltacommit" or seen is None or i.requested_time in seen)
        return sorted({i.requested_time for i in with_base})

    def with_its_archived(self, archived: Iterable[Instant]) -> Timeline:
        """This timeline with those archived instants that had completed when it was listed. Instants archived since
        then would count, while active ones completed after them would not. Where no active write is completed, as after
        rollbacks of all of them, all archived ones count."""
        newest = max((i.requested_time for i in self.instants), default="")
        pending = {i.identity for i in self.instants if not i.completed}
        found = tuple(archived)
        if self.completed:
            found = tuple(i for i in found if i.requested_time <= newest and i.identity not in pending)
        return replace(self, archived=found)

    def used_times(self, without: Collection[str] = ()) -> Iterator[str]:
        """Every requested and completion time. `without`: requested times of the instants to omit."""
        for instant in (*self.instants, *self.archived):
            if instant.requested_time in without:
                continue
            yield instant.requested_time
            if instant.completion_time is not None:
                yield instant.completion_time

    def with_pending(self, requested: Instant) -> Timeline:
        """This timeline before the completion of a compaction, log compaction or clustering."""
        same = requested.identity
        return replace(self, instants=tuple(requested if i.identity == same else i for i in self.instants))

    def completed_by(self, time: str) -> Timeline:
        """This timeline with the writes that had completed at a completion time; later ones are pending. The archived
        instants must be loaded. A completed compaction counts from its requested time on: it changes no row, and a
        cleaner may have removed the files that it merged."""
        active = {i.identity for i in self.instants}
        gone = [i for i in self.archived if i.is_write and not self._counts_at(i, time)]
        late = [_in_progress(i) for i in gone if i.identity not in active]
        kept = [i if self._counts_at(i, time) else _in_progress(i) for i in self.instants]
        return replace(
            self,
            instants=tuple(sorted([*kept, *late], key=lambda i: i.identity)),
            archived=tuple(i for i in self.archived if i not in gone),
            hidden=tuple(i for i in self.hidden if self._counts_at(i, time)),
        )

    def _counts_at(self, instant: Instant, time: str) -> bool:
        if not instant.is_write:
            return True
        return (self.counts_from(instant) if instant.completed else instant.requested_time) <= time

    def shares_time(self, instant: Instant) -> bool:
        """Whether another action has the time of an instant: a process put a plan after it had lost the lock."""
        return any(one.family != instant.family for one in self.at(instant.requested_time))

    def find(self, time: str, family: str) -> Instant | None:
        return next((i for i in self.at(time) if i.family == family), None)

    @property
    def latest_completed(self) -> str:
        """The greatest requested time of a completed write; "" if none exists."""
        return max(self.completed_writes, default="")

    @property
    def pending_delta_commits(self) -> tuple[Instant, ...]:
        """Pending delta commits of writers: the only instants that add log files to existing file groups."""
        return self.pending("deltacommit")

    @property
    def inflight_writers(self) -> tuple[Instant, ...]:
        """Pending delta commits, commits and replace commits of writers (without table services)."""
        return tuple(i for i in self.instants if i.is_write and i.state < State.COMPLETED and i.action not in SERVICES)


def _in_progress(instant: Instant) -> Instant:
    """The write before its completion, without the name of a pending compaction, whose plan would count."""
    return Instant(requested_time=instant.requested_time, action=instant.family, state=State.INFLIGHT)


def _rank(instant: Instant) -> int:
    """Log files and blocks belong to delta commits, so these rank highest; base files of a shared time have a name."""
    return 0 if instant.action in SERVICES else 1 if instant.family != "deltacommit" else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceCompaction:
    """Delta commits since an instant, and that instant's requested time."""

    commits: int
    instant: str

    def seconds(self, now: datetime) -> int:
        """Seconds from the instant to `now`, both cut to full seconds, as in Hudi. A clock change of a LOCAL zone
        counts as elapsed time. An instant that is not a date counts as the next one."""
        past = real_time(self.instant).replace(microsecond=0)
        return round((now.replace(microsecond=0) - past).total_seconds())


def commits_since_compaction(timeline: Timeline) -> int:
    """Delta commits since the last completed compaction, or all if there is none."""
    since = since_completed(timeline)
    return 0 if since is None else since.commits


def since_request(timeline: Timeline) -> SinceCompaction | None:
    """Delta commits since the last request of a compaction; None: there is no delta commit yet."""
    last = timeline.pending_compactions[-1:] or _completed_compactions(timeline)[-1:]
    deltas = delta_commits(timeline)
    if not last:
        return _since_first(deltas, deltas)
    time = last[0].requested_time
    return SinceCompaction(commits=sum(d.requested_time > time for d in deltas), instant=time)


def since_completed(timeline: Timeline) -> SinceCompaction | None:
    """Delta commits since the last completed compaction; None: there is no delta commit yet."""
    last = _completed_compactions(timeline)[-1:]
    deltas = delta_commits(timeline)
    by_completion = timeline.layout.has_completion_times
    counted = [d for d in deltas if d.completed] if by_completion else deltas
    if not last:
        return _since_first(deltas, counted)
    time = last[0].requested_time
    when = [timeline.completion_time(d.requested_time) if by_completion else d.requested_time for d in counted]
    return SinceCompaction(commits=sum(w is not None and w > time for w in when), instant=time)


def _since_first(deltas: Sequence[Instant], counted: Sequence[Instant]) -> SinceCompaction | None:
    return SinceCompaction(commits=len(counted), instant=deltas[0].requested_time) if deltas else None


def delta_commits(timeline: Timeline) -> tuple[Instant, ...]:
    """Delta commits by requested time; a completed log compaction is one too."""
    return tuple(i for i in timeline.instants if i.action == "deltacommit")


def _completed_compactions(timeline: Timeline) -> tuple[Instant, ...]:
    """Completed compactions by requested time: in a MERGE_ON_READ table no other action completes as `commit`."""
    return tuple(i for i in timeline.instants if i.action == "commit" and i.completed)


def pending_writer(timeline: Timeline) -> Instant | None:
    """The earliest pending delta commit that could still add logs under a plan made now; None if there is none. On
    version 6 a delta commit names its log files by the base instant that it read when it started. A plan made while it
    runs would not contain these log files, and no process would ever merge them. From version 8 on the completion time
    of a delta commit decides to which slice its logs belong, so a pending delta commit is no obstacle."""
    if timeline.layout.has_completion_times:
        return None
    return min(timeline.pending_delta_commits, key=lambda i: i.requested_time, default=None)
