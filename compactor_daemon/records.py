"""What attempts at compactions leave in storage: paths and records.

    .hoodie/.phantombase/<C>/<e>/open                      who opened attempt e, and when
    .hoodie/.phantombase/<C>/<e>/<position>-<random>.parquet   a staged base file, or .log: a log file
    .hoodie/.phantombase/<C>/<e>/<position>.ok             a finished file slice (`SliceDone`)
    .hoodie/.phantombase/<C>/<e>/fate                      written once: dead, void or go (`Go`)
    .hoodie/.phantombase/<C>/<e>/revoked                   the `go` does not stand any more, and why (`standing`)

Each record is one put-if-absent object with a nonce, so that an unknown outcome is settled by reading it back.
They lie outside Hudi's own `.hoodie/.temp/<C>`: a foreign file there makes Hudi's rollback plan empty.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import structlog

from compactor_daemon.options import OutputOptions, output_from_json, output_to_json
from timeline.errors import AttemptDeadError, ConflictError, MalformedError
from timeline.fields import Fields
from timeline.layout import RECORDS
from timeline.ledger import Ledger
from timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from timeline.storage import Storage

_log = structlog.get_logger()

OPEN, FATE, REVOKED, OK = "open", "fate", "revoked", ".ok"
DEAD, VOID, GO = "dead", "void", "go"
STAGED_ENDINGS = (".parquet", ".log", OK)
"""Of the names of staged files and their records."""


def instant_folder(instant: str) -> str:
    """Where all attempts at an instant keep their records."""
    return f"{RECORDS}/{instant}"


def attempt_folder(instant: str, attempt: int) -> str:
    """Where one attempt keeps its records and staged files."""
    return f"{RECORDS}/{instant}/{attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDone:
    """One compacted file slice: the content of its `.ok`.

    `staged` and `final` are paths relative to the table base, None where there was nothing to write (no base and
    no log entry). `inputs`: the names of the files merged. `fingerprint`: digest of inputs, schema and merge
    rules; a later attempt adopts the file only under an equal one. `size` in bytes, `seconds` of work. `ranges`: of the
    file's columns, where the metadata table has statistics. `uncommitted`: instants whose log blocks were left out
    because they had not completed. `merged`: instants of the writes that went in. `output`: the options the file was
    written with. Each None: that is not known.
    """

    position: int
    partition: str
    file_id: str
    base_instant: str | None
    base_file: str | None
    inputs: tuple[str, ...]
    fingerprint: str
    staged: str | None
    final: str | None
    size: int
    ledger: Ledger
    log_bytes: int
    log_files: int
    log_blocks: int
    corrupt_blocks: int
    rolled_back_blocks: int
    skipped: Mapping[str, int]
    seconds: float
    ranges: tuple[ColumnRange, ...] | None = None
    uncommitted: tuple[str, ...] | None = None
    merged: tuple[str, ...] | None = None
    output: OutputOptions | None = None

    def to_json(self) -> bytes:
        """As stored."""
        ledger, ranges, output = self.ledger.to_json(), ranges_to_json(self.ranges), output_to_json(self.output)
        plain = asdict(replace(self, ranges=None, output=None))
        return _dump({**plain, "ledger": ledger, "ranges": ranges, "output": output})

    @staticmethod
    def from_json(data: bytes, where: str) -> SliceDone:
        """Inverse of `to_json`; unknown fields are ignored. MalformedError names the file."""
        fields = Fields.parse(data, where, "unreadable record of a compacted file slice", _SLICE_TODO)
        known = fields.values  # `ranges`, `uncommitted`, `merged` and `output` are not known to earlier releases
        try:
            ledger, ranges = Ledger.from_json(known["ledger"]), ranges_from_json(known.get("ranges"))
        except (KeyError, TypeError, ValueError, AttributeError, MalformedError) as error:
            raise fields.malformed("a ledger and column ranges", f"{type(error).__name__}: {error}") from error
        return SliceDone(
            position=fields.whole("position"),
            partition=fields.text("partition"),
            file_id=fields.text("file_id"),
            base_instant=fields.text_or_none("base_instant"),
            base_file=fields.text_or_none("base_file"),
            inputs=fields.texts("inputs"),
            fingerprint=fields.text("fingerprint"),
            staged=fields.text_or_none("staged"),
            final=fields.text_or_none("final"),
            size=fields.whole("size"),
            ledger=ledger,
            log_bytes=fields.whole("log_bytes"),
            log_files=fields.whole("log_files"),
            log_blocks=fields.whole("log_blocks"),
            corrupt_blocks=fields.whole("corrupt_blocks"),
            rolled_back_blocks=fields.whole("rolled_back_blocks"),
            skipped=fields.counts("skipped"),
            seconds=fields.number("seconds"),
            ranges=ranges,
            uncommitted=fields.texts("uncommitted") if known.get("uncommitted") is not None else None,
            merged=fields.texts("merged") if known.get("merged") is not None else None,
            output=output_from_json(known.get("output")),
        )


_SLICE_TODO = "Nothing is lost: the file slice is merged again by the next run."
_FATE_TODO = (
    "It may say that the compaction is decided, so nothing is decided anew. If a later release wrote it, let that one "
    "go on. Else stop what works on this compaction, then run: compactor-daemon release TABLE INSTANT --unreadable"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A staged file, the final name it gets, and its size in bytes. Paths are relative to the table base.

    `output`: the options it was written with, which make the same file again; None in records of earlier versions.
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
        """That of a record; MalformedError."""
        return Placement(
            staged=fields.text("staged"),
            final=fields.text("final"),
            size=fields.whole("size"),
            output=output_from_json(fields.values.get("output")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Everything that follows from the decision: publishing is a pure function of this record.

    `completed_path` is the completed timeline file (v8+: with the completion time in its name), `content` its
    bytes. `table_version`: that under which the decision was made. `merged`: instants of the writes that went in;
    `oldest`: the start of the active timeline then; `passed`: file groups, partition/file id, that were passed over
    because they were replaced (version 6). () and "" in records of earlier versions.
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
        return _dump({"fate": GO, **plain, "content": content, "placements": placements})

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
            # Not known to earlier releases.
            merged=fields.texts("merged") if "merged" in fields.values else (),
            oldest=fields.text("oldest") if "oldest" in fields.values else "",
            passed=fields.texts("passed") if "passed" in fields.values else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How an attempt ended: `dead`, `void` (unscheduled) or `go`, by whom."""

    kind: str
    nonce: str
    go: Go | None = None


def fate_path(instant: str, attempt: int) -> str:
    """Where an attempt's fate stands."""
    return f"{attempt_folder(instant, attempt)}/{FATE}"


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
    """The fates of all attempts, by number. MalformedError: that of the last attempt cannot be read.

    An earlier one that cannot be read is over, or no attempt would have been opened behind it: it counts as dead. So
    does one that is revoked.
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
    """Writes an attempt's fate; AttemptDeadError when it had another one already.

    Three outcomes: ours is there, another is there, or the call failed: then the record is read back.
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
    """The error of an attempt whose fate somebody else wrote."""
    return AttemptDeadError(
        "this attempt was decided by somebody else",
        path=fate_path(instant, attempt),
        instant=instant,
        found=fate.kind if fate else "nothing",
        todo="Nothing was published by it. Run again: the next attempt goes on from what is there.",
    )


def dead_record(nonce: str, by: str) -> bytes:
    """The record that declares an attempt dead."""
    return _dump({"fate": DEAD, "nonce": nonce, "by": by})


def void_record(nonce: str, by: str) -> bytes:
    """The record of an attempt that is there to unschedule its instant."""
    return _dump({"fate": VOID, "nonce": nonce, "by": by})


def declare_dead(storage: Storage, instant: str, by: str) -> list[int]:
    """Gives every attempt without a fate the fate `dead`; returns their numbers."""
    undecided = [number for number, fate in read_fates(storage, instant).items() if fate is None]
    for number in undecided:
        nonce = uuid.uuid4().hex
        write_fate(storage, instant, number, dead_record(nonce, by), nonce)
    return undecided


def open_next(storage: Storage, instant: str, who: str) -> int:
    """Opens the next attempt; its number.

    ConflictError: an earlier one is undecided or has a `go` that stands, or somebody else opened the same this moment.
    `void` is no hindrance: whoever wrote it died before the plan was gone, or there would be no plan to work on.
    """
    earlier = read_fates(storage, instant)
    for number, fate in earlier.items():
        if fate is None or (fate.kind == GO and not is_revoked(storage, instant, number)):
            raise ConflictError(
                "the instant is decided already" if fate is not None else "another attempt is at work on this instant",
                path=attempt_folder(instant, number),
                instant=instant,
                found=GO if fate is not None else "an attempt opened this moment",
            )
    number = max(earlier, default=0) + 1
    path = f"{attempt_folder(instant, number)}/{OPEN}"
    record = _dump({"nonce": uuid.uuid4().hex, "holder": who, "since_ms": round(time.time() * 1000)})
    if not storage.put_if_absent(path, record):
        raise ConflictError("somebody else opened the same attempt", path=path, instant=instant, todo="Run again.")
    return number


def attempts(storage: Storage, instant: str) -> tuple[int, ...]:
    """Numbers of all attempts at an instant, ascending."""
    folder = instant_folder(instant)
    if storage.find(folder) is None:
        return ()
    return tuple(sorted(int(e.name) for e in storage.list(folder) if e.is_folder and e.name.isdigit()))


def find_go(storage: Storage, instant: str) -> Go | None:
    """The decision on an instant, if one was made and not revoked; at most one attempt can have it."""
    return next((go for go in decisions(storage, instant) if not is_revoked(storage, instant, go.attempt)), None)


def decisions(storage: Storage, instant: str) -> tuple[Go, ...]:
    """Every decision on an instant that can be read, revoked ones too, earliest first."""
    fates = read_fates(storage, instant).values()
    return tuple(fate.go for fate in fates if fate is not None and fate.go is not None)


def is_revoked(storage: Storage, instant: str, attempt: int) -> bool:
    """Whether the `go` of an attempt was found not to stand any more: it never will again."""
    return storage.find(f"{attempt_folder(instant, attempt)}/{REVOKED}") is not None


def why_revoked(storage: Storage, instant: str, attempt: int) -> str:
    """Why the `go` of an attempt does not stand any more. MalformedError: that record cannot be read."""
    path = f"{attempt_folder(instant, attempt)}/{REVOKED}"
    return Fields.parse(storage.read(path), path, "unreadable record of a decision taken back", None).text("why")


def revoke_decision(storage: Storage, instant: str, attempt: int, why: str, by: str) -> None:
    """Records that a `go` does not stand any more; by any number of processes, any number of times."""
    storage.put_if_absent(f"{attempt_folder(instant, attempt)}/{REVOKED}", _dump({"why": why, "by": by}))


def recorded_instants(storage: Storage) -> tuple[str, ...]:
    """Instants that have records, unscheduled ones (tombstones) included."""
    if storage.find(RECORDS) is None:
        return ()
    return tuple(e.name for e in storage.list(RECORDS) if e.is_folder and e.name.isdigit())


def done_slices(storage: Storage, instant: str, attempt: int) -> dict[int, SliceDone]:
    """The finished file slices of one attempt, by position; one whose record cannot be read is not finished."""
    folder, done = attempt_folder(instant, attempt), dict[int, SliceDone]()
    for entry in storage.list(folder):
        if entry.name.endswith(OK) and not entry.is_folder:
            path = f"{folder}/{entry.name}"
            try:
                found = SliceDone.from_json(storage.read(path), path)
            except MalformedError as error:
                _log.warning("slice_record_unreadable", instant=instant, attempt=attempt, error=str(error))
            else:
                done[found.position] = found
    return done


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
