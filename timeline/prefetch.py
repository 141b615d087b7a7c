"""Several calls at once, in threads: results in order, all of them, or a few ahead of their consumer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

AHEAD = 8


class Threads(ThreadPoolExecutor):
    """Threads with the context of their caller: what work counts, and what its log carries. No other pool is made but
    by daemons, whose units of work have contexts of their own (a test reads the code for it)."""

    def __init__(self, number: int) -> None:
        super().__init__(number, initializer=_as_in, initargs=(copy_context(),))


def at_once(items: Iterable[T], do: Callable[[T], U], threads: int = AHEAD) -> list[U]:
    """`do` of all items, in order, `threads` of them at a time; a single one in this thread. Raises the first error."""
    every = list(items)
    if len(every) < 2 or threads < 2:
        return [do(item) for item in every]
    with Threads(min(threads, len(every))) as pool:
        return list(pool.map(do, every))


def _as_in(context: Context) -> None:
    """Gives a thread the values of its caller's context: what work counts, and what its log carries."""
    for variable, value in context.items():
        variable.set(value)


def prefetched(items: Iterable[T], do: Callable[[T], U], ahead: int = AHEAD) -> Generator[U, None, None]:
    """`do` of each item, in order; at most `ahead` calls are running or finished but not consumed yet. A single item is
    done in this thread. An error of `do` is raised when its result is consumed. After the iterator is closed, no more
    calls start."""
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2:
        yield from map(do, first)
        return
    source = chain(first, source)
    waiting: deque[Future[U]] = deque()
    with Threads(ahead) as pool:
        try:
            while True:
                while len(waiting) < ahead and (item := next(source, _END)) is not _END:
                    waiting.append(pool.submit(do, item))  # type: ignore[arg-type]
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def computed_ahead(items: Iterable[T], number: int = 1) -> Iterator[Iterator[T]]:
    """The items, in order, computed in one other thread: `number` of them at most while the consumer uses another.
    Errors are raised in their place. The end of the block waits for the item in progress; no more are computed."""
    source, waiting = iter(items), deque[Future[T]]()
    with Threads(1) as pool:

        def taken() -> Iterator[T]:
            waiting.append(pool.submit(source.__next__))
            while True:
                try:
                    found = waiting.popleft().result()
                except StopIteration:
                    return
                while len(waiting) < number:
                    waiting.append(pool.submit(source.__next__))
                yield found

        try:
            yield taken()
        finally:
            for future in waiting:
                future.cancel()


def prefetched_when_slow(items: Iterable[T], do: Callable[[T], U]) -> Iterator[U]:
    """As `prefetched` after the first item whose elapsed time is far above its CPU time, as on a network disk.
    Until then one by one: threads that contend for the interpreter take a quarter more of its time."""
    source = iter(items)
    for item in source:
        wall, worked = time.perf_counter(), time.thread_time()
        done = do(item)
        is_slow = time.perf_counter() - wall > _SLOW * max(time.thread_time() - worked, _LEAST_S)
        yield done
        if is_slow:
            yield from prefetched(source, do)


_SLOW, _LEAST_S = 8, 0.001
_END = object()
