"""The only place that opens a storage by its URL."""

from __future__ import annotations

import os

from ..errors import UnsupportedError
from .contract import Storage
from .local import LocalStorage

_FILE = "file://"


def open_storage(url: str) -> Storage:
    """The storage with its base at a URL or a plain path, which need not exist. UnsupportedError: another scheme."""
    path = url.removeprefix(_FILE)
    if "://" in path:
        raise UnsupportedError(
            "no storage for URLs of this scheme",
            path=url,
            expected=f"{_FILE}/PATH or a plain path: a POSIX file system",
            found=f"{path.partition('://')[0]}://",
            todo="Mount the table's file system.",
        )
    return LocalStorage(os.path.abspath(path))
