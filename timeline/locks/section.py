"""A section under a lock: the check that the lock is still held; and the holder of a lock, without taking it.

A lock may be lost inside a section: it expires while the process stalls, or a renewal is refused. The safety of a
compaction does not depend on the check, which is one more fence. The holder is read from this machine's kernel, or
Hudi's lock object."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..errors import LockError, PhantombaseError, reason_of
from ..storage.contract import Storage

_DRIFT_MS = 500
"""How long after its expiry an object of StorageBasedLockProvider still counts as held: Hudi's own bound."""
_LOCAL_LOCKS = Path("/proc/locks")


class LockState(Enum):
    HELD = "held"
    FREE = "free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSeen:
    """`holder`: as it describes itself. `for_s`: how long it has held the lock. `why`: the reason for the state."""

    lock: str | None
    state: LockState
    holder: str | None = None
    for_s: float | None = None
    why: str = ""


def in_object(storage: Storage, path: str, now_ms: int) -> LockSeen:
    """The state of a lock object, see `storage.object_lease`. LockError: it is malformed."""
    if storage.find(path) is None:
        return LockSeen(lock=path, state=LockState.FREE)
    try:
        found = json.loads(storage.read(path))
        expired, until, owner = found["expired"], int(found["validUntil"]), str(found["owner"])
    except (ValueError, KeyError, TypeError) as error:
        raise LockError("the lock object cannot be read", path=path, found=reason_of(error)) from error
    if expired is True:
        return LockSeen(lock=path, state=LockState.FREE, why=f"released by {owner}")
    if until + _DRIFT_MS < now_ms:
        return LockSeen(lock=path, state=LockState.FREE, why=f"{owner} did not renew it")
    left = f"valid for {max(0, until - now_ms) / 1000:,.0f} s more; its holder renews it"
    return LockSeen(lock=path, state=LockState.HELD, holder=owner, why=left)


def in_kernel(path: str) -> LockSeen:
    """The state of a lock file. Linux shows which process of this machine holds a lock on it."""
    try:
        inode = os.stat(path).st_ino
    except FileNotFoundError:
        return LockSeen(lock=path, state=LockState.FREE, why="never taken")
    except OSError as error:
        raise LockError("the lock file cannot be inspected", path=path, found=str(error)) from error
    try:
        lines = _LOCAL_LOCKS.read_text().splitlines()
    except OSError:
        return LockSeen(lock=path, state=LockState.UNKNOWN, why="this machine does not show which files are locked")
    for line in lines:
        words = line.split()  # 1: FLOCK  ADVISORY  WRITE 4711 fd:01:131073 0 EOF
        if len(words) >= 6 and words[1] != "->" and words[5].rpartition(":")[2] == str(inode):
            return LockSeen(lock=path, state=LockState.HELD, holder=_process(words[4]))
    return LockSeen(lock=path, state=LockState.FREE, why="no process of this machine holds it")


def _process(pid: str) -> str:
    """A process of this machine, in words."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return f"process {pid}"
    return f"process {pid}: {Path(words[0]).name}" if words[0] else f"process {pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`purpose` and `lock` are for messages. `is_held`: see `Storage.hold`."""

    purpose: str
    lock: str
    is_held: Callable[[], bool]

    def check(self) -> None:
        """Asked before each change that the lock guards, see `table.in_progress`. LockError: the lock was lost."""
        if not self.is_held():
            raise LockError(
                f"the lock was lost in the section to {self.purpose}",
                path=self.lock,
                expected="held until the section ends",
                found="not held any more: this process stopped for too long, or could not renew it",
                todo="Run again: the next run completes or reverts what this section did.",
            )


@contextmanager
def naming_its_holder(busy: LockError, snapshot: Callable[[], LockSeen | None]) -> Iterator[None]:
    """Adds the holder, where it is visible, to the error of a lock that did not become free."""
    try:
        yield
    except LockError as error:
        if error is not busy:
            raise
        try:
            seen = snapshot()
        except PhantombaseError:
            raise busy from error.__cause__
        if seen is None or seen.state is LockState.UNKNOWN:
            raise
        words = ", ".join(filter(None, (seen.holder, seen.why)))
        if not words:
            raise
        found = f"held by {words}" if seen.state is LockState.HELD else f"{busy.found}; now: {words}"
        raise LockError(
            busy.what, path=busy.path, expected=busy.expected, found=found, todo=busy.todo
        ) from error.__cause__


def held_elsewhere(name: str, timeout_s: float, purpose: str) -> LockError:
    return LockError(
        f"could not take the table lock to {purpose}",
        path=name,
        expected=f"free within {timeout_s:g} s",
        found="held by another process",
        todo="Try again, or find the process that holds it.",
    )
