"""Lying numbers and blind damage: mutations that need no format."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import TypeAlias

Mutator: TypeAlias = Callable[[Random, bytes], bytes]

_EDGES = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 65535, 65536, 1 << 20, 1 << 24, 1 << 28, (1 << 31) - 1)
_BEYOND = (1 << 31, (1 << 32) - 1, 1 << 32, 1 << 35, 1 << 40, 1 << 48, 1 << 56, 1 << 62, (1 << 63) - 1)


def lie(rng: Random, value: int, bits: int = 64) -> int:
    """Another integer of so many bits: near the true one, an edge, negative, or far too large."""
    top = (1 << (bits - 1)) - 1
    pick = rng.randrange(6)
    if pick == 0:
        wrong = value + rng.choice((-8, -2, -1, 1, 2, 4, 100))
    elif pick == 1:
        wrong = value * rng.choice((2, 3, 10, 1000))
    elif pick == 2:
        wrong = -value
    elif pick == 3:
        wrong = -rng.choice((*_EDGES, *_BEYOND)) - 1
    else:
        wrong = rng.choice((*_EDGES, *_BEYOND))
    return max(-top - 1, min(top, wrong))


def varint(value: int) -> bytes:
    """An unsigned LEB128 integer; also longer than needed when the value is negative (as 64 bits)."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """Avro's and Thrift's signed varint."""
    return varint((value << 1) ^ (value >> 63))


def flip_bits(rng: Random, data: bytes) -> bytes:
    """One to eight bits somewhere."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: Random, data: bytes) -> bytes:
    """Cut off, sometimes to nothing or by a few bytes."""
    return data[: rng.choice((0, rng.randint(0, len(data)), max(0, len(data) - rng.randint(1, 16))))]


def append(rng: Random, data: bytes) -> bytes:
    """Bytes behind the end: noise, zeros, or the front again."""
    return data + rng.choice((rng.randbytes(rng.randint(1, 64)), bytes(rng.randint(1, 4096)), data[:64], data))


def move_range(rng: Random, data: bytes) -> bytes:
    """A range removed, doubled, zeroed or put elsewhere."""
    start = rng.randint(0, len(data))
    end = min(len(data), start + rng.choice((1, 4, 8, 64, 1024)))
    cut, rest = data[start:end], data[:start] + data[end:]
    at = rng.randint(0, len(rest))
    moved = rest[:at] + cut + rest[at:]
    return rng.choice((rest, data[:end] + cut + data[end:], data[:start] + bytes(len(cut)) + data[end:], moved))


def overwrite_integer(rng: Random, data: bytes) -> bytes:
    """An integer of 2, 4 or 8 bytes, either byte order, somewhere."""
    size, letter = rng.choice(((2, "h"), (4, "i"), (8, "q")))
    if len(data) < size:
        return data
    at = rng.randint(0, len(data) - size)
    wrong = struct.pack(rng.choice("<>") + letter, lie(rng, 1, 8 * size))
    return data[:at] + wrong + data[at + size :]


def overwrite_varint(rng: Random, data: bytes) -> bytes:
    """A varint in the place of another byte."""
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice((zigzag(lie(rng, 1)), b"\xff" * 12)) + data[at + 1 :]


BLIND: tuple[Mutator, ...] = (flip_bits, flip_bits, truncate, append, move_range, overwrite_integer, overwrite_varint)


def blind(rng: Random, data: bytes) -> bytes:
    """Any mutation that knows no format."""
    return rng.choice(BLIND)(rng, data)
