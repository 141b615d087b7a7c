"""The service's application: Hudi's routes first, health beside them."""

from __future__ import annotations

from .answers import AnswerCache
from .asgi import Receive, Scope, Send, send_text
from .hudi_app import HudiApp
from .marker_app import MARKER_PREFIX, MarkerApp
from .routes import PREFIX
from .served_tables import ServedTables

_METHODS = ("GET", "HEAD")


class ServiceApp:
    """An ASGI application. `markers`: whether it takes the markers of writers."""

    def __init__(self, tables: ServedTables, cache_bytes: int, *, markers: bool = False) -> None:
        self._hudi = HudiApp(tables, AnswerCache(cache_bytes))
        self._markers = MarkerApp(tables) if markers else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith(PREFIX):
            await self._hudi(scope, receive, send)
        elif self._markers is not None and scope["path"].startswith(MARKER_PREFIX):
            await self._markers(scope, receive, send)
        elif scope["path"] == "/healthz" and scope["method"] in _METHODS:
            await send_text(send, 200, "ok")
        else:
            await send_text(send, 404, "Not found")
