"""The service's application: Hudi's routes first, health beside them, then what answers people."""

from __future__ import annotations

import time
from collections.abc import Mapping

from .access import Access
from .hudi_app import HudiApp
from .marker_app import MARKER_PREFIX, MarkerApp
from .routes import PREFIX
from .served_tables import ServedTables
from .wire.answers import Answer
from .wire.asgi import App, Receive, Refused, Scope, Send, headers_of, send_error, send_text

_METHODS = ("GET", "HEAD")
_HEALTH = ("/healthz", "/readyz")


class ServiceApp:
    """An ASGI application. `markers`: whether it takes those of writers. `pages`: answers what is not for Hudi;
    `login`: answers people who have not shown the token.
    """

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
        """The answer to a GET of Hudi's that was answered before, if it still holds and this client may have it."""
        answer = self._hudi.repeats.find(target)
        if answer is None or self._access.refusal(given) or not self._access.is_hudi_client(client):
            return None
        return answer

    def _app_for(self, scope: Scope) -> App:
        """What answers a request. Refused: nothing does."""
        path, given = scope["path"], headers_of(scope)
        if path in _HEALTH and scope["method"] in _METHODS:  # asked by probes, under any name
            return self._health
        if reason := self._access.refusal(given):
            raise Refused(403, reason)
        of_hudi = self._of_hudi(path)
        if of_hudi is not None:
            client = scope["client"]
            if not self._access.is_hudi_client(client[0] if client else None):
                raise Refused(403, "Hudi's routes answer this machine and the networks of --hudi-clients")
            return of_hudi
        if self._pages is None:
            raise Refused(404, "Not found")
        if self._access.may_look(given, time.time()):
            return self._pages
        if self._login is None:
            raise Refused(401, "this needs the token")
        return self._login

    def _of_hudi(self, path: str) -> App | None:
        if path.startswith(PREFIX):
            return self._hudi
        return self._markers if path.startswith(MARKER_PREFIX) else None

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/readyz`: every table was read, or it is known why it cannot be."""
        waiting = [t.name for t in self._tables.by_name.values() if t.newest is None and t.error is None]
        if scope["path"] == "/readyz" and waiting:
            await send_text(send, 503, f"not loaded yet: {', '.join(waiting)}")
        else:
            await send_text(send, 200, "ok")
