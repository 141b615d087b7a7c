"""Hudi's view routes as an ASGI application. Starlette's request and response objects would halve its speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import structlog

from ..errors import NotATableError, PhantombaseError, TableChangedError, UnsupportedError, UsageError
from ..storage.folders import HOODIE
from .answers import Answer, AnswerCache, encoded
from .loading import load_partition
from .routes import PREFIX, ROUTES, Question, Route
from .served_table import BehindError, Held, ServedTable
from .served_tables import ServedTables, UnknownTableError, spelled
from .synchronisation import NO_INSTANT, Known
from .view_json import Printer

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_QUERY_BYTES = 64 << 10
"""Longest query string. Some routes name hundreds of instants or partitions in it."""

_FIELDS_MAX = 64
_NOT_IN_KEYS = frozenset({"basepath", "lastinstantts", "timelinehash", "refreshoff", "pretty"})
_log = structlog.get_logger(__name__)


class Refused(Exception):
    """A request that is answered with an HTTP status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HudiApp:
    """Answers the requests below `/v1/hoodie/view/`."""

    def __init__(self, tables: ServedTables, cache: AnswerCache) -> None:
        self._tables, self._cache = tables, cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            given = _parameters(scope["query_string"])
            answer = await self._answer(scope["path"], scope["method"], given)
        except Exception as error:
            status, reason = _status(error)
            if status >= 500:
                _log.error("request failed", path=scope["path"], reason=reason, exc_info=status == 500)
            await send_text(send, status, reason)
            return
        if "pretty" in given:
            answer = Answer(json.dumps(json.loads(answer.plain()), ensure_ascii=False, indent=2).encode(), False)
        await _send_answer(scope, send, answer)

    async def _answer(self, path: str, method: str, given: Mapping[str, str]) -> Answer:
        name = path.removeprefix(PREFIX).removesuffix("/")
        route = ROUTES.get(name)
        if route is None or method not in ((route.method, "HEAD") if route.method == "GET" else (route.method,)):
            raise Refused(404, "Not found")
        if "basepath" not in given:
            raise UsageError("the parameter basepath is missing", expected="basepath=... in the query string")
        table = self._tables.at(given["basepath"])
        _check_partition(given.get("partition", ""))
        held = await _held(table, route, name, given)
        if route.fresh:
            return await self._fresh(table, held, route, given)
        asked = tuple(sorted((k, v) for k, v in given.items() if k not in _NOT_IN_KEYS))
        key = (held.serial, name, spelled(given["basepath"]), asked)
        answer = self._cache.find(key)
        if answer is None:
            question = Question(held.state, given, _printer(held, given))
            answer = await asyncio.to_thread(lambda: encoded(route.answer(question)))
            self._cache.keep(key, answer)
        return answer

    async def _fresh(self, table: ServedTable, held: Held, route: Route, given: Mapping[str, str]) -> Answer:
        def answer() -> Answer:
            found = load_partition(table.table, held.state, given.get("partition", ""), given.get("currentinstant"))
            now = Held(held.serial, found.state)
            return encoded(route.answer(Question(found.state, given, _printer(now, given), found.inflight)))

        return await asyncio.to_thread(answer)


async def _held(table: ServedTable, route: Route, name: str, given: Mapping[str, str]) -> Held:
    if name == "refresh":
        return await table.load()
    if not route.checked or given.get("refreshoff") == "true":
        return await table.current()
    client = Known(last=given.get("lastinstantts") or NO_INSTANT, digest=given.get("timelinehash", ""))
    return await table.agreed(client)


def _printer(held: Held, given: Mapping[str, str]) -> Printer:
    modified = {name: files.modified for name, files in held.state.partitions.items()}
    return Printer(spelled(given["basepath"]), modified)


def _parameters(query: bytes) -> dict[str, str]:
    """The parameters; of a repeated one the first counts. Refused, UsageError: too long, or not encoded as a form."""
    if len(query) > MAX_QUERY_BYTES:
        raise Refused(414, f"the query string has {len(query)} bytes; at most {MAX_QUERY_BYTES} are read")
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise UsageError("not a query string", expected="UTF-8, percent-encoded", found=str(error)) from error
    for name, value in pairs:
        found.setdefault(name, value)
    return found


def _check_partition(partition: str) -> None:
    """UsageError: the path leads out of the table, or into Hudi's own folder."""
    parts = partition.split("/") if partition else []
    if "\0" in partition or any(part in ("", ".", "..", HOODIE) for part in parts):
        raise UsageError("not a partition path", expected="a path below the table", found=repr(partition))


def _status(error: Exception) -> tuple[int, str]:
    """The HTTP status of an error, and the reason."""
    match error:
        case Refused():
            return error.status, str(error)
        case UnknownTableError() | NotATableError() | UnsupportedError():  # a REMOTE_FIRST client goes on by itself
            return 404, str(error)
        case UsageError() | BehindError():
            return 400, str(error)
        case TableChangedError():
            return 503, str(error)
        case PhantombaseError():
            return 500, str(error)
        case _:
            return 500, f"internal error: {type(error).__name__}"


async def send_text(send: Send, status: int, text: str) -> None:
    """Answers with plain text."""
    await _send(send, status, text.encode("utf-8", "replace"), [])


async def _send_answer(scope: Scope, send: Send, answer: Answer) -> None:
    body, headers = answer.body, []
    if answer.compressed:
        if any(k == b"accept-encoding" and b"gzip" in v for k, v in scope["headers"]):
            headers.append((b"content-encoding", b"gzip"))
        else:
            body = answer.plain()
    await _send(send, 200, body, headers)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    # Hudi's servers say so of JSON, too.
    kind = (b"content-type", b"text/plain;charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})
