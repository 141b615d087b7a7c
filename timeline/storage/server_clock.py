"""The clock of a storage: the time it gives a new file.

The ages of its files, heartbeats among them, are compared with it and never with the clock of this process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ..clocks import Stopwatch, clock_ms
from ..errors import ClockError, StorageError
from .contract import Storage
from .folders import TEMPORARY
from .snapshot import unguarded


@dataclass(slots=True)
class RequestPace:
    """Spreads requests over time: at most `rate` a second, of all threads together; None: no limit."""

    rate: float | None
    _turn: Lock = field(default_factory=Lock)
    _next_s: float = 0.0

    def wait(self) -> None:
        """Returns when the next request may be made."""
        if self.rate is None:
            return
        with self._turn:
            now = time.monotonic()
            at = max(self._next_s, now)
            self._next_s = at + 1 / self.rate
        time.sleep(at - now)


@dataclass(slots=True)
class StoreFacts:
    """What this process knows of a store, shared by all clients of the same settings; see the modules that use it."""

    trying: Lock = field(default_factory=Lock)
    keeps_promises: bool = False
    comparing: Lock = field(default_factory=Lock)
    agreed: Stopwatch | None = None
    """When its clock and this process's were found to agree."""
    given_back: dict[str, Any] = field(default_factory=dict)
    """By key, the versions of the leases that this process released, until it acquires them again."""
    sums: bool = True
    """Whether no tag was found that looks like a sum of its object, and is none."""
    logged: set[str] = field(default_factory=set)
    """Why uploads are not removed."""
    boto3: Any = None
    """The client that lists and aborts them, once it was needed."""
    pace: RequestPace = field(default_factory=lambda: RequestPace(None))


_SECOND_MS = 1000
"""The unit to which an object store rounds its times down."""
AGREED_MS = 10_000
"""How far this process's clock may be from an object store's while it holds a lease there."""
_COMPARED_S = 300.0
"""How long, in seconds, a comparison is valid, unless a clock was set since."""


def storage_ms(storage: Storage) -> int:
    """Now, in milliseconds since the epoch; rounded as the storage rounds the times of its files."""
    storage = unguarded(storage)  # no other process knows the name: in a section it is no change, and always removed
    path = f"{TEMPORARY}/clock-{uuid.uuid4().hex}"
    try:
        storage.put_if_absent(path, b"")
        entry = storage.find(path)
    finally:
        storage.delete(path)
    if entry is None:
        raise StorageError("a file that was just put is missing", path=path)
    return entry.modified_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far this process's clock is ahead of a storage's: at least and at most, in milliseconds."""

    least_ms: int
    most_ms: int

    @property
    def agrees(self) -> bool:
        """Whether the clocks may be within `AGREED_MS`."""
        return self.least_ms <= AGREED_MS and self.most_ms >= -AGREED_MS


def ahead_of(storage: Storage, now_ms: Callable[[], int]) -> Ahead:
    """Compares the clocks, by an object that is put and removed."""
    before = now_ms()
    there = storage_ms(storage)
    rounding = 0 if storage.is_file_system else _SECOND_MS
    return Ahead(least_ms=before - there - rounding, most_ms=now_ms() - there)


def ensure_agreed(storage: Storage, known: StoreFacts) -> None:
    """ClockError: this process's clock differs from the storage's by more than `AGREED_MS`.
    Compared once in five minutes per process and store, and again after a clock was set."""
    with known.comparing:
        last = known.agreed
        if last is None or last.was_set() or last.seconds() > _COMPARED_S:
            since = Stopwatch()
            _check_agreed(storage)
            known.agreed = since


def note_agreed(known: StoreFacts, since: Stopwatch, began_ms: int, there_ms: int) -> None:
    """Records that the clocks agree, if an object that was put for another purpose shows that.
    The object was put after `began_ms` of this process's clock, and has the time `there_ms`."""
    found = Ahead(least_ms=began_ms - there_ms - _SECOND_MS, most_ms=clock_ms() - there_ms)
    if found.agrees and not since.was_set():
        known.agreed = since


def _check_agreed(storage: Storage) -> None:
    found = ahead_of(storage, clock_ms)
    if not found.agrees:
        is_ahead = found.least_ms > 0
        off_s = (found.least_ms if is_ahead else -found.most_ms) / 1000
        raise ClockError(
            "this process's clock differs from the storage's: it would take a lock that another process holds, or hold "
            "one that others take for free",
            path=storage.base_path,
            expected=f"at most {AGREED_MS / 1000:g} s",
            found=f"{off_s:,.0f} s {'ahead' if is_ahead else 'behind'}",
            todo="Nothing was changed. Set the clock of this machine (NTP).",
        )
