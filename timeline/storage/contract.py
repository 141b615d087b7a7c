"""The contract of a storage: the few operations that everything else is built on.

`local`, `object_store` and `hdfs_store` implement it.

Paths are relative to the table's base path, `/`-separated, never absolute. Two operations carry the protocol:
`put_if_absent` (a complete object appears under its name or not at all, and never replaces another) and `place` (a
finished staged file gets its final name, and never replaces another file). `pyarrow.fs` offers neither: its `move`
replaces an existing file.

Storages in front of another one: `ForwardingStorage` passes every call on, `PrefixStorage` is a folder of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import IO, TYPE_CHECKING, Protocol

from ..errors import LockError, MissingFileError, StorageError

if TYPE_CHECKING:  # what `status` does not need to start
    import pyarrow as pa

NAMES_IN_ONE_REQUEST = 500
"""The most names in one answer of S3, GCS or HDFS (1,000, where it is not set lower) or Azure (5,000)."""

_LISTINGS_MAX_S = 30.0
"""How long, in seconds, a folder is listed again until two listings agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a folder. `size` in bytes and `modified_ms` since the epoch are 0 for folders.
    `tag`: of the content; under one name and tag the content is always the same. "": the storage has no such tags."""

    name: str
    is_folder: bool
    size: int = 0
    modified_ms: int = 0
    tag: str = ""


class OwnLock(Enum):
    """Which processes `Storage.hold` excludes."""

    FILE = "those that share the file system: it is a lock file"
    SHARED = "those of Hudi too: it is what Hudi's StorageBasedLockProvider holds"
    PRIVATE = "phantombase's: it is a lease that Hudi does not use"


class Storage(Protocol):
    """What a table needs from its storage. A store that cannot keep a promise is refused, not emulated."""

    @property
    def base_path(self) -> str:
        """The table's base path, as used in messages and in the records of writers."""

    @property
    def is_file_system(self) -> bool:
        """Whether folders exist by themselves. Elsewhere an empty folder does not exist."""

    @property
    def own_lock(self) -> OwnLock:
        """Which processes the locks of this storage exclude."""

    @property
    def names_at_once(self) -> int | None:
        """The number of names that `list` shows as of one point in time; None: any number. See `list_at_once`."""

    @property
    def location(self) -> str:
        """Identifies the place: equal for two storages of the same place, however their paths were given."""

    def list(self, folder: str) -> list[Entry]:
        """The folder's entries, by name; MissingFileError if there is no such folder."""

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        """(path relative to `folder`, entry) of every file in it and its subfolders; empty if there is no such folder.
        `before`, `after`: only paths that sort so, at less cost. Files that another process removes concurrently are
        omitted."""

    def find(self, path: str) -> Entry | None:
        """The entry at `path`, or None if there is none."""

    def read(self, path: str) -> bytes:
        """The content of an object; MissingFileError if it does not exist."""

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        """Random access for reading; MissingFileError if it does not exist.
        `whole`: False where little of it will be read: then only that is fetched, by more requests if needed."""

    def open_output(self, path: str) -> IO[bytes]:
        """A new object for writing. See `close_output`, `abort_output`.
        If it is closed in another way it is complete, but may not survive a power cut. Each output needs a name of its
        own, drawn by chance: a file system refuses an existing one (StorageError), an object store does not."""

    def close_output(self, file: IO[bytes]) -> None:
        """Finishes an output: it is complete, and survives a power cut."""

    def abort_output(self, file: IO[bytes]) -> None:
        """Abandons an output. Parts of it may remain under its name, if the store shows incomplete objects."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """True: `data` is now durably at `path`. False: an object was there already, and still is."""

    def make_folder(self, folder: str) -> None:
        """Makes a folder and its parents; success if it exists. Does nothing where folders are only names."""

    def place(self, source: str, target: str) -> bool:
        """Gives a finished staged file its final name. True: placed. False: `target` existed already.
        The staged file still exists (a link, a copy) or does not (a rename): no caller may need it afterwards.
        MissingFileError: neither file exists. StorageError: also a lost answer; the file may be placed then."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Replaces an object. Only for hoodie.properties, heartbeats, records of what ran last, policies, completed
        files that cannot be read, and a plan that loses file groups: no other object is ever replaced."""

    def delete(self, path: str) -> None:
        """Removes an object; success if it does not exist."""

    def delete_all(self, paths: Collection[str]) -> None:
        """Removes objects, in any order; success if some do not exist. After an error some may still exist."""

    def delete_folder(self, folder: str) -> None:
        """Removes a folder with its content; success if it does not exist."""

    def delete_empty_folder(self, folder: str) -> bool:
        """Removes a folder, unless it has content; whether it is gone. An object store has no such folder."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Changes the modification time of a file. Only for `timeline repair-times` and `compactor-daemon repair`.
        MissingFileError: there is no such file. StorageError: this store cannot set times."""

    def verify(self) -> None:
        """Tests the promises of `put_if_absent` and `place`, with temporary objects; StorageError if one is broken.
        A slow test runs once per process and location, before the first write at the latest."""

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        """Holds the lock of that name against every process that uses this storage, also on other machines.
        Yields a function: whether the lock is held now, and will be for a short time.
        Raises `busy` if it did not become free in time, and LockError if it cannot be used at all: a lock never
        excludes only some processes. The lock of a process that died becomes free eventually."""


@dataclass(slots=True)
class Requests:
    """How many requests some work made, and how many changes under a lock, or in a catalog."""

    number: int = 0
    changes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, number: int) -> None:
        with self._lock:
            self.number += number


_REQUESTS: ContextVar[Requests | None] = ContextVar("requests", default=None)


@contextmanager
def counted_requests() -> Iterator[Requests]:
    """Counts the requests of the body, also of threads with its context; an outer count has them too at the end."""
    outer, counted = _REQUESTS.get(), Requests()
    token = _REQUESTS.set(counted)
    try:
        yield counted
    finally:
        _REQUESTS.reset(token)
        if outer is not None:
            outer.add(counted.number)
            outer.changes += counted.changes


def count_change() -> None:
    """Called where work is about to change a table, or has changed something beside it."""
    if (counted := _REQUESTS.get()) is not None:
        counted.changes += 1


def count_requests(number: int = 1) -> None:
    """Called where a storage makes requests."""
    if (counted := _REQUESTS.get()) is not None:
        counted.add(number)


def open_listed(storage: Storage, path: str, size: int, *, whole: bool = True) -> pa.NativeFile:
    """`Storage.open_input` of a file that a listing has shown with this size. StorageError: it is shorter now.
    A file only grows. A store's answer that ends early would look like a torn log: its last blocks would be dropped
    silently. So would those of a file that was truncated after a metadata table recorded its size."""
    source = storage.open_input(path, whole=whole)
    if (found := source.size()) < size:
        source.close()
        raise StorageError(
            "a file is shorter than its listing says",
            path=f"{storage.base_path}/{path}",
            expected=f"{size} bytes",
            found=f"{found} bytes",
            todo="Run again: a store may have cut its answer short. If it fails again, restore the file from a copy.",
        )
    return source


def list_at_once(storage: Storage, folder: str) -> list[Entry]:
    """`Storage.list`, but exactly these names existed at one point in time. A long listing comes in parts, and names
    are added and removed between two parts. So it may show a name and omit one that existed as long, or longer: on a
    timeline that archiving shortens, or on which two writes complete, rows would be missed. A removed name is never
    added again, and the parts are in the order of names. So a folder listed twice with the same names had exactly these
    in between. Added names that sort after all others were added after the last part of the first listing, which was
    complete then. MissingFileError: there is no such folder. StorageError: no two such listings."""
    found = storage.list(folder)
    if storage.names_at_once is None or len(found) <= storage.names_at_once:
        return found
    until = time.monotonic() + _LISTINGS_MAX_S
    while True:
        again = storage.list(folder)
        if [e.name for e in again[: len(found)]] == [e.name for e in found]:
            return found
        if time.monotonic() > until:
            raise never_the_same(f"{storage.base_path}/{folder}")
        found = again


def never_the_same(path: str) -> StorageError:
    """The error for a folder that changes too fast to be listed."""
    expected = "the same names twice"
    todo = "Run it again. If the error persists, find the process that keeps adding or removing files there."
    return StorageError("a folder changed whenever it was listed", path=path, expected=expected, todo=todo)


def listed_if_there(storage: Storage, folder: str) -> list[Entry] | None:
    """The entries of a folder; None if it does not exist."""
    try:
        return storage.list(folder)
    except MissingFileError:
        return None


def list_of_table(storage: Storage, folder: str) -> list[Entry]:
    """The entries of a folder that every table has, as `list_at_once` gives them.
    On an object store it does not exist before its first object. MissingFileError: a file system has no such folder."""
    try:
        return list_at_once(storage, folder)
    except MissingFileError as error:
        if storage.is_file_system:
            raise error.advising("Restore the folder from a copy: the state of the table is in it.") from error
        return []


def files_below(storage: Storage, folder: str, before: str = "") -> Iterator[tuple[str, Entry]]:
    """`Storage.list_below` of a storage that lists folder by folder."""
    for entry in listed_if_there(storage, folder) or ():
        if before and entry.name >= before:
            continue
        if entry.is_folder:
            for path, file in files_below(storage, f"{folder}/{entry.name}"):
                yield f"{entry.name}/{path}", file
        else:
            yield entry.name, entry


class ForwardingStorage:
    """Passes every call on to `storage`, with the same guarantees. `_full`, `_changing`: for subclasses."""

    __slots__ = ()
    storage: Storage

    def _full(self, path: str) -> str:
        return path

    def _changing(self, *paths: str, adds: bool = False) -> None:
        """Called before each change of these paths. `adds`: nothing is removed. The trial of a store is no change."""

    @property
    def base_path(self) -> str:
        return self.storage.base_path

    @property
    def is_file_system(self) -> bool:
        return self.storage.is_file_system

    @property
    def own_lock(self) -> OwnLock:
        return self.storage.own_lock

    @property
    def names_at_once(self) -> int | None:
        return self.storage.names_at_once

    @property
    def location(self) -> str:
        return self.storage.location

    def list(self, folder: str) -> list[Entry]:
        return self.storage.list(self._full(folder))

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        return self.storage.list_below(self._full(folder), before, after)

    def find(self, path: str) -> Entry | None:
        return self.storage.find(self._full(path))

    def read(self, path: str) -> bytes:
        return self.storage.read(self._full(path))

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        return self.storage.open_input(self._full(path), whole=whole)

    def open_output(self, path: str) -> IO[bytes]:
        self._changing(path)
        return self.storage.open_output(self._full(path))

    def close_output(self, file: IO[bytes]) -> None:
        self.storage.close_output(file)

    def abort_output(self, file: IO[bytes]) -> None:
        self.storage.abort_output(file)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._changing(path, adds=True)
        return self.storage.put_if_absent(self._full(path), data)

    def make_folder(self, folder: str) -> None:
        self._changing(folder)
        self.storage.make_folder(self._full(folder))

    def place(self, source: str, target: str) -> bool:
        self._changing(source, target)
        return self.storage.place(self._full(source), self._full(target))

    def overwrite(self, path: str, data: bytes) -> None:
        self._changing(path, adds=True)
        self.storage.overwrite(self._full(path), data)

    def delete(self, path: str) -> None:
        self._changing(path)
        self.storage.delete(self._full(path))

    def delete_all(self, paths: Collection[str]) -> None:
        if paths:
            self._changing(*paths)
        self.storage.delete_all([self._full(path) for path in paths])

    def delete_folder(self, folder: str) -> None:
        self._changing(folder)
        self.storage.delete_folder(self._full(folder))

    def delete_empty_folder(self, folder: str) -> bool:
        self._changing(folder)
        return self.storage.delete_empty_folder(self._full(folder))

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._changing(path)
        self.storage.set_modified(self._full(path), modified_ms)

    def verify(self) -> None:
        self.storage.verify()

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        return self.storage.hold(self._full(path), timeout_s, busy)


@dataclass(frozen=True, slots=True)
class PrefixStorage(ForwardingStorage):
    """A folder of a storage as a separate storage, with the same guarantees."""

    storage: Storage
    folder: str

    @property
    def base_path(self) -> str:
        return f"{self.storage.base_path}/{self.folder}"

    @property
    def location(self) -> str:
        return f"{self.storage.location}/{self.folder}"

    def _full(self, path: str) -> str:
        return f"{self.folder}/{path}" if path else self.folder
