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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from timeline.errors import AttemptDeadError, ConflictError, MalformedError
from timeline.layout import RECORDS
from timeline.ledger import Ledger
from timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from timeline.storage import Storage

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
    because they had not completed. `merged`: instants of the writes that went in. Both None: that is not known.
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

    def to_json(self) -> bytes:
        """As stored."""
        ranges = ranges_to_json(self.ranges)
        return _dump({**asdict(replace(self, ranges=None)), "ledger": self.ledger.to_json(), "ranges": ranges})

    @staticmethod
    def from_json(data: bytes, where: str) -> SliceDone:
        """Inverse of `to_json`; MalformedError names the file."""
        fields = _load(data, where)
        # They and `ranges` are not known to earlier versions.
        uncommitted, merged = fields.get("uncommitted"), fields.get("merged")
        try:
            return SliceDone(
                **{
                    **fields,
                    "inputs": tuple(fields["inputs"]),
                    "ledger": Ledger.from_json(fields["ledger"]),
                    "ranges": ranges_from_json(fields.get("ranges")),
                    "uncommitted": tuple(uncommitted) if uncommitted is not None else None,
                    "merged": tuple(merged) if merged is not None else None,
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError("unreadable record of a compacted file slice", path=where, found=str(error)) from error


_NOT_OF_GO = ("fate", "metadata_partitions")
"""In the file of a go record, and not in the record; the second is of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A staged file, the final name it gets, and its size in bytes. Paths are relative to the table base."""

    staged: str
    final: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Everything that follows from the decision: publishing is a pure function of this record.

    `completed_path` is the completed timeline file (v8+: with the completion time in its name), `content` its
    bytes. `table_version`: that under which the decision was made. `merged`: instants of the writes that went in; () in
    records of earlier versions.
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

    def to_json(self) -> bytes:
        """As stored."""
        body = {**asdict(self), "content": base64.b64encode(self.content).decode()}
        return _dump({"fate": GO, **body})

    @staticmethod
    def from_json(fields: Mapping[str, Any], where: str) -> Go:
        """Inverse of `to_json`."""
        try:
            return Go(
                **{
                    **{k: v for k, v in fields.items() if k not in _NOT_OF_GO},
                    "content": base64.b64decode(fields["content"]),
                    "placements": tuple(Placement(**p) for p in fields["placements"]),
                    "merged": tuple(fields.get("merged", ())),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError("unreadable go record", path=where, found=str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How an attempt ended: `dead`, `void` (unscheduled) or `go`, by whom."""

    kind: str
    nonce: str
    go: Go | None = None


def read_fate(storage: Storage, instant: str, attempt: int) -> Fate | None:
    """An attempt's fate, None while it is open."""
    path = f"{attempt_folder(instant, attempt)}/{FATE}"
    if storage.find(path) is None:
        return None
    fields = _load(storage.read(path), path)
    kind = fields.get("fate")
    if kind not in (DEAD, VOID, GO):
        raise MalformedError("unknown fate of an attempt", path=path, found=repr(kind))
    return Fate(kind=kind, nonce=str(fields.get("nonce")), go=Go.from_json(fields, path) if kind == GO else None)


def decide(storage: Storage, instant: str, attempt: int, record: bytes, nonce: str) -> None:
    """Writes an attempt's fate; AttemptDeadError when it had another one already.

    Three outcomes: ours is there, another is there, or the call failed: then the record is read back.
    """
    path = f"{attempt_folder(instant, attempt)}/{FATE}"
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
        path=f"{attempt_folder(instant, attempt)}/{FATE}",
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
    undecided = [n for n in attempts(storage, instant) if read_fate(storage, instant, n) is None]
    for number in undecided:
        nonce = uuid.uuid4().hex
        decide(storage, instant, number, dead_record(nonce, by), nonce)
    return undecided


def open_next(storage: Storage, instant: str, who: str) -> int:
    """Opens the next attempt; its number.

    ConflictError: an earlier one is undecided or has a `go` that stands, or somebody else opened the same this moment.
    `void` is no hindrance: whoever wrote it died before the plan was gone, or there would be no plan to work on.
    """
    earlier = attempts(storage, instant)
    for number in earlier:
        fate = read_fate(storage, instant, number)
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
    """Every decision on an instant, revoked ones too, earliest first."""
    fates = (read_fate(storage, instant, number) for number in attempts(storage, instant))
    return tuple(fate.go for fate in fates if fate is not None and fate.go is not None)


def is_revoked(storage: Storage, instant: str, attempt: int) -> bool:
    """Whether the `go` of an attempt was found not to stand any more: it never will again."""
    return storage.find(f"{attempt_folder(instant, attempt)}/{REVOKED}") is not None


def revoke_decision(storage: Storage, go: Go, why: str, by: str) -> None:
    """Records that a `go` does not stand any more; by any number of processes, any number of times."""
    storage.put_if_absent(f"{attempt_folder(go.instant, go.attempt)}/{REVOKED}", _dump({"why": why, "by": by}))


def recorded_instants(storage: Storage) -> tuple[str, ...]:
    """Instants that have records, unscheduled ones (tombstones) included."""
    if storage.find(RECORDS) is None:
        return ()
    return tuple(e.name for e in storage.list(RECORDS) if e.is_folder and e.name.isdigit())


def reserved_times(storage: Storage) -> Iterator[str]:
    """Times nobody may use again: recorded instants, and completion times decided but perhaps not visible yet."""
    for instant in recorded_instants(storage):
        yield instant
        for attempt in attempts(storage, instant):
            fate = read_fate(storage, instant, attempt)
            if fate is not None and fate.go is not None and fate.go.completion_time is not None:
                yield fate.go.completion_time


def done_slices(storage: Storage, instant: str, attempt: int) -> dict[int, SliceDone]:
    """The finished file slices of one attempt, by position."""
    folder = attempt_folder(instant, attempt)
    names = [e.name for e in storage.list(folder) if e.name.endswith(OK) and not e.is_folder]
    done = [SliceDone.from_json(storage.read(f"{folder}/{name}"), f"{folder}/{name}") for name in names]
    return {d.position: d for d in done}


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def _load(data: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise MalformedError("unreadable record", path=where, found=str(error)) from error
    if not isinstance(fields, dict):
        raise MalformedError("unreadable record", path=where, expected="a JSON object", found=type(fields).__name__)
    return fields
