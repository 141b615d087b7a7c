"""A large file of a storage without seeking, read range by range."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

Span: TypeAlias = tuple[int, int]
"""Offset and number of bytes."""

Fetch: TypeAlias = Callable[[Sequence[Span]], Sequence[Any]]
"""The bytes of each span, all of them, requested at the same time. StorageError, MissingFileError."""

_AHEAD_BYTES = 1 << 20


class _Ranges(io.RawIOBase):
    """`end`: the last bytes of the file, as far as they are known."""

    def __init__(self, fetch: Fetch, size: int, end: Any) -> None:
        super().__init__()
        self._fetch, self._size, self._at = fetch, size, 0
        self._end = (size - len(end), memoryview(end))
        self._front = memoryview(b"")
        self._kept: list[tuple[int, memoryview]] = []

    def keep(self, spans: Sequence[Span]) -> None:
        """Fetches these spans, and buffers them in place of the previous ones."""
        self._kept = []
        unknown = [(at, count) for at, count in spans if count and at < self._end[0]]
        found = self._fetch(unknown) if unknown else ()
        self._kept = [(at, memoryview(data)) for (at, _), data in zip(unknown, found, strict=True)]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        found = self._known(count)
        if found is None:
            found = memoryview(self._fetch([(self._at, count)])[0])
            if not self._at:  # a reader that reads the end of a file returns to its start
                self._front = found
        memoryview(buffer)[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _known(self, count: int) -> memoryview | None:
        """The buffered bytes from the current offset on, at most `count`; None: there are none."""
        for at, data in (*self._kept, self._end, (0, self._front)):
            if at <= self._at < at + len(data):
                return data[self._at - at : self._at - at + count]
        return None


class RangedFile(pa.PythonFile):  # type: ignore[misc]
    """Random access to a file of which only the parts that are read are fetched, see `open_ranges`."""

    keep: Callable[[Sequence[Span]], None]
    """Fetches spans that will be read, at the same time, and buffers them in place of the previous ones."""


def open_ranges(fetch: Fetch, size: int, end: Any = b"") -> RangedFile:
    """A file of `size` bytes; `end`: its last bytes, as far as they are known."""
    ranges = _Ranges(fetch, size, end)
    file = RangedFile(io.BufferedReader(ranges, _AHEAD_BYTES), "r")
    file.keep = ranges.keep
    return file


def one_by_one(fetch: Callable[[int, int], Any]) -> Fetch:
    """A `Fetch` of a storage that reads one span at a time. `fetch`: takes the offset and the number of bytes."""
    return lambda spans: [fetch(at, count) for at, count in spans]
