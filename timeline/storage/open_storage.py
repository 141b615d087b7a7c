"""The only place that opens a storage by its URL."""

from __future__ import annotations

import os

from ..errors import UnsupportedError
from .contract import Storage
from .local import LocalStorage

_FILE = "file://"
_S3 = ("s3", "s3a")


def open_storage(url: str) -> Storage:
    """The storage with its base at a URL or a plain path, which need not exist. UnsupportedError: another scheme."""
    path = url.removeprefix(_FILE)
    scheme, separator, _ = path.partition("://")
    if not separator:
        return LocalStorage(os.path.abspath(path))
    if scheme in _S3:
        from .object_store import ObjectStorage  # late: few processes need it

        return ObjectStorage(path)
    if scheme == "hdfs":
        from .hdfs_store import HdfsStorage  # late: few processes need it

        return HdfsStorage(path)
    raise UnsupportedError(
        "no storage for URLs of this scheme",
        path=url,
        expected=f"{_FILE}/PATH or a plain path: a POSIX file system; s3://BUCKET/PATH: an S3 object store; "
        "hdfs://HOST:PORT/PATH: HDFS",
        found=f"{scheme}://",
        todo="Mount the table's file system.",
    )
