"""Which process holds the table lock now, as far as it can be seen without taking it.

| lock | what is looked at |
| --- | --- |
| `zookeeper:...`, ZookeeperBasedLockProvider | the lowest node, and what its process wrote into it |
| `storage` on an object store, StorageBasedLockProvider | the object `.hoodie/.locks/table_lock.json` |
| `file:...`, `storage` on a local file system | the locks of this machine's kernel |
| FileSystemBasedLockProvider | whether its file is there |

Hudi's names of the providers may stand in hoodie.properties. Other locks (DynamoDB, Hive Metastore, in-process) are
not looked at: unknown is said, never "free".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..errors import LockError, PhantombaseError
from ..storage.contract import OwnLock, Storage
from ..storage.folders import HOODIE
from .table_lock import HUDI_LOCK, FileLock, StorageLock, table_lock
from .zookeeper_contenders import contenders
from .zookeeper_lock import ZooKeeperLock

_PROVIDER = "hoodie.write.lock.provider"
_DRIFT_MS = 500
"""How much later than its time an object of StorageBasedLockProvider still counts as held: Hudi's own bound."""
_LOCAL_LOCKS = Path("/proc/locks")


class LockState(Enum):
    """Whether a process holds a lock."""

    HELD = "held"
    FREE = "free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSeen:
    """`lock`: which one. `holder`: what the holder says of itself. `for_s`: how long it is held. `why`: of the rest."""

    lock: str | None
    state: LockState
    holder: str | None = None
    for_s: float | None = None
    why: str = ""


def look_at_lock(storage: Storage, given: str | None, properties: Mapping[str, str], now_ms: int) -> LockSeen:
    """The table lock. `given`: as for `table_lock`; None: what hoodie.properties or the table's folder says."""
    try:
        if given is None:
            return _by_properties(storage, properties, now_ms)
        return _seen(storage, given, now_ms)
    except PhantombaseError as error:
        return LockSeen(lock=given, state=LockState.UNKNOWN, why=str(error))


def _seen(storage: Storage, given: str, now_ms: int) -> LockSeen:
    lock = table_lock(storage, given)
    if isinstance(lock, ZooKeeperLock):
        return _in_zookeeper(lock)
    if isinstance(lock, FileLock):
        return _in_kernel(lock.path)
    if isinstance(lock, StorageLock) and storage.own_lock is OwnLock.SHARED:
        return _in_object(storage, lock.path, now_ms)
    if isinstance(lock, StorageLock) and storage.own_lock is OwnLock.FILE:
        return _in_kernel(f"{storage.base_path}/{lock.path}")
    return LockSeen(lock=given, state=LockState.UNKNOWN, why="this lock does not show its holder")


def _by_properties(storage: Storage, properties: Mapping[str, str], now_ms: int) -> LockSeen:
    provider = properties.get(_PROVIDER, "").rpartition(".")[2]
    match provider:
        case "ZookeeperBasedLockProvider":
            names = ("url", "base_path", "lock_key")
            url, base, key = (properties.get(f"hoodie.write.lock.zookeeper.{name}", "") for name in names)
            return _seen(storage, f"zookeeper:{url}/{base.strip('/')}/{key}", now_ms)
        case "StorageBasedLockProvider":
            return _in_object(storage, HUDI_LOCK, now_ms)
        case "FileSystemBasedLockProvider":
            folder = properties.get("hoodie.write.lock.filesystem.path", f"{storage.base_path}/{HOODIE}")
            return _by_presence(storage, f"{folder}/lock", now_ms)
        case "":
            if storage.find(HUDI_LOCK) is not None:
                return _in_object(storage, HUDI_LOCK, now_ms)
            return LockSeen(lock=None, state=LockState.UNKNOWN, why="which lock the writers share is not known here; "
                            "--lock names it")  # fmt: skip
    return LockSeen(lock=provider, state=LockState.UNKNOWN, why="this provider is not looked at")


def _in_zookeeper(lock: ZooKeeperLock) -> LockSeen:
    name = f"zookeeper:{lock.hosts.partition('/')[0]}{lock.folder}"
    waiting = contenders(lock)
    if not waiting:
        return LockSeen(lock=name, state=LockState.FREE)
    first, others = waiting[0], len(waiting) - 1
    why = f"{others} more wait for it" if others else ""
    return LockSeen(lock=name, state=LockState.HELD, holder=first.who or None, for_s=first.for_s, why=why)


def _in_object(storage: Storage, path: str, now_ms: int) -> LockSeen:
    """See `storage.object_lease`. LockError: the object cannot be read as one."""
    if storage.find(path) is None:
        return LockSeen(lock=path, state=LockState.FREE)
    try:
        found = json.loads(storage.read(path))
        expired, until, owner = found["expired"], int(found["validUntil"]), str(found["owner"])
    except (ValueError, KeyError, TypeError) as error:
        raise LockError(
            "the lock object cannot be read", path=path, found=f"{type(error).__name__}: {error}"
        ) from error
    if expired is True:
        return LockSeen(lock=path, state=LockState.FREE, why=f"given back by {owner}")
    if until + _DRIFT_MS < now_ms:
        return LockSeen(lock=path, state=LockState.FREE, why=f"{owner} did not renew it")
    left = f"valid for {max(0, until - now_ms) / 1000:.0f} s more; its holder renews it"
    return LockSeen(lock=path, state=LockState.HELD, holder=owner, why=left)


def _by_presence(storage: Storage, path: str, now_ms: int) -> LockSeen:
    inside = path.removeprefix("file:").removeprefix(f"{storage.base_path}/")
    if inside.startswith("/") or "://" in inside:
        return LockSeen(lock=path, state=LockState.UNKNOWN, why="it is not in the table's folder")
    entry = storage.find(inside)
    if entry is None:
        return LockSeen(lock=inside, state=LockState.FREE)
    return LockSeen(lock=inside, state=LockState.HELD, for_s=(now_ms - entry.modified_ms) / 1000)


def _in_kernel(path: str) -> LockSeen:
    """A lock file. Linux says which process of this machine holds a lock on it."""
    try:
        inode = os.stat(path).st_ino
    except FileNotFoundError:
        return LockSeen(lock=path, state=LockState.FREE, why="never taken")
    except OSError as error:
        raise LockError("the lock file cannot be looked at", path=path, found=str(error)) from error
    try:
        lines = _LOCAL_LOCKS.read_text().splitlines()
    except OSError:
        return LockSeen(lock=path, state=LockState.UNKNOWN, why="this machine does not say which files are locked")
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
