"""The records that attempts at a compaction or clustering leave in storage.

    .hoodie/.phantombase/<C>/<e>/open                          which process opened attempt e, and when
    .hoodie/.phantombase/<C>/<e>/<position>-<random>.parquet   a staged base file; .log: a staged log file
    .hoodie/.phantombase/<C>/<e>/<position>.ok                 a finished file slice (`slice_task`)
    .hoodie/.phantombase/<C>/<e>/outcome                       written once: dead, cancelled or commit
    .hoodie/.phantombase/<C>/<e>/replaced.plan                 the plan of C, while `replan` replaces it
    .hoodie/.phantombase/<C>/<e>/revoked                       the commit decision is invalid, and why (`validity`)

Each record is one put-if-absent object with a nonce: after a put with an unknown result, the record is read back.
The records lie outside Hudi's own `.hoodie/.temp/<C>`: a foreign file there makes Hudi's rollback plan empty."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import AttemptDeadError, ConflictError, MalformedError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.reserved_times import (
    CANCELLED,
    COMMITTED,
    DEAD,
    STAGED_DATA,
    attempt_folder,
    attempts,
    outcome_path,
    staged_files,
)
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import join
from phantombase.timeline.view.view import GroupKey

from ..options import output_from_json, output_to_json

_log = get_logger()

OPEN, REVOKED, OK = "open", "revoked", ".ok"
_BY_PERSON = "cancelled_by"
"""The field of a `dead` outcome that a person asked for; earlier releases take it for any other one."""
_REPLACED = "replaced.plan"
STAGED_ENDINGS = (*STAGED_DATA, OK, _REPLACED)
"""The endings of the names of staged files and their records."""


_OUTCOME_TODO = (
    "It may say that the compaction is decided, so no new attempt decides. If a later release wrote it, let that "
    "release continue. Otherwise stop all compactors that work on this compaction, then run: "
    "compactor-daemon release TABLE INSTANT --unreadable"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A staged file, the final name it gets, and its size in bytes. Paths are relative to the table base. `output`: the
    options that the file was written with; they give the same file again. None: unknown."""

    staged: str
    final: str
    size: int
    output: OutputOptions | None = None

    def to_json(self) -> dict[str, Any]:
        """As stored in a decision."""
        return {"staged": self.staged, "final": self.final, "size": self.size, "output": output_to_json(self.output)}

    @staticmethod
    def of(fields: Fields) -> Placement:
        """The placement in a record; MalformedError."""
        return fields.of(Placement, output=output_from_json(fields.values.get("output")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedGroup:
    """A file group that a clustering replaces. `files`: the names of the files of the slice that was read; `bytes`: of
    all of them."""

    partition: str
    file_id: str
    files: tuple[str, ...]
    bytes: int

    @property
    def key(self) -> GroupKey:
        return self.partition, self.file_id

    def path(self, name: str) -> str:
        return join(self.partition, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """Everything that follows from the decision: publishing is a pure function of this record.

    `completed_path` is the completed timeline file (from version 8 on with the completion time in its name), `content`
    its bytes. `table_version`: the version under which the decision was made. `merged`: instants of the merged writes.
    `oldest`: the start of the active timeline at the decision. `passed`: file groups (partition/file id) that were left
    out because they were replaced (version 6). `replaced`: those that a clustering replaces; none: a compaction.
    `skipped`: writes whose log blocks a clustering left out, since they had not completed."""

    instant: str
    attempt: int
    nonce: str
    table_version: int
    completion_time: str | None
    completed_path: str
    content: bytes
    placements: tuple[Placement, ...] = field(default=())
    merged: tuple[str, ...] = ()
    oldest: str = ""
    passed: tuple[str, ...] = ()
    replaced: tuple[ReplacedGroup, ...] = ()
    skipped: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        plain = asdict(replace(self, placements=()))
        content, placements = base64.b64encode(self.content).decode(), [p.to_json() for p in self.placements]
        return dump({"outcome": COMMITTED, **plain, "content": content, "placements": placements})

    @staticmethod
    def of(fields: Fields) -> CommitDecision:
        """Inverse of `to_json`; unknown fields are ignored. MalformedError names the file."""
        return fields.of(CommitDecision, placements=tuple(map(Placement.of, fields.records("placements"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended: `dead`, `cancelled` (unscheduled) or `commit`. `nonce`: of the process that wrote it.
    `cancelled`: by whom and why the work was, if a person did so; the plan stays."""

    kind: str
    nonce: str
    decision: CommitDecision | None = None
    cancelled: str | None = None


def read_outcome(storage: Storage, instant: str, attempt: int) -> Outcome | None:
    """An attempt's outcome, None while it is open. MalformedError: unreadable, or unknown to this release."""
    path = outcome_path(instant, attempt)
    return None if storage.find(path) is None else _outcome(storage, path)


def _outcome(storage: Storage, path: str) -> Outcome:
    fields = Fields.parse(storage.read(path), path, "unreadable outcome of an attempt", _OUTCOME_TODO)
    kind, nonce = fields.text("outcome"), fields.text("nonce")
    if kind not in (DEAD, CANCELLED, COMMITTED):
        raise fields.malformed(f"outcome: {DEAD}, {CANCELLED} or {COMMITTED}", repr(kind))
    return Outcome(
        kind=kind,
        nonce=nonce,
        decision=CommitDecision.of(fields) if kind == COMMITTED else None,
        cancelled=fields.text_or_none(_BY_PERSON) if kind == DEAD and _BY_PERSON in fields.values else None,
    )


def refuse_ended(storage: Storage, instant: str, attempt: int) -> None:
    """AttemptDeadError: another process has ended the attempt. One request, also to an object store."""
    path = outcome_path(instant, attempt)
    with suppress(MissingFileError):
        raise attempt_dead(instant, attempt, _outcome(storage, path))


def read_outcomes(storage: Storage, instant: str) -> dict[int, Outcome | None]:
    """The outcomes of all attempts, by number. MalformedError: the outcome of the last attempt cannot be read. An
    earlier attempt whose outcome cannot be read counts as dead: otherwise no attempt would have been opened after it.
    An unreadable outcome that was revoked counts as dead too."""
    found: dict[int, Outcome | None] = {}
    numbers = attempts(storage, instant)
    for number in numbers:
        try:
            found[number] = read_outcome(storage, instant, number)
        except MalformedError as error:
            if number == numbers[-1] and not is_revoked(storage, instant, number):
                raise
            _log.warning("outcome_unreadable", instant=instant, attempt=number, error=str(error))
            found[number] = Outcome(kind=DEAD, nonce="")
    return found


def write_outcome(storage: Storage, instant: str, attempt: int, record: bytes, nonce: str) -> None:
    """Writes an attempt's outcome. AttemptDeadError: it has another outcome already. After a call that failed, the
    record is read back."""
    path = outcome_path(instant, attempt)
    try:
        if storage.put_if_absent(path, record):
            return
    except Exception:
        outcome = read_outcome(storage, instant, attempt)
        if outcome is None or outcome.nonce != nonce:
            raise
        return
    outcome = read_outcome(storage, instant, attempt)
    if outcome is None or outcome.nonce != nonce:
        raise attempt_dead(instant, attempt, outcome)


def attempt_dead(instant: str, attempt: int, outcome: Outcome | None) -> AttemptDeadError:
    """The error of an attempt whose outcome another process wrote."""
    if outcome is not None and outcome.cancelled is not None:
        return AttemptDeadError(
            "this work was cancelled",
            instant=instant,
            found=outcome.cancelled,
            todo="Nothing of it was published, and the plan stays requested: to execute it, run again.",
        )
    return AttemptDeadError(
        "another process wrote the outcome of this attempt",
        path=outcome_path(instant, attempt),
        instant=instant,
        found=outcome.kind if outcome else "nothing",
        todo="This attempt published nothing. Run again: the next attempt adopts its finished file slices.",
    )


def dead_record(nonce: str, by: str) -> bytes:
    """The record that declares an attempt dead."""
    return dump({"outcome": DEAD, "nonce": nonce, "by": by})


def cancelled_record(nonce: str, by: str) -> bytes:
    """The record of an attempt that only serves to unschedule its instant."""
    return dump({"outcome": CANCELLED, "nonce": nonce, "by": by})


def leave_replaced(storage: Storage, instant: str, attempt: int, plan: bytes) -> None:
    """Records that the plan is about to be removed, and another one to hold its file groups."""
    storage.put_if_absent(f"{attempt_folder(instant, attempt)}/{_REPLACED}", plan)


def replaced_groups(storage: Storage, instant: str) -> frozenset[GroupKey]:
    """The file groups of a plan whose replacement has not ended. MalformedError: its record cannot be read."""
    from phantombase.timeline.format.compaction_plan import decode_plan  # late: `status` starts without pyarrow

    paths = staged_files(storage, instant, (_REPLACED,))
    try:
        return frozenset(group for path in paths for group in decode_plan(storage.read(path), path).groups)
    except MalformedError as error:
        todo = "Remove this file: `compactor-daemon schedule TABLE` plans its file groups, with all others."
        raise error.advising(todo) from error


def declare_dead(storage: Storage, instant: str, by: str) -> list[int]:
    """Gives every attempt without an outcome the outcome `dead`; returns their numbers."""
    undecided = [number for number, outcome in read_outcomes(storage, instant).items() if outcome is None]
    for number in undecided:
        nonce = uuid.uuid4().hex
        write_outcome(storage, instant, number, dead_record(nonce, by), nonce)
    return undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledWork(Shown):
    """`attempts`: those that were ended. `decided`: the instant has a commit decision, which stays."""

    attempts: tuple[int, ...]
    decided: bool


def cancel_work(storage: Storage, instant: str, by: str, *, dry_run: bool = False) -> CancelledWork:
    """Ends the attempts at an instant that have not decided, and removes what they staged; the plan stays. `by`: who
    and why. The outcome of an attempt is put once, so either the attempt decides or this cancels it, and no later
    attempt is concerned. Its process finds out at its next check, at the latest when it wants to decide."""
    open_ = [number for number, outcome in read_outcomes(storage, instant).items() if outcome is None]
    ended = list[int]()
    for number in open_:
        nonce = uuid.uuid4().hex
        with suppress(AttemptDeadError):  # decided, or declared dead, since then
            if not dry_run:
                record = {"outcome": DEAD, "nonce": nonce, "by": by, _BY_PERSON: by}
                write_outcome(storage, instant, number, dump(record), nonce)
                remove_attempt(storage, instant, number)
            ended.append(number)
    return CancelledWork(attempts=tuple(ended), decided=find_decision(storage, instant) is not None)


def remove_attempt(storage: Storage, instant: str, number: int) -> None:
    """Removes what a cancelled attempt has staged: no other attempt adopts it."""
    folder = attempt_folder(instant, number)
    names = [e.name for e in listed_if_there(storage, folder) or () if e.name.endswith(STAGED_ENDINGS)]
    storage.delete_all([f"{folder}/{name}" for name in names])


def open_next(storage: Storage, instant: str, who: str) -> int:
    """Opens the next attempt; returns its number. ConflictError: an earlier one is undecided or has a commit decision
    that is not revoked, or another process just opened the same one. An earlier `cancelled` is ignored: the plan still
    exists, so the process that wrote it died before it removed the plan."""
    earlier = read_outcomes(storage, instant)
    for number, outcome in earlier.items():
        if outcome is None or (outcome.kind == COMMITTED and not is_revoked(storage, instant, number)):
            raise ConflictError(
                "the instant is decided already"
                if outcome is not None
                else "another attempt is at work on this instant",
                path=attempt_folder(instant, number),
                instant=instant,
                found=COMMITTED if outcome is not None else "an attempt that was just opened",
            )
    number = max(earlier, default=0) + 1
    path = f"{attempt_folder(instant, number)}/{OPEN}"
    record = dump({"nonce": uuid.uuid4().hex, "holder": who, "since_ms": clock_ms()})
    if not storage.put_if_absent(path, record):
        raise ConflictError("another process opened the same attempt", path=path, instant=instant, todo="Run again.")
    return number


def find_decision(storage: Storage, instant: str) -> CommitDecision | None:
    """The decision on an instant that is not revoked, if there is one; at most one attempt can have it."""
    return next(
        (decision for decision in decisions(storage, instant) if not is_revoked(storage, instant, decision.attempt)),
        None,
    )


def decisions(storage: Storage, instant: str) -> tuple[CommitDecision, ...]:
    """Every decision on an instant that can be read, revoked ones too, earliest first."""
    outcomes = read_outcomes(storage, instant).values()
    return tuple(outcome.decision for outcome in outcomes if outcome is not None and outcome.decision is not None)


def is_revoked(storage: Storage, instant: str, attempt: int) -> bool:
    """Whether the commit decision of an attempt was revoked: it is never valid again."""
    return storage.find(f"{attempt_folder(instant, attempt)}/{REVOKED}") is not None


def why_revoked(storage: Storage, instant: str, attempt: int) -> str:
    """Why the commit decision of an attempt was revoked. MalformedError: the record `revoked` cannot be read."""
    path = f"{attempt_folder(instant, attempt)}/{REVOKED}"
    return Fields.parse(storage.read(path), path, "unreadable record of a revoked decision", None).text("why")


def revoke_decision(storage: Storage, instant: str, attempt: int, why: str, by: str) -> None:
    """Records that a commit decision is invalid. Any process may do it, any number of times."""
    storage.put_if_absent(f"{attempt_folder(instant, attempt)}/{REVOKED}", dump({"why": why, "by": by}))


def dump(fields: Mapping[str, Any]) -> bytes:
    """A record as stored."""
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
