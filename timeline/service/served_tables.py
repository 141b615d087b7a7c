"""The tables that one process serves, by name and by the base paths that clients send.

Tables by pattern: `/lake/*/orders_*` is every table there, also one that is made later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..errors import UsageError
from ..event_log import get_logger
from ..format.table_config import PROPERTIES
from ..instants.clock_check import ClockOptions
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import HOODIE
from ..storage.open_storage import full_path, open_storage
from ..storage.storage_options import Given
from .served_table import CLOCK, ServedTable
from .wire.asgi import UnknownTableError

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


_log = get_logger()


def spelled(base_path: str) -> str:
    """A base path as a client sends it, without `file:` and without slashes at its end."""
    plain = base_path.removeprefix("file:")
    if plain != base_path:
        plain = "/" + plain.lstrip("/")
    return plain.rstrip("/")


class ServedTables:
    """See the module. `paths`: of tables, and patterns of them (`discovery`). `max_bytes`: of all states. `found`:
    gives the paths of further tables, like a pattern. `clock`: the zone of their instants.

    UsageError: a path is given twice.
    """

    def __init__(
        self,
        paths: Iterable[str],
        storage_options: Given = None,
        max_bytes: int | None = None,
        found: Callable[[], Iterable[str]] | None = None,
        clock: ClockOptions = CLOCK,
    ) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self.by_name: dict[str, ServedTable] = {}
        self._by_path: dict[str, ServedTable] = {}
        self._found: set[str] = set()
        self._storage_options = storage_options
        self._sources: list[Callable[[], Iterable[str]]] = [] if found is None else [found]
        for given in paths:
            path = full_path(given).rstrip("/")
            if is_pattern(path):
                self._sources.append(TablePattern(path, storage_options).tables)
            elif path in self._by_path:
                raise UsageError("a table is given twice", path=path)
            else:
                self._add(path)

    @property
    def whole_loads(self) -> int:
        """How often a table was loaded whole."""
        return sum(table.whole_loads for table in self.by_name.values())

    def snapshot(self) -> list[list[str]]:
        """The paths that each pattern stands for now; to be called in a thread, for `follow`. PhantombaseError."""
        return [list(source()) for source in self._sources]

    def follow(self, looked: Iterable[Iterable[str]]) -> list[ServedTable]:
        """Serves the tables that patterns have found, and no longer those that they found once; those that are new."""
        found = {path for paths in looked for path in paths}
        for path in self._found - found:
            self._remove(path)
        new = [self._add(path) for path in sorted(found) if path not in self._by_path]
        self._found = (self._found & found) | {table.path for table in new}
        return new

    def _add(self, path: str) -> ServedTable:
        table = ServedTable(path, self._storage_options, self._clock)
        table.name = self._free_name(table.name)
        table.on_load = self._make_room
        self.by_name[table.name] = table
        for form in {path, os.path.realpath(path)} if _is_local(path) else _forms(path):
            self._by_path.setdefault(form, table)
        return table

    def _make_room(self, loaded: ServedTable) -> None:
        """Lets states of other tables go, those first that were used longest ago, while all are more than allowed."""
        if self._max_bytes is None:
            return
        others = sorted((t for t in self.by_name.values() if t is not loaded and t.newest), key=lambda t: t.used_s)
        total = loaded.bytes + sum(t.bytes for t in others)
        for table in others:
            if total <= self._max_bytes:
                return
            total -= table.bytes
            table.forget()
            _log.info("states let go", table=table.path, max_memory=self._max_bytes)
        if total > self._max_bytes:
            _log.warning("one table needs more than --max-memory", table=loaded.path, bytes=total)

    def _remove(self, path: str) -> None:
        gone = self._by_path[path]
        gone.gone = True
        del self.by_name[gone.name]
        self._by_path = {form: table for form, table in self._by_path.items() if table is not gone}

    def _free_name(self, name: str) -> str:
        """The name, with a number behind it if another table has it."""
        numbered, number = name, 1
        while numbered in self.by_name:
            number += 1
            numbered = f"{name}-{number}"
        return numbered

    def at(self, base_path: str) -> ServedTable:
        """The table at a base path. UnknownTableError: it is not served; nothing is looked up on storage."""
        found = self._by_path.get(spelled(base_path))
        if found is None:
            raise UnknownTableError(f"no table is served at {base_path!r}")
        return found


def _is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file:")


def _forms(url: str) -> set[str]:
    """The schemes under which Hadoop and others name the same object store."""
    scheme, _, rest = url.partition("://")
    same = next((s for s in _SCHEMES if scheme in s), frozenset({scheme}))
    return {f"{other}://{rest}" for other in same}


_SCHEMES = (frozenset({"s3", "s3a", "s3n"}), frozenset({"gs", "gcs"}))
