"""Files of HDFS as they are written and read."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from hdfs_native import Client, WriteOptions

from ...ranges import one_by_one, open_ranges
from .client import shown, translated

_WHOLE_BYTES = 32 << 20
"""Up to this size a file is read at once when it is opened."""
_NEW = WriteOptions(overwrite=False, create_parent=True)


class NewFile(io.RawIOBase):
    """A new file, seen by all while it grows. One that is dropped stays as it is until it is deleted."""

    def __init__(self, client: Client, path: str) -> None:
        super().__init__()
        self._file: Any = client.create(path, _NEW)
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            with _as_os_error():
                self._file.write(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: see `finish`."""

    def finish(self) -> None:
        """The file is complete, and on the disks of its data nodes."""
        if self._size:
            with suppress(OSError, RuntimeError):  # erasure-coded files have no hsync; `close` reports anything else
                self._file.hsync()
        self.close()

    def close(self) -> None:
        if not self.closed:
            file, self._file = self._file, None
            super().close()
            with _as_os_error():
                file.close()

    def drop(self) -> None:
        """Abandons the file; never raises."""
        if not self.closed:
            self._file = None
            super().close()

    def __del__(self) -> None:
        # io's own would close, and so complete half a file.
        if getattr(self, "_file", None) is not None:
            self.drop()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """A call that failed is to a file what a full disk is: an OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EIO, shown(error)) from error


def open_file(client: Client, path: str, name: str, *, whole: bool) -> pa.NativeFile:
    """Random access to a file; `name`: as in messages; `whole`: see `Storage.open_input`. MissingFileError."""
    with translated(name):
        file = client.read(path)
        if len(file) <= (_WHOLE_BYTES if whole else 0):
            return pa.BufferReader(pa.py_buffer(file.read_range(0, len(file)) if len(file) else b""))

    def fetch(at: int, count: int) -> Any:
        with translated(name):
            data = file.read_range(at, count)
            if len(data) != count:
                raise OSError(errno.EIO, f"an answer of {len(data)} bytes to a request for {count}")
            return data

    return open_ranges(one_by_one(fetch), len(file))
