"""A storage whose every call goes through a hook, and hooks that make it die, fail or pause at its n-th call."""

from __future__ import annotations

import io
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from phantombase.timeline.errors import LockError, StorageError
from phantombase.timeline.storage.contract import Entry, OwnLock, Storage, files_below
from phantombase.timeline.storage.folders import TEMPORARY
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import probe

_TORN_BYTES = 100


class ProcessDied(BaseException):
    """Stands for kill -9: nothing catches it, nothing is cleaned up."""


class Failure(Enum):
    """How far a call that raises an error has come."""

    BEFORE = "before it took effect"
    AFTER = "after it took effect"
    TORN = "half-way"

    def can_hit(self, name: str) -> bool:
        """Whether it makes a difference to calls of this name; a read has no effect that could be there or not."""
        writes = {"put_if_absent", "overwrite", "open_output"}
        changes = {*writes, "place", "delete", "delete_folder"}
        return self is Failure.BEFORE or name in (writes if self is Failure.TORN else changes)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a storage: its number (from 0), name and first argument; `do` makes it."""

    number: int
    name: str
    path: str
    do: Callable[[], Any]


Hook = Callable[[Call], Any]
"""Makes the call, or not; returns or raises in its place."""


def die_at(number: int) -> Hook:
    """Dies at that call, before it takes effect; a dead process makes no more calls, so no `finally` can tidy up."""

    def hook(call: Call) -> Any:
        if call.number >= number:
            raise ProcessDied(f"{call.name} {call.path}")
        return call.do()

    return hook


def died_copies(origin: Path, do: Callable[[Storage], object], step: int) -> Iterator[tuple[int, Path]]:
    """Copies of a table on which `do` died at call 0, `step`, 2 * `step`, ..., at last one on which it came to its end.
    Each with the number of that call."""
    for number in count(0, step):
        path = shutil.copytree(origin, origin.with_name(f"{origin.name}-{number}"))
        ended = True
        try:
            do(HookedStorage(LocalStorage(str(path)), die_at(number)))
        except ProcessDied:
            ended = False
        yield number, path
        if ended:
            return


def die_at_nth(number: int, name: str, ending: str = "") -> Hook:
    """Dies at the n-th call (from 1) of that name whose path has that ending, before it takes effect."""
    left = number

    def hook(call: Call) -> Any:
        nonlocal left
        left -= call.name == name and call.path.endswith(ending)
        if left <= 0:
            raise ProcessDied(f"{call.name} {call.path}")
        return call.do()

    return hook


def fail_at(number: int, failure: Failure, inner: Storage) -> Hook:
    """That call raises an error of the storage, once."""

    def hook(call: Call) -> Any:
        if call.number != number:
            return call.do()
        if failure is Failure.AFTER and call.name == "open_output":
            call.do().close()
        elif failure is Failure.AFTER:
            call.do()
        elif failure is Failure.TORN and call.name == "open_output":
            return _TornFile(call.do().detach())
        elif failure is Failure.TORN:
            inner.open_output(f"{TEMPORARY}/{uuid.uuid4().hex}").close()
        raise StorageError(f"injected: {call.name} failed {failure.value}", path=call.path)

    return hook


def pause_at(number: int, meanwhile: Callable[[], None]) -> Hook:
    """Something else happens just before that call."""

    def hook(call: Call) -> Any:
        if call.number == number:
            meanwhile()
        return call.do()

    return hook


class _TornFile(io.BufferedWriter):
    """A file on a disk that is full after some bytes."""

    def write(self, data: Any) -> int:
        room = max(0, _TORN_BYTES - self.tell())
        if len(data) <= room:
            return super().write(data)
        super().write(bytes(data)[:room])
        self.flush()
        raise OSError(28, "No space left on device")


class MovingStorage(LocalStorage):
    """A disk whose `place` is a rename, as on HDFS: the staged file is gone afterwards."""

    def place(self, source: str, target: str) -> bool:
        """See `Storage`."""
        placed = super().place(source, target)
        if placed:
            self.delete(source)
        return placed


class HookedStorage:
    """Another storage behind a hook."""

    def __init__(self, inner: Storage, hook: Hook) -> None:
        self.inner = inner
        self._hook = hook
        self._lock = threading.Lock()
        self.calls: list[str] = []

    @property
    def base_path(self) -> str:
        """See `Storage`."""
        return self.inner.base_path

    @property
    def is_file_system(self) -> bool:
        """See `Storage`."""
        return self.inner.is_file_system

    @property
    def own_lock(self) -> OwnLock:
        """See `Storage`."""
        return self.inner.own_lock

    @property
    def names_at_once(self) -> int | None:
        """See `Storage`."""
        return self.inner.names_at_once

    @property
    def location(self) -> str:
        """See `Storage`."""
        return self.inner.location

    def _call(self, name: str, *args: Any) -> Any:
        with self._lock:
            number = len(self.calls)
            self.calls.append(name)
        return self._hook(Call(number=number, name=name, path=args[0], do=lambda: getattr(self.inner, name)(*args)))

    def list(self, folder: str) -> list[Entry]:
        """See `Storage`."""
        return list(self._call("list", folder))

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        """See `Storage`."""
        return [one for one in files_below(self, folder, before) if one[0] > after]

    def find(self, path: str) -> Entry | None:
        """See `Storage`."""
        found: Entry | None = self._call("find", path)
        return found

    def read(self, path: str) -> bytes:
        """See `Storage`."""
        return bytes(self._call("read", path))

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        """See `Storage`."""
        return self._call("open_input", path)

    def open_output(self, path: str) -> IO[bytes]:
        """See `Storage`."""
        file: IO[bytes] = self._call("open_output", path)
        return file

    def close_output(self, file: IO[bytes]) -> None:
        """See `Storage`; no call of its own."""
        self.inner.close_output(file)

    def abort_output(self, file: IO[bytes]) -> None:
        """See `Storage`; no call of its own."""
        self.inner.abort_output(file)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Storage`."""
        return bool(self._call("put_if_absent", path, data))

    def make_folder(self, folder: str) -> None:
        """See `Storage`."""
        self._call("make_folder", folder)

    def place(self, source: str, target: str) -> bool:
        """See `Storage`."""
        return bool(self._call("place", source, target))

    def overwrite(self, path: str, data: bytes) -> None:
        """See `Storage`."""
        self._call("overwrite", path, data)

    def delete(self, path: str) -> None:
        """See `Storage`."""
        self._call("delete", path)

    def delete_all(self, paths: Collection[str]) -> None:
        """See `Storage`."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """See `Storage`."""
        self._call("delete_folder", folder)

    def delete_empty_folder(self, folder: str) -> bool:
        """See `Storage`."""
        return bool(self._call("delete_empty_folder", folder))

    def set_modified(self, path: str, modified_ms: int) -> None:
        """See `Storage`."""
        self._call("set_modified", path, modified_ms)

    def verify(self) -> None:
        """See `Storage`."""
        probe(self)

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        """See `Storage`; no call of its own."""
        return self.inner.hold(path, timeout_s, busy)


class OnObjects(HookedStorage):
    """A storage that is used as an object store is: reads ask ahead for what they need, commits before folders."""

    @property
    def is_file_system(self) -> bool:
        """See `Storage`."""
        return False
