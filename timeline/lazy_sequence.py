"""A sequence that makes each element when it is asked for: a million elements take no memory (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class OnDemand(Sequence[U]):
    """`make` of each item. `make` must be pure: the same element may be made many times."""

    def __init__(self, items: Sequence[T], make: Callable[[T], U]) -> None:
        self._items, self._make = items, make

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        found = self._items[index]
        return OnDemand(found, self._make) if isinstance(index, slice) else self._make(found)

    def __iter__(self) -> Iterator[U]:
        return map(self._make, self._items)
