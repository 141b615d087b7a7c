"""Hudi's marker routes as an ASGI application (`MarkerHandler` of Hudi 1.2; clients of 0.15 do not use them).

Hudi's server takes every path that it is given; here a marker folder is one of a served table.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from ..errors import UsageError
from ..storage.contract import Storage
from ..storage.folders import HOODIE
from ..storage.open_storage import open_storage
from .marker_folder import MarkerFolder, checked_name, exists, marker_names
from .served_table import ServedTable
from .served_tables import ServedTables, spelled
from .view_json import Json
from .wire.answers import encoded
from .wire.asgi import Receive, Refused, Scope, Send, need, parameters, send_answer, send_error

MARKER_PREFIX = "/v1/hoodie/marker/"

_FOLDER = re.compile(rf"(?P<base>.+)/{re.escape(HOODIE)}/\.temp/(?P<instant>\d{{14,20}})")
_FOLDERS_MAX = 1000
_METHODS = {
    "create": "POST",
    "dir/delete": "POST",
    "dir/exists": "GET",
    "all": "GET",
    "create-and-merge": "GET",
    "append": "GET",
}


class MarkerApp:
    """Answers the requests below `/v1/hoodie/marker/`."""

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
        storage = (
            table.table.storage
            if table.newest
            else await asyncio.to_thread(open_storage, table.path, table.storage_options)
        )
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
        """The table and the instant of a marker folder. UsageError: it is none; UnknownTableError."""
        match = _FOLDER.fullmatch(spelled(path))
        if match is None:
            raise UsageError("not a marker folder", expected=f"<base path>/{HOODIE}/.temp/<instant>", found=repr(path))
        return self._tables.at(match["base"]), match["instant"]

    def _folder(self, table: ServedTable, storage: Storage, instant: str) -> MarkerFolder:
        key = (table.path, instant)
        if key not in self._folders and len(self._folders) >= _FOLDERS_MAX:
            self._folders = {k: folder for k, folder in self._folders.items() if not folder.idle}
        return self._folders.setdefault(key, MarkerFolder(storage, instant))
