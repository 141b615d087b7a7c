"""A `Storage` in memory, whose files carry the times of a simulated clock."""

from __future__ import annotations

import io
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, TypeAlias

import pyarrow as pa

from phantombase.timeline.errors import LockError, MissingFileError, StorageError
from phantombase.timeline.storage.contract import Entry, OwnLock, files_below
from phantombase.timeline.storage.staged_file import probe


@dataclass(frozen=True, slots=True)
class File:
    """An object: what is in it, and what a listing says of it."""

    data: bytes
    entry: Entry


Folder: TypeAlias = "dict[str, File | Folder]"


class MemoryStorage:
    """Folders as on a disk: made with what is put in them, there until somebody removes them. `clock`: milliseconds
    since the epoch. Calls of several threads are atomic. `fingerprint`: of all files, but for their times and for empty
    folders. `elsewhere`: folders on another file system, where nothing can be placed."""

    def __init__(self, clock: Callable[[], int] = lambda: round(time.time() * 1000)) -> None:
        self._clock = clock
        self._root: Folder = {}
        self._lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.fingerprint = 0
        self.elsewhere: frozenset[str] = frozenset()

    @property
    def base_path(self) -> str:
        """See `Storage`."""
        return "/memory"

    @property
    def is_file_system(self) -> bool:
        """See `Storage`."""
        return True

    @property
    def own_lock(self) -> OwnLock:
        """See `Storage`."""
        return OwnLock.FILE

    @property
    def names_at_once(self) -> int | None:
        """See `Storage`."""
        return None

    @property
    def location(self) -> str:
        """See `Storage`."""
        return self.base_path

    def list(self, folder: str) -> list[Entry]:
        """See `Storage`."""
        node = self._node(folder)
        if not isinstance(node, dict):
            raise MissingFileError("no such folder", path=folder)
        with self._lock:
            return [_entry(name, node[name]) for name in sorted(node)]

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        """See `Storage`."""
        return [one for one in files_below(self, folder, before) if one[0] > after]

    def find(self, path: str) -> Entry | None:
        """See `Storage`."""
        node = self._node(path)
        return None if node is None else _entry(path.rpartition("/")[2], node)

    def read(self, path: str) -> bytes:
        """See `Storage`."""
        return self._file(path).data

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        """See `Storage`."""
        return pa.BufferReader(self._file(path).data)

    def open_output(self, path: str) -> IO[bytes]:
        """See `Storage`. The object grows with what is written: another sees it half, as on a disk."""
        if not self._put(path, b""):
            raise StorageError("the name is taken", path=path)
        return self._output(path)

    def _output(self, path: str) -> IO[bytes]:
        return _Output(lambda data: self.overwrite(path, data))

    def close_output(self, file: IO[bytes]) -> None:
        """See `Storage`; there is nothing to sync."""
        file.close()

    def abort_output(self, file: IO[bytes]) -> None:
        """See `Storage`."""
        file.close()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Storage`."""
        return self._put(path, bytes(data))

    def make_folder(self, folder: str) -> None:
        """See `Storage`."""
        with self._lock:
            self._made(folder)

    def place(self, source: str, target: str) -> bool:
        """See `Storage`."""
        data = self._file(source).data
        if target.partition("/")[0] in self.elsewhere:
            raise StorageError("storage failed", path=target, found="[Errno 18] Invalid cross-device link")
        return self._put(target, data)

    def overwrite(self, path: str, data: bytes) -> None:
        """See `Storage`."""
        with self._lock:
            folder, name = self._made(path.rpartition("/")[0]), path.rpartition("/")[2]
            self._mix(path, folder.get(name))
            folder[name] = self._new(name, bytes(data))
            self._mix(path, folder[name])

    def delete(self, path: str) -> None:
        """See `Storage`."""
        with self._lock:
            above = self._node(path.rpartition("/")[0])
            if isinstance(above, dict):
                self._mix(path, above.pop(path.rpartition("/")[2], None))

    def delete_all(self, paths: Collection[str]) -> None:
        """See `Storage`."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """See `Storage`."""
        self.delete(folder)

    def delete_empty_folder(self, folder: str) -> bool:
        """See `Storage`: it has no folders that nothing is in."""
        return not self.is_file_system or self._node(folder) is None

    def set_modified(self, path: str, modified_ms: int) -> None:
        """See `Storage`."""
        file, above = self._file(path), self._node(path.rpartition("/")[0])
        with self._lock:
            assert isinstance(above, dict)
            above[file.entry.name] = File(file.data, replace(file.entry, modified_ms=modified_ms))

    def verify(self) -> None:
        """See `Storage`."""
        probe(self)

    @contextmanager
    def hold(self, path: str, timeout_s: float, busy: LockError) -> Iterator[Callable[[], bool]]:
        """See `Storage`."""
        lock = self._locks[path]
        if not lock.acquire(timeout=timeout_s):
            raise busy
        try:
            yield lambda: True
        finally:
            lock.release()

    def _put(self, path: str, data: bytes) -> bool:
        with self._lock:
            folder, name = self._made(path.rpartition("/")[0]), path.rpartition("/")[2]
            if name in folder:
                return False
            folder[name] = self._new(name, data)
            self._mix(path, folder[name])
            return True

    def _new(self, name: str, data: bytes) -> File:
        return File(data, Entry(name=name, is_folder=False, size=len(data), modified_ms=self._clock()))

    def _mix(self, path: str, node: File | Folder | None) -> None:
        """Takes a file, or all files of a folder, into the fingerprint, or out of it."""
        if isinstance(node, File):
            self.fingerprint ^= hash((path, node.data))
        elif node is not None:
            for name, below in node.items():
                self._mix(f"{path}/{name}", below)

    def _node(self, path: str) -> File | Folder | None:
        node: File | Folder | None = self._root
        for part in path.split("/") if path else ():
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _file(self, path: str) -> File:
        node = self._node(path)
        if node is None:
            raise MissingFileError("no such file", path=path)
        if not isinstance(node, File):
            raise StorageError("storage failed", path=path, found="a folder")
        return node

    def _made(self, path: str) -> Folder:
        node = self._root
        for part in path.split("/") if path else ():
            below = node.setdefault(part, {})
            if not isinstance(below, dict):
                raise StorageError("storage failed", path=path, found=f"{part} is a file")
            node = below
        return node


class _Output(io.BytesIO):
    def __init__(self, flushed: Callable[[bytes], None]) -> None:
        super().__init__()
        self._flushed = flushed

    def close(self) -> None:
        if not self.closed:
            self._flushed(self.getvalue())
        super().close()


def _entry(name: str, node: File | Folder) -> Entry:
    return node.entry if isinstance(node, File) else Entry(name=name, is_folder=True)
