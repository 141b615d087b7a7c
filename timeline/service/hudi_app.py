"""Hudi's view routes as an ASGI application. Starlette's request and response objects would halve its speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Mapping

from ..errors import UsageError
from ..storage.folders import HOODIE
from .repeats import Repeats
from .routes import EMPTY, PREFIX, ROUTES, Fresh, Question, Route
from .served_table import Held, ServedTable
from .served_tables import ServedTables, spelled
from .states.loading import load_partitions
from .states.synchronisation import NO_INSTANT, Known
from .states.table_state import TableState
from .view_json import Printer
from .wire.answers import Answer, AnswerCache, encoded
from .wire.asgi import Receive, Refused, Scope, Send, need, parameters, send_answer, send_error

_NOT_IN_KEYS = frozenset({"basepath", "lastinstantts", "timelinehash", "refreshoff", "pretty"})
_NAME_BYTES_MAX, _PATH_BYTES_MAX = 255, 2048


class HudiApp:
    """Answers the requests below `/v1/hoodie/view/`. `cache_bytes`: how much answers may take that are kept."""

    def __init__(self, tables: ServedTables, cache_bytes: int) -> None:
        self._tables = tables
        self._cache = AnswerCache(cache_bytes)
        self.repeats = Repeats(self._cache, cache_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope)
        except Exception as error:
            await send_error(scope, send, error)
        else:
            await send_answer(scope, send, answer)

    async def _answer(self, scope: Scope) -> Answer:
        method, query = scope["method"], scope["query_string"]
        given = parameters(query)
        name = scope["path"].removeprefix(PREFIX).removesuffix("/")
        route = ROUTES.get(name)
        if route is None or method not in ((route.method, "HEAD") if route.method == "GET" else (route.method,)):
            raise Refused(404, "Not found")
        table = self._tables.at(need(given, "basepath"))
        _check_partition(given.get("partition", ""))
        held = await _held(table, route, name, given)
        if _is_fresh(route, held, given):
            return _printed(await asyncio.to_thread(_fresh, table, held, route, given), given)
        key = _key(held, route, name, given)
        answer = self._cache.find(key)
        if answer is None:
            question = Question(held.state, given, _printer(held.state, given))
            answer = await asyncio.to_thread(lambda: encoded(route.answer(question)))
            self._cache.keep(key, answer)
        if method == "GET" and "pretty" not in given and not route.looks:
            self.repeats.keep(b"%s?%s" % (scope["raw_path"], query), table, held, key)
        return _printed(answer, given)


def _printed(answer: Answer, given: Mapping[str, str]) -> Answer:
    """The answer, for people if they ask for it."""
    if "pretty" not in given:
        return answer
    return Answer(json.dumps(json.loads(answer.plain()), ensure_ascii=False, indent=2).encode(), compressed=False)


def _is_fresh(route: Route, held: Held, given: Mapping[str, str]) -> bool:
    if route.fresh in (Fresh.NEVER, Fresh.ALWAYS):
        return route.fresh is Fresh.ALWAYS
    return held.state.pending_files and route.fresh_if(given)


def _fresh(table: ServedTable, held: Held, route: Route, given: Mapping[str, str]) -> Answer:
    whole = route.fresh is Fresh.PENDING_TABLE
    partitions = held.state.partitions if whole else (given.get("partition", ""),)
    found = load_partitions(table.table, held.state, tuple(partitions))
    printer = _printer(found.state, given)
    return encoded(route.answer(Question(found.state, given, printer, found.pending)))


def _key(held: Held, route: Route, name: str, given: Mapping[str, str]) -> Hashable:
    """Under one key the answer is always the same: where files of one partition make it, as long as these stay."""
    asked = tuple(sorted((k, v) for k, v in given.items() if k not in _NOT_IN_KEYS))
    files = held.state.partitions.get(given.get("partition", ""), EMPTY)
    state = ("files", files.serial) if route.alone else ("state", held.serial)
    return (*state, name, spelled(given["basepath"]), asked)


async def _held(table: ServedTable, route: Route, name: str, given: Mapping[str, str]) -> Held:
    if name == "refresh":
        return await table.load(whole=True)
    newest = await table.load() if route.looks else None
    if route.checked and table.newest is not None and table.newest.state.refused:
        await table.load()  # a file that is restored changes no instant
    if not route.checked or given.get("refreshoff") == "true":
        return newest or await table.current()
    client = Known(last=given.get("lastinstantts") or NO_INSTANT, digest=given.get("timelinehash", ""))
    agreed = await table.agreed(client)
    return newest or agreed


def _printer(state: TableState, given: Mapping[str, str]) -> Printer:
    return Printer(spelled(given["basepath"]), state.modified)


def _check_partition(partition: str) -> None:
    """UsageError: the path leads out of the table, or into Hudi's own folder."""
    parts = partition.split("/") if partition else []
    odd = any(part in ("", ".", "..", HOODIE) or len(part.encode()) > _NAME_BYTES_MAX for part in parts)
    if odd or "\0" in partition or len(partition.encode()) > _PATH_BYTES_MAX:
        raise UsageError("not a partition path", expected="a path below the table", found=repr(partition))
