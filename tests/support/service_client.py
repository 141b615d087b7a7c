"""Asks the timeline service in this process, without a network."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from phantombase.timeline.dashboard.login_app import LoginApp
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.service.access import Access
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables


@dataclass(frozen=True, slots=True)
class Reply:
    """What the service answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """Sends requests to an application; one after the other, or at once."""

    app: ServiceApp
    loop: asyncio.AbstractEventLoop

    @staticmethod
    def of(
        *paths: object,
        cache_bytes: int = 64 << 20,
        markers: bool = False,
        slo_s: float | None = None,
        access: Access | None = None,
    ) -> ServiceClient:
        tables = ServedTables(map(str, paths))
        return ServiceClient.of_tables(tables, cache_bytes, markers=markers, slo_s=slo_s, access=access)

    @staticmethod
    def of_tables(
        tables: ServedTables,
        cache_bytes: int = 64 << 20,
        *,
        markers: bool = False,
        slo_s: float | None = None,
        access: Access | None = None,
    ) -> ServiceClient:
        access = access or Access()
        pages, login = PeopleApp(tables, slo_s), LoginApp(access)
        app = ServiceApp(tables, cache_bytes, access=access, markers=markers, pages=pages, login=login)
        return ServiceClient(app, asyncio.new_event_loop())

    def ask(self, path: str, method: str = "GET", **query: str) -> Reply:
        return self.ask_with({}, path, method, **query)

    def ask_with(self, sent: Mapping[str, str], path: str, method: str = "GET", /, **query: str) -> Reply:
        """`sent`: headers."""
        return self.loop.run_until_complete(self.send(path, urlencode(query).encode(), method, sent))

    def all_at_once(self, path: str, queries: Sequence[Mapping[str, str]], method: str = "GET") -> list[Reply]:
        async def run() -> list[Reply]:
            return list(await asyncio.gather(*(self.send(path, urlencode(q).encode(), method) for q in queries)))

        return self.loop.run_until_complete(run())

    async def send(
        self,
        path: str,
        query: bytes = b"",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        client: str = "127.0.0.1",
    ) -> Reply:
        sent: list[MutableMapping[str, Any]] = []
        given = {"accept-encoding": "gzip", "host": "localhost", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": quote(path, safe="/%").encode(),
            "query_string": query,
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "client": (client, 1),
        }

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def keep(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, keep)
        names = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        body = b"".join(m.get("body", b"") for m in sent[1:])
        if names.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return Reply(sent[0]["status"], names, body)
