"""Hudi's view routes as an ASGI application. Starlette's request and response objects would halve its speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from ..errors import UsageError
from ..storage.folders import HOODIE
from .answers import Answer, AnswerCache, encoded
from .asgi import Receive, Refused, Scope, Send, need, parameters, send_answer, send_error
from .loading import load_partition
from .routes import PREFIX, ROUTES, Question, Route
from .served_table import Held, ServedTable
from .served_tables import ServedTables, spelled
from .synchronisation import NO_INSTANT, Known
from .view_json import Printer

_NOT_IN_KEYS = frozenset({"basepath", "lastinstantts", "timelinehash", "refreshoff", "pretty"})
_NAME_BYTES_MAX, _PATH_BYTES_MAX = 255, 2048


class HudiApp:
    """Answers the requests below `/v1/hoodie/view/`."""

    def __init__(self, tables: ServedTables, cache: AnswerCache) -> None:
        self._tables, self._cache = tables, cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            given = parameters(scope["query_string"])
            answer = await self._answer(scope["path"], scope["method"], given)
        except Exception as error:
            await send_error(scope, send, error)
            return
        if "pretty" in given:
            answer = Answer(json.dumps(json.loads(answer.plain()), ensure_ascii=False, indent=2).encode(), False)
        await send_answer(scope, send, answer)

    async def _answer(self, path: str, method: str, given: Mapping[str, str]) -> Answer:
        name = path.removeprefix(PREFIX).removesuffix("/")
        route = ROUTES.get(name)
        if route is None or method not in ((route.method, "HEAD") if route.method == "GET" else (route.method,)):
            raise Refused(404, "Not found")
        table = self._tables.at(need(given, "basepath"))
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
            now = replace(held, state=found.state)
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
    return Printer(spelled(given["basepath"]), held.state.modified)


def _check_partition(partition: str) -> None:
    """UsageError: the path leads out of the table, or into Hudi's own folder."""
    parts = partition.split("/") if partition else []
    odd = any(part in ("", ".", "..", HOODIE) or len(part.encode()) > _NAME_BYTES_MAX for part in parts)
    if odd or "\0" in partition or len(partition.encode()) > _PATH_BYTES_MAX:
        raise UsageError("not a partition path", expected="a path below the table", found=repr(partition))
