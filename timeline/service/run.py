"""Starts the service: HTTP/1.1 by uvicorn and httptools, with bounds, and a fast path for repeated requests.

httptools sets no bounds; here the request line, headers, body, and their time are bounded. Repeated requests of Hudi's
clients are answered as they are read: no task, no scope, no parameters. That takes less than half the processor time.
uvicorn handles all other requests.

Garbage is collected at intervals, not within requests. States are many long-lived objects: a full collection visits all
of them, which takes 0.15 s for 20 thousand file groups, and blocks everything else. Python would start one whenever a
quarter of them is new, so about every twentieth load. Here a collection visits the objects made since the last one, and
all objects only at each `_ALL_EVERY`-th check. Objects in no cycle, such as a state, are freed at once."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import PhantombaseError, UsageError, reason_of
from ..event_log import get_logger
from ..instants.clock_check import ClockOptions
from ..option import check_least, least_of, option
from ..storage.storage_options import Given
from .app import ServiceApp
from .asgi import MAX_QUERY_BYTES, PLAIN, Access, Answer, App, coded, headers_for
from .served_tables import CLOCK, ServedTable, ServedTables

_LINE_BYTES_MAX = MAX_QUERY_BYTES + (4 << 10)
_HEADERS_BYTES_MAX = 32 << 10
_BODY_BYTES_MAX = 64 << 10
"""Routes take at most a short form; Hudi's clients send no body."""
_REQUEST_S = 30.0


class _TooLongError(Exception):
    """A request that is too long to be read to its end."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. A too long request line gets 414, headers 431, a body 413; a late request is cut off."""

    _refusal = (400, "")
    _header_bytes = _body_bytes = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._body_bytes = 0
        self._wait()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > _LINE_BYTES_MAX:
            self._refuse(414, f"the request line is longer than {_LINE_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _HEADERS_BYTES_MAX:
            self._refuse(431, f"the headers have more than {_HEADERS_BYTES_MAX} bytes")
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > _BODY_BYTES_MAX:
            self._refuse(413, f"the body is longer than {_BODY_BYTES_MAX} bytes")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._came()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        status, reason = self._refusal
        if self._body_bytes and self.cycle is not None and self.cycle.response_started:
            self.transport.close()
            return
        if status == 400:
            super().send_400_response(msg)
            return
        body = reason.encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, _PHRASES[status], len(body), body)
        )
        self.transport.close()

    def _refuse(self, status: int, reason: str) -> None:
        self._refusal = (status, reason)
        raise _TooLongError

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


_PHRASES = {413: b"Content Too Large", 414: b"URI Too Long", 431: b"Request Header Fields Too Large"}
_UNDERSTOOD = frozenset({b"host", b"connection", b"user-agent", b"accept", b"accept-encoding"})
"""Headers of Hudi's clients. Others may mean anything: a body, a proxy before the service, a page of another site."""


class Repeating(Protocol):
    """An application that keeps its earlier answers."""

    def repeated(self, target: bytes, given: Mapping[bytes, bytes], client: str | None) -> Answer | None:
        """The answer to a GET, if it is still valid and allowed for this client with the `given` headers."""


class QuickHttp(BoundedHttp):
    _answered = False

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._repeating = cast(Repeating, self.config.app)

    def on_headers_complete(self) -> None:
        self._answered = self._answer()
        if not self._answered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._answered:
            self._came()
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _answer(self) -> bool:
        """Answers the request if it can, but not before earlier ones of this connection; whether it did."""
        is_first = self.cycle is None or self.cycle.response_complete
        if not is_first or self.flow.write_paused or not self._is_plain_get():
            return False
        given = dict(self.headers)
        answer = self._repeating.repeated(self.url, given, self.client[0] if self.client else None)
        if answer is None or not _UNDERSTOOD.issuperset(given):
            return False
        body, how = coded(given, answer)
        headers = (*self.server_state.default_headers, *headers_for(body, PLAIN, how))
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"HTTP/1.1 200 OK\r\n%s\r\n%s" % (lines, body))
        return True

    def _is_plain_get(self) -> bool:
        parser = self.parser
        return parser.get_method() == b"GET" and parser.get_http_version() == "1.1" and parser.should_keep_alive()


_GARBAGE_PAUSE_S = 1.0
_EVERY, _ALL_EVERY = 30, 86_400
"""Checks between two collections, and between two full ones."""
_NEVER = 1 << 30


async def collect_from_time_to_time(loaded: Callable[[], int]) -> None:
    """Runs until cancelled. `loaded`: the number of full loads so far; collections do not visit these states."""
    seen = loaded()
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        for number in count(1):
            await asyncio.sleep(_GARBAGE_PAUSE_S)
            if (now := loaded()) != seen:
                gc.freeze()
                seen = now
            if number % _EVERY == 0:
                collect(everything=number % _ALL_EVERY == 0)
    finally:
        gc.set_threshold(young, middle, full)
        gc.unfreeze()


def collect(*, everything: bool = False) -> None:
    """Frees garbage. Later calls do not visit the remaining objects, except with `everything`."""
    if everything:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


DEFAULT_PORT = 26754
"""The port that Hudi's clients use by default (`hoodie.filesystem.view.remote.port`)."""
_KEEP_ALIVE_S = 75
_STOP_S = 10
_ANSWERS_SHARE = 4
_LOADS_AT_ONCE = 4
_SEARCH_S = 30.0
_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    port: int = option(DEFAULT_PORT, "The port; 0: any free one.", least=0, most=65535)
    host: str = option(
        "127.0.0.1", "The address to listen on; one beyond this machine needs --token-file.", metavar="ADDRESS"
    )
    name: tuple[str, ...] = option(
        (), "A name by which clients call this machine, if it is not its own.", metavar="NAME"
    )
    hudi_clients: tuple[str, ...] = option(
        (), "A network whose Hudi clients are answered, such as 10.0.0.0/8; they can send no token.", metavar="CIDR"
    )
    max_memory: int = option(1 << 30, "Memory for states of tables and answers, e.g. 1g.", size=True, least=0)
    markers: bool = option(False, "Also keep the markers of writers (hoodie.write.markers.type=TIMELINE_SERVER_BASED).")

    def __post_init__(self) -> None:
        check_least(self, least_of(ServeOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpService:
    """A service that can be started. `pages`: the applications for people, and for people without the token. `found`,
    `name_of`: further tables that come while it runs, and their names, see `ServedTables`. UsageError: a table is given
    twice, or see `Access`."""

    paths: Sequence[str]
    options: ServeOptions
    storage_options: Given = None
    token: str | None = None
    pages: Callable[[ServedTables, Access], tuple[App, App]] | None = None
    found: Callable[[], Iterable[str]] | None = None
    clock: ClockOptions = CLOCK
    name_of: Callable[[str], str | None] = lambda path: None

    def run(self, on_ready: Callable[[str], None] = lambda address: None) -> None:
        """Serves until SIGINT or SIGTERM. `on_ready` gets the address. UsageError: the port is taken."""
        tables, app = self._made()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            listener = listening(self.options.port, self.options.host)
            on_ready(_address(self.options.host, listener))
            runner.run(_serve_alone(_Server(_config(app)), tables, listener))

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        """Serves in a thread of this process, from entry to exit; its address. UsageError: the port is taken."""
        tables, app = self._made()
        listener = listening(self.options.port, self.options.host)
        server = uvicorn.Server(_config(app))

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(server, tables, listener))

        thread = threading.Thread(target=run, name="timeline-service", daemon=True)
        thread.start()
        try:
            yield _address(self.options.host, listener)
        finally:
            server.should_exit = True
            thread.join(_STOP_S + 1)

    def _made(self) -> tuple[ServedTables, ServiceApp]:
        options = self.options
        names = (socket.gethostname(), socket.getfqdn(), *options.name)
        access = Access(host=options.host, token=self.token, hudi_clients=options.hudi_clients, names=names)
        answers = options.max_memory // _ANSWERS_SHARE
        room = options.max_memory - answers
        tables = ServedTables(self.paths, self.storage_options, room, self.found, self.clock, self.name_of)
        pages, login = self.pages(tables, access) if self.pages else (None, None)
        app = ServiceApp(tables, answers, access=access, markers=options.markers, pages=pages, login=login)
        return tables, app


def read_token(path: Path) -> str:
    """The token in a file. UsageError: the file cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            "the token cannot be read",
            path=str(path),
            found=reason_of(error),
            todo="Name a file that this user may read: --token-file.",
        ) from error


def _config(app: ServiceApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=QuickHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S,
    )


def _address(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


async def _serve_alone(server: uvicorn.Server, tables: ServedTables, listener: socket.socket) -> None:
    collections = asyncio.create_task(collect_from_time_to_time(lambda: tables.whole_loads))
    try:
        await _serve(server, tables, listener)
    finally:
        collections.cancel()


async def _serve(server: uvicorn.Server, tables: ServedTables, listener: socket.socket) -> None:
    first = asyncio.create_task(_load_all(tables))
    try:
        await server.serve([listener])
    finally:
        first.cancel()


def listening(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A listening socket: connections are queued from here on. UsageError: the address or the port cannot be used.
    asyncio switches Nagle's algorithm off only where the protocol is named; with it each answer takes 40 ms."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        found = f"{host}:{port}: {error}"
        raise UsageError("the port cannot be used", found=found, todo="Give another --port.") from error
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
    """Loads every table once, so that first requests do not wait, and searches for new tables from time to time."""
    await asyncio.gather(*map(_loader(), list(tables.by_name.values())), _find_new(tables))


async def _find_new(tables: ServedTables) -> None:
    load = _loader()
    while True:
        try:
            looked = await asyncio.to_thread(tables.snapshot)
        except PhantombaseError as error:
            _log.warning("new tables cannot be found", reason=str(error))
        else:
            await asyncio.gather(*map(load, tables.follow(looked)))
        await asyncio.sleep(_SEARCH_S)


def _loader() -> Callable[[ServedTable], Awaitable[None]]:
    """Runs a few loads at a time; an unreadable table stops no other load."""
    free = asyncio.Semaphore(_LOADS_AT_ONCE)

    async def load(table: ServedTable) -> None:
        async with free:
            try:
                held = await table.load()
            except PhantombaseError as error:
                _log.warning("table cannot be served", table=table.path, reason=str(error))
            except Exception as error:
                _log.error("table cannot be served", table=table.path, exc_info=error)
            else:
                _log.info("table loaded", table=table.path, partitions=len(held.state.partitions))

    return load
