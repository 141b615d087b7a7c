"""Table lock providers: one process at a time in a short section (begin, schedule, decide and complete, roll back).

The lock shortens races and separates cooperating writers. The safety of a compaction comes from closure, barrier and
the outcome record, not from the lock alone. No process holds it during long work.

`inspect_lock` shows the holder without taking the lock:

| lock | what is read |
| --- | --- |
| `zookeeper:...`, ZookeeperBasedLockProvider | the lowest node, and what its process wrote into it; the waiters |
| `storage` on an object store, StorageBasedLockProvider | the object `.hoodie/.locks/table_lock.json` |
| `file:...`, `storage` on a local file system | the locks of this machine's kernel |
| FileSystemBasedLockProvider | whether its file exists |

hoodie.properties may have Hudi's names of the providers. Others (DynamoDB, Hive Metastore) are shown as unknown."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import xxhash

from ..clocks import clock_ms
from ..errors import LockError, MalformedError, MissingFileError, PhantombaseError, UsageError
from ..format.table_config import load_table_config
from ..storage.contract import OwnLock, Storage
from ..storage.folders import HOODIE, RECORDS
from ..storage.local import hold_file
from .section import LockSeen, LockState, Section, held_elsewhere, in_kernel, in_object, naming_its_holder
from .zookeeper_lock import ZooKeeperLock, contenders, parse_zookeeper_lock


class TableLock(Protocol):
    """A lock that excludes every process that uses the same provider with the same settings."""

    def hold(self, purpose: str) -> AbstractContextManager[Section]:
        """Holds the lock for the `with` block. LockError if it did not become free in time. Sections of a table are
        opened by `table.in_progress`, which asks `Section.check` before each change."""
        ...


STORAGE = "storage"
"""The name of the lock of the table's own storage."""
NAME = "{name}"
"""Placeholder for the name of the table in the text of a lock."""
BASE_PATH_HASH = "{base_path_hash}"
"""Placeholder for the hash of the base path, as in the node of Hudi's ZookeeperBasedImplicitBasePathLockProvider."""
_HASH_SEED = 0xDABADABA - (1 << 32) + (1 << 64)
"""Hudi's seed, a negative int as a long."""
_ZOOKEEPER = "zookeeper:HOST:PORT[,HOST:PORT]/BASE/PATH/KEY"
HUDI_LOCK = f"{HOODIE}/.locks/table_lock.json"
"""The lock object of Hudi's StorageBasedLockProvider."""
_process_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True, slots=True)
class ProcessLock:
    """For a single writer process: excludes only threads of this process."""

    name: str
    timeout_s: float = 60.0

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        lock = _process_locks[self.name]
        if not lock.acquire(timeout=self.timeout_s):
            raise held_elsewhere(self.name, self.timeout_s, purpose)
        try:
            yield Section(purpose=purpose, lock=self.name, is_held=lambda: True)
        finally:
            lock.release()


@dataclass(frozen=True, slots=True)
class FileLock:
    """Excludes every process on machines that share the file's (POSIX-locking) file system."""

    path: str
    timeout_s: float = 60.0

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        if not os.path.isdir(folder := os.path.dirname(os.path.abspath(self.path))):
            raise LockError(
                f"the lock file cannot be used to {purpose}: its folder does not exist",
                path=self.path,
                expected=f"the folder {folder}",
                todo="Check the path: all processes of the table must name one file. If it is right, make the folder.",
            )
        busy = held_elsewhere(self.path, self.timeout_s, purpose)
        with naming_its_holder(busy, self.seen), hold_file(self.path, self.timeout_s, busy) as is_held:
            yield Section(purpose=purpose, lock=self.path, is_held=is_held)

    def seen(self) -> LockSeen:
        return in_kernel(self.path)


@dataclass(frozen=True, slots=True)
class StorageLock:
    """Excludes every process that uses the same storage: an object of the table names the holder. `is_assumed`: no
    one has said that all writers share it, so nothing may be planned under it."""

    storage: Storage
    path: str
    timeout_s: float = 60.0
    is_assumed: bool = field(default=False, compare=False)

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        shown = f"{self.storage.base_path}/{self.path}"
        busy = held_elsewhere(shown, self.timeout_s, purpose)
        with (
            naming_its_holder(busy, lambda: self.seen(clock_ms())),
            self.storage.hold(self.path, self.timeout_s, busy) as is_held,
        ):
            yield Section(purpose=purpose, lock=shown, is_held=is_held)

    def seen(self, now_ms: int) -> LockSeen | None:
        """The holder; None: this storage's lock does not show it."""
        match self.storage.own_lock:
            case OwnLock.FILE:
                return in_kernel(f"{self.storage.base_path}/{self.path}")
            case OwnLock.SHARED:
                return in_object(self.storage, self.path, now_ms)
            case OwnLock.PRIVATE:
                return None


def table_lock(
    storage: Storage,
    given: str | None,
    *,
    sole_writer: bool = False,
    name: str | None = None,
    seen: Storage | None = None,
) -> TableLock:
    """The lock that all processes of a table share: the given one (see `parse_lock`), else one on its storage.
    `storage` names the latter too. In a given lock `{name}` stands for the name of the table (`hoodie.table.name`), and
    `{base_path_hash}` for the `base_path_hash` of its path, so that one text serves many tables. On an object store the
    lock of the storage is the one Hudi's own writers share (StorageBasedLockProvider). HDFS has none that Hudi's
    writers share: there a ZooKeeper lock must be given, unless this process is the `sole_writer`. `seen`: a snapshot
    of the storage, which has read `POLICIES`. UsageError: no lock is given on HDFS, a lock file is given for a table
    outside a local file system, or the table keeps another lock."""
    return lock_on(storage, _agreed(seen or storage, given, name), sole_writer=sole_writer, name=name)


def lock_on(storage: Storage, given: str | None, *, sole_writer: bool = False, name: str | None = None) -> TableLock:
    """`table_lock`, whatever the table keeps."""
    if given is None or given == STORAGE:
        if storage.own_lock is OwnLock.PRIVATE and not (sole_writer and given is None):
            raise UsageError(
                "this storage has no lock that Hudi's writers share",
                path=storage.base_path,
                expected=f"--lock {_ZOOKEEPER}, the one of Hudi's ZookeeperBasedLockProvider",
                found="no lock" if given is None else given,
                todo="Name the lock that all writers of the table share; a command with --sole-writer needs none.",
            )
        path = HUDI_LOCK if storage.own_lock is OwnLock.SHARED else f"{RECORDS}/table.lock"
        return StorageLock(storage, path, is_assumed=given is None and not sole_writer)
    given = given.replace(BASE_PATH_HASH, base_path_hash(storage.base_path))
    lock = parse_lock(_named(storage, given, name) if NAME in given else given)
    if isinstance(lock, FileLock) and storage.own_lock is not OwnLock.FILE:
        shared = f"{STORAGE} (an object of the table, as Hudi's StorageBasedLockProvider), or "
        raise UsageError(
            "a lock file excludes only processes that share its file system",
            path=storage.base_path,
            expected=f"{shared if storage.own_lock is OwnLock.SHARED else ''}{_ZOOKEEPER}",
            found=given,
        )
    return lock


POLICIES = f"{RECORDS}/table.properties"
"""Options that the table keeps: lines `phantombase.NAME=VALUE`, see `compactor_daemon/services/options.py`."""
UNREADABLE_POLICIES = "the policies of the table cannot be read"
_KEPT = "phantombase.lock="


def policy_lines(storage: Storage) -> list[str]:
    """The lines of the file. MissingFileError: there is none. MalformedError: not even lines."""
    try:
        return storage.read(POLICIES).decode().split("\n")
    except UnicodeDecodeError as error:
        todo = "Remove the file, and set its options again: `compactor-daemon config set`."
        raise MalformedError(
            UNREADABLE_POLICIES, path=f"{storage.base_path}/{POLICIES}", found=str(error), todo=todo
        ) from error


def kept_lock(storage: Storage) -> str | None:
    """The lock that the table keeps for all processes; None: none. MalformedError: the file cannot be read."""
    try:
        lines = policy_lines(storage)
    except MissingFileError:
        return None
    return next((line.removeprefix(_KEPT) for line in lines if line.startswith(_KEPT)), None)


def _agreed(storage: Storage, given: str | None, name: str | None) -> str | None:
    """The lock that was given, else the one that the table keeps. UsageError: both, and they differ."""
    kept = kept_lock(storage)
    if kept is None or given is None:
        return kept or given

    def place(text: str) -> str:
        """Without the access to its servers, which may differ by process."""
        text = text.partition("?")[0].replace(BASE_PATH_HASH, base_path_hash(storage.base_path))
        return _named(storage, text, name) if NAME in text else text

    if place(given) != place(kept):
        raise UsageError(
            "the lock must be the same for all processes of a table",
            path=storage.base_path,
            expected=f"{kept}, as the table has",
            found=given,
            todo="Leave it out: the table's lock is taken. To change it: compactor-daemon config set TABLE lock=LOCK.",
        )
    return given


def try_lock(storage: Storage, given: str) -> None:
    """LockError, UsageError: no process can take this lock for the table."""
    with lock_on(storage, given).hold("make it the table's"):
        pass


def refuse_other_lock(storage: Storage, lock: TableLock, name: str) -> None:
    """LockError: the table keeps another lock than this one, which is held: it was changed under this one, since the
    process chose it. `name`: of the table. A `ProcessLock` is of a process that knows of no other one."""
    if not isinstance(lock, FileLock | StorageLock | ZooKeeperLock) or (kept := kept_lock(storage)) is None:
        return
    wanted = lock_on(storage, kept, name=name)
    if _place(wanted) != _place(lock):
        raise LockError(
            "the table has got another lock since this work began",
            path=storage.base_path,
            expected=kept,
            found=_place(lock),
            todo="Nothing was changed. Run again: the table's lock is taken.",
        )


def _place(lock: TableLock) -> str:
    """What processes have in common that exclude each other."""
    return lock.shown if isinstance(lock, ZooKeeperLock) else str(getattr(lock, "path", lock))


def check_writers_known(
    lock: str | None, sole_writer: bool, who: str, risk: str, *, names: str = "--lock and --sole-writer"
) -> None:
    """UsageError unless exactly one is given: a `lock` that all writers share, or `sole_writer`. `who`: needs it, else
    there is this `risk`. `names`: of the two, for the user."""
    if (lock is None) == (not sole_writer):
        raise UsageError(
            f"{who} needs to know which other processes write to the table",
            expected=f"one of {names}",
            found="both" if sole_writer else "neither",
            todo=risk,
        )


def is_holdable_first(lock: TableLock, storage: Storage) -> bool:
    """Whether the lock can be held before its table exists. On a local file system the lock of the storage is in
    phantombase's folder, which alone makes no table."""
    if isinstance(lock, FileLock):
        return not f"{lock.path}/".startswith(f"{storage.base_path.rstrip('/')}/")
    return not isinstance(lock, StorageLock) or storage.own_lock is OwnLock.FILE


def is_of_hudi(lock: TableLock) -> bool:
    """Whether Hudi's writers may hold this lock: where they can not, none may run concurrently."""
    return isinstance(lock, ZooKeeperLock) or (
        isinstance(lock, StorageLock) and lock.storage.own_lock is OwnLock.SHARED
    )


def base_path_hash(path: str) -> str:
    """The node below /tmp that Hudi's ZookeeperBasedImplicitBasePathLockProvider holds for a base path (1.2.0). The
    hash is of the text: a slash at its end, or another scheme than `s3a` for `s3`, gives another node."""
    s3 = f"s3://{path[6:]}" if path[:6].lower() == "s3a://" else path
    return xxhash.xxh64_hexdigest(s3.encode(), seed=_HASH_SEED).upper()


def _named(storage: Storage, given: str, name: str | None) -> str:
    """The text of a lock with the name of the table. UsageError: the name would lead to another place."""
    name = name if name is not None else load_table_config(storage).name
    if name in ("", ".", "..") or "/" in name:
        raise UsageError(
            "the name of this table cannot be a part of a lock",
            path=storage.base_path,
            expected=f"hoodie.table.name as one part of a path, for {given}",
            found=repr(name),
            todo="Name the lock of this table itself.",
        )
    return given.replace(NAME, name)


def parse_lock(text: str) -> TableLock:
    """`file:PATH` or `zookeeper:HOST:PORT[,HOST:PORT]/BASE/PATH/KEY` as a lock; UsageError for anything else. PATH is
    absolute, and its folder must exist when the lock is taken. Only `table_lock` accepts `storage`."""
    provider, separator, rest = text.partition(":")
    if separator and rest and provider == "file":
        path = rest.removeprefix("//") if rest.startswith("///") else rest
        if not os.path.isabs(path) or path.startswith("//"):
            raise UsageError(
                "a lock file with a relative path is another one in each working directory",
                expected="file:/PATH",
                found=text,
                todo=f"file:{os.path.abspath(path)} names the one of this process.",
            )
        return FileLock(path)
    if separator and rest and provider == "zookeeper":
        return parse_zookeeper_lock(rest)
    raise UsageError("unknown lock provider", expected=f"{STORAGE}, file:PATH or {_ZOOKEEPER}", found=text)


_PROVIDER = "hoodie.write.lock.provider"


def inspect_lock(storage: Storage, given: str | None, properties: Mapping[str, str], now_ms: int) -> LockSeen:
    """The state of the table lock. `given`: as for `table_lock`; None: from hoodie.properties or the table's folder."""
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
            why = "which lock the writers share is not known here; --lock names it"
            return LockSeen(lock=None, state=LockState.UNKNOWN, why=why)
    return LockSeen(lock=provider, state=LockState.UNKNOWN, why="this provider is not inspected")


def _in_zookeeper(lock: ZooKeeperLock) -> LockSeen:
    name = f"zookeeper:{lock.hosts.partition('/')[0]}{lock.folder}"
    waiting = contenders(lock)
    if not waiting:
        return LockSeen(lock=name, state=LockState.FREE)
    (who, for_s), *others = waiting
    why = f"{len(others)} more wait for it" if others else ""
    return LockSeen(lock=name, state=LockState.HELD, holder=who or None, for_s=for_s, why=why)


def _by_presence(storage: Storage, path: str, now_ms: int) -> LockSeen:
    inside = path.removeprefix("file:").removeprefix(f"{storage.base_path}/")
    if inside.startswith("/") or "://" in inside:
        return LockSeen(lock=path, state=LockState.UNKNOWN, why="it is not in the table's folder")
    entry = storage.find(inside)
    if entry is None:
        return LockSeen(lock=inside, state=LockState.FREE)
    return LockSeen(lock=inside, state=LockState.HELD, for_s=(now_ms - entry.modified_ms) / 1000)
