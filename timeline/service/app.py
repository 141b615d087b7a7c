"""The service's application: Hudi's routes first, health beside them."""

from __future__ import annotations

from .asgi import App, Receive, Scope, Send, send_text
from .hudi_app import HudiApp
from .marker_app import MARKER_PREFIX, MarkerApp
from .routes import PREFIX
from .served_tables import ServedTables

_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_METHODS = ("GET", "HEAD")


class ServiceApp:
    """An ASGI application. `markers`: whether it takes those of writers. `pages`: answers what is not for Hudi."""

    def __init__(
        self, tables: ServedTables, cache_bytes: int, *, markers: bool = False, pages: App | None = None
    ) -> None:
        self._hudi = HudiApp(tables, cache_bytes)
        self._pages = pages
        self._markers = MarkerApp(tables) if markers else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if reason := _from_a_browser_elsewhere(scope):
            await send_text(send, 403, reason)
        elif scope["path"].startswith(PREFIX):
            await self._hudi(scope, receive, send)
        elif self._markers is not None and scope["path"].startswith(MARKER_PREFIX):
            await self._markers(scope, receive, send)
        elif scope["path"] == "/healthz" and scope["method"] in _METHODS:
            await send_text(send, 200, "ok")
        elif self._pages is not None:
            await self._pages(scope, receive, send)
        else:
            await send_text(send, 404, "Not found")


def _from_a_browser_elsewhere(scope: Scope) -> str:
    """Why a request is refused that a page of another site sends through a browser of this machine; "" otherwise.

    Hudi's clients send no Origin, and the name by which they reached this address.
    """
    given = {name: value.decode("latin-1") for name, value in scope["headers"]}
    host = given.get(b"host", "")
    if host.rpartition(":")[0] not in _LOCAL and host not in _LOCAL:
        return f"the Host header is {host!r}; this service answers to localhost and 127.0.0.1"
    if b"origin" in given:
        return "requests of pages of other sites (with an Origin header) are not answered"
    return ""
