"""Which instants may be archived, why the others are kept, and the options (pure).

Commits are archived oldest first, without holes. Each rule gives a cutoff, a time from which on all commits are kept:

    count        the newest commits
    pending      the last completed commit before the earliest pending instant of any action, and what completed since a
                 pending instant began: a write reads it before it completes
    savepoint    the first savepoint
    trigger      delta commits that a trigger of compactions counts
    replaced     the first replace commit that no clean has passed, or whose replaced files still exist: without the
                 commit their rows would be visible again
    metadata     what the last compaction of the metadata table does not hold; for the metadata table itself too
    records      a compaction that phantombase has not cleaned up after, or whose ledger is not in the audit log
    left out     a compaction that left out a replaced file group, until the replace commit is archived too: the group
                 is visible as of an earlier instant, and after a rollback of the replace commit
    first        from version 8 on: a kept instant other than a write. Hudi knows no completion time of what is archived
                 after the first active instant: it puts the logs on the newest slice (seen: 1.2.0)
    pin          version 6: writes after a point in time that a reader holds, since the archive is not read
    two files    an instant with two completed files, of which the archive could keep one
    clock        a commit that completed after everything that would be kept: a new time must exceed it
    checkpoint   the newest write with the checkpoint of a job: Hudi Streamer and Hudi's streaming sink look for it in
                 active instants only; without it they start over, or write their last batch again
    damaged      a write that names a missing or damaged file: an archived one would not show the loss
    further      those of the caller: see `compactor_daemon/archiving/archive.py`, and of a metadata table
                 `metadata_services.retention`

Rules after ArchivalUtils, TimelineArchiverV1 and V2, ClusteringUtils and CompactionUtils of Hudi 0.15.0 and 1.2.0;
`pending` is wider than Hudi's, and the last eight are not in Hudi."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.timeline import Timeline, delta_commits
from phantombase.timeline.option import check_below, check_least, option, spelled_class


@spelled_class
@dataclass(frozen=True, kw_only=True)
class ArchiveOptions:
    """Nothing is archived until more than `max_instants` commits are completed; then all but the newest `min_instants`.
    The other options raise `min_instants` where a cleaner or a trigger of compactions still counts older commits."""

    min_instants: int = option(20, "commits that stay on the active timeline (hoodie.keep.min.commits)")
    max_instants: int = option(30, "commits above which archiving begins (hoodie.keep.max.commits)")
    commits_retained: int = option(
        10, "commits that the cleaner retains (hoodie.clean.commits.retained); two more than these stay"
    )
    compaction_commits: int = option(
        5,
        "delta commits that make a compaction due (hoodie.compact.inline.max.delta.commits); as many stay behind the "
        "last compaction",
    )
    drop_checkpoints: bool = option(
        False,
        "archive the newest checkpoints of Hudi Streamer and Spark's streaming sink, too: such a job starts over then",
    )

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        check_below(self, "min_instants", "max_instants")

    def beside_cleaner(self, commits_retained: int) -> ArchiveOptions:
        """These options with bounds raised, as Hudi does, for a cleaner that retains this number of commits. Otherwise
        a cleaner that retains more than `max_instants` commits would never see enough commits to remove anything."""
        more = max(0, commits_retained + 2 - self.min_instants)
        return replace(
            self,
            min_instants=self.min_instants + more,
            max_instants=self.max_instants + more,
            commits_retained=max(self.commits_retained, commits_retained),
        )

    def kept(self, commits: int) -> int:
        """The number of completed commits that are kept. A cleaner retains some only where there are more."""
        cleaned = self.commits_retained + 2 if commits > self.commits_retained else 0
        return max(self.min_instants, cleaned)

    def begins_above(self, commits: int) -> int:
        """The number of completed commits above which archiving begins: as far above `kept` as the options say."""
        return self.kept(commits) + self.max_instants - self.min_instants


_LEAST = {"min_instants": 2, "max_instants": 3, "commits_retained": 1, "compaction_commits": 1}
_BY_COUNT = ("clean", "rollback")
"""Actions besides writes that are archived. Version 6 keeps restores; all versions keep savepoints and the rest."""
_WITH_WRITES = (*_BY_COUNT, "restore", "indexing")
"""The same from version 8 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCutoff:
    """Commits from `time` on are kept; "": all are. `why`: the reason."""

    time: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFacts:
    """What the choice needs besides the timeline. `cleaned_to`: the earliest commit that the last clean retained; None:
    there is no clean. `replaced_there`: replace commits with replaced files that still exist, and the path of one.
    `metadata`: the table has a metadata table; `metadata_compacted`: the time of its last compaction;
    `metadata_blocked`: why the next one waits. `unfinished`: compactions with records of phantombase that are still
    needed. `left_out`: compactions that left out a replaced file group, and the replacing instant. `held`: the earliest
    point in time that a pin holds. `doubled`: instants with two completed files. `written`: when the completed files of
    instants were written; `begun`: when the first files of pending instants were; both by requested time. `cutoffs`:
    further ones, which hold for cleans and rollbacks too."""

    cleaned_to: str | None = None
    replaced_there: Mapping[str, str] = field(default_factory=dict)
    metadata: bool = False
    metadata_compacted: str | None = None
    metadata_blocked: str | None = None
    unfinished: frozenset[str] = frozenset()
    left_out: Mapping[str, str] = field(default_factory=dict)
    held: str | None = None
    doubled: frozenset[str] = frozenset()
    written: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[str, str] = field(default_factory=dict)
    cutoffs: tuple[ArchiveCutoff, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveChoice:
    """`archived`: completed instants to archive, by time. `kept`: the other completed instants. `why`: what stops
    archiving, in words; `cutoffs`: all cutoffs that stop it, earliest first."""

    archived: tuple[Instant, ...]
    kept: tuple[Instant, ...]
    why: str
    cutoffs: tuple[ArchiveCutoff, ...] = ()

    def why_kept(self, instant: Instant) -> str:
        actions = _BY_COUNT if instant.completion_time is None else _WITH_WRITES
        if not instant.is_write and instant.action not in actions:
            return f"a {instant.action} stays on the active timeline"
        if not instant.is_write:
            return "it is not older than the commits that stay"
        at = next((b for b in self.cutoffs if instant.requested_time >= b.time), None)
        return self.why if at is None else at.why


def choose(timeline: Timeline, facts: ArchiveFacts, options: ArchiveOptions) -> ArchiveChoice:
    commits = timeline.completed
    count = len(commits)
    if count <= options.begins_above(count):
        why = f"{count} commits are completed, archiving begins above {options.begins_above(count)}"
        services = _services(timeline, facts, (), options)
        return ArchiveChoice(archived=services, kept=_others(timeline, services), why=why)
    kept = options.kept(count)
    newest = ArchiveCutoff(time=commits[count - kept].requested_time, why=f"it is one of the newest {kept} commits")
    cutoffs = sorted([newest, *_cutoffs(timeline, facts, options)], key=lambda b: b.time)
    going = tuple(i for i in commits if i.requested_time < cutoffs[0].time)
    services = _services(timeline, facts, going, options)
    while further := (
        _late(timeline, facts, going) or _left_out(facts, going) or _first_stays(timeline, going, services)
    ):
        cutoffs.insert(0, further)
        going = tuple(i for i in commits if i.requested_time < further.time)
        services = _services(timeline, facts, going, options)
    gone = tuple(sorted((*going, *services), key=lambda i: i.identity))
    return ArchiveChoice(archived=gone, kept=_others(timeline, gone), why=cutoffs[0].why, cutoffs=tuple(cutoffs))


def _others(timeline: Timeline, gone: Iterable[Instant]) -> tuple[Instant, ...]:
    leaving = set(gone)
    return tuple(i for i in timeline.instants if i.completed and i not in leaving)


def _cutoffs(timeline: Timeline, facts: ArchiveFacts, options: ArchiveOptions) -> Iterable[ArchiveCutoff]:
    yield from _pending(timeline)
    yield from _beside_pending(timeline, facts)
    yield from _at(
        _first(i.requested_time for i in timeline.instants if i.action == "savepoint"), "a savepoint needs {}"
    )
    yield from _trigger(timeline, options.compaction_commits)
    yield from _replaced(timeline, facts)
    yield from _metadata(timeline, facts)
    yield from _at(_first(facts.unfinished), "phantombase has not cleaned up behind compaction {}")
    if facts.held is not None and not timeline.layout.has_completion_times:
        after = (i.requested_time for i in timeline.completed if i.requested_time > facts.held)
        yield from _at(_first(after), f"a pin holds {facts.held or 'everything'}")
    yield from _at(_first(facts.doubled), "instant {} has two completed files")
    yield from facts.cutoffs


def _first(times: Iterable[str]) -> str | None:
    return min(times, default=None)


def _at(time: str | None, why: str) -> Iterable[ArchiveCutoff]:
    return () if time is None else (ArchiveCutoff(time=time, why=why.format(time)),)


def _pending(timeline: Timeline) -> Iterable[ArchiveCutoff]:
    first = next((i for i in timeline.instants if not i.completed), None)
    if first is None:
        return ()
    before = [i.requested_time for i in timeline.completed if i.requested_time < first.requested_time]
    time = before[-1] if before else first.requested_time
    why = f"{first.action} {first.requested_time} is pending"
    if first.action == "savepoint":  # in no list; only these commands end it
        end = f"`compactor-daemon savepoint create TABLE --instant {first.requested_time}`"
        why += f": {end} completes it, `savepoint delete TABLE {first.requested_time}` removes it"
    elif first.action == "indexing":
        why += ": Hudi's indexer executes it, or drops the index"
    return (ArchiveCutoff(time=time, why=why),)


def _beside_pending(timeline: Timeline, facts: ArchiveFacts) -> Iterable[ArchiveCutoff]:
    """What completed since a pending instant began. Version 6: by modification times, on the storage's clock."""
    pending = [i.requested_time for i in timeline.instants if not i.completed]
    first = _first(facts.begun.get(time, time) for time in pending)
    if first is not None:
        beside = _first(i.requested_time for i in timeline.completed if _completed(timeline, facts, i) >= first)
        yield from _at(beside, "a write is pending that began before {} completed")


def _completed(timeline: Timeline, facts: ArchiveFacts, instant: Instant) -> str:
    written = facts.written.get(instant.requested_time)
    return instant.completion_time or written or timeline.completed_at(instant)


def _trigger(timeline: Timeline, commits: int) -> Iterable[ArchiveCutoff]:
    """What Hudi's triggers count: delta commits since the last compaction; the compaction too if these are few."""
    last = next((i for i in reversed(timeline.completed) if i.action == "commit"), None)
    since = [i.requested_time for i in delta_commits(timeline) if last is None or _after(timeline, i, last)]
    why = f"a trigger of compactions counts the last {commits} delta commits"
    if len(since) >= commits:
        return (ArchiveCutoff(time=since[len(since) - commits], why=why),)
    if last is not None:
        return (ArchiveCutoff(time=last.requested_time, why=why),)
    return (ArchiveCutoff(time=since[0], why=why),) if since else ()


def _after(timeline: Timeline, write: Instant, compaction: Instant) -> bool:
    if not write.completed or not timeline.layout.has_completion_times:
        return write.requested_time > compaction.requested_time
    return timeline.completed_at(write) > compaction.requested_time


def _replaced(timeline: Timeline, facts: ArchiveFacts) -> Iterable[ArchiveCutoff]:
    replacing = [i.requested_time for i in timeline.instants if i.family == "replacecommit"]
    cleaned_to = facts.cleaned_to or ""
    yield from _at(_first(t for t in replacing if t >= cleaned_to), "no clean has passed replace commit {}")
    if (there := _first(facts.replaced_there)) is not None:
        why = (
            f"files that replace commit {there} replaced are still there, as {facts.replaced_there[there]}: clean the "
            "table; `compactor-daemon orphans` removes what no clean takes"
        )
        yield ArchiveCutoff(time=there, why=why)


def _metadata(timeline: Timeline, facts: ArchiveFacts) -> Iterable[ArchiveCutoff]:
    if not facts.metadata:
        return ()
    compacted = facts.metadata_compacted
    waits = f"; its next one waits, {facts.metadata_blocked}" if facts.metadata_blocked else ""
    if compacted is None:
        return (ArchiveCutoff(time="", why=f"the metadata table was never compacted{waits}"),)
    why = f"the last compaction of the metadata table, {compacted}, does not hold it{waits}"
    if not timeline.layout.has_completion_times:
        return (ArchiveCutoff(time=compacted, why=why),)
    return _at(_first(i.requested_time for i in timeline.completed if timeline.completed_at(i) >= compacted), why)


def _told(timeline: Timeline, facts: ArchiveFacts, instant: Instant) -> bool:
    """Whether the last compaction of the metadata table, if there is one, holds a clean or rollback."""
    compacted = facts.metadata_compacted
    return not facts.metadata or (compacted is not None and timeline.completed_at(instant) < compacted)


def _late(timeline: Timeline, facts: ArchiveFacts, going: Sequence[Instant]) -> ArchiveCutoff | None:
    """The first of these commits that completed after every time that would be kept."""

    leaving = set(going)
    stay = [i for i in timeline.instants if i not in leaving]
    times = [i.requested_time for i in stay] + [_completed(timeline, facts, i) for i in stay if i.completed]
    newest = max(times, default="")
    early = list(takewhile(lambda i: _completed(timeline, facts, i) <= newest, going))
    if len(early) == len(going):
        return None
    time = going[len(early)].requested_time
    return ArchiveCutoff(time=time, why=f"commit {time} completed after everything that would stay")


def _left_out(facts: ArchiveFacts, going: Sequence[Instant]) -> ArchiveCutoff | None:
    """The first of these commits that left out a file group whose replace commit would be kept."""
    leaving = {i.requested_time for i in going}
    stays = (time for time, replaced in facts.left_out.items() if time in leaving and replaced not in leaving)
    if (time := _first(stays)) is None:
        return None
    why = f"compaction {time} left out a file group that replace commit {facts.left_out[time]}, which stays, replaced"
    return ArchiveCutoff(time=time, why=why)


def _first_stays(timeline: Timeline, going: Sequence[Instant], services: Collection[Instant]) -> ArchiveCutoff | None:
    """The first instant other than a write that would be kept after one of these commits."""
    if not going or not timeline.layout.has_completion_times:
        return None
    stay = (i for i in timeline.instants if not i.is_write and i not in services)
    first = next((i for i in stay if i.requested_time < going[-1].requested_time), None)
    if first is None:
        return None
    return ArchiveCutoff(
        time=first.requested_time, why=f"{first.action} {first.requested_time} stays on the active timeline"
    )


def _services(
    timeline: Timeline, facts: ArchiveFacts, going: Sequence[Instant], options: ArchiveOptions
) -> tuple[Instant, ...]:
    """Cleans and rollbacks to archive: version 6 counts each action, as Hudi 0.15; later those older than the last
    commit. From version 8 on restores and completed `indexing` are archived too, which Hudi leaves. What the last
    compaction of the metadata table does not hold is kept: Hudi's readers skip its entries of instants that are not
    active."""
    pending = (i.requested_time for i in timeline.instants if not i.completed)
    earliest = _first((*pending, *(cutoff.time for cutoff in facts.cutoffs)))
    found: list[Instant] = []
    for action in _WITH_WRITES if timeline.layout.has_completion_times else _BY_COUNT:
        done = [i for i in timeline.instants if i.action == action and i.completed]
        if not timeline.layout.has_completion_times:
            some = done[: -options.min_instants] if len(done) > options.max_instants else []
        else:
            last = going[-1].requested_time if going else ""
            some = [i for i in done if i.requested_time < last]
        found += [i for i in some if (earliest is None or i.requested_time < earliest) and _told(timeline, facts, i)]
    return tuple(sorted(found, key=lambda i: i.identity))
