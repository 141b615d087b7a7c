"""The records that attempts at a compaction leave in storage, and their paths.

    .hoodie/.phantombase/<C>/<e>/open                      which process opened attempt e, and when
    .hoodie/.phantombase/<C>/<e>/<position>-<random>.parquet   a staged base file, or .log: a log file
    .hoodie/.phantombase/<C>/<e>/<position>.ok             a finished file slice (`slice_done`)
    .hoodie/.phantombase/<C>/<e>/fate                      written once: dead, void or go (`Go`)
    .hoodie/.phantombase/<C>/<e>/revoked                   the `go` does not stand any more, and why (`standing`)

Each record is one put-if-absent object with a nonce: after a put with an unknown outcome, the record is read back.
The records lie outside Hudi's own `.hoodie/.temp/<C>`: a foreign file there makes Hudi's rollback plan empty.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from phantombase.timeline.errors import AttemptDeadError, ConflictError, MalformedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.attempt_names import DEAD, GO, STAGED_DATA, VOID, attempt_folder, attempts, fate_path
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage

from ..options import output_from_json, output_to_json

_log = get_logger()

OPEN, REVOKED, OK = "open", "revoked", ".ok"
STAGED_ENDINGS = (*STAGED_DATA, OK)
"""The endings of the names of staged files and their records."""


_FATE_TODO = (
    "It may say that the compaction is decided, so no new attempt decides. If a later release wrote it, let that "
    "release continue. Otherwise stop all compactors that work on this compaction, then run: "
    "compactor-daemon release TABLE INSTANT --unreadable"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A staged file, the final name it gets, and its size in bytes. Paths are relative to the table base.

    `output`: the options that the file was written with; they give the same file again. None in records of earlier
    releases.
    """

    staged: str
    final: str
    size: int
    output: OutputOptions | None = None

    def to_json(self) -> dict[str, Any]:
        """As stored in a `go`."""
        return {"staged": self.staged, "final": self.final, "size": self.size, "output": output_to_json(self.output)}

    @staticmethod
    def of(fields: Fields) -> Placement:
        """The placement in a record; MalformedError."""
        return Placement(
            staged=fields.text("staged"),
            final=fields.text("final"),
            size=fields.whole("size"),
            output=output_from_json(fields.values.get("output")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Everything that follows from the decision: publishing is a pure function of this record.

    `completed_path` is the completed timeline file (from version 8 on with the completion time in its name), `content`
    its bytes. `table_version`: the version under which the decision was made. `merged`: instants of the merged writes.
    `oldest`: the start of the active timeline at the decision. `passed`: file groups (partition/file id) that were left
    out because they were replaced (version 6). The last three are empty in records of earlier releases.
    """

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

    def to_json(self) -> bytes:
        """As stored."""
        plain = asdict(replace(self, placements=()))
        content, placements = base64.b64encode(self.content).decode(), [p.to_json() for p in self.placements]
        return dump({"fate": GO, **plain, "content": content, "placements": placements})

    @staticmethod
    def of(fields: Fields) -> Go:
        """Inverse of `to_json`; unknown fields are ignored. MalformedError names the file."""
        return Go(
            instant=fields.text("instant"),
            attempt=fields.whole("attempt"),
            nonce=fields.text("nonce"),
            table_version=fields.whole("table_version"),
            completion_time=fields.text_or_none("completion_time"),
            completed_path=fields.text("completed_path"),
            content=fields.data("content"),
            placements=tuple(Placement.of(one) for one in fields.records("placements")),
            # Earlier releases do not write these.
            merged=fields.texts("merged") if "merged" in fields.values else (),
            oldest=fields.text("oldest") if "oldest" in fields.values else "",
            passed=fields.texts("passed") if "passed" in fields.values else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How an attempt ended: `dead`, `void` (unscheduled) or `go`. `nonce`: of the process that wrote it."""

    kind: str
    nonce: str
    go: Go | None = None


def read_fate(storage: Storage, instant: str, attempt: int) -> Fate | None:
    """An attempt's fate, None while it is open. MalformedError: it cannot be read, or this release does not know it."""
    path = fate_path(instant, attempt)
    if storage.find(path) is None:
        return None
    fields = Fields.parse(storage.read(path), path, "unreadable fate of an attempt", _FATE_TODO)
    kind, nonce = fields.text("fate"), fields.text("nonce")
    if kind not in (DEAD, VOID, GO):
        raise fields.malformed(f"fate: {DEAD}, {VOID} or {GO}", repr(kind))
    return Fate(kind=kind, nonce=nonce, go=Go.of(fields) if kind == GO else None)


def read_fates(storage: Storage, instant: str) -> dict[int, Fate | None]:
    """The fates of all attempts, by number. MalformedError: the fate of the last attempt cannot be read.

    An earlier attempt whose fate cannot be read counts as dead: otherwise no attempt would have been opened after it.
    An unreadable fate that was revoked counts as dead too.
    """
    found: dict[int, Fate | None] = {}
    numbers = attempts(storage, instant)
    for number in numbers:
        try:
            found[number] = read_fate(storage, instant, number)
        except MalformedError as error:
            if number == numbers[-1] and not is_revoked(storage, instant, number):
                raise
            _log.warning("fate_unreadable", instant=instant, attempt=number, error=str(error))
            found[number] = Fate(kind=DEAD, nonce="")
    return found


def write_fate(storage: Storage, instant: str, attempt: int, record: bytes, nonce: str) -> None:
    """Writes an attempt's fate. AttemptDeadError: it has another fate already.

    There are three outcomes: this record is there, another one is there, or the call failed. Then the record is read
    back.
    """
    path = fate_path(instant, attempt)
    try:
        if storage.put_if_absent(path, record):
            return
    except Exception:
        fate = read_fate(storage, instant, attempt)
        if fate is None or fate.nonce != nonce:
            raise
        return
    fate = read_fate(storage, instant, attempt)
    if fate is None or fate.nonce != nonce:
        raise attempt_dead(instant, attempt, fate)


def attempt_dead(instant: str, attempt: int, fate: Fate | None) -> AttemptDeadError:
    """The error of an attempt whose fate another process wrote."""
    return AttemptDeadError(
        "another process wrote the fate of this attempt",
        path=fate_path(instant, attempt),
        instant=instant,
        found=fate.kind if fate else "nothing",
        todo="This attempt published nothing. Run again: the next attempt adopts its finished file slices.",
    )


def dead_record(nonce: str, by: str) -> bytes:
    """The record that declares an attempt dead."""
    return dump({"fate": DEAD, "nonce": nonce, "by": by})


def void_record(nonce: str, by: str) -> bytes:
    """The record of an attempt that only serves to unschedule its instant."""
    return dump({"fate": VOID, "nonce": nonce, "by": by})


def declare_dead(storage: Storage, instant: str, by: str) -> list[int]:
    """Gives every attempt without a fate the fate `dead`; returns their numbers."""
    undecided = [number for number, fate in read_fates(storage, instant).items() if fate is None]
    for number in undecided:
        nonce = uuid.uuid4().hex
        write_fate(storage, instant, number, dead_record(nonce, by), nonce)
    return undecided


def open_next(storage: Storage, instant: str, who: str) -> int:
    """Opens the next attempt; returns its number.

    ConflictError: an earlier one is undecided or has a `go` that is not revoked, or another process just opened the
    same one. An earlier `void` does not matter: the process that wrote it died before it removed the plan, or there
    would be no plan to work on.
    """
    earlier = read_fates(storage, instant)
    for number, fate in earlier.items():
        if fate is None or (fate.kind == GO and not is_revoked(storage, instant, number)):
            raise ConflictError(
                "the instant is decided already" if fate is not None else "another attempt is at work on this instant",
                path=attempt_folder(instant, number),
                instant=instant,
                found=GO if fate is not None else "an attempt that was just opened",
            )
    number = max(earlier, default=0) + 1
    path = f"{attempt_folder(instant, number)}/{OPEN}"
    record = dump({"nonce": uuid.uuid4().hex, "holder": who, "since_ms": round(time.time() * 1000)})
    if not storage.put_if_absent(path, record):
        raise ConflictError("another process opened the same attempt", path=path, instant=instant, todo="Run again.")
    return number


def find_go(storage: Storage, instant: str) -> Go | None:
    """The decision on an instant that is not revoked, if there is one; at most one attempt can have it."""
    return next((go for go in decisions(storage, instant) if not is_revoked(storage, instant, go.attempt)), None)


def decisions(storage: Storage, instant: str) -> tuple[Go, ...]:
    """Every decision on an instant that can be read, revoked ones too, earliest first."""
    fates = read_fates(storage, instant).values()
    return tuple(fate.go for fate in fates if fate is not None and fate.go is not None)


def is_revoked(storage: Storage, instant: str, attempt: int) -> bool:
    """Whether the `go` of an attempt was revoked: it never stands again."""
    return storage.find(f"{attempt_folder(instant, attempt)}/{REVOKED}") is not None


def why_revoked(storage: Storage, instant: str, attempt: int) -> str:
    """Why the `go` of an attempt was revoked. MalformedError: the record of that cannot be read."""
    path = f"{attempt_folder(instant, attempt)}/{REVOKED}"
    return Fields.parse(storage.read(path), path, "unreadable record of a decision taken back", None).text("why")


def revoke_decision(storage: Storage, instant: str, attempt: int, why: str, by: str) -> None:
    """Records that a `go` does not stand any more. Any process may do it, any number of times."""
    storage.put_if_absent(f"{attempt_folder(instant, attempt)}/{REVOKED}", dump({"why": why, "by": by}))


def dump(fields: Mapping[str, Any]) -> bytes:
    """A record as stored."""
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
