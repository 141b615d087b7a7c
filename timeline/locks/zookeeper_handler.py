"""Threads of a connection to ZooKeeper that end without a trace on the terminal.

Where a server closes a session that lacks the right user, an exception ends kazoo's thread, which never connects again.
Calls are not answered then, so a wait for an answer checks `ended`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KeeperState

_LOOK_S = 0.1


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler. `ended`: the error that ended the connection. `on_end`: called then, in the handler's thread."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        super().__init__()
        self.ended: Exception | None = None
        self._on_end = on_end

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except KazooException as error:
                self.ended = error
                self._on_end()

        return super().spawn(run)


def answer(client: Any, asked: Any, timeout_s: float) -> Any:
    """The answer to a call, or its error; the error that ended the connection at once; else the handler's timeout."""
    handler: Handler = client.handler
    until = time.monotonic() + timeout_s
    while not asked.ready() and handler.ended is None and (left := until - time.monotonic()) > 0:
        asked.wait(min(left, _LOOK_S))
    if handler.ended is not None and not asked.ready():
        raise handler.ended
    return asked.get(timeout=max(0.0, until - time.monotonic()))


def is_over(client: Any) -> bool:
    """Whether a client that was not closed has ended for good: a server refused its user."""
    return client.handler.ended is not None or client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
