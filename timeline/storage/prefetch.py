"""Looks things up ahead of who asks for them: in order, a few at a time, and no more once nobody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

AHEAD = 8


def prefetched(items: Iterable[T], do: Callable[[T], U], ahead: int = AHEAD) -> Iterator[U]:
    """`do` of each item, in order; at most `ahead` of them are under way or done and not asked for yet.

    What `do` raises is raised where its result is asked for. Once the iterator is closed, nothing more begins.
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
