"""Computes results ahead of the consumer: in order, a few at a time, and no more once the consumer stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

AHEAD = 8


def prefetched(items: Iterable[T], do: Callable[[T], U], ahead: int = AHEAD) -> Iterator[U]:
    """`do` of each item, in order; at most `ahead` calls are running or finished but not consumed yet.

    An error of `do` is raised when its result is consumed. After the iterator is closed, no more calls begin.
    """
    source = iter(items)
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(ahead) as pool:
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


_END = object()
