"""Storages in front of another one: `ForwardingStorage` passes every call on, `GuardedStorage` asks before each change.

A section under the table lock changes the table through a `GuardedStorage`, whose question is whether the lock is still
held (`table.exclusive`). Reads cost nothing more. The question is asked once for each call, so files that are removed
together by `delete_all` cost one. A lock file and a lease answer from memory; ZooKeeper's lock makes two requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from ..errors import LockError
from .contract import Entry, OwnLock, Storage
from .snapshot import SnapshotStorage, without_snapshot

if TYPE_CHECKING:  # what `status` does not need to start
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ForwardingStorage:
    """A storage that passes every call on, with the same guarantees. `_full`, `_changing`: for subclasses."""

    storage: Storage

    def _full(self, path: str) -> str:
        """The path in the storage below."""
        return path

    def _changing(self) -> None:
        """Called before each change. An abandoned output, and the trial of a store, are none."""

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

    def list_below(self, folder: str, before: str = "") -> Sequence[tuple[str, Entry]]:
        return self.storage.list_below(self._full(folder), before)

    def find(self, path: str) -> Entry | None:
        return self.storage.find(self._full(path))

    def read(self, path: str) -> bytes:
        return self.storage.read(self._full(path))

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        return self.storage.open_input(self._full(path), whole=whole)

    def open_output(self, path: str) -> IO[bytes]:
        self._changing()
        return self.storage.open_output(self._full(path))

    def close_output(self, file: IO[bytes]) -> None:
        self.storage.close_output(file)

    def abort_output(self, file: IO[bytes]) -> None:
        self.storage.abort_output(file)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._changing()
        return self.storage.put_if_absent(self._full(path), data)

    def make_folder(self, folder: str) -> None:
        self._changing()
        self.storage.make_folder(self._full(folder))

    def place(self, source: str, target: str) -> bool:
        self._changing()
        return self.storage.place(self._full(source), self._full(target))

    def overwrite(self, path: str, data: bytes) -> None:
        self._changing()
        self.storage.overwrite(self._full(path), data)

    def delete(self, path: str) -> None:
        self._changing()
        self.storage.delete(self._full(path))

    def delete_all(self, paths: Collection[str]) -> None:
        if paths:
            self._changing()
        self.storage.delete_all([self._full(path) for path in paths])

    def delete_folder(self, folder: str) -> None:
        self._changing()
        self.storage.delete_folder(self._full(folder))

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._changing()
        self.storage.set_modified(self._full(path), modified_ms)

    def verify(self) -> None:
        self.storage.verify()

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        return self.storage.hold(self._full(path), timeout_s, busy)


@dataclass(frozen=True, slots=True)
class GuardedStorage(ForwardingStorage):
    """`check`: raises if nothing may be changed. An output is asked about once: it is shown by another call."""

    check: Callable[[], None]

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        """Another process receives the storage itself."""
        return unguarded, (self.storage,)

    def _changing(self) -> None:
        self.check()


def unguarded(storage: Storage) -> Storage:
    """The same place without a guard, and without a snapshot."""
    storage = without_snapshot(storage)
    if isinstance(storage, GuardedStorage):
        return storage.storage
    return replace(storage, storage=unguarded(storage.storage)) if isinstance(storage, ForwardingStorage) else storage


def check_guard(storage: Storage) -> None:
    """Asks the guard of a storage, if there is one: after a change that another process may have preceded."""
    if isinstance(storage, SnapshotStorage):
        check_guard(storage.origin)
    elif isinstance(storage, GuardedStorage):
        storage.check()
    elif isinstance(storage, ForwardingStorage):
        check_guard(storage.storage)
