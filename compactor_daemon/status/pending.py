"""The state of a table's pending compactions and clusterings, and the reason: a function of what `snapshot` found.

The report is the daemon's part of the report of a table (`timeline.dashboard`). The state of a pending compaction is
the first of these that applies:

    unknown       its records or its plan cannot be read
    decided       its commit decision is being published, or will be; `why` gives the reason. If no process works on it,
                  it may be parked or backing off instead
    invalid       its commit decision is invalid: the next run reverts it
    unscheduled   unscheduling is in progress (`cancelled`): its plan still exists, so it can be unscheduled again, or
                  is executed after all
    waiting       a phantombase process has staged it, and waits for writes that began before it
    running       a process holds its claim, or a phantombase process refreshes its heartbeat
    foreign       a Hudi executor may work on it; Hudi has begun to execute a clustering
    parked        it failed too often, or in a way that a retry cannot fix, and waits for `release`
    backing off   it failed, and is tried again later
    waiting       no process works on it. `unknown` instead, if ZooKeeper was asked for claims and did not answer, or if
                  it cannot be read whether the compaction may be decided

`validity` of a decided compaction: see `validity`. `revoked_why`: why its last decision was revoked. Sizes are in
bytes, times in seconds before now; what is unknown or does not apply is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from phantombase.timeline.dashboard.overview import FLAT, Clock, is_late
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.reserved_times import CANCELLED, COMMITTED, staged_files
from phantombase.timeline.locks.heartbeat import Heartbeat, is_live
from phantombase.timeline.option import check_least, spelled_class
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.text_table import Row

from ..attempt.failures import CLUSTERING, Failure, Parked, Readiness, RetryOptions, Waits, WorkNote, readiness
from ..attempt.hudi_executors import ForeignTrace
from ..attempt.outcome import OK
from ..attempt.validity import Assessment, Validity
from ..fleet.claims import Claim
from ..options import AttemptOptions
from .snapshot import InstantSnapshot, PlanOwner

Claimed: TypeAlias = Mapping[str, Claim] | PhantombaseError | None
"""The claims on a table by instant; None if ZooKeeper was not asked, an error if it did not answer."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """`slo_s`: a compaction pending for longer is overdue. `attempt`, `retry`: of the daemons. `recent`: the most to
    show."""

    slo_s: float | None = None
    attempt: AttemptOptions = AttemptOptions()
    retry: RetryOptions = RetryOptions()
    recent: int = 0

    def __post_init__(self) -> None:
        check_least(self, {"slo_s": 0, "recent": 0})


_OPTIONS = StatusOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Shown):
    """The process that works on a compaction, by its claim in ZooKeeper or its heartbeat. `for_s`: since it began."""

    source: str
    holder: str | None = None
    host: str | None = None
    pid: int | None = None
    attempt: int | None = None
    for_s: float | None = None
    done: int | None = None
    total: int | None = None
    input_bytes: int | None = None
    beat_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    table: str
    instant: str
    work: Work = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTries(Shown):
    """The failures of a compaction, and what is known of the last one."""

    count: int
    error: str
    what: str
    who: str | None
    last_s: float | None
    next_try_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWork(Shown):
    """What a Hudi executor left. `silent_s`: since its last sign."""

    live: bool
    inflight_s: float | None
    heartbeat_s: float | None
    silent_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCompaction(Shown):
    action: str
    instant: str
    age_s: float | None
    overdue: bool | None
    file_groups: int | None = None
    input_bytes: int | None = None
    state: str = "unknown"
    why: str | None = None
    validity: Validity | None = None
    revoked_why: str | None = None
    work: Work | None = None
    failures: FailedTries | None = None
    foreign: ForeignWork | None = None
    attempts: int | None = None
    problem: PhantombaseError | None = None


INVALID = "invalid"
_PUBLISHED_NEXT = "its decision is valid: the next run publishes it"


def of_decision(assessment: Assessment | PhantombaseError, *, is_worked_on: bool) -> tuple[str, str | None]:
    if isinstance(assessment, PhantombaseError):
        return "unknown", "whether its decision is valid is unknown"
    if assessment.validity is Validity.VALID:
        return "decided", None if is_worked_on else _PUBLISHED_NEXT
    if assessment.validity is Validity.INVALID:
        return INVALID, f"{assessment.why}: the next run reverts it"
    if assessment.validity is Validity.SUPERSEDED:
        return "decided", f"{assessment.why}: nothing is left to do"
    return "decided", _waits(assessment)


def of_parked_decision(reason: str, assessment: Assessment | PhantombaseError) -> str:
    """Why a decided instant is parked, or not tried yet."""
    if not isinstance(assessment, PhantombaseError) and assessment.validity is Validity.VALID:
        return f"{reason}; it is decided, and its decision is valid"
    _, why = of_decision(assessment, is_worked_on=False)
    return f"{reason}; it is decided: {why}"


def of_undecided(assessment: Assessment | PhantombaseError) -> tuple[str, str] | None:
    """State and reason of an instant that no process works on, if it could not be decided now."""
    if isinstance(assessment, PhantombaseError):
        return "unknown", "whether it may be decided is unknown"
    return None if assessment.validity is Validity.VALID else ("waiting", _waits(assessment))


def _waits(assessment: Assessment) -> str:
    return f"waits: {assessment.why}" + (f". {assessment.todo}" if assessment.todo else "")


_WAITS_FOR_WRITES = "waits for writes that began before it (see writes); a dead one must be rolled back"


def pending_compaction(
    instant: Instant, seen: InstantSnapshot | PhantombaseError, claims: Claimed, clock: Clock, options: StatusOptions
) -> PendingCompaction:
    """The state of a pending compaction (pure). `seen`: an error if it cannot be read."""
    claim = claims.get(instant.requested_time) if isinstance(claims, Mapping) else None
    age_s = clock.age(instant.requested_time)
    found = PendingCompaction(
        action="clustering" if instant.family == "replacecommit" else instant.action,
        instant=instant.requested_time,
        age_s=age_s,
        overdue=is_late(age_s, options.slo_s),
        work=of_claim(claim, clock) if claim is not None else None,
    )
    if isinstance(seen, PhantombaseError):
        return replace(found, problem=seen)
    unread = (one for one in (seen.outcomes, seen.assessment, seen.input_bytes) if isinstance(one, PhantombaseError))
    decided = not isinstance(seen.outcomes, PhantombaseError) and COMMITTED in seen.outcomes.values()
    found = replace(
        found,
        file_groups=seen.file_groups,
        input_bytes=None if isinstance(seen.input_bytes, PhantombaseError) else seen.input_bytes,
        validity=seen.assessment.validity if decided and isinstance(seen.assessment, Assessment) else None,
        revoked_why=seen.revoked_why,
        work=found.work or _of_heartbeat(seen.heartbeat, clock, options.attempt),
        failures=_failures(seen.failures, clock, options.retry),
        foreign=_foreign(seen.trace, clock, options.attempt),
        attempts=None if isinstance(seen.outcomes, PhantombaseError) else len(seen.outcomes),
        problem=next(unread, None),
    )
    state, why = _state(found, seen, isinstance(claims, PhantombaseError), clock, options.retry)
    return replace(found, state=state, why=why)


def _state(
    found: PendingCompaction, seen: InstantSnapshot, claims_unknown: bool, clock: Clock, retry: RetryOptions
) -> tuple[str, str | None]:
    now = readiness(seen.failures, clock.now_ms, retry)
    if isinstance(seen.outcomes, PhantombaseError):
        return "unknown", "whether it is decided cannot be read"
    if COMMITTED in seen.outcomes.values():
        return _of_decided(found, seen, now)
    if seen.outcomes and seen.outcomes[max(seen.outcomes)] == CANCELLED:
        return "unscheduled", "unscheduling was not finished: run it again, or the next run executes the plan"
    if found.work:
        note = WorkNote.from_note(seen.heartbeat.note) if seen.heartbeat is not None else None
        if seen.cancelled is not None:
            return "running", f"its work was cancelled {seen.cancelled}; its process stops at its next check"
        return ("waiting", _WAITS_FOR_WRITES) if note is not None and note.waiting > 0 else ("running", None)
    if seen.clustering is PlanOwner.HUDI_AT_WORK:
        return "foreign", "Hudi executes it; if its process is dead, Hudi's next clustering does"
    if found.foreign and found.foreign.live:
        return "foreign", "a Hudi executor may work on it"
    if isinstance(now, Parked):
        return "parked", now.reason
    if isinstance(now, Waits):
        return "backing off", _words(seen.failures[-1])
    if claims_unknown:
        return "unknown", "no heartbeat; whether a daemon holds its claim is unknown"
    return of_undecided(seen.assessment) or ("waiting", _left_by_others(found, seen) or _waits_for(seen.clustering))


def _waits_for(clustering: PlanOwner | None) -> str | None:
    if clustering is PlanOwner.HUDI:
        return "a plan of Hudi: a daemon, `compactor-daemon cluster`, or Hudi's next clustering executes it"
    return None if clustering is None else "its process has ended: the next write, or run, ends it"


def planned_by_daemons(
    failures: tuple[Failure, ...], claims: Claimed, clock: Clock, retry: RetryOptions
) -> PendingCompaction | None:
    """The clusterings of a table that daemons plan: in place of an instant, while one works on them, or they wait after
    failures. None: neither is known."""
    claim = claims.get(CLUSTERING) if isinstance(claims, Mapping) else None
    now = readiness(failures, clock.now_ms, retry)
    if claim is None and not failures:
        return None
    state, why = "running", None
    if claim is None:
        state = {Parked: "parked", Waits: "backing off"}.get(type(now), "waiting")
        why = _words(failures[-1])
    return PendingCompaction(
        action="clustering",
        instant=CLUSTERING,
        age_s=None,
        overdue=None,
        state=state,
        why=why,
        work=None if claim is None else of_claim(claim, clock),
        failures=_failures(failures, clock, retry),
    )


def _of_decided(found: PendingCompaction, seen: InstantSnapshot, now: Readiness) -> tuple[str, str | None]:
    if not found.work and isinstance(now, Parked):
        return "parked", of_parked_decision(now.reason, seen.assessment)
    if not found.work and isinstance(now, Waits):
        return "backing off", of_parked_decision(_words(seen.failures[-1]), seen.assessment)
    return of_decision(seen.assessment, is_worked_on=bool(found.work))


def _left_by_others(found: PendingCompaction, seen: InstantSnapshot) -> str | None:
    """What earlier processes have left at a waiting instant."""
    beat = seen.heartbeat
    if found.foreign:
        return "a Hudi executor left it unfinished; the next run takes it over"
    if seen.cancelled is not None:  # nothing of it is adopted
        return f"its work was cancelled {seen.cancelled}; the next run executes the plan"
    if beat is not None and beat.owner is not None:
        end = "has ended" if beat.owner_gone else "is silent"
        return f"process {beat.owner.pid} on {beat.owner.host} {end}; the next run adopts what it finished"
    if seen.failures:
        return f"failed {len(seen.failures)} times so far, last with {_words(seen.failures[-1])}"
    if seen.revoked_why is not None:
        return f"its decision was revoked: {seen.revoked_why}; the next run executes the plan again"
    if not isinstance(seen.outcomes, PhantombaseError) and None in seen.outcomes.values():
        return "an attempt was left unfinished; the next run adopts what it finished"
    return None


def _words(failure: Failure) -> str:
    return f"{failure.error}: {failure.what}"


def of_claim(claim: Claim, clock: Clock) -> Work:
    return Work(
        source="zookeeper",
        holder=claim.holder,
        host=claim.host,
        pid=claim.pid,
        attempt=claim.attempt,
        for_s=clock.since(claim.since_ms or None),
        done=claim.done,
        total=claim.total,
        input_bytes=claim.input_bytes,
    )


def _of_heartbeat(beat: Heartbeat | None, clock: Clock, options: AttemptOptions) -> Work | None:
    if beat is None or not beat.ours or not is_live(beat, clock.now_ms, options.heartbeat_expiry_s):
        return None
    note, work = WorkNote.from_note(beat.note), Work(source="heartbeat", beat_s=clock.since(beat.beat_ms))
    if beat.owner is not None:
        work = replace(work, host=beat.owner.host, pid=beat.owner.pid)
    if note is None:
        return work
    for_s = clock.since(note.since_ms)
    return replace(work, attempt=note.attempt, for_s=for_s, done=note.done, total=note.total, input_bytes=note.bytes)


def _failures(failures: tuple[Failure, ...], clock: Clock, retry: RetryOptions) -> FailedTries | None:
    if not failures:
        return None
    last, now = failures[-1], readiness(failures, clock.now_ms, retry)
    return FailedTries(
        count=len(failures),
        error=last.error,
        what=last.what,
        who=last.who or None,
        last_s=clock.since(last.at_ms or None),
        next_try_s=round((now.until_ms - clock.now_ms) / 1000, 3) if isinstance(now, Waits) else None,
    )


def _foreign(trace: ForeignTrace, clock: Clock, options: AttemptOptions) -> ForeignWork | None:
    if trace.inflight_ms is None and trace.heartbeat_ms is None:
        return None
    return ForeignWork(
        live=trace.is_live(clock.now_ms, options),
        inflight_s=clock.since(trace.inflight_ms),
        heartbeat_s=clock.since(trace.heartbeat_ms),
        silent_s=clock.since(max(t for t in (trace.youngest_ms, trace.heartbeat_ms) if t is not None)),
    )


_SLICES_SHOWN = 3


def largest_unfinished(table: Table, pending: Row) -> list[Row] | None:
    """The few unfinished file slices of a running compaction with most log bytes: an attempt without visible progress
    may work on these. None: it does not run, has just ended, or cannot be read."""
    if pending["state"] != "running":
        return None
    try:
        staged = staged_files(table.storage, pending["instant"], (OK,))
        operations = table.compaction_plan(pending["instant"]).operations
    except PhantombaseError:
        return None
    done = {path.rpartition("/")[2].removesuffix(OK) for path in staged}
    left = [(o.log_bytes or 0.0, o) for position, o in enumerate(operations) if str(position) not in done]
    largest = sorted(left, key=lambda one: -one[0])[:_SLICES_SHOWN]
    return [{"partition": o.partition_path, "file_id": o.file_id, "log_bytes": round(size)} for size, o in largest]
