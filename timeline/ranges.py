"""A large file of a storage without seeking, read range by range."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_AHEAD_BYTES = 1 << 20


class _Ranges(io.RawIOBase):
    def __init__(self, fetch: Callable[[int, int], Any], size: int) -> None:
        super().__init__()
        self._fetch, self._size, self._at = fetch, size, 0

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
        memoryview(buffer)[:count] = memoryview(self._fetch(self._at, count))
        self._at += count
        return count


def open_ranges(fetch: Callable[[int, int], Any], size: int) -> pa.NativeFile:
    """Random access to a file of `size` bytes. `fetch`: so many bytes from an offset on; OSError."""
    return pa.PythonFile(io.BufferedReader(_Ranges(fetch, size), _AHEAD_BYTES), mode="r")
