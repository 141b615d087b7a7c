"""The network between one process and some servers, which a test can cut: TCP proxies on 127.0.0.1, no root needed.

A cut is silence, as when packets are lost: bytes wait, connections stay open, new ones get no answer. What waited
arrives after `heal`, as TCP would send it again, also on a connection whose other end has given up meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TypeVar

_CHUNK_BYTES = 1 << 16
_CALL_MAX_S = 60.0
_T = TypeVar("_T")


class Side(Enum):
    """Whose bytes do not arrive."""

    BOTH = "both"
    ANSWERS = "answers"
    """The servers': requests are done, and the client does not hear of it."""


class Link:
    """Ways to servers at ports of 127.0.0.1, in their order; methods act on the ways named by position, else on all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ways: Sequence[_Way]) -> None:
        self._loop, self._ways = loop, ways

    @property
    def hosts(self) -> str:
        """What the process on the near side must take for the servers."""
        return ",".join(f"127.0.0.1:{way.port}" for way in self._ways)

    def used(self) -> list[int]:
        """Positions of the ways that have connections, cut ones too."""
        return [position for position, way in enumerate(self._ways) if way.is_used]

    def cut(self, *positions: int, side: Side = Side.BOTH) -> None:
        """From now on no byte of a side arrives."""
        self._each(positions, lambda way: way.cut(side))

    def heal(self, *positions: int) -> None:
        """From now on bytes arrive again, first those that waited."""
        self._each(positions, lambda way: way.heal())

    def delay(self, seconds: float, *positions: int) -> None:
        """From now on each piece arrives so much later."""
        self._each(positions, lambda way: way.set_delay(seconds))

    def drop(self, *positions: int) -> None:
        """Connections end now, at both ends, and what waited is lost; a cut stays cut."""
        self._each(positions, lambda way: way.drop())

    def hang_up(self, *positions: int) -> None:
        """Connections end at the near end only, as if their process gave them up: what it sent still arrives."""
        self._each(positions, lambda way: way.hang_up())

    def _each(self, positions: tuple[int, ...], act: Callable[[_Way], None]) -> None:
        async def acting() -> None:
            for position in positions or range(len(self._ways)):
                act(self._ways[position])

        _run(self._loop, acting())


@contextmanager
def link(ports: Sequence[int]) -> Iterator[Link]:
    """A link to servers, served by one thread to the end of the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="partition", daemon=True)
    thread.start()
    try:
        yield Link(loop, [_run(loop, _Way(port).open()) for port in ports])
    finally:
        _run(loop, _cancel_all())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CALL_MAX_S)
        loop.close()


class _Way:
    """The way to one server. All of it happens in the loop's thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._requests, self._answers = asyncio.Event(), asyncio.Event()  # set: they flow
        self._delay_s = 0.0
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._near: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.heal()

    async def open(self) -> _Way:
        """Listens, at a port that was free."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    @property
    def is_used(self) -> bool:
        """See `Link.used`."""
        return bool(self._connections)

    def cut(self, side: Side) -> None:
        """See `Link.cut`."""
        self._answers.clear()
        if side is Side.BOTH:
            self._requests.clear()

    def heal(self) -> None:
        """See `Link.heal`."""
        self._requests.set()
        self._answers.set()

    def set_delay(self, seconds: float) -> None:
        """See `Link.delay`."""
        self._delay_s = seconds

    def drop(self) -> None:
        """See `Link.drop`."""
        for writer in self._writers:
            writer.transport.abort()
        for connection in self._connections:
            connection.cancel()

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        for writer in self._near:
            writer.transport.abort()

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        mine = {near}
        self._writers |= mine
        self._near.add(near)
        pumps: list[asyncio.Task[None]] = []
        try:
            if not self._requests.is_set():
                # Nobody can connect while the link is cut. Whoever still waits afterwards is told to try again.
                await self._requests.wait()
                return
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target)
            mine.add(far)
            self._writers.add(far)
            pumps = [
                asyncio.create_task(self._pump(near_reader, far, self._requests)),
                asyncio.create_task(self._pump(far_reader, near, self._answers)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):  # the server is not there; dropped
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for writer in mine:
                writer.close()
            self._writers -= mine
            self._near.discard(near)
            self._connections.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        """Carries bytes one way; the end of the connection waits as they do."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await asyncio.sleep(self._delay_s)
                await flows.wait()
                writer.write(data)
                await writer.drain()
        await flows.wait()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, _T]) -> _T:
    return asyncio.run_coroutine_threadsafe(work, loop).result(_CALL_MAX_S)
