"""The bloom filter in the footer of a Hudi base file, built and queried with numpy, batch by batch (pure).

Format (Hudi InternalBloomFilter, InternalDynamicBloomFilter, HashFunction, MurmurHash): base64 text of big-endian
fields,

    SIMPLE      one row
    DYNAMIC_V0  head | int32 keys that fill a row | int32 keys counted in the last row | int32 rows | rows
    head        int32 -1 | int32 hashes | int8 1 (murmur) | int32 bits of a row
    row         head | ceil(bits / 8) bytes, bit i = byte i >> 3, mask 1 << (i & 7)

A key's hashes are a chain of 32-bit MurmurHash2 over its UTF-8 bytes, each seeded with the previous hash. Hash h stands
for bit |h % bits| (Java remainder). Hudi's murmur takes the 1 to 3 bytes after the last complete word sign-extended and
in big-endian order.

Rows (Hudi InternalDynamicBloomFilter): a new row begins when the last one is full and all rows together hold fewer keys
than the maximum. After that, one key goes to row 0 and the later keys to rows 0, 1, ... in turn."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import MalformedError, UnsupportedError
from .columns import Index, byte_blocks

# Hudi's defaults of hoodie.index.bloom.num_entries, .fpp, hoodie.bloom.index.filter.dynamic.max.entries.
ENTRIES, ERROR_RATE, MAX_ENTRIES = 60_000, 1e-9, 100_000
SATURATED_KEYS = 750_000
"""With more keys a filter of the default shape wrongly answers "maybe" for 9 keys of 10 (0.895 measured).
A reader skips a file only if it gets a "no" for all keys that it looks up: 1 time in 10 for one key, 1 in 100 for two.
From two keys on this saves less time than every reader spends on 863 kB of filter text in the footer."""

_HEAD = struct.Struct(">iibi")
_DYNAMIC = struct.Struct(">iii")
_VERSION, _MURMUR = -1, 1
_M = np.uint32(0x5BD1E995)
_U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class BloomFilter:
    """A filter as stored in the footer: `hoodie_bloom_filter_type_code` and `org.apache.hudi.bloomfilter`."""

    type_code: str
    text: str

    @staticmethod
    def parse(type_code: str, text: str) -> BloomFilter:
        """The filter of a footer, checked. MalformedError: damaged; UnsupportedError: another kind."""
        bloom = BloomFilter(type_code, text)
        _ = bloom._content  # raises if the filter is damaged
        return bloom

    def might_contain(self, keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """One answer per key: False = certainly not in the file. MalformedError: null or empty key."""
        hashes, rows = self._content
        found = np.zeros(len(keys), np.bool_)
        for chunk in _chunks(keys):
            maybe = np.ones((len(rows), len(chunk.ordinals)), np.bool_)
            for position in _positions(chunk, hashes, rows.shape[1]):
                maybe &= rows[:, position]
            found[chunk.ordinals] = maybe.any(axis=0)
        return found

    @cached_property
    def _content(self) -> tuple[int, npt.NDArray[np.bool_]]:
        """Number of hashes, and the bits as bool (rows, bits of a row)."""
        if self.type_code not in ("SIMPLE", "DYNAMIC_V0"):
            raise UnsupportedError("unknown bloom filter", found=f"type code {self.type_code}")
        try:
            data = base64.b64decode(self.text, validate=True)
            version, hashes, kind, size = _HEAD.unpack_from(data)
            rows, start = 1, 0
            if self.type_code == "DYNAMIC_V0":
                rows, start = _DYNAMIC.unpack_from(data, _HEAD.size)[2], _HEAD.size + _DYNAMIC.size
        except (ValueError, struct.error) as error:
            raise MalformedError("damaged bloom filter", found=str(error)) from error
        if (version, kind) != (_VERSION, _MURMUR):
            raise UnsupportedError("unknown bloom filter", found=f"version {version}, hash type {kind}")
        width = _HEAD.size + math.ceil(size / 8)
        if min(hashes, size, rows) < 1 or len(data) != start + rows * width:
            found = f"{len(data)} bytes, {rows} rows of {size} bits, {hashes} hashes"
            raise MalformedError("damaged bloom filter", found=found)
        table = np.frombuffer(data, np.uint8, offset=start).reshape(rows, width)
        if (table[:, : _HEAD.size] != np.frombuffer(data, np.uint8, _HEAD.size)).any():
            raise MalformedError("damaged bloom filter", found="a row of another shape")
        bits = np.unpackbits(table[:, _HEAD.size :], axis=1, count=size, bitorder="little")
        return hashes, bits.view(np.bool_)


ALWAYS_TRUE = BloomFilter("SIMPLE", "/////wAAAAEBAAAACP8=")
"""The smallest valid filter: "maybe" to every key."""


class BloomBuilder:
    """Builds the DYNAMIC_V0 filter that Hudi would write for the same keys in the same order.
    `add` the record keys of the file, batch by batch, then `finish`. More than `saturated_keys` keys give ALWAYS_TRUE,
    and no keys are hashed from the batch on that exceeds this number."""

    def __init__(
        self,
        *,
        entries: int = ENTRIES,
        error_rate: float = ERROR_RATE,
        max_entries: int = MAX_ENTRIES,
        saturated_keys: int = SATURATED_KEYS,
    ) -> None:
        self._entries, self._saturated_keys, self._keys = entries, saturated_keys, 0
        self._size = math.ceil(entries * (-math.log(error_rate) / (math.log(2) * math.log(2))))
        self._hashes = math.ceil(math.log(2) * self._size / entries)
        self._max_rows = max(1, math.ceil(max_entries / entries))
        # A byte per bit: numpy cannot set single bits of a byte fast when positions repeat.
        self._bits = np.zeros(self._max_rows * self._size, np.bool_)

    def add(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """Adds the next record keys (strings). MalformedError: null or empty key (Hudi refuses them too)."""
        first = self._keys
        self._keys += len(keys)
        if self._keys > self._saturated_keys:
            return
        for chunk in _chunks(keys):
            start_of_row = self._rows_of(first + chunk.ordinals) * self._size
            for position in _positions(chunk, self._hashes, self._size):
                position += start_of_row
                self._bits[position] = True

    def finish(self) -> BloomFilter:
        if self._keys > self._saturated_keys:
            return ALWAYS_TRUE
        rows = min(self._max_rows, max(1, math.ceil(self._keys / self._entries)))
        head = _HEAD.pack(_VERSION, self._hashes, _MURMUR, self._size)
        data = [head, _DYNAMIC.pack(self._entries, self._keys - (rows - 1) * self._entries, rows)]
        for row in self._bits.reshape(-1, self._size)[:rows]:
            data += [head, np.packbits(row, bitorder="little").tobytes()]
        return BloomFilter("DYNAMIC_V0", base64.b64encode(b"".join(data)).decode("ascii"))

    def _rows_of(self, ordinal: Index) -> Index:
        """The row for the key added as number `ordinal` (from 0)."""
        full = self._max_rows * self._entries
        # Hudi puts the first key past the maximum into row 0, and then cycles through the rows, again from row 0.
        turn = np.maximum(ordinal - full - 1, 0) % self._max_rows
        return np.where(ordinal < full, ordinal // self._entries, turn)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some keys of one byte length, few enough for the L2 cache through all their hashes.
    `words`: for each 4-byte word position an array with that word of all keys, already mixed by the steps that do not
    depend on the seed: once for all hashes. `tail`: the 1 to 3 bytes after the words, or None."""

    ordinals: Index
    length: int
    words: list[_U32]
    tail: _U32 | None


def _chunks(keys: pa.Array | pa.ChunkedArray) -> Iterator[_Chunk]:
    """Every key in exactly one chunk; `ordinals` count through all of `keys`."""
    if keys.null_count:
        raise MalformedError("a record key is null", found=f"{keys.null_count} of {len(keys)}")
    first = 0
    for array in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        for block in byte_blocks(array):
            if not block.data.shape[1]:
                raise MalformedError("a record key is empty")
            yield _mix(block.data, first + block.ordinals)
        first += len(array)


def _mix(block: npt.NDArray[np.uint8], ordinals: Index) -> _Chunk:
    length = block.shape[1]
    whole = length // 4 * 4
    words: list[_U32] = []
    for start in range(0, whole, 4):
        word: _U32 = np.ndarray((len(block),), "<u4", block, start, (length,)) * _M
        word ^= word >> 24
        words.append(word * _M)
    tail = np.zeros(len(block), np.uint32)
    for place in range(length - whole):
        tail ^= (block[:, -1 - place].view(np.int8).astype(np.int32) << 8 * place).view(np.uint32)
    return _Chunk(ordinals, length, words, tail if whole < length else None)


def _positions(chunk: _Chunk, hashes: int, size: int) -> Iterator[Index]:
    """For each hash the bits of all keys of the chunk; the same array is yielded and overwritten for each hash."""
    length, divisor = np.uint32(chunk.length), np.uint32(size)
    value, spare, quotient = np.zeros((3, len(chunk.ordinals)), np.uint32)
    position = np.empty(len(value), np.intp)
    for _ in range(hashes):
        value ^= length
        for word in chunk.words:
            value *= _M
            value ^= word
        if chunk.tail is not None:
            value ^= chunk.tail
            value *= _M
        value ^= np.right_shift(value, 13, out=spare)
        value *= _M
        value ^= np.right_shift(value, 15, out=spare)
        # |h % n| = |h| % n. The absolute value of -2**31 wraps to the same bits, which mean 2**31 when unsigned.
        np.absolute(value.view(np.int32), out=spare.view(np.int32))
        # numpy divides by a scalar with SIMD, but computes the remainder without it: 8 times slower.
        np.floor_divide(spare, divisor, out=quotient)
        quotient *= divisor
        spare -= quotient
        np.copyto(position, spare)
        yield position
