"""The elements of an Avro array, each encoded already: a million of them take the room of their bytes (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

U = TypeVar("U")


class EncodedArray(Sequence[U]):
    """`items`: the bytes of each element, which `decode` makes when it is asked for."""

    def __init__(self, items: Sequence[bytes], decode: Callable[[bytes], U]) -> None:
        self.items, self._decode = items, decode

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        found = self.items[index]
        return EncodedArray(found, self._decode) if isinstance(index, slice) else self._decode(found)

    def __iter__(self) -> Iterator[U]:
        return map(self._decode, self.items)
