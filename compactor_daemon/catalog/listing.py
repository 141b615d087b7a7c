"""Where the names of the tables of a catalog come from: an interface, and the tables below a folder.

A catalog is another listing: `metastore`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from phantombase.timeline.errors import MissingFileError, StorageError, UsageError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.storage.open_storage import open_storage, whole_path
from phantombase.timeline.storage.storage_options import StorageOptions

DEPTH = 3
"""How deep below a root tables are looked for: `root/database/table` is two."""


class TableListing(Protocol):
    """A source of tables. It may remember what it has found; it is called by one thread at a time."""

    def tables(self) -> Mapping[str, str]:
        """The base paths of the tables, by name (`a/b`). Errors of the tree: they cannot be known now."""
        ...

    @property
    def shown(self) -> str:
        """What is listed, for messages; the daemons of a fleet have the same."""
        ...


class FolderListing:
    """The tables below a folder: folders with `.hoodie`. Below a table no further one is looked for.

    A table that was found before costs no request of its own.
    """

    def __init__(self, root: str, options: StorageOptions, depth: int = DEPTH) -> None:
        self._root = whole_path(root).rstrip("/") or "/"
        self._storage = open_storage(root, options)
        self._depth = depth
        self._known: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        """See `TableListing`."""
        return self._root

    def tables(self) -> Mapping[str, str]:
        """See `TableListing`. UsageError: the folder is not there, or is a table itself."""
        try:
            folders = _folders(self._storage, "")
        except MissingFileError as error:
            raise UsageError("no folder to look for tables in", path=self._root) from error
        if HOODIE in folders:
            raise UsageError(
                "the root is a table itself", path=self._root, todo="Name the folder above it, or the table alone."
            )
        found = frozenset(self._below("", folders, self._depth))
        self._known = found
        return {name: f"{self._root.rstrip('/')}/{name}" for name in sorted(found)}

    def _below(self, folder: str, names: list[str], depth: int) -> Iterator[str]:
        for name in names:
            path = f"{folder}/{name}" if folder else name
            if name.startswith("."):
                continue
            if path in self._known:
                yield path
                continue
            try:
                inner = _folders(self._storage, path)
            except MissingFileError:
                continue
            except StorageError:  # closed to this process, say: it may be a table, and serving it says what is wrong
                inner = [HOODIE]
            if HOODIE in inner:
                yield path
            elif depth > 1:
                yield from self._below(path, inner, depth - 1)


def _folders(storage: Storage, folder: str) -> list[str]:
    return [e.name for e in storage.list(folder) if e.is_folder]
