"""The local POSIX file system as a `Storage`."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from ..errors import LockError, MissingFileError, StorageError
from .contract import Entry, OwnLock, Storage, files_below
from .file_lock import hold_file
from .folders import TEMPORARY
from .probe import probe

_LISTINGS = 20
"""So often a folder is listed again while files go from it."""


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file", path=path) from error
    except OSError as error:
        raise StorageError("storage failed", path=path, found=f"{type(error).__name__}: {error}") from error
    except ValueError as error:  # a path with a NUL, or one that is not UTF-8
        raise StorageError("impossible path", path=repr(path), found=str(error)) from error


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """A POSIX file system: temporary file, fsync, `os.link`, fsync of the folder. Picklable: Spark tasks get a copy."""

    base_path: str

    @property
    def is_file_system(self) -> bool:
        return True

    @property
    def own_lock(self) -> OwnLock:
        return OwnLock.FILE

    @property
    def location(self) -> str:
        return os.path.realpath(self.base_path)

    def _full(self, path: str) -> str:
        return os.path.join(self.base_path, path) if path else self.base_path

    @contextmanager
    def _temporary(self, data: bytes) -> Iterator[str]:
        """A durable file with `data` in phantombase's folder: what a killed process leaves there, Hudi never sees."""
        path = self._full(f"{TEMPORARY}/{uuid.uuid4().hex}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def list(self, folder: str) -> list[Entry]:
        before: Collection[str] = ()
        for _ in range(_LISTINGS):
            entries, names = self._listed(folder)
            if len(entries) == len(names) or names == before:  # the same again: a link to nothing
                break
            before = names
        return sorted(entries, key=lambda e: e.name)

    def _listed(self, folder: str) -> tuple[Sequence[Entry], Collection[str]]:
        """The entries of a folder, and the names that it had; fewer entries: some went in between.

        Archiving removes instants oldest first. If an old one is seen before it goes and a later one is gone when it is
        looked at, the timeline has a hole, and rows are missed.
        """
        full = self._full(folder)
        entries = []
        with _translated(full):
            with os.scandir(full) as scan:
                items = list(scan)
            for item in items:
                with suppress(FileNotFoundError):
                    entries.append(_entry(item.name, item.stat()))
        return entries, {item.name for item in items}

    def list_below(self, folder: str, before: str = "") -> Sequence[tuple[str, Entry]]:
        return list(files_below(self, folder, before))

    def find(self, path: str) -> Entry | None:
        try:
            with _translated(self._full(path)):
                return _entry(os.path.basename(path), os.stat(self._full(path)))
        except MissingFileError:
            return None

    def read(self, path: str) -> bytes:
        with _translated(self._full(path)), open(self._full(path), "rb") as file:
            return file.read()

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        full = self._full(path)
        with _translated(full):
            if os.stat(full).st_size == 0:  # an empty file cannot be mapped
                return pa.BufferReader(b"")
            return pa.memory_map(full, "r")

    def open_unmapped(self, path: str) -> pa.NativeFile:
        """As `open_input`, for a few kilobytes: to map a file takes longer than to read these."""
        full = self._full(path)
        with _translated(full):
            return pa.OSFile(full, "r")

    def open_output(self, path: str) -> IO[bytes]:
        full = self._full(path)
        with _translated(full):
            os.makedirs(os.path.dirname(full), exist_ok=True)
            return open(full, "xb")

    def close_output(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        sync(os.path.dirname(file.name))

    def abort_output(self, file: IO[bytes]) -> None:
        with suppress(OSError):  # on a full disk the flush of a close fails too
            file.close()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        full = self._full(path)
        with _translated(full), self._temporary(data) as temporary:
            return _link(temporary, full)

    def make_folder(self, folder: str) -> None:
        with _translated(self._full(folder)):
            os.makedirs(self._full(folder), exist_ok=True)

    def place(self, source: str, target: str) -> bool:
        with _translated(self._full(source)):
            return _link(self._full(source), self._full(target))

    def overwrite(self, path: str, data: bytes) -> None:
        full = self._full(path)
        with _translated(full):
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with self._temporary(data) as temporary:
                # Hadoop's checksum side file would describe the old bytes and fail every Hudi reader.
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(os.path.dirname(full), f".{os.path.basename(full)}.crc"))
                os.replace(temporary, full)
            sync(os.path.dirname(full))

    def delete(self, path: str) -> None:
        full = self._full(path)
        with _translated(full):
            for victim in (full, os.path.join(os.path.dirname(full), f".{os.path.basename(full)}.crc")):
                with suppress(FileNotFoundError):
                    os.unlink(victim)

    def delete_all(self, paths: Collection[str]) -> None:
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        with _translated(self._full(folder)), suppress(FileNotFoundError):
            shutil.rmtree(self._full(folder))

    def set_modified(self, path: str, modified_ms: int) -> None:
        with _translated(self._full(path)):
            os.utime(self._full(path), ns=(modified_ms * 1_000_000,) * 2)

    def prove(self) -> None:
        probe(self)

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        return hold_file(self._full(path), timeout_s, busy)


def open_little(storage: Storage, path: str, *, whole: bool = False) -> pa.NativeFile:
    """As `Storage.open_input`, for a few kilobytes, like the headers of log blocks: on a local disk nothing is mapped.

    `whole`: where files travel, see there.
    """
    if type(storage) is LocalStorage:  # a storage that stands before it opens files in its own way
        return storage.open_unmapped(path)
    return storage.open_input(path, whole=whole)


def _entry(name: str, stat: os.stat_result) -> Entry:
    if os.path.stat.S_ISDIR(stat.st_mode):  # type: ignore[attr-defined]
        return Entry(name=name, is_folder=True)
    return Entry(name=name, is_folder=False, size=stat.st_size, modified_ms=stat.st_mtime_ns // 1_000_000)


def _link(source: str, target: str) -> bool:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
            raise StorageError(
                "the file system has no hard links, which no-clobber publishing needs",
                path=target,
                todo="Put the table on a POSIX file system with hard links.",
            ) from error
        raise
    sync(os.path.dirname(target))
    return True


def sync(path: str) -> None:
    """Makes the bytes of a local file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
