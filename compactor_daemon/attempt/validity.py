"""Whether a commit decision is valid: the decision authorises, the timeline decides.

    valid        its plan exists, and so does every write that it merged
    blocked      a restore is pending, or a rollback that concerns it or may concern it: the answer comes when that ends
    superseded   it was completed and archived since, or that cannot be ruled out: its files remain, none is published
    invalid      its plan was removed (by a restore, a rollback, or `unschedule`), a write that it merged was rolled
                 back, or a clause of its job is broken (`Job.clauses`): its files are reverted (`revert`), and it is
                 never valid again

This is checked under the table lock, before a decision is made and before anything is published. A process may stall
for any time between its decision and the lock. In that time an operator may restore or roll back, and other processes
may publish and archive.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.in_progress import (
    Guard,
    clustering_in_rollback,
    pending_rollbacks,
    refuse_half_upgraded,
)
from phantombase.timeline.table.table import Table

from .job import Clauses, Job
from .outcome import CommitDecision

ASKED = dict.fromkeys((Guard.UPGRADE, Guard.RESTORE, Guard.ROLLBACK), "the validity of the decision depends on them")
"""For the sections that ask for the validity of a decision."""
OF_ATTEMPT = {**ASKED, Guard.SETTINGS: "the version is compared with that of the attempt"}
"""For those that also refuse another version than that of the attempt."""


class Validity(Enum):
    """The four answers; see the module."""

    VALID = "valid"
    BLOCKED = "blocked"
    SUPERSEDED = "superseded"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The validity of a decision. `why`: the reason if it is not valid. `todo`: advice other than the usual."""

    validity: Validity
    why: str = ""
    todo: str | None = None

    @property
    def may_be_published(self) -> bool:
        """It is valid, or may be later."""
        return self.validity in (Validity.VALID, Validity.BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What an assessment needs to know about a table, all of one snapshot. `timeline`: includes archived instants if
    the plan was removed or a merged write is not active. `has_plan`: the requested file exists. `undone`: targets of
    pending rollbacks, of a clustering, too. `unreadable`: the plans of pending rollbacks whose target is unknown.
    `allows_equal_times`: whether two actions may have the same requested time; with a metadata table they may not.
    `clauses`: of the job."""

    timeline: Timeline
    has_plan: bool
    undone: frozenset[str]
    unreadable: tuple[Torn, ...] = ()
    allows_equal_times: bool
    clauses: Clauses = Clauses()


def assess(instant: Instant, merged: Collection[str], oldest: str, seen: Evidence) -> Assessment:
    """The validity of a decision on `instant` that merged these writes (pure). The instant is not completed on the
    active timeline. `oldest`: the start of the active timeline at the decision."""
    time, timeline = instant.requested_time, seen.timeline
    restores = timeline.pending("restore")
    if restores:
        return Assessment(validity=Validity.BLOCKED, why=f"restore {restores[0].requested_time} is pending")
    if not seen.has_plan:
        return _without_plan(instant, seen)
    if seen.undone and (undone := sorted(seen.undone & {time, *merged, *timeline.completed_writes})):
        return Assessment(validity=Validity.BLOCKED, why=f"a rollback of {undone[0]} is pending")
    if seen.unreadable:
        first = seen.unreadable[0]
        return Assessment(validity=Validity.BLOCKED, why=_unreadable(first), todo=first.todo)
    gone = sorted(t for t in merged if not _counts(t, oldest, timeline))
    if gone:
        return Assessment(validity=Validity.INVALID, why=f"write {gone[0]}, which it merged, was rolled back")
    if seen.clauses.broken:
        return Assessment(validity=Validity.INVALID, why=seen.clauses.broken)
    others = [i.action for i in timeline.at(time) if i.family != instant.family]
    if others and not seen.allows_equal_times:
        why = f"a {others[0]} has the same time, and the metadata table cannot tell them apart (--drop-metadata-table)"
        return Assessment(validity=Validity.INVALID, why=why)
    if seen.clauses.waits:
        return Assessment(validity=Validity.BLOCKED, why=seen.clauses.waits)
    return Assessment(validity=Validity.VALID)


def _counts(time: str, oldest: str, timeline: Timeline) -> bool:
    """Whether a write that was committed at the decision is still committed. It may have been archived before the
    decision, or since; then the archive names it. A write that is older than the active timeline of today may be one
    that was rolled back."""
    if time in timeline.completed_writes or any(i.requested_time == time and i.is_write for i in timeline.archived):
        return True
    return time < (oldest or timeline.start) and time not in timeline.pending_writes


def _without_plan(instant: Instant, seen: Evidence) -> Assessment:
    """The validity of a decision whose plan was removed. Archiving moves the oldest completed instants first. So if it
    has passed this instant, the archive holds it, or older ones."""
    archived = seen.timeline.archived
    time = instant.requested_time
    if any(i.requested_time == time and i.is_write for i in archived):
        return Assessment(validity=Validity.SUPERSEDED, why="it was completed and archived")
    if time < seen.timeline.start and not any(i.requested_time < time for i in archived):
        why = "the active timeline begins after it, and the archive does not reach back to it"
        return Assessment(validity=Validity.SUPERSEDED, why=why)
    return Assessment(validity=Validity.INVALID, why="its plan is gone from the timeline")


def gather_evidence(table: Table, job: Job, decision: CommitDecision | None = None) -> Evidence:
    """Reads what `assess` needs; it is reliable only under the table lock. What cannot be read is unknown: an error."""
    seen = evidence_of_planned(table)
    timeline, has_plan = seen.timeline, table.storage.find(table.instant_path(job.requested)) is not None
    merged, oldest = ((), "") if decision is None else (decision.merged, decision.oldest)
    if not has_plan or not all(_counts(t, oldest, timeline) for t in merged):
        timeline = table.with_archive(timeline)
    clauses = job.clauses(table.with_timeline(timeline), decision) if decision is not None and has_plan else Clauses()
    return replace(seen, timeline=timeline, has_plan=has_plan, clauses=clauses)


def evidence_of_planned(table: Table) -> Evidence:
    """The evidence for any instant that has a plan and has merged nothing yet. Errors as `gather_evidence`."""
    refuse_half_upgraded(table)
    seen = table.with_timeline(table.load_timeline())
    rollbacks = pending_rollbacks(table)
    clustering = clustering_in_rollback(seen)
    reverting = frozenset[str]() if clustering is None else {clustering.requested_time}
    return Evidence(
        timeline=seen.timeline,
        has_plan=True,
        undone=frozenset(r.target for r in rollbacks if r.target is not None) | reverting,
        unreadable=tuple(r for r in rollbacks if isinstance(r, Torn)),
        allows_equal_times=not table.config.metadata_partitions,
    )


def validity_of(table: Table, decision: CommitDecision) -> Assessment:
    """The validity of a decision whose instant is not completed on the active timeline; the caller holds the lock."""
    instant = decided_instant(table, decision)
    seen = gather_evidence(table, job_of(table, decision), decision)
    return assess(instant, decision.merged, decision.oldest, seen)


def job_of(table: Table, decision: CommitDecision) -> Job:
    """The job that a decision ends. MalformedError: it names no completed commit."""
    from .clustering import Clustering  # imported here: `status` starts without them
    from .compaction import Compaction

    time, family = decision.instant, decided_instant(table, decision).family
    if family == "replacecommit":
        return Clustering(
            requested=Instant(requested_time=time, action=table.layout.pending_clustering, state=State.REQUESTED)
        )
    action = "logcompaction" if family == "deltacommit" else "compaction"
    return Compaction(requested=Instant(requested_time=time, action=action, state=State.REQUESTED))


def decided_instant(table: Table, decision: CommitDecision) -> Instant:
    """The completed instant that a decision names. MalformedError: not the name of an instant."""
    found = table.layout.parse(decision.completed_path.rpartition("/")[2])
    if found is None:
        raise MalformedError(
            "not the name of a completed commit", path=decision.completed_path, instant=decision.instant
        )
    return found


def refuse(table: Table, job: Job, assessment: Assessment) -> None:
    """ConflictError unless the decision is valid."""
    if assessment.validity is Validity.VALID:
        return
    raise ConflictError(
        f"this {job.name} cannot be published",
        path=table.storage.base_path,
        instant=job.requested.requested_time,
        found=assessment.why,
        todo=assessment.todo
        or {
            Validity.BLOCKED: "Wait until it has ended, then run again.",
            Validity.SUPERSEDED: "Nothing is left to do.",
        }.get(
            assessment.validity,
            f"Nothing of it is visible. If it is still pending, run again, or cancel it: {job.undo}.",
        ),
    )


def refuse_rollback(table: Table, instant: str) -> None:
    """ConflictError while a pending rollback names the instant, or may name it."""
    for rollback in pending_rollbacks(table):
        if isinstance(rollback, Torn):
            what, found, todo = "that may undo", _unreadable(rollback), rollback.todo
        elif rollback.target == instant:
            what, found = "of", f"rollback {rollback.instant}"
            todo = "Let Hudi finish the rollback (a compaction run of Hudi does so), then run again."
        else:
            continue
        raise ConflictError(
            f"a rollback {what} this compaction is pending",
            path=table.storage.base_path,
            instant=instant,
            found=found,
            todo=todo,
        )


def _unreadable(rollback: Torn) -> str:
    return f"the plan of a pending rollback cannot be read: {rollback.path}"


_log = get_logger()
