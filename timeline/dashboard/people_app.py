"""The state of the served tables, for people and their programs.

/                      every table, worst first
/t/<name>              one table
/api/tables            the same as JSON
/api/tables/<name>     with its settings and instants: the names of `timeline show --json`
"""

from __future__ import annotations

from urllib.parse import unquote

from ..service.answers import encoded
from ..service.asgi import Receive, Refused, Scope, Send, send_answer, send_bytes, send_error
from ..service.served_table import ServedTable
from ..service.served_tables import ServedTables
from ..terminal.plain import Row
from .login_app import HTML, POLICY
from .pages import style, table_page, tables_page
from .table_rows import table_row, table_rows

API, PAGE = "/api/tables", "/t/"


class PeopleApp:
    """Answers what is not for Hudi. `slo_s`: see `health.health_of`."""

    def __init__(self, tables: ServedTables, slo_s: float | None) -> None:
        self._tables, self._slo_s = tables, slo_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            if scope["method"] not in ("GET", "HEAD"):
                raise Refused(404, "Not found")
            if path == "/page.css":
                await send_bytes(send, style(), b"text/css; charset=utf-8")
            elif f"{path}/".startswith(f"{API}/"):
                await send_answer(scope, send, encoded(await self._json(path)), kind=b"application/json")
            else:
                await send_bytes(send, (await self._html(path)).encode(), HTML, POLICY)
        except Exception as error:
            await send_error(scope, send, error)

    async def _json(self, path: str) -> Row:
        name = unquote(path.removeprefix(API).strip("/"))
        if not name:
            return {"tables": await self._rows()}
        return await table_row(self._named(name), self._slo_s, whole=True)

    async def _html(self, path: str) -> str:
        if path == "/":
            return tables_page(await self._rows())
        if not path.startswith(PAGE):
            raise Refused(404, "Not found")
        table = self._named(unquote(path.removeprefix(PAGE)))
        row = await table_row(table, self._slo_s, whole=True)
        return table_page(row, table.table.now() if "instants" in row else None)

    async def _rows(self) -> list[Row]:
        return await table_rows(self._tables.by_name.values(), self._slo_s)

    def _named(self, name: str) -> ServedTable:
        if name not in self._tables.by_name:
            raise Refused(404, f"no table is served as {name!r}; {API} names all")
        return self._tables.by_name[name]
