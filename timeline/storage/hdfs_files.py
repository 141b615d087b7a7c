"""Files of HDFS as they are written and read.

Clients of HDFS name nodes: settings are Hadoop's own, as hdfs-native reads them in each process.

`core-site.xml` and `hdfs-site.xml` of HADOOP_CONF_DIR, or of HADOOP_HOME/etc/hadoop: name services and their name
nodes, Kerberos. HADOOP_USER_NAME, or the Kerberos ticket of the process.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
from hdfs_native import Client, WriteOptions

from ..errors import MissingFileError, StorageError, UsageError
from ..ranges import one_by_one, open_ranges

_ENVIRONMENT = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "KRB5CCNAME")
_TRIES_OF_ONE_NAME_NODE = "2"
"""A single name node that does not answer is reported within seconds, and not after minutes."""


def open_client(authority: str) -> Client:
    """The client of `HOST:PORT` or of a name service; UsageError: the settings cannot be used."""
    # A forked process needs connections of its own.
    return _opened(authority, tuple(os.environ.get(name) for name in _ENVIRONMENT), os.getpid())


@lru_cache(maxsize=64)
def _opened(authority: str, environment: tuple[str | None, ...], process: int) -> Client:
    host, _, port = authority.partition(":")
    # Reads of an observer name node may be behind what another process has written: only the active one is asked.
    settings = {
        f"dfs.client.failover.proxy.provider.{host}": "org.apache.hadoop.hdfs.server.namenode.ha."
        "ConfiguredFailoverProxyProvider"
    }
    if port:
        settings["dfs.client.failover.max.attempts"] = _TRIES_OF_ONE_NAME_NODE
    try:
        return Client(f"hdfs://{authority}", settings)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            "the name node or name service cannot be used",
            path=f"hdfs://{authority}",
            expected="hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH as hdfs-site.xml in HADOOP_CONF_DIR names it",
            found=shown(error),
        ) from error


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Errors of the client as those of the tree. `path`: the URL in messages."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file", path=path) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError("storage failed", path=path, found=shown(error)) from error


def shown(error: Exception) -> str:
    """An error in one line, without the server's stack."""
    text = str(error).replace("\\n\\tat", "\n\tat").partition("\n\tat")[0]
    return " ".join(f"{type(error).__name__}: {text}".split())[:500]


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
