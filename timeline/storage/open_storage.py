"""The only place that opens a storage by its URL."""

from __future__ import annotations

import os

from ..errors import UnsupportedError
from .access.object_url import CLOUDS
from .access.storage_options import StorageOptions
from .contract import Storage
from .local import LocalStorage

_FILE = "file://"


def open_storage(url: str, options: StorageOptions | None = None) -> Storage:
    """The storage with its base at a URL or a plain path, which need not exist. UnsupportedError: another scheme."""
    path = url.removeprefix(_FILE)
    scheme, separator, _ = path.partition("://")
    if not separator:
        return LocalStorage(os.path.abspath(path))
    if any(scheme in cloud.schemes for cloud in CLOUDS):
        from .object_store import ObjectStorage  # late: few processes need it

        return ObjectStorage(path, options)
    places = "; ".join(f"{cloud.expected}: {cloud.name}" for cloud in CLOUDS)
    raise UnsupportedError(
        "no storage for URLs of this scheme",
        path=url,
        expected=f"{_FILE}/PATH or a plain path: a POSIX file system; {places}",
        found=f"{scheme}://",
        todo="Mount the table's file system.",
    )
