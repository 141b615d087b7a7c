"""A storage that fails at its n-th call: before it takes effect, or after."""

from __future__ import annotations

from enum import Enum
from typing import IO, Any

import pyarrow as pa

from timeline.storage import Entry, Storage


class ProcessDied(BaseException):
    """Stands for kill -9: nothing catches it, nothing is cleaned up."""


class When(Enum):
    """Whether the failing call took effect."""

    BEFORE = "before"
    AFTER = "after"


class FaultyStorage:
    """Delegates to another storage and dies at call number `fail_at` (from 0); later calls die too.

    A dead process makes no more calls: so a `finally` of the code under test cannot tidy up.
    """

    def __init__(self, inner: Storage, fail_at: int, when: When) -> None:
        self._inner = inner
        self._fail_at = fail_at
        self._when = when
        self.calls = 0

    @property
    def base_path(self) -> str:
        """See `Storage`."""
        return self._inner.base_path

    def _call(self, name: str, *args: Any) -> Any:
        number = self.calls
        self.calls += 1
        if number > self._fail_at or (number == self._fail_at and self._when is When.BEFORE):
            raise ProcessDied(f"{name}{args[:1]}")
        result = getattr(self._inner, name)(*args)
        if number == self._fail_at:
            raise ProcessDied(f"{name}{args[:1]}")
        return result

    def list(self, folder: str) -> list[Entry]:
        """See `Storage`."""
        return list(self._call("list", folder))

    def find(self, path: str) -> Entry | None:
        """See `Storage`."""
        found: Entry | None = self._call("find", path)
        return found

    def read(self, path: str) -> bytes:
        """See `Storage`."""
        return bytes(self._call("read", path))

    def open_input(self, path: str) -> pa.NativeFile:
        """See `Storage`."""
        return self._call("open_input", path)

    def open_output(self, path: str) -> IO[bytes]:
        """See `Storage`."""
        file: IO[bytes] = self._call("open_output", path)
        return file

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Storage`."""
        return bool(self._call("put_if_absent", path, data))

    def place(self, source: str, target: str) -> bool:
        """See `Storage`."""
        return bool(self._call("place", source, target))

    def overwrite(self, path: str, data: bytes) -> None:
        """See `Storage`."""
        self._call("overwrite", path, data)

    def delete(self, path: str) -> None:
        """See `Storage`."""
        self._call("delete", path)

    def delete_folder(self, folder: str) -> None:
        """See `Storage`."""
        self._call("delete_folder", folder)
