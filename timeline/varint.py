"""Integers in groups of seven bits, the lowest first, as Avro, protobuf and Thrift write them (pure)."""

from __future__ import annotations

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
    """(value, position behind it); IndexError past the end, or beyond 64 bits."""
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
    """(value, position behind it) of a zigzag varint; IndexError as in `decode_varint`."""
    coded, behind = decode_varint(data, position)
    return (coded >> 1) ^ -(coded & 1), behind
