"""The service in a thread of this process, with a record of what it answered; its answers may be spoilt."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import uvicorn

from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.service.wire.asgi import Receive, Scope, Send

SLOW_S = 3.0


class Spoilt(Enum):
    """What becomes of a request."""

    ERROR = "an error of the server"
    CUT = "the connection ends in the middle of the answer"
    SLOW = "it is answered late"
    GONE = "the service ends, and is not there any more"


@dataclass(slots=True)
class Watched:
    """An ASGI application around the service. `answered`: (path, status) in order.

    `spoil` gets the number of each request, from 0. `end`: ends the service.
    """

    app: ServiceApp
    port: int = 0
    answered: list[tuple[str, int]] = field(default_factory=list)
    spoil: Callable[[int], Spoilt | None] = lambda number: None
    spoilt: int = 0
    asked: int = 0
    end: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.answered.append((scope["path"], message["status"]))
            await send(message)

        kind, self.asked = self.spoil(self.asked), self.asked + 1
        self.spoilt += kind is not None
        if kind is Spoilt.SLOW:
            await asyncio.sleep(SLOW_S)
        elif kind is Spoilt.GONE:
            self.end()
        elif kind is not None:
            cut = kind is Spoilt.CUT
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % (99 if cut else 2))]
            await send({"type": "http.response.start", "status": 200 if cut else 500, "headers": headers})
            await send({"type": "http.response.body", "body": b"[]", "more_body": cut})
            return
        await self.app(scope, receive, watched)


@contextmanager
def watched_service(*paths: object) -> Iterator[Watched]:
    """Serves tables, with markers."""
    watched = Watched(ServiceApp(ServedTables(map(str, paths)), 64 << 20, markers=True))
    config = uvicorn.Config(watched, port=0, http="h11", lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    watched.end = partial(setattr, server, "should_exit", True)
    watched.port = socket.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield watched
    finally:
        watched.end()
        thread.join(30)
