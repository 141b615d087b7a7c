"""Hudi's marker routes as an ASGI application (`MarkerHandler` of Hudi 1.2; clients of 0.15 do not use them).

Hudi's server accepts every path; here a marker folder must be one of a served table.

On storage each batch of names is a file of its own, `MARKERS<n>`, one name a line, which is put in one step and never
changed: every Hudi can read what a killed process leaves. Hudi's server rewrites twenty such files."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from ..errors import MalformedError, UsageError
from ..storage.contract import Storage
from ..storage.folders import HOODIE, marker_folder
from ..storage.open_storage import open_storage
from ..table.traces import TIMELINE_SERVER, TYPE_FILE, Marker, delete_markers, list_markers
from .asgi import Receive, Refused, Scope, Send, encoded, parameters, send_answer, send_error
from .routes import need
from .served_tables import ServedTable, ServedTables, spelled
from .table_state import Json

_LIST = re.compile(r"MARKERS(\d+)")


def checked_name(name: str) -> str:
    """The name of a marker; UsageError if it is none."""
    try:
        Marker.parse(name, "markername")
        valid = name.isprintable()
    except MalformedError:
        valid = False
    if not valid:
        raise UsageError(
            "not a marker name", expected="[<partition>/]<file>.marker.<CREATE|MERGE|APPEND>", found=repr(name)
        )
    return name


def check_contained(storage: Storage, instant: str) -> None:
    """UsageError: the markers of an instant would be elsewhere, through a link."""
    base = storage.base_path
    if "://" in base:
        return
    folder = marker_folder(instant)
    if os.path.realpath(f"{base}/{folder}") != f"{os.path.realpath(base)}/{folder}":
        raise UsageError(
            "a marker folder must not be reached through a link",
            found=repr(folder),
            expected=".hoodie/.temp/INSTANT of a served table",
        )


def marker_names(storage: Storage, instant: str) -> list[str]:
    check_contained(storage, instant)
    return [marker.text for marker in list_markers(storage, instant)]


def exists(storage: Storage, instant: str) -> bool:
    check_contained(storage, instant)
    return storage.find(f"{marker_folder(instant)}/{TYPE_FILE}") is not None or bool(marker_names(storage, instant))


def remove(storage: Storage, instant: str) -> bool:
    """Removes the markers of an instant. False: there were none."""
    found = exists(storage, instant)
    delete_markers(storage, instant)
    return found


def append(storage: Storage, instant: str, names: list[str], number: int | None = None) -> int:
    """Puts names into a new file; they are durable on return. They may already exist: readers make sets. `number`: of
    the first file that may be free, as the last call returned it; None: the folder is listed."""
    folder = marker_folder(instant)
    if number is None:
        number = _begin(storage, folder)
    data = "".join(f"{name}\n" for name in names).encode()
    while not storage.put_if_absent(f"{folder}/MARKERS{number}", data):
        number += 1
    return number + 1


def _begin(storage: Storage, folder: str) -> int:
    """Makes the folder if it does not exist; returns the first number above all used ones."""
    kind = f"{folder}/{TYPE_FILE}"
    if (entry := storage.find(kind)) is not None and not entry.size:  # its writer was killed
        storage.delete(kind)
    storage.put_if_absent(kind, TIMELINE_SERVER.encode())
    used = [int(m[1]) for path, _ in storage.list_below(folder) if (m := _LIST.fullmatch(path))]
    return max(used, default=-1) + 1


class MarkerFolder:
    """Writes markers of one write: those that arrive while a batch is written are the next batch."""

    def __init__(self, storage: Storage, instant: str) -> None:
        self._storage, self._instant = storage, instant
        self._known: set[str] | None = None
        self._number: int | None = None
        self._taken: dict[str, asyncio.Future[bool]] = {}
        self._next: list[str] = []
        self._alone = asyncio.Lock()

    @property
    def idle(self) -> bool:
        return not self._taken and not self._alone.locked()

    async def create(self, name: str) -> bool:
        """True: the marker is durable. False: it already existed. PhantombaseError: it may be durable or not."""
        first = name not in self._taken
        if first:
            self._taken[name] = asyncio.get_running_loop().create_future()
            self._next.append(name)
        done = self._taken[name]
        async with self._alone:
            if not done.done():
                await self._write_all()
        return done.result() and first

    async def remove(self) -> bool:
        """Removes all markers. False: there were none."""
        async with self._alone:
            self._known = None
            return await asyncio.to_thread(remove, self._storage, self._instant)

    async def _write_all(self) -> None:
        names, self._next = self._next, []
        taken = [self._taken[name] for name in names]
        try:
            new = await asyncio.to_thread(self._put, names)
        except Exception as error:
            for one in taken:
                one.set_exception(error)
                one.exception()  # its client may have disconnected: then no one reads it
        else:
            for name, one in zip(names, taken, strict=True):
                one.set_result(name in new)
        finally:
            for name in names:
                del self._taken[name]

    def _put(self, names: list[str]) -> set[str]:
        """Puts the new ones of the names, and returns them; they are durable."""
        check_contained(self._storage, self._instant)
        if self._known is None or self._storage.find(f"{marker_folder(self._instant)}/{TYPE_FILE}") is None:
            self._known, self._number = set(marker_names(self._storage, self._instant)), None
        new = [name for name in names if name not in self._known]
        if new:
            self._number = append(self._storage, self._instant, new, self._number)
            self._known.update(new)
        return set(new)


MARKER_PREFIX = "/v1/hoodie/marker/"
_FOLDER = re.compile(rf"(?P<base>.+)/{re.escape(HOODIE)}/\.temp/(?P<instant>\d{{14,20}})")
_FOLDERS_MAX = 1000
_METHODS = dict.fromkeys(("dir/exists", "all", "create-and-merge", "append"), "GET")
_METHODS |= {"create": "POST", "dir/delete": "POST"}


class MarkerApp:
    def __init__(self, tables: ServedTables) -> None:
        self._tables = tables
        self._folders: dict[tuple[str, str], MarkerFolder] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            route = scope["path"].removeprefix(MARKER_PREFIX).removesuffix("/")
            if scope["method"] != _METHODS.get(route):
                raise Refused(404, "Not found")
            value = await self._answer(route, parameters(scope["query_string"]))
        except Exception as error:
            await send_error(scope, send, error)
            return
        await send_answer(scope, send, encoded(value))

    async def _answer(self, route: str, given: Mapping[str, str]) -> Json:
        table, instant = self._place(need(given, "markerdirpath"))
        if table.newest:
            storage = table.table.storage
        else:
            storage = await asyncio.to_thread(open_storage, table.path, table.storage_options)
        if route == "create":
            name = checked_name(need(given, "markername"))
            return await self._folder(table, storage, instant).create(name)
        if route == "dir/delete":
            return await self._folder(table, storage, instant).remove()
        if route == "dir/exists":
            return await asyncio.to_thread(exists, storage, instant)
        names = await asyncio.to_thread(marker_names, storage, instant)
        return [n for n in names if route == "all" or n.endswith(".APPEND") is (route == "append")]

    def _place(self, path: str) -> tuple[ServedTable, str]:
        """The table and the instant of a marker folder. UsageError: no marker folder. UnknownTableError."""
        match = _FOLDER.fullmatch(spelled(path))
        if match is None:
            raise UsageError("not a marker folder", expected=f"<base path>/{HOODIE}/.temp/<instant>", found=repr(path))
        return self._tables.at(match["base"]), match["instant"]

    def _folder(self, table: ServedTable, storage: Storage, instant: str) -> MarkerFolder:
        key = (table.path, instant)
        if key not in self._folders and len(self._folders) >= _FOLDERS_MAX:
            self._folders = {k: folder for k, folder in self._folders.items() if not folder.idle}
        return self._folders.setdefault(key, MarkerFolder(storage, instant))
