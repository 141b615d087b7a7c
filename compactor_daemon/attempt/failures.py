"""Records of the failed tries of an instant: every daemon waits before the next try, and can show the reason.

    .hoodie/.phantombase/<C>/failures/<n>     the n-th failure since the last release (put-if-absent)

After each failure the next try waits twice as long. After too many failures, or after one that a retry cannot fix,
the instant is parked until an operator releases it.

Also the work note in the heartbeat of a compactor: which process does what, with or without ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, TypeAlias

from phantombase.timeline.errors import (
    ClaimedError,
    ClockError,
    ConflictError,
    LedgerError,
    MalformedError,
    MissingFileError,
    PausedError,
    PhantombaseError,
    StalePlanError,
    StoppedError,
    TableChangedError,
    UsageError,
)
from phantombase.timeline.instants.reserved_times import instant_folder, recorded_instants
from phantombase.timeline.option import check_above_zero, check_least, least_of, option, spelled_class
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkNote:
    """An attempt at work. `since_ms`: when its work began, since the epoch. `done` and `total` count the file slices of
    the round being staged, without adopted ones; `bytes` is the size of their inputs. All are 0 before staging, and
    when only the publishing of a decision is left. `waiting`: 1 while it waits for writes that began before the
    compaction."""

    attempt: int
    since_ms: int
    done: int = 0
    total: int = 0
    bytes: int = 0
    waiting: int = 0

    def to_note(self) -> dict[str, int]:
        """The note as stored in the heartbeat."""
        return asdict(self)

    @staticmethod
    def from_note(note: Mapping[str, Any] | None) -> WorkNote | None:
        """Inverse of `to_note`; None if it is another note; unknown fields are ignored."""
        values = {f.name: (note or {}).get(f.name) for f in fields(WorkNote)}
        counts = {name: value for name, value in values.items() if isinstance(value, int) and value >= 0}
        return WorkNote(**counts) if len(counts) == len(values) else None


CLUSTERING = "clustering"
"""In place of an instant, in claims and failures: the clusterings of a table that daemons plan themselves."""
_FOLDER = "failures"
_TODO = "Run: compactor-daemon release TABLE INSTANT. It removes this record."
_DOUBLINGS_MAX = 64
"""The most doublings of the wait: with more, the wait is the longest one anyway, and a float could overflow."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """How often, and after how many seconds, a failed instant is tried again."""

    retries: int = option(8, "retries of a failed instant; when the last one fails too, the instant is parked", least=0)
    backoff_s: float = option(10.0, "wait after a failure; it doubles each time", least=0)
    backoff_max_s: float = option(3600.0, "the longest wait after a failure")

    def __post_init__(self) -> None:
        check_least(self, least_of(RetryOptions))
        check_above_zero(self, "backoff_s", "backoff_max_s")
        if self.backoff_s > self.backoff_max_s:
            raise UsageError(
                "backoff-s must be at most backoff-max-s",
                found=f"{self.backoff_s:g} and {self.backoff_max_s:g}",
                todo="Lower --backoff, or raise --backoff-max.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed try. `at_ms` since the epoch; `error` is the error's class, `what` its text; `park`: do not repeat."""

    at_ms: int
    error: str
    what: str
    who: str
    park: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The instant may be tried now."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The instant may be tried at `until_ms` (since the epoch)."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Parked:
    """The instant waits until an operator releases it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The instant waits until its table is resumed."""

    reason: str


Readiness: TypeAlias = Ready | Waits | Parked | Paused


class FailureClass(Enum):
    """What an error means for its instant."""

    NOTHING = "nothing"
    """Another process works on it, or this work was stopped: no failure."""
    RETRY = "retry"
    PARK = "park"


def classify(error: Exception) -> FailureClass:
    """The class of an error of an instant. It is no failure if another process is at work (a Hudi compactor, a write
    before the barrier, another daemon), or if the clock of this process is wrong: the instant is tried again after a
    while. A ledger that does not balance is a failure, and so are log files that are no longer neighbours: a retry does
    not help."""
    if isinstance(error, (LedgerError, StalePlanError)):
        return FailureClass.PARK
    counted = isinstance(error, TableChangedError) or not isinstance(error, ConflictError)
    if isinstance(error, (StoppedError, PausedError, ClaimedError, ClockError)) or not counted:
        return FailureClass.NOTHING
    return FailureClass.RETRY


def readiness(failures: Sequence[Failure], now_ms: int, options: RetryOptions) -> Readiness:
    """Whether an instant may be tried now (pure)."""
    if not failures:
        return Ready()
    last = failures[-1]
    if any(f.park for f in failures) or len(failures) > options.retries:
        return Parked(f"{last.error}: {last.what}")
    wait_s = min(options.backoff_s * 2.0 ** min(len(failures) - 1, _DOUBLINGS_MAX), options.backoff_max_s)
    until = last.at_ms + round(wait_s * 1000)
    # After the clock was set back, the instant must not wait longer than the wait itself.
    return Ready() if not last.at_ms - round(wait_s * 1000) <= now_ms < until else Waits(until)


def read_failures(storage: Storage, instant: str) -> tuple[Failure, ...]:
    """The failures of an instant, earliest first; an unreadable record parks the instant."""
    return tuple(_failure(storage, f"{_folder(instant)}/{n}") for n in _numbers(storage, instant))


def readiness_of(
    storage: Storage, instants: Sequence[str], now_ms: int, options: RetryOptions, names: Sequence[str] | None = None
) -> dict[str, Readiness]:
    """Whether each pending instant may be tried now; instants without records are not asked for. `names`: see
    `record_names`."""
    recorded = set(recorded_instants(storage, names)) if instants else set()
    return {i: readiness(read_failures(storage, i) if i in recorded else (), now_ms, options) for i in instants}


def record_failure(storage: Storage, instant: str, failure: Failure) -> None:
    """Adds a failure; if two processes add one concurrently, both are recorded."""
    number = max(_numbers(storage, instant), default=0) + 1
    while not storage.put_if_absent(f"{_folder(instant)}/{number}", json.dumps(asdict(failure)).encode()):
        number += 1


def release_failures(storage: Storage, instant: str, *, dry_run: bool = False) -> int:
    """Removes the failures of an instant, which may then be tried at once; returns how many there were. `dry_run`:
    nothing is removed."""
    numbers = _numbers(storage, instant)
    for number in () if dry_run else numbers:
        storage.delete(f"{_folder(instant)}/{number}")
    return len(numbers)


def failure_of(error: Exception, who: str, now_ms: int) -> Failure:
    park = classify(error) is FailureClass.PARK
    what = str(error) if isinstance(error, PhantombaseError) else f"internal error: {error}"
    return Failure(at_ms=now_ms, error=type(error).__name__, what=what, who=who, park=park)


def _folder(instant: str) -> str:
    return f"{instant_folder(instant)}/{_FOLDER}"


def _numbers(storage: Storage, instant: str) -> list[int]:
    try:
        return sorted(int(e.name) for e in storage.list(_folder(instant)) if e.name.isdigit())
    except MissingFileError:
        return []


def _failure(storage: Storage, path: str) -> Failure:
    try:
        fields = Fields.parse(storage.read(path), path, "unreadable record of a failure", _TODO)
        return fields.of(Failure, park=bool(fields.values.get("park")))
    except MalformedError as error:
        return Failure(at_ms=0, error="MalformedError", what=str(error), who="", park=True)
