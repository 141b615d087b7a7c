"""Storages in front of another one: `ForwardingStorage` passes every call on, `PrefixStorage` is a folder of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ..errors import LockError
from .contract import Entry, OwnLock, Storage

if TYPE_CHECKING:  # what `status` does not need to start
    import pyarrow as pa


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

    def list_below(self, folder: str, before: str = "") -> Sequence[tuple[str, Entry]]:
        return self.storage.list_below(self._full(folder), before)

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
