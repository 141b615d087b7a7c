"""The state of a table's pending compactions, and the reason for it: a function of what `snapshot` found.

The result is plain dicts, so that JSON and terminal tables show the same. The state of a pending compaction is the
first of these that applies:

    unknown       its records or its plan cannot be read
    decided       its commit decision is being published, or will be; `why` gives the reason. If no process works on it,
                  it may be parked or backing off instead
    invalid       its commit decision is invalid: the next run reverts it
    unscheduled   unscheduling is in progress (`cancelled`): its plan still exists, so it can be unscheduled again, or
                  is executed after all
    waiting       a phantombase process has staged it, and waits for writes that began before it
    running       a process holds its claim, or a phantombase process refreshes its heartbeat
    foreign       a Hudi executor may work on it
    parked        it failed too often, or in a way that a retry cannot fix, and waits for `release`
    backing off   it failed, and is tried again later
    waiting       no process works on it. `unknown` instead, if ZooKeeper was asked for claims and did not answer, or if
                  it cannot be read whether the compaction may be decided

`validity` of a decided compaction: see `validity`. `revoked_why`: why its last decision was revoked. Sizes are in
bytes, times in seconds before now; what is unknown or does not apply is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.commit_metadata import LEDGER, CommitMetadata
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.reserved_times import CANCELLED, COMMITTED
from phantombase.timeline.locks.heartbeat import Heartbeat, is_live
from phantombase.timeline.terminal.text_table import Row, moment

from ..attempt.failures import Failure, Parked, Readiness, RetryOptions, Waits, WorkNote, readiness
from ..attempt.hudi_executors import ForeignTrace
from ..attempt.validity import Assessment, Validity
from ..fleet.claims import Claim
from ..options import AttemptOptions
from ..services.last_run import LastRun
from ..services.options import Service
from .coexistence import Finding
from .snapshot import Claimed, InstantSnapshot, TableSnapshot

INVALID = "invalid"
_PUBLISHED_NEXT = "its decision is valid: the next run publishes it"


def of_decision(assessment: Assessment | PhantombaseError, *, is_worked_on: bool) -> tuple[str, str | None]:
    """State and reason of a decided instant."""
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


class Clock:
    """One point in time: `now_ms` since the epoch, and `now` in the zone of the table's instants."""

    def __init__(self, now_ms: int, now: datetime) -> None:
        self.now_ms = now_ms
        self._now = now.replace(tzinfo=None)

    def since(self, ms: int | None) -> float | None:
        """Seconds since a time in milliseconds since the epoch."""
        return None if ms is None else round((self.now_ms - ms) / 1000, 3)

    def age(self, instant: str) -> float | None:
        """Seconds since an instant; None if its name is no time."""
        then = moment(instant)
        return None if then is None else round((self._now - then).total_seconds(), 3)


def status_report(
    seen: TableSnapshot,
    clock: Clock,
    *,
    slo_s: float | None = None,
    attempt: AttemptOptions | None = None,
    retry: RetryOptions | None = None,
    findings: Sequence[Finding] = (),
) -> Row:
    """The complete report. `findings`: of `coexistence`. `slo_s`: a compaction pending for longer is overdue."""
    attempt, retry = attempt or AttemptOptions(), retry or RetryOptions()
    pending = [
        {"action": seen.actions[i], **_pending_row(i, one, seen.claims, clock, slo_s, attempt, retry)}
        for i, one in seen.pending.items()
    ]
    unknown = isinstance(seen.claims, PhantombaseError)
    return {
        "table": seen.path,
        "claims": "not asked" if seen.claims is None else "unknown" if unknown else "known",
        "claims_problem": str(seen.claims) if unknown else None,
        "slo_s": slo_s,
        "overdue": sum(bool(row["overdue"]) for row in pending),
        "pending": pending,
        "writes": [_write_row(i, beat, pending, clock) for i, beat in seen.writes],
        "in_progress": [_in_progress_row(i, finishes, clock) for i, finishes in seen.in_progress],
        "services": [_service_row(service, run, clock) for service, run in seen.services.items()],
        "recent": [_recent_row(i, metadata) for i, metadata in seen.recent],
        "last_success": _last_success(seen, clock),
        "coexistence": [{**asdict(f), "severity": f.severity.name.lower()} for f in findings],
    }


def _in_progress_row(instant: Instant, finishes: str, clock: Clock) -> Row:
    return {
        "instant": instant.requested_time,
        "action": instant.action,
        "age_s": clock.age(instant.requested_time),
        "todo": finishes,
    }


def _service_row(service: Service, run: LastRun, clock: Clock) -> Row:
    return {
        "service": service.value,
        "ago_s": clock.since(run.at_ms),
        "by": run.who,
        "what": run.what,
        "failed": run.failed,
    }


def claim_rows(table: str, claims: Mapping[str, Claim], clock: Clock) -> list[Row]:
    """The holders of a table's claims by instant, earliest first."""
    return [{"table": table, "instant": instant, **_of_claim(claims[instant], clock)} for instant in sorted(claims)]


def work_rows(seen: TableSnapshot, clock: Clock) -> list[Row]:
    """The processes that work on a table's instants, by heartbeats; raises the first error among the instants."""
    rows = []
    for instant, one in seen.pending.items():
        if isinstance(one, PhantombaseError):
            raise one
        work = _of_heartbeat(one.heartbeat, clock, AttemptOptions())
        if work is not None:
            rows.append({"table": seen.path, "instant": instant, **work})
    return rows


# --- pending compactions -----------------------------------------------------------------------------------------


def _pending_row(
    instant: str,
    seen: InstantSnapshot | PhantombaseError,
    claims: Claimed,
    clock: Clock,
    slo_s: float | None,
    attempt: AttemptOptions,
    retry: RetryOptions,
) -> Row:
    claim = claims.get(instant) if isinstance(claims, Mapping) else None
    age = clock.age(instant)
    row: Row = {
        "instant": instant,
        "age_s": age,
        "overdue": False if slo_s is None else None if age is None else age > slo_s,
        "file_groups": None,
        "input_bytes": None,
        "state": "unknown",
        "why": None,
        "validity": None,
        "revoked_why": None,
        "work": _of_claim(claim, clock) if claim is not None else None,
        "failures": None,
        "foreign": None,
        "attempts": None,
        "problem": None,
    }
    if isinstance(seen, PhantombaseError):
        return {**row, "problem": str(seen)}
    row["file_groups"] = seen.file_groups
    if isinstance(seen.input_bytes, PhantombaseError):
        row["problem"] = str(seen.input_bytes)
    else:
        row["input_bytes"] = seen.input_bytes
    if isinstance(seen.assessment, PhantombaseError):
        row["problem"] = str(seen.assessment)
    if isinstance(seen.outcomes, PhantombaseError):
        row["problem"] = str(seen.outcomes)
    else:
        row["attempts"] = len(seen.outcomes)
        if COMMITTED in seen.outcomes.values() and not isinstance(seen.assessment, PhantombaseError):
            row["validity"] = seen.assessment.validity.value
    row["revoked_why"] = seen.revoked_why
    row["work"] = row["work"] or _of_heartbeat(seen.heartbeat, clock, attempt)
    row["failures"] = _failures(seen, clock, retry)
    row["foreign"] = _foreign(seen.trace, clock, attempt)
    note = WorkNote.from_note(seen.heartbeat.note) if seen.heartbeat is not None else None
    is_waiting = note is not None and note.waiting > 0
    state, why = _state(row, seen, isinstance(claims, PhantombaseError), is_waiting, clock, retry)
    return {**row, "state": state, "why": why}


def _state(
    row: Row, seen: InstantSnapshot, claims_unknown: bool, is_waiting: bool, clock: Clock, retry: RetryOptions
) -> tuple[str, str | None]:
    now = readiness(seen.failures, clock.now_ms, retry)
    if isinstance(seen.outcomes, PhantombaseError):
        return "unknown", "whether it is decided cannot be read"
    if COMMITTED in seen.outcomes.values():
        return _of_decided(row, seen, now)
    if seen.outcomes and seen.outcomes[max(seen.outcomes)] == CANCELLED:
        return "unscheduled", "unscheduling was not finished: run it again, or the next run executes the plan"
    if row["work"]:
        return ("waiting", _WAITS_FOR_WRITES) if is_waiting else ("running", None)
    if row["foreign"] and row["foreign"]["live"]:
        return "foreign", "a Hudi executor may work on it"
    if isinstance(now, Parked):
        return "parked", now.reason
    if isinstance(now, Waits):
        return "backing off", _words(seen.failures[-1])
    if claims_unknown:
        return "unknown", "no heartbeat; whether a daemon holds its claim is unknown"
    return of_undecided(seen.assessment) or ("waiting", _left_by_others(row, seen))


def _of_decided(row: Row, seen: InstantSnapshot, now: Readiness) -> tuple[str, str | None]:
    if not row["work"] and isinstance(now, Parked):
        return "parked", of_parked_decision(now.reason, seen.assessment)
    if not row["work"] and isinstance(now, Waits):
        return "backing off", of_parked_decision(_words(seen.failures[-1]), seen.assessment)
    return of_decision(seen.assessment, is_worked_on=bool(row["work"]))


def _left_by_others(row: Row, seen: InstantSnapshot) -> str | None:
    """What earlier processes have left at a waiting instant."""
    beat = seen.heartbeat
    if row["foreign"]:
        return "a Hudi executor left it unfinished; the next run takes it over"
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


def _of_claim(claim: Claim, clock: Clock) -> Row:
    return {
        "source": "zookeeper",
        "holder": claim.holder,
        "host": claim.host,
        "pid": claim.pid,
        "attempt": claim.attempt,
        "for_s": clock.since(claim.since_ms or None),
        "done": claim.done,
        "total": claim.total,
        "input_bytes": claim.input_bytes,
        "beat_s": None,
    }


def _of_heartbeat(beat: Heartbeat | None, clock: Clock, options: AttemptOptions) -> Row | None:
    if beat is None or not beat.ours or not is_live(beat, clock.now_ms, options.heartbeat_expiry_s):
        return None
    note, owner = WorkNote.from_note(beat.note), beat.owner
    return {
        "source": "heartbeat",
        "holder": None,
        "host": owner.host if owner is not None else None,
        "pid": owner.pid if owner is not None else None,
        "attempt": note.attempt if note is not None else None,
        "for_s": clock.since(note.since_ms) if note is not None else None,
        "done": note.done if note is not None else None,
        "total": note.total if note is not None else None,
        "input_bytes": note.bytes if note is not None else None,
        "beat_s": clock.since(beat.beat_ms),
    }


def _failures(seen: InstantSnapshot, clock: Clock, retry: RetryOptions) -> Row | None:
    if not seen.failures:
        return None
    last, now = seen.failures[-1], readiness(seen.failures, clock.now_ms, retry)
    return {
        "count": len(seen.failures),
        "error": last.error,
        "what": last.what,
        "who": last.who or None,
        "last_s": clock.since(last.at_ms or None),
        "next_try_s": round((now.until_ms - clock.now_ms) / 1000, 3) if isinstance(now, Waits) else None,
    }


def _foreign(trace: ForeignTrace, clock: Clock, options: AttemptOptions) -> Row | None:
    if trace.inflight_ms is None and trace.heartbeat_ms is None:
        return None
    return {
        "live": trace.is_live(clock.now_ms, options),
        "inflight_s": clock.since(trace.inflight_ms),
        "heartbeat_s": clock.since(trace.heartbeat_ms),
        "silent_s": clock.since(max(t for t in (trace.youngest_ms, trace.heartbeat_ms) if t is not None)),
    }


# --- writes that compactions wait for ----------------------------------------------------------------------------


def _write_row(instant: Instant, beat: Heartbeat | None, pending: list[Row], clock: Clock) -> Row:
    """A row of a pending write. `alive` is None if the writer has no heartbeat, as many Hudi writers."""
    age = clock.age(instant.requested_time)
    return {
        "instant": instant.requested_time,
        "state": instant.state.name.lower(),
        "age_s": age,
        "alive": None if beat is None else is_live(beat, clock.now_ms),
        "heartbeat_s": clock.since(beat.beat_ms) if beat is not None else None,
        "host": beat.owner.host if beat is not None and beat.owner is not None else None,
        "pid": beat.owner.pid if beat is not None and beat.owner is not None else None,
        "holds": [row["instant"] for row in pending if _holds(age, row)],
    }


def _holds(age_s: float | None, row: Mapping[str, Any]) -> bool:
    """Whether a compaction cannot be decided before a write has ended: the write was pending when the attempt began.

    A future attempt will wait for all writes that are pending when it begins.
    """
    if row["validity"] not in (None, Validity.INVALID.value):
        return False
    began = row["work"]["for_s"] if row["work"] else None
    return began is None or age_s is None or age_s >= began


# --- done --------------------------------------------------------------------------------------------------------


def _last_success(seen: TableSnapshot, clock: Clock) -> Row | None:
    """The newest completed compaction; on version 6 its age is that of its request."""
    if not seen.recent:
        return None
    instant, _ = seen.recent[0]
    return {"instant": instant.requested_time, "ago_s": clock.age(instant.completion_time or instant.requested_time)}


def _recent_row(instant: Instant, metadata: CommitMetadata | PhantombaseError) -> Row:
    row: Row = {"instant": instant.requested_time, "completion_time": instant.completion_time}
    if isinstance(metadata, PhantombaseError):
        return {**row, "by": None, "file_groups": None, "rows": None, "bytes_written": None, "problem": str(metadata)}
    stats = [s for part in metadata.partition_to_write_stats.values() for s in part]
    return {
        **row,
        "by": "phantombase" if LEDGER in metadata.extra_metadata else "hudi",
        "file_groups": len(stats),
        "rows": sum(s.num_writes for s in stats),
        "bytes_written": sum(s.file_size_in_bytes for s in stats),
        "problem": None,
    }
