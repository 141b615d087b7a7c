"""The service's ASGI application: Hudi's view routes, health, and the pages for people.

Starlette's request and response objects would halve the speed of Hudi's routes.

Earlier requests are kept by their complete target (`HudiApp.repeated`), since most of the cost of a cached answer is
the search for it. All tasks of a large Hudi job send the same few requests, with the same targets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..clocks import clock_ms
from ..errors import UsageError
from ..storage.folders import HOODIE
from .asgi import (
    Access,
    Answer,
    AnswerCache,
    App,
    Receive,
    Refused,
    Scope,
    Send,
    encoded,
    headers_of,
    parameters,
    send_answer,
    send_error,
    send_text,
)
from .loading import load_partitions
from .marker_app import MARKER_PREFIX, MarkerApp
from .routes import EMPTY, PREFIX, ROUTES, Fresh, Question, Route, need
from .served_tables import Held, ServedTable, ServedTables, spelled
from .table_state import NO_INSTANT, ClientState, Printer, ServedState

_TARGET_BYTES_MAX = 1024
_BYTES_EACH = 16 << 10
"""Answer cache per remembered target; the target itself takes less than a tenth of this."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    table: ServedTable
    held: Held
    key: Hashable


_NOT_IN_KEYS = frozenset({"basepath", "lastinstantts", "timelinehash", "refreshoff", "pretty"})
_NAME_BYTES_MAX, _PATH_BYTES_MAX = 255, 2048


class HudiApp:
    """Answers the requests below `/v1/hoodie/view/`. `cache_bytes`: the most that kept answers take."""

    def __init__(self, tables: ServedTables, cache_bytes: int) -> None:
        self._tables = tables
        self._cache = AnswerCache(cache_bytes)
        self._targets_max = cache_bytes // _BYTES_EACH
        self._by_target: dict[bytes, _Repeat] = {}

    def repeated(self, target: bytes) -> Answer | None:
        """The answer to an earlier GET with this target, path and query as they were sent, if the table is served and
        the state that answered is its newest. An older state answers a client only while the client lags by one step:
        that is checked each time."""
        known = self._by_target.get(target)
        if known is None:
            return None
        table = known.table
        if table.gone or table.newest is not known.held:
            del self._by_target[target]
            return None
        table.used_s = time.monotonic()
        return self._cache.find(known.key)

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
        if not held.state.config.has_logs:
            held.state.config.check_changeable()  # UnsupportedError: the client continues by itself
        if _is_fresh(route, held, given):
            return _printed(await asyncio.to_thread(_fresh, table, held, route, given), given)
        key = _key(held, route, name, given)
        answer = self._cache.find(key)
        if answer is None:
            question = Question(held.state, given, _printer(held.state, given))
            answer = await asyncio.to_thread(lambda: encoded(route.answer(question)))
            self._cache.keep(key, answer)
        if method == "GET" and "pretty" not in given and not route.looks:
            target = b"%s?%s" % (scope["raw_path"], query)
            if len(target) <= _TARGET_BYTES_MAX:
                if len(self._by_target) >= self._targets_max:
                    self._by_target.clear()
                self._by_target[target] = _Repeat(table, held, key)
        return _printed(answer, given)


def _printed(answer: Answer, given: Mapping[str, str]) -> Answer:
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
    state, pending = load_partitions(table.table, held.state, tuple(partitions))
    return encoded(route.answer(Question(state, given, _printer(state, given), pending)))


def _key(held: Held, route: Route, name: str, given: Mapping[str, str]) -> Hashable:
    """The key of an answer: of the state, or of the partition's files if the answer depends on these alone."""
    asked = tuple(sorted((k, v) for k, v in given.items() if k not in _NOT_IN_KEYS))
    files = held.state.partitions.get(given.get("partition", ""), EMPTY)
    state = ("files", files.serial) if route.alone else ("state", held.serial)
    return (*state, name, spelled(given["basepath"]), asked)


async def _held(table: ServedTable, route: Route, name: str, given: Mapping[str, str]) -> Held:
    if name == "refresh":
        return await table.load(whole=True)
    newest = await table.load() if route.looks else None
    if route.checked and table.newest is not None and table.newest.state.refused:
        await table.load()  # restoring a file changes no instant
    if not route.checked or given.get("refreshoff", "").lower() == "true":
        return newest or await table.current()
    client = ClientState(last=given.get("lastinstantts") or NO_INSTANT, digest=given.get("timelinehash", ""))
    agreed = await table.agreed(client)
    return newest or agreed


def _printer(state: ServedState, given: Mapping[str, str]) -> Printer:
    return Printer(spelled(given["basepath"]), state.modified)


def _check_partition(partition: str) -> None:
    """UsageError: the path is outside the table, or in Hudi's own folder."""
    parts = partition.split("/") if partition else []
    odd = any(part in ("", ".", "..", HOODIE) or len(part.encode()) > _NAME_BYTES_MAX for part in parts)
    if odd or "\0" in partition or len(partition.encode()) > _PATH_BYTES_MAX:
        raise UsageError("not a partition path", expected="a path below the table", found=repr(partition))


_METHODS = ("GET", "HEAD")
_HEALTH = ("/healthz", "/readyz")


class ServiceApp:
    """`markers`: serves those of writers. `pages` answers all other requests, `login` people without the token."""

    def __init__(
        self,
        tables: ServedTables,
        cache_bytes: int,
        *,
        access: Access | None = None,
        markers: bool = False,
        pages: App | None = None,
        login: App | None = None,
    ) -> None:
        self._tables, self._access = tables, access or Access()
        self._hudi = HudiApp(tables, cache_bytes)
        self._pages, self._login = pages, login
        self._markers = MarkerApp(tables) if markers else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._app_for(scope)(scope, receive, send)
        except Refused as refused:
            await send_error(scope, send, refused)

    def repeated(self, target: bytes, given: Mapping[bytes, bytes], client: str | None) -> Answer | None:
        """The answer to an earlier GET of Hudi's routes, if it is still valid and allowed for this client."""
        answer = self._hudi.repeated(target)
        if answer is None or self._access.refusal(given) or not self._access.is_hudi_client(client):
            return None
        return answer

    def _app_for(self, scope: Scope) -> App:
        """The application that answers a request. Refused: none does."""
        path, given = scope["path"], headers_of(scope)
        if path in _HEALTH and scope["method"] in _METHODS:  # probes use any host name
            return self._health
        if reason := self._access.refusal(given):
            raise Refused(403, reason)
        of_hudi = self._hudi if path.startswith(PREFIX) else self._markers if path.startswith(MARKER_PREFIX) else None
        if of_hudi is not None:
            client = scope["client"]
            if not self._access.is_hudi_client(client[0] if client else None):
                raise Refused(403, "Hudi's routes answer this machine and the networks of --hudi-clients")
            return of_hudi
        if self._pages is None:
            raise Refused(404, "Not found")
        if self._access.may_look(given, clock_ms() / 1000):
            return self._pages
        if self._login is None:
            raise Refused(401, "this needs the token")
        return self._login

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/readyz`: ready once each table was read or has an error."""
        waiting = [t.name for t in self._tables.by_name.values() if t.newest is None and t.error is None]
        if scope["path"] == "/readyz" and waiting:
            await send_text(send, 503, f"not loaded yet: {', '.join(waiting)}")
        else:
            await send_text(send, 200, "ok")
