"""Which process holds the table lock now, as far as it can be seen without taking it.

| lock | what is looked at |
| --- | --- |
| `zookeeper:...`, ZookeeperBasedLockProvider | the lowest node, and what its process wrote into it |
| `storage` on an object store, StorageBasedLockProvider | the object `.hoodie/.locks/table_lock.json` |
| `file:...`, `storage` on a local file system | the locks of this machine's kernel |
| FileSystemBasedLockProvider | whether its file is there |

Hudi's names of the providers may stand in hoodie.properties. Other locks (DynamoDB, Hive Metastore, in-process) are
not looked at: unknown is said, never "free".

Who holds a table lock in ZooKeeper, and who waits for it: a snapshot that takes no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import LockError, PhantombaseError
from ..storage.contract import Storage
from ..storage.folders import HOODIE
from .seen import LockSeen, LockState, in_object
from .table_lock import HUDI_LOCK, FileLock, StorageLock, table_lock
from .zookeeper_connection import connection
from .zookeeper_lock import ZooKeeperLock, in_order

_ENOUGH_S = 2.0
_SESSION_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A process with a node at the lock: what it says of itself, and for how long the node is there."""

    who: str
    for_s: float


def contenders(lock: ZooKeeperLock) -> list[Contender]:
    """In order of arrival: the first one holds the lock. LockError: ZooKeeper does not say in time."""
    from kazoo.exceptions import KazooException, NoNodeError  # late, as in `zookeeper_lock`

    from .zookeeper_handler import answer

    client = connection(lock.servers, lock.access, _SESSION_S)
    deadline = time.monotonic() + _ENOUGH_S

    def call(ask: Callable[..., Any], *args: Any) -> Any:
        return answer(client, ask(*args), max(0.0, deadline - time.monotonic()))

    found = []
    try:
        client.start(_ENOUGH_S)
        for name in in_order(call(client.get_children_async, lock.folder)):
            try:
                data, stat = call(client.get_async, f"{lock.folder}/{name}")
            except NoNodeError:  # it has gone since
                continue
            found.append(Contender(who=data.decode(errors="replace"), for_s=max(0.0, time.time() - stat.created)))
    except NoNodeError:  # no process has used this lock yet
        return []
    except (KazooException, client.handler.timeout_exception) as error:
        raise LockError(
            "the holder of the table lock is not known",
            path=lock.shown,
            found=lock.unreachable() or f"{type(error).__name__} {error}".rstrip(),
        ) from error
    finally:
        client.stop()
        client.close()
    return found


_PROVIDER = "hoodie.write.lock.provider"


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
        return lock.seen()
    if isinstance(lock, StorageLock) and (seen := lock.seen(now_ms)) is not None:
        return seen
    return LockSeen(lock=given, state=LockState.UNKNOWN, why="this lock does not show its holder")


def _by_properties(storage: Storage, properties: Mapping[str, str], now_ms: int) -> LockSeen:
    provider = properties.get(_PROVIDER, "").rpartition(".")[2]
    match provider:
        case "ZookeeperBasedLockProvider":
            names = ("url", "base_path", "lock_key")
            url, base, key = (properties.get(f"hoodie.write.lock.zookeeper.{name}", "") for name in names)
            return _seen(storage, f"zookeeper:{url}/{base.strip('/')}/{key}", now_ms)
        case "StorageBasedLockProvider":
            return in_object(storage, HUDI_LOCK, now_ms)
        case "FileSystemBasedLockProvider":
            folder = properties.get("hoodie.write.lock.filesystem.path", f"{storage.base_path}/{HOODIE}")
            return _by_presence(storage, f"{folder}/lock", now_ms)
        case "":
            if storage.find(HUDI_LOCK) is not None:
                return in_object(storage, HUDI_LOCK, now_ms)
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


def _by_presence(storage: Storage, path: str, now_ms: int) -> LockSeen:
    inside = path.removeprefix("file:").removeprefix(f"{storage.base_path}/")
    if inside.startswith("/") or "://" in inside:
        return LockSeen(lock=path, state=LockState.UNKNOWN, why="it is not in the table's folder")
    entry = storage.find(inside)
    if entry is None:
        return LockSeen(lock=inside, state=LockState.FREE)
    return LockSeen(lock=inside, state=LockState.HELD, for_s=(now_ms - entry.modified_ms) / 1000)
