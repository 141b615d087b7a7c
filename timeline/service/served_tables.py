"""The tables that one process serves, by name and by the base paths that clients send, and the newest states of each.

Tables by pattern: `/lake/*/orders_*` is every table there, also one that is created later."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from pathlib import PurePosixPath

from ..errors import PhantombaseError, UsageError
from ..event_log import get_logger
from ..format.table_config import PROPERTIES
from ..instants.clock_check import ClockOptions
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import HOODIE
from ..storage.open_storage import full_path, open_storage
from ..storage.storage_options import Given
from ..table.in_progress import refuse_left_to_hudi
from ..table.table import Table
from .asgi import BehindError, UnknownTableError
from .loading import load_state
from .table_state import ClientState, ServedState, may_stay_behind, refusal

_STATES_KEPT = 4
_SWEEP_S = 0.5
CLOCK = ClockOptions()
_serials = count(1)


@dataclass(frozen=True, slots=True)
class Held:
    """A state, with a `serial` unique in this process. `loaded_s`: when its load began, monotonic."""

    serial: int
    state: ServedState
    loaded_s: float


class ServedTable:
    """A table by its path. Each load opens the table again, since it may have been upgraded."""

    def __init__(self, path: str, storage_options: Given = None, clock: ClockOptions = CLOCK) -> None:
        self.path, self._clock = path, clock
        self.name = PurePosixPath(path.rstrip("/")).name
        self.error: PhantombaseError | None = None
        self.storage_options = storage_options
        self._table: Table | None = None
        self._held: deque[Held] = deque(maxlen=_STATES_KEPT)
        self._flight: asyncio.Task[Held] | None = None
        self._whole = False
        self.used_s = 0.0
        self.gone = False  # no longer served
        self.loads, self.whole_loads, self.load_s = 0, 0, 0.0
        self._swept_s = -_SWEEP_S
        self.on_load: Callable[[ServedTable], None] = lambda table: None

    @property
    def newest(self) -> Held | None:
        """The state loaded last; None before the first."""
        return self._held[-1] if self._held else None

    @property
    def table(self) -> Table:
        """The table; valid only after the first load."""
        assert self._table is not None
        return self._table

    async def current(self) -> Held:
        """The newest state, loaded if there is none. PhantombaseError: the table cannot be read."""
        self.used_s = time.monotonic()
        return self.newest or await self.load()

    async def agreed(self, client: ClientState) -> Held:
        """The state for a client. BehindError: none has its timeline. PhantombaseError: the table cannot be read."""
        self.used_s = time.monotonic()
        known = tuple(self._held)
        found = _find(known, client)
        if found is None:
            newest = await self.load()
            known = tuple(self._held) or (newest,)  # empty if another table needed the memory
            found = _find(known, client)
        if found is None:
            raise BehindError(refusal(known[-1].state.timeline, client))
        return found

    async def load(self, *, whole: bool = False) -> Held:
        """A state whose load began after this call; calls during a load share the next. `whole`: all is read again."""
        self._whole = self._whole or whole
        running = self._flight
        if running is not None and not running.done():
            await asyncio.wait([running])
        if self._flight is running:
            self._flight = asyncio.create_task(self._load())
        assert self._flight is not None
        return await asyncio.shield(self._flight)

    async def _load(self) -> Held:
        began, whole, self._whole = time.monotonic(), self._whole, False
        before = self._held[-1].state if self._held and not whole else None
        try:
            table, state = await asyncio.to_thread(self._read, before)
        except PhantombaseError as error:
            self.error = error
            raise
        self._table, self.error = table, None
        self.loads, self.load_s = self.loads + 1, self.load_s + time.monotonic() - began
        self.whole_loads += before is None
        held = Held(next(_serials), state, began)
        if before is not None and before.timeline.instants == state.timeline.instants:
            self._held.pop()  # clients may still know the older ones
        self._held.append(held)
        self.on_load(self)
        return held

    @property
    def bytes(self) -> int:
        return self._held[-1].state.bytes if self._held else 0

    def forget(self) -> None:
        """Drops its states; the next request loads the table in full."""
        self._held.clear()

    def opened(self) -> Table:
        """The table as it is on storage now; called in a thread. A COPY_ON_WRITE table has pages, and no answers for
        Hudi's clients. PhantombaseError: it cannot be opened."""
        table = Table.open(self.path, self.storage_options, reading=True).with_clock(self._clock)
        if table.config.has_logs:
            refuse_left_to_hudi(table, "serving views of")
        return table

    def _read(self, before: ServedState | None) -> tuple[Table, ServedState]:
        table = self._table.snapshot(cached=False) if self._table else self.opened()
        if table.config.has_logs:
            table.config.check_mergeable()
        sweep = time.monotonic() - self._swept_s >= _SWEEP_S
        state = load_state(table, before, sweep=sweep)
        if sweep:
            self._swept_s = time.monotonic()
        return table, state


def _find(known: Sequence[Held], client: ClientState) -> Held | None:
    for held in reversed(known):
        if held.state.agrees(client):
            newest = known[-1].state.timeline
            return held if held is known[-1] or may_stay_behind(held.state.timeline, newest) else None
    return None


_WILD = frozenset("*?[")


def is_pattern(path: str) -> bool:
    return not _WILD.isdisjoint(path)


def tables_of(pattern: str, storage_options: Given = None) -> list[str]:
    """The base paths of the tables that exist now. `pattern`: a path in which some parts are patterns of names, as in a
    shell. No table is searched below a table. PhantombaseError: they cannot be listed."""
    root = _folder_of(pattern)
    storage = open_storage(root, storage_options)
    parts = pattern.rstrip("/").split("/")[root.rstrip("/").count("/") + 1 :]
    return [f"{root.rstrip('/')}/{below}" for below in _matching(storage, "", parts)]


def _folder_of(pattern: str) -> str:
    """The folder below which a pattern searches."""
    parts = pattern.rstrip("/").split("/")
    return "/".join(parts[: next(n for n, part in enumerate(parts) if is_pattern(part))]) or "/"


def _matching(storage: Storage, folder: str, parts: list[str]) -> Iterator[str]:
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
    """A base path as a client sends it, without `file:` and without trailing slashes."""
    plain = base_path.removeprefix("file:")
    if plain != base_path:
        plain = "/" + plain.lstrip("/")
    return plain.rstrip("/")


class ServedTables:
    """See the module. `paths`: of tables, and patterns (`tables_of`). `max_bytes`: of all states. `found`: the paths
    of further tables. `clock`: the zone of their instants. `name_of`: their names, as `status` has them. A table that a
    pattern has found is named by its path below the pattern's folder; others by the shortest end of their path that is
    no other's. UsageError: a path is given twice."""

    def __init__(
        self,
        paths: Iterable[str],
        storage_options: Given = None,
        max_bytes: int | None = None,
        found: Callable[[], Iterable[str]] | None = None,
        clock: ClockOptions = CLOCK,
        name_of: Callable[[str], str | None] = lambda path: None,
    ) -> None:
        self._max_bytes, self._clock, self._name_of = max_bytes, clock, name_of
        self.by_name: dict[str, ServedTable] = {}
        self._by_path: dict[str, ServedTable] = {}
        self._found: set[str] = set()
        self._storage_options = storage_options
        self._sources: list[Callable[[], Iterable[str]]] = [] if found is None else [found]
        self._patterns: list[str | None] = [None for _ in self._sources]
        every = [full_path(given).rstrip("/") for given in paths]
        self._folders = [_folder_of(path) for path in every if is_pattern(path)]
        self._named = [path for path in every if not is_pattern(path)]
        for path in every:
            if is_pattern(path):
                self._sources.append(partial(tables_of, path, storage_options))
                self._patterns.append(path)
            elif path in self._by_path:
                raise UsageError("a table is given twice", path=path, todo="Give it once.")
            else:
                self._add(path)

    @property
    def whole_loads(self) -> int:
        return sum(table.whole_loads for table in self.by_name.values())

    def snapshot(self) -> list[list[str]]:
        """The paths that each pattern matches now, for `follow`; called in a thread. PhantombaseError."""
        return [list(source()) for source in self._sources]

    def follow(self, looked: Iterable[Iterable[str]]) -> list[ServedTable]:
        """Serves the tables that patterns find now, and no longer those found before only; returns the new ones. Warns
        once of a pattern that has found none."""
        for number, paths in enumerate(looked := [list(paths) for paths in looked]):
            if (pattern := self._patterns[number]) is not None and not paths:
                _log.warning("pattern matches no table", pattern=pattern)
            self._patterns[number] = None
        found = {path for paths in looked for path in paths}
        for path in self._found - found:
            self._remove(path)
        new = [self._add(path) for path in sorted(found) if path not in self._by_path]
        self._found = (self._found & found) | {table.path for table in new}
        return new

    def _add(self, path: str) -> ServedTable:
        table = ServedTable(path, self._storage_options, self._clock)
        table.name = self._free_name(path)
        table.on_load = self._make_room
        self.by_name[table.name] = table
        for form in _forms(path):
            self._by_path.setdefault(form, table)
        return table

    def _make_room(self, loaded: ServedTable) -> None:
        """Drops states of other tables, least recently used first, while all states exceed `max_bytes`."""
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

    def _free_name(self, path: str) -> str:
        """See the class: it does not depend on the order in which tables are found."""
        below = (path[len(root.rstrip("/")) + 1 :] for root in self._folders if path.startswith(f"{root.rstrip('/')}/"))
        name = self._name_of(path) or (next(below, None) if path not in self._named else None)
        if name is not None and name not in self.by_name:
            return name
        others = [f"/{one}" for one in self._named if one != path]
        parts = path.rstrip("/").split("/")
        ends = ("/".join(parts[-n:]) for n in range(1, len(parts) + 1))
        taken = (end for end in ends if end not in self.by_name)
        return next((end for end in taken if not any(one.endswith(f"/{end}") for one in others)), path)

    def at(self, base_path: str) -> ServedTable:
        """The table at a base path, without access to storage. UnknownTableError: it is not served."""
        found = self._by_path.get(spelled(base_path))
        if found is None:
            raise UnknownTableError(f"no table is served at {base_path!r}")
        return found


def _forms(path: str) -> set[str]:
    """A path with its links resolved; the schemes under which Hadoop and others name the same object store."""
    if "://" not in path or path.startswith("file:"):
        return {path, os.path.realpath(path)}
    scheme, _, rest = path.partition("://")
    same = next((s for s in _SCHEMES if scheme in s), frozenset({scheme}))
    return {f"{other}://{rest}" for other in same}


_SCHEMES = (frozenset({"s3", "s3a", "s3n"}), frozenset({"gs", "gcs"}))
