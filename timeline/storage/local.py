"""The local POSIX file system as a `Storage`, and locks of files.

A lock file excludes every process on machines that share its (POSIX-locking) file system."""

from __future__ import annotations

import builtins
import errno
import getpass
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from stat import S_ISDIR
from typing import IO, TYPE_CHECKING

import filelock

from ..errors import LockError, MissingFileError, StorageError, reason_of
from ..reachable import waiting
from .contract import Entry, OwnLock, Storage, files_below, list_of_table, never_the_same
from .folders import TEMPORARY
from .snapshot import without_snapshot
from .staged_file import probe

if TYPE_CHECKING:  # what `show` does not need to start
    import pyarrow as pa


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container that runs under any number
        return str(os.getuid())


@contextmanager
def hold_file(path: str, timeout_s: float, busy: LockError) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`. A lock file is held until it is released or its process ends."""
    lock = filelock.FileLock(path, thread_local=False)  # the thread that leaves may differ from the one that enters
    try:
        try:
            _acquire(lock, 0)
        except filelock.Timeout:
            with waiting(f"waiting for the lock {path}, {timeout_s:g} s at most"):
                _acquire(lock, timeout_s)
    except filelock.Timeout as error:
        raise busy from error
    except OSError as error:
        todo = f"All users whose processes take this lock, also {_user()}, must be able to write it."
        raise LockError("the lock file cannot be used", path=path, found=reason_of(error), todo=todo) from error
    try:
        yield lambda: True
    finally:
        lock.release()


_TRIES = 5


def _acquire(lock: filelock.BaseFileLock, timeout_s: float) -> None:
    """Makes the folder of the file, too. Its holder may be removing both: see `place_files.FirstTable`."""
    for left in reversed(range(_TRIES)):
        try:
            os.makedirs(os.path.dirname(os.path.abspath(lock.lock_file)), exist_ok=True)
            lock.acquire(timeout=timeout_s)
            return
        except FileNotFoundError:
            if not left:
                raise


_NAMES_AT_ONCE, _LISTINGS_MAX_S = 100, 30.0
"""Names in one system call (32 KB), and how long, in seconds, a changing folder is listed again."""


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file", path=path) from error
    except NotADirectoryError as error:
        todo = "Check the path: a table is a folder."
        raise StorageError("a file lies where a folder is expected", path=path, todo=todo) from error
    except PermissionError as error:
        who = f"the user {_user()} may not read or write this"
        todo = "Give it the rights to the table's folder and all in it."
        raise StorageError(who, path=path, found=reason_of(error), todo=todo) from error
    except OSError as error:
        raise StorageError("storage failed", path=path, found=reason_of(error)) from error
    except ValueError as error:  # a path with a NUL, or one that is not UTF-8
        raise StorageError("impossible path", path=repr(path), found=str(error)) from error


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """A POSIX file system: temporary file, fsync, `os.link`, fsync of the folder. Picklable: Spark tasks get a copy."""

    base_path: str
    is_file_system, own_lock = True, OwnLock.FILE

    @property
    def names_at_once(self) -> int | None:
        return None

    @property
    def location(self) -> str:
        return os.path.realpath(self.base_path)

    def _full(self, path: str) -> str:
        return os.path.join(self.base_path, path) if path else self.base_path

    @contextmanager
    def _temporary(self, data: bytes) -> Iterator[str]:
        """A durable file with `data` in phantombase's folder: Hudi never reads there."""
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
        before, until = list[str](), time.monotonic() + _LISTINGS_MAX_S
        while True:
            entries, names = self._listed(folder, until)
            if len(entries) == len(names) or names == before:  # the same names again: a dangling link
                return sorted(entries, key=lambda e: e.name)
            if time.monotonic() > until:
                raise never_the_same(self._full(folder))
            before = names

    def _listed(self, folder: str, until: float) -> tuple[Sequence[Entry], builtins.list[str]]:
        """The entries of a folder, and its names at one point in time; fewer entries: some were removed since.
        Archiving removes instants oldest first. If an old one is read before it is removed, and a later one after it
        was removed, the timeline has a gap, and rows are missed."""
        full = self._full(folder)
        entries = []
        with _translated(full):
            names = _names(full, until)
            for name in names:
                try:
                    entries.append(_entry(name, os.stat(f"{full}/{name}")))
                except FileNotFoundError:
                    continue
        return entries, names

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        return [one for one in files_below(self, folder, before) if one[0] > after]

    def find(self, path: str) -> Entry | None:
        with suppress(MissingFileError), _translated(self._full(path)):
            return _entry(os.path.basename(path), os.stat(self._full(path)))
        return None

    def read(self, path: str) -> bytes:
        with _translated(self._full(path)), open(self._full(path), "rb") as file:
            return file.read()

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        import pyarrow as pa  # late: `show` does not need it to start

        full = self._full(path)
        with _translated(full):
            if os.stat(full).st_size == 0:  # an empty file cannot be mapped
                return pa.BufferReader(b"")
            return pa.memory_map(full, "r")

    def open_unmapped(self, path: str) -> pa.NativeFile:
        """As `open_input`, for a few kilobytes: to map a file takes longer than to read these."""
        import pyarrow as pa  # late: `show` does not need it to start

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
        with _translated(full := self._full(folder)):
            try:
                os.makedirs(full, exist_ok=True)
            except FileNotFoundError as error:  # of file systems such as /proc
                todo = "Choose a place on a file system that takes folders."
                raise StorageError("no folder can be made here", path=full, todo=todo) from error

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

    def delete_empty_folder(self, folder: str) -> bool:
        with suppress(OSError):
            os.rmdir(self._full(folder))
        return not os.path.lexists(self._full(folder))

    def set_modified(self, path: str, modified_ms: int) -> None:
        with _translated(self._full(path)):
            os.utime(self._full(path), ns=(modified_ms * 1_000_000,) * 2)

    def verify(self) -> None:
        probe(self)

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        return hold_file(self._full(path), timeout_s, busy)


def _names(full: str, until: float) -> list[str]:
    """The names in a folder at one point in time: those of a large one come in parts, see `contract.list_at_once`."""
    names, before = sorted(os.listdir(full)), None
    while len(names) > _NAMES_AT_ONCE and names != before:
        if time.monotonic() > until:
            raise never_the_same(full)
        names, before = sorted(os.listdir(full)), names
    return names


def names_of_table(storage: Storage, folder: str) -> list[str]:
    """The names in a folder that every table has, perhaps not as of one point in time. MissingFileError as in
    `list_of_table`. On a local disk no file is asked for its size and time."""
    if type(storage) is not LocalStorage:
        return [entry.name for entry in list_of_table(storage, folder)]
    full = storage._full(folder)
    with _translated(full):
        return os.listdir(full)


LARGE_BYTES = 4 << 20
"""The least size, in bytes, of a file that is large."""


def large_file(storage: Storage, path: str) -> tuple[LocalStorage, Entry] | None:
    """A large file on a local disk, and the storage to read it past a snapshot, which would hold its content in memory:
    to read a part of it again costs little. None: it is small, or elsewhere."""
    origin = without_snapshot(storage)
    if type(origin) is not LocalStorage:
        return None
    entry = storage.find(path)
    return None if entry is None or entry.size < LARGE_BYTES else (origin, entry)


def read_part(storage: Storage, path: str, begin: int, length: int) -> bytes:
    """Bytes of a file that `large_file` has found; fewer: it ends before. Errors as those of `Storage.read`."""
    assert isinstance(storage, LocalStorage)
    full = storage._full(path)
    with _translated(full), open(full, "rb") as file:
        file.seek(begin)
        return file.read(length)


def open_little(storage: Storage, path: str) -> pa.NativeFile:
    """As `Storage.open_input`, for a few kilobytes, as headers of log blocks: on a local disk nothing is mapped. Also
    for files that another program may make shorter, which would end a process that has mapped them."""
    if type(storage) is LocalStorage:  # a storage that wraps it opens files in its own way
        return storage.open_unmapped(path)
    return storage.open_input(path, whole=False)


def _entry(name: str, stat: os.stat_result) -> Entry:
    if S_ISDIR(stat.st_mode):
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
            what = "the file system has no hard links, which no-clobber publishing needs"
            todo = "Put the table on a POSIX file system with hard links."
            raise StorageError(what, path=target, todo=todo) from error
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
