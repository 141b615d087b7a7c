"""Avro's variable-length integers, and sequences whose elements are decoded on demand (pure).

Integers are groups of seven bits, the lowest first, as Avro, protobuf and Thrift write them.

`EncodedArray` and `OnDemand` hold a million elements of a plan in the memory of their encoded bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class OnDemand(Sequence[U]):
    """`make` of each item. `make` must be pure: it is called at each access."""

    def __init__(self, items: Sequence[T], make: Callable[[T], U]) -> None:
        self.items: Sequence[Any] = items
        self._make = make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        found = self.items[index]
        return type(self)(found, self._make) if isinstance(index, slice) else self._make(found)

    def __iter__(self) -> Iterator[U]:
        return map(self._make, self.items)


class EncodedArray(OnDemand[U]):
    """`items`: the bytes of each element, decoded at each access."""


_BITS = 64


def encode_varint(number: int) -> bytes:
    """An integer that is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it); IndexError past the end, or beyond 64 bits."""
    result = shift = 0
    while shift < _BITS:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return result, position
        shift += 7
    raise IndexError("varint longer than 10 bytes")


def encode_long(value: int) -> bytes:
    """A signed integer of 64 bits, its sign in the lowest bit (zigzag)."""
    return encode_varint((value << 1) ^ (value >> 63))


def decode_long(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it) of a zigzag varint; IndexError as in `decode_varint`."""
    coded, behind = decode_varint(data, position)
    return (coded >> 1) ^ -(coded & 1), behind
