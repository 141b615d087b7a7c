"""Storage: the few operations everything stands on. This file is the contract; `local` and `object_store` keep it.

Paths are relative to the table's base path, `/`-separated, never absolute. Two operations carry the protocol:
`put_if_absent` (a whole object appears under its name or not at all, and never replaces one) and `place` (a
finished staged file gets its final name, never replacing one). `pyarrow.fs` offers neither: its `move`
replaces an existing file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Protocol

import pyarrow as pa

from ..errors import LockError, MissingFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a folder. `size` in bytes and `modified_ms` since the epoch are 0 for folders."""

    name: str
    is_folder: bool
    size: int = 0
    modified_ms: int = 0


class Storage(Protocol):
    """What a table needs of the place it lies in. A store that cannot keep a promise is refused, not imitated."""

    @property
    def base_path(self) -> str:
        """The table's base path, for messages, and as writers record it."""
        ...

    @property
    def is_file_system(self) -> bool:
        """Whether folders are things of their own, and lock files exclude. Elsewhere a folder with nothing in it is
        none."""
        ...

    @property
    def location(self) -> str:
        """Names the place itself: equal for two storages that lie in one, however their paths were given."""
        ...

    def list(self, folder: str) -> list[Entry]:
        """The folder's entries, by name; MissingFileError when there is no such folder."""
        ...

    def list_below(self, folder: str) -> Sequence[tuple[str, Entry]]:
        """(path relative to `folder`, entry) of every file in it and its subfolders; nothing where there is no folder.

        One that another process removes meanwhile is there no more.
        """
        ...

    def find(self, path: str) -> Entry | None:
        """The entry at `path`, or None when nothing is there."""
        ...

    def read(self, path: str) -> bytes:
        """The whole object; MissingFileError when there is none."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Random access for reading; MissingFileError when there is none."""
        ...

    def open_output(self, path: str) -> IO[bytes]:
        """A new object for writing; StorageError when the name is taken. See `close_output`, `abort_output`.

        Closed otherwise it is whole, but a power cut may take it. Each output needs a name of its own: of two that
        open one name at the same time, an object store refuses none.
        """
        ...

    def close_output(self, file: IO[bytes]) -> None:
        """Ends an output: it is whole, and survives a power cut."""
        ...

    def abort_output(self, file: IO[bytes]) -> None:
        """Gives an output up. Parts of it may stay under its name, where the store shows what is being written."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """True: `data` is now durably at `path`. False: something was there already, and still is."""
        ...

    def make_folder(self, folder: str) -> None:
        """Makes a folder and those above it; there already is success. Where folders are only names: nothing."""
        ...

    def place(self, source: str, target: str) -> bool:
        """Gives a finished staged file its final name. True: placed. False: `target` was there already.

        The staged file may stay. StorageError also where the answer was lost, and the file may be placed.
        """
        ...

    def overwrite(self, path: str, data: bytes) -> None:
        """Replaces an object. For hoodie.properties and heartbeats only: nothing else is ever replaced."""
        ...

    def delete(self, path: str) -> None:
        """Removes an object; nothing there is success."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Removes a folder with all in it; nothing there is success."""
        ...

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Gives a file another modification time. For `timeline repair-times` only.

        MissingFileError: there is none. StorageError: this store cannot.
        """
        ...

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[None]:
        """Holds the lock of that name against every process that uses this storage, also on other machines.

        `busy` is raised when it was not free in time, LockError when it cannot be used at all: never a lock that
        excludes only some. That of a process that died is free at last.
        """
        ...


def list_of_table(storage: Storage, folder: str) -> list[Entry]:
    """The entries of a folder that every table has; on an object store there is none before its first object.

    MissingFileError: a file system has no such folder.
    """
    try:
        return storage.list(folder)
    except MissingFileError:
        if storage.is_file_system:
            raise
        return []


def files_below(storage: Storage, folder: str) -> Iterator[tuple[str, Entry]]:
    """`Storage.list_below` of a storage that lists folder by folder."""
    try:
        entries = storage.list(folder)
    except MissingFileError:
        return
    for entry in entries:
        if entry.is_folder:
            for path, file in files_below(storage, f"{folder}/{entry.name}"):
                yield f"{entry.name}/{path}", file
        else:
            yield entry.name, entry
