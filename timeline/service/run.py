"""Starts the service."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
import uvloop

from ..errors import PhantombaseError, UsageError
from ..event_log import get_logger
from ..option import check_least, least_of, option
from ..storage.access.storage_options import Given
from .app import ServiceApp
from .asgi import App
from .bounded_http import BoundedHttp
from .served_table import ServedTable
from .served_tables import ServedTables

HOST = "127.0.0.1"
DEFAULT_PORT = 26754
"""The port that Hudi's clients ask without settings (`hoodie.filesystem.view.remote.port`)."""

_KEEP_ALIVE_S = 75
_STOP_S = 10
_LOADS_AT_ONCE = 4
_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How the service listens, and what it may use."""

    port: int = option(DEFAULT_PORT, "The port; 0: any free one.", least=0)
    max_memory: int = option(256 << 20, "Memory for answers that are kept, e.g. 256m.", size=True, least=0)
    markers: bool = option(False, "Also keep the markers of writers (hoodie.write.markers.type=TIMELINE_SERVER_BASED).")

    def __post_init__(self) -> None:
        check_least(self, least_of(ServeOptions))


def serve(
    paths: list[str],
    options: ServeOptions,
    storage_options: Given = None,
    pages: Callable[[ServedTables], App] | None = None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves tables until it is stopped by SIGINT or SIGTERM.

    `on_ready` gets its address, `pages` makes what answers people.

    UsageError: a table is given twice, or the port is taken.
    """
    tables = ServedTables(paths, storage_options)
    app = ServiceApp(tables, options.max_memory, markers=options.markers, pages=pages(tables) if pages else None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, tables, options, on_ready))


async def _serve(app: ServiceApp, tables: ServedTables, options: ServeOptions, on_ready: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        app,
        host=HOST,
        port=options.port,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S,
    )
    server = _Server(config)
    listener = listening(options.port)
    on_ready(f"http://{HOST}:{listener.getsockname()[1]}")
    first = asyncio.create_task(_load_all(tables))
    try:
        await server.serve([listener])
    finally:
        first.cancel()


def listening(port: int) -> socket.socket:
    """A socket that listens: connections wait from here on. UsageError: the port cannot be used.

    asyncio switches Nagle's algorithm off only where the protocol is named; with it each answer takes 40 ms.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError("the port cannot be used", found=f"{port}: {error}", todo="Give another --port.") from error
    return listener


class _Server(uvicorn.Server):
    """Ends with exit code 0 by SIGINT and SIGTERM; uvicorn's would raise the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _STOPPING:
                loop.remove_signal_handler(number)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


async def _load_all(tables: ServedTables) -> None:
    """Loads every table once, so that first requests need not wait; a table that cannot be read stops no other."""
    free = asyncio.Semaphore(_LOADS_AT_ONCE)

    async def load(table: ServedTable) -> None:
        async with free:
            try:
                held = await table.load()
            except PhantombaseError as error:
                _log.warning("table cannot be served", table=table.path, reason=str(error))
            else:
                _log.info("table loaded", table=table.path, partitions=len(held.state.partitions))

    await asyncio.gather(*map(load, tables.by_name.values()))
