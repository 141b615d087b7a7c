"""HDFS as a `Storage`, through hdfs-native: without a JVM.

    hdfs://HOST:PORT/PATH, hdfs://NAMESERVICE/PATH

A file is visible while it is written, so each object is written under a temporary name and renamed. The client retries
a call when the connection breaks: the answer "no" may be that of a retry after a call that succeeded. So after any
answer but "done" the temporary file is deleted. If it still existed, the rename was not executed, and never will be."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from typing import IO, Any

import pyarrow as pa
from hdfs_native import Client

from ..errors import LockError, MissingFileError, StorageError, UsageError
from .contract import NAMES_IN_ONE_REQUEST, Entry, OwnLock, files_below
from .folders import TEMPORARY
from .hdfs_files import NewFile, hold_lease, open_client, open_file, shown, translated
from .server_clock import storage_ms
from .staged_file import probe

_FAILURES = (OSError, RuntimeError, ValueError)


class HdfsStorage:
    """See the module. Picklable: only the URL is sent; each process has its own settings and credentials."""

    is_file_system, own_lock, names_at_once = True, OwnLock.PRIVATE, NAMES_IN_ONE_REQUEST

    def __init__(self, url: str) -> None:
        """UsageError: the URL does not name a name node, or contains `..`."""
        self._authority, _, path = url.partition("://")[2].partition("/")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not self._authority or ".." in parts:
            expected = "hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH"
            found = f"hdfs://{self._authority}/{path}"
            todo = None if self._authority else "fs.defaultFS in core-site.xml names the one of Hadoop's jobs."
            raise UsageError("not the URL of a folder on HDFS", path=url, expected=expected, found=found, todo=todo)
        self._root = "/" + "/".join(parts)
        self.base_path = f"hdfs://{self._authority}{self._root}"

    def __reduce__(self) -> tuple[type[HdfsStorage], tuple[str]]:
        return HdfsStorage, (self.base_path,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HdfsStorage) and other.base_path == self.base_path

    def __hash__(self) -> int:
        return hash(self.base_path)

    @property
    def location(self) -> str:
        return self.base_path

    @property
    def _client(self) -> Client:
        return open_client(self._authority)

    def _full(self, path: str) -> str:
        if "\0" in path:
            raise StorageError("impossible path", path=repr(path))
        return f"{self._root.rstrip('/')}/{path}" if path else self._root

    def _shown(self, path: str) -> str:
        return f"{self.base_path}/{path}"

    # --- reading

    def list(self, folder: str) -> list[Entry]:
        full = self._full(folder)
        with translated(self._shown(folder)):
            found = list(self._client.list_status(full))
        if len(found) == 1 and found[0].path == full and not found[0].isdir:  # the listing of a file is the file itself
            raise StorageError("storage failed", path=self._shown(folder), found="a file, not a folder")
        return sorted((_entry(one) for one in found), key=lambda e: e.name)

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        return [one for one in files_below(self, folder, before) if one[0] > after]

    def find(self, path: str) -> Entry | None:
        with suppress(MissingFileError), translated(self._shown(path)):
            return _entry(self._client.get_file_info(self._full(path)))
        return None

    def read(self, path: str) -> bytes:
        with translated(self._shown(path)):
            file = self._client.read(self._full(path))
            return bytes(file.read_range(0, len(file))) if len(file) else b""

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        return open_file(self._client, self._full(path), self._shown(path), whole=whole)

    # --- writing

    def open_output(self, path: str) -> IO[bytes]:
        with translated(self._shown(path)):
            file: Any = NewFile(self._client, self._full(path))
            return file  # type: ignore[no-any-return]

    def close_output(self, file: IO[bytes]) -> None:
        new: Any = file
        new.finish()

    def abort_output(self, file: IO[bytes]) -> None:
        new: Any = file
        new.drop()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        client, target, temporary = self._client, self._full(path), self._temporary(data)
        with translated(self._shown(path)):
            client.mkdirs(target.rpartition("/")[0], create_parent=True)
            modified_ms = client.get_file_info(temporary).modification_time
        try:
            client.rename(temporary, target)
            return True
        except _FAILURES as error:
            if self._was_there(temporary, path, error):
                if isinstance(error, FileExistsError):
                    return False
                raise StorageError("storage failed", path=self._shown(path), found=shown(error)) from error
            # Renamed before this answer; or removed by a sweep, after this process had stalled for an hour.
            with suppress(MissingFileError), translated(self._shown(path)):
                there = client.get_file_info(target)
                if there.modification_time == modified_ms and self.read(path) == data:
                    return True
            raise self._unknown(path, error) from error

    def _temporary(self, data: bytes) -> str:
        """Writes a temporary file with a unique name; returns its full path."""
        path = f"{TEMPORARY}/{uuid.uuid4().hex}"
        with translated(self._shown(path)):
            file = NewFile(self._client, self._full(path))
            try:
                file.write(data)
                file.finish()
            except BaseException:
                file.drop()
                with suppress(*_FAILURES):
                    self._client.delete(self._full(path))
                raise
        return self._full(path)

    def _was_there(self, temporary: str, path: str, error: Exception) -> bool:
        """Deletes a temporary file. True: it existed, so it never gets its final name. False: it had it already."""
        try:
            return bool(self._client.delete(temporary))
        except _FAILURES:
            raise self._unknown(path, error) from error

    def _unknown(self, path: str, error: Exception) -> StorageError:
        return StorageError(
            "whether an object was put is not known", path=self._shown(path), found=shown(error), todo="Run again."
        )

    def make_folder(self, folder: str) -> None:
        with translated(self._shown(folder)):
            self._client.mkdirs(self._full(folder), create_parent=True)

    def place(self, source: str, target: str) -> bool:
        """See `Storage`. The staged file no longer exists afterwards."""
        client, final = self._client, self._full(target)
        with translated(self._shown(source)):
            client.mkdirs(final.rpartition("/")[0], create_parent=True)
            try:
                client.rename(self._full(source), final)
                return True
            except FileExistsError:
                return False
            except FileNotFoundError:
                if self.find(target) is not None:  # placed before, by this call sent twice or by another process
                    return False
                raise

    def overwrite(self, path: str, data: bytes) -> None:
        client, target, temporary = self._client, self._full(path), self._temporary(data)
        with translated(self._shown(path)):
            client.mkdirs(target.rpartition("/")[0], create_parent=True)
        try:
            client.rename(temporary, target, overwrite=True)
        except _FAILURES as error:
            if self._was_there(temporary, path, error):
                raise StorageError("storage failed", path=self._shown(path), found=shown(error)) from error
            with suppress(MissingFileError):
                if self.read(path) == data:
                    return
            raise self._unknown(path, error) from error

    def delete(self, path: str) -> None:
        with suppress(MissingFileError), translated(self._shown(path)):
            self._client.delete(self._full(path))

    def delete_all(self, paths: Collection[str]) -> None:
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        with suppress(MissingFileError), translated(self._shown(folder)):
            self._client.delete(self._full(folder), recursive=True)

    def delete_empty_folder(self, folder: str) -> bool:
        with suppress(StorageError), translated(self._shown(folder)):  # one with content is refused
            self._client.delete(self._full(folder), recursive=False)
        return self.find(folder) is None

    def set_modified(self, path: str, modified_ms: int) -> None:
        with translated(self._shown(path)):
            accessed_ms = self._client.get_file_info(self._full(path)).access_time
            self._client.set_times(self._full(path), modified_ms, accessed_ms)

    def verify(self) -> None:
        probe(self)

    # --- leases

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        return hold_lease(self, path, timeout_s, busy, lambda: storage_ms(self))


def _entry(found: Any) -> Entry:
    name = found.path.rstrip("/").rpartition("/")[2]
    if found.isdir:
        return Entry(name=name, is_folder=True)
    return Entry(name=name, is_folder=False, size=found.length, modified_ms=found.modification_time)
