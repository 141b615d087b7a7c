"""The service in a thread of this process, with a record of what it answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.asgi import Receive, Scope, Send
from phantombase.timeline.service.served_tables import ServedTables


@dataclass(slots=True)
class Watched:
    """An ASGI application around the service. `answered`: (path, status) in order."""

    app: ServiceApp
    port: int = 0
    answered: list[tuple[str, int]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.answered.append((scope["path"], message["status"]))
            await send(message)

        await self.app(scope, receive, watched)


@contextmanager
def watched_service(*paths: object) -> Iterator[Watched]:
    """Serves tables, with markers."""
    watched = Watched(ServiceApp(ServedTables(map(str, paths)), 64 << 20, markers=True))
    config = uvicorn.Config(watched, port=0, http="h11", lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    watched.port = socket.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield watched
    finally:
        server.should_exit = True
        thread.join(30)
