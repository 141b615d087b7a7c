"""Tables by pattern: `/lake/*/orders_*` is every table there, also one that is made later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..format.table_config import PROPERTIES
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import HOODIE
from ..storage.open_storage import open_storage
from ..storage.storage_options import Given

_WILD = frozenset("*?[")


def is_pattern(path: str) -> bool:
    """Whether a path stands for many tables."""
    return not _WILD.isdisjoint(path)


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A path some of whose parts are patterns of names, as of a shell. No table is looked for below a table."""

    pattern: str
    storage_options: Given = None

    def tables(self) -> list[str]:
        """The base paths of the tables that there are now. PhantombaseError: that cannot be known."""
        parts = self.pattern.rstrip("/").split("/")
        fixed = next(n for n, part in enumerate(parts) if is_pattern(part))
        root = "/".join(parts[:fixed]) or "/"
        storage = open_storage(root, self.storage_options)
        return [f"{root.rstrip('/')}/{below}" for below in _matching(storage, "", parts[fixed:])]


def _matching(storage: Storage, folder: str, parts: list[str]) -> Iterator[str]:
    """Paths of tables below a folder of the storage."""
    for entry in listed_if_there(storage, folder) or ():
        if not entry.is_folder or entry.name == HOODIE or not fnmatchcase(entry.name, parts[0]):
            continue
        path = f"{folder}/{entry.name}".removeprefix("/")
        is_table = storage.find(f"{path}/{PROPERTIES}") is not None
        if is_table and len(parts) == 1:
            yield path
        elif not is_table and len(parts) > 1:
            yield from _matching(storage, path, parts[1:])
