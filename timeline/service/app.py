"""The service's application: Hudi's routes first, health beside them."""

from __future__ import annotations

from .answers import AnswerCache
from .hudi_app import HudiApp, Receive, Scope, Send, send_text
from .routes import PREFIX
from .served_tables import ServedTables

_METHODS = ("GET", "HEAD")


class ServiceApp:
    """An ASGI application."""

    def __init__(self, tables: ServedTables, cache_bytes: int) -> None:
        self._hudi = HudiApp(tables, AnswerCache(cache_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith(PREFIX):
            await self._hudi(scope, receive, send)
        elif scope["path"] == "/healthz" and scope["method"] in _METHODS:
            await send_text(send, 200, "ok")
        else:
            await send_text(send, 404, "Not found")
