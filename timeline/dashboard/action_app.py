"""Orders over HTTP: the buttons of the pages, and the same for programs.

POST /t/<name>/actions/<order>             a form of a page; the answer is the page
POST /api/tables/<name>/actions/<order>    with `Authorization: Bearer`; `instant` in the query string or a form

A person must have logged in, and the form must be one that this service made for that login: no page of another site
can send it (`Access.may_order`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from ..errors import UsageError
from ..service.access import Access
from ..service.served_table import ServedTable
from ..service.wire.answers import encoded
from ..service.wire.asgi import Receive, Refused, Scope, Send, form_of, headers_of, parameters, send_bytes, send_text
from ..terminal.text_table import Row
from .orders import CommandSettings, Order
from .runner import BusyError, OrderRunner

PROOF = "proof"
"""The field of a form that shows which login it was made for."""

_WAIT_S = 20.0
_JSON = b"application/json"


class ActionApp:
    """Takes orders about tables. `settings`: what the commands are told.

    UsageError: without a token everybody could order, and without a lock a plan may lose the rows of a write.
    """

    def __init__(self, access: Access, runner: OrderRunner, settings: CommandSettings) -> None:
        if access.token is None:
            raise UsageError("--allow-actions needs a token", todo="Give --token-file.")
        if settings.lock is None and not settings.sole_writer:
            raise UsageError(
                "--allow-actions needs to know which other processes write to the tables",
                expected="--lock, if all writers and schedulers share that lock, or --sole-writer",
            )
        self._access, self._runner, self._settings = access, runner, settings

    def of(self, table: ServedTable) -> list[Row]:
        """The last orders about a table."""
        return self._runner.of(table.path)

    def proof(self, scope: Scope) -> str:
        """For the forms of a page; "" for a program's."""
        return self._access.proof(headers_of(scope))

    async def answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        parts: Sequence[str],
        named: Callable[[str], ServedTable],
    ) -> None:
        """Answers one request. `parts`: of its path. `named`: finds a table.

        Refused, UsageError, PhantombaseError: nothing was ordered.
        """
        match parts:
            case ["t", name, "actions", order]:
                given, is_page = await form_of(receive), True
            case ["api", "tables", name, "actions", order]:
                given, is_page = {**await form_of(receive), **parameters(scope["query_string"])}, False
            case _:
                raise Refused(404, "Not found")
        if reason := self._access.order_refusal(headers_of(scope), given.get(PROOF, ""), time.time()):
            raise Refused(403, reason)
        done = await self._run(Order.parse(order, given.get("instant") or None), named(name), _who(scope))
        if is_page:
            location = f"/t/{quote(name, safe='')}#done"
            await send_text(send, 303, "ordered", [(b"location", location.encode())])
        else:
            status = 202 if done["exit_code"] is None else 200
            await send_bytes(send, encoded(done).plain(), _JSON, status=status)

    async def _run(self, order: Order, table: ServedTable, by: str) -> Row:
        name, pending = await asyncio.to_thread(_now, table)
        if order.instant is not None and order.instant not in pending:
            raise Refused(409, f"compaction {order.instant} is not pending (any more)")
        words = order.words(table.path, name, self._settings)
        try:
            return (await self._runner.run(order, table.path, words, by, _WAIT_S)).row()
        except BusyError as error:
            raise Refused(409, str(error)) from error


def _now(table: ServedTable) -> tuple[str, list[str]]:
    """A table's name and its pending compactions, also where its files cannot be read."""
    opened = table.opened()
    return opened.config.name, [i.requested_time for i in opened.load_timeline().pending_compactions]


def _who(scope: Scope) -> str:
    client = scope["client"]
    way = "token" if b"authorization" in headers_of(scope) else "login"
    return f"{client[0] if client else 'unknown'} ({way})"
