"""Clients, files and leases of HDFS, through hdfs-native.

Settings are Hadoop's own, as hdfs-native reads them in each process: `core-site.xml` and `hdfs-site.xml` of
HADOOP_CONF_DIR, or of HADOOP_HOME/etc/hadoop (name services and their name nodes, Kerberos), HADOOP_USER_NAME, or the
Kerberos ticket of the process.

HDFS has no locks for clients, so a lease is kept in files, by the clock of the storage:

    <lease>/<number>          one holder's file, put if absent; its holder overwrites it regularly
    <lease>/<number>.over     its holder has released the lease

The highest number is the current lease. It is free if it was released, or not overwritten for `VALID_S`. Then the next
number is put: one process succeeds. Numbers are never reused, so a holder that stalled finds a higher one."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
from hdfs_native import Client, WriteOptions

from ..clocks import Stopwatch, in_background, tries
from ..errors import LockError, MissingFileError, PhantombaseError, StorageError, UsageError, fault_of, without_classes
from ..event_log import get_logger
from ..ranges import one_by_one, open_ranges
from ..reachable import waiting
from .contract import Storage, listed_if_there

_log = get_logger()

VALID_S = 45.0
"""How long a lease excludes others after its holder died."""
RENEW_S = 9.0
_POLL_S = 0.2, 2.0
_OVER = ".over"
_AHEAD_S = 1.0
"""A lease counts as held while its validity lasts longer than this."""


@contextmanager
def hold_lease(
    storage: Storage, path: str, timeout_s: float, busy: LockError, clock_ms: Callable[[], int]
) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`. `clock_ms`: the clock that gives the storage's files their times."""
    try:
        number, since = _take(storage, path, timeout_s, busy, clock_ms)
    except StorageError as error:
        raise LockError("the lease cannot be used", path=f"{storage.base_path}/{path}", found=str(error)) from error
    kept = _Kept(storage, path, number, since)
    try:
        with in_background(kept.keep, f"lease-{path}"):
            yield kept.is_held
    finally:
        try:
            storage.put_if_absent(f"{path}/{number}{_OVER}", b"")
        except PhantombaseError as error:  # the lease expires
            _log.warning("lock_not_released", path=path, error=str(error))


def _take(
    storage: Storage, path: str, timeout_s: float, busy: LockError, clock_ms: Callable[[], int]
) -> tuple[int, Stopwatch]:
    for _ in tries(timeout_s, *_POLL_S):
        numbers, over = _look(storage, path)
        since = Stopwatch()  # before the file gets its modification time
        last = max(numbers, default=0)
        if last in over or last == 0 or _age_s(storage, f"{path}/{last}", clock_ms) > VALID_S:
            mine = last + 1
            # Another process may have taken and removed this number since: then a higher one exists.
            if storage.put_if_absent(f"{path}/{mine}", _holder()) and max(_look(storage, path)[0], default=0) == mine:
                for number in sorted(number for number in numbers | over if number < mine):
                    storage.delete(f"{path}/{number}{_OVER}")
                    storage.delete(f"{path}/{number}")
                return mine, since
    raise busy


def _look(storage: Storage, path: str) -> tuple[set[int], set[int]]:
    """The numbers that were taken, and those that were released."""
    names = [entry.name for entry in listed_if_there(storage, path) or ()]
    taken = {int(name) for name in names if name.isdecimal()}
    return taken, {int(name.removesuffix(_OVER)) for name in names if name.endswith(_OVER)}


def _age_s(storage: Storage, path: str, clock_ms: Callable[[], int]) -> float:
    """How long ago a holder last overwrote its file, by the clock of the storage."""
    entry = storage.find(path)
    if entry is None:  # removed since it was listed: there is a higher number
        return 0.0
    return (clock_ms() - entry.modified_ms) / 1000


class _Kept:
    """A lease that was taken; `since`: not later than the modification time of its file."""

    def __init__(self, storage: Storage, path: str, number: int, since: Stopwatch) -> None:
        self._storage, self._path, self._number = storage, path, number
        self._since, self._lost = since, False

    def is_held(self) -> bool:
        return not self._lost and self._since.seconds() < VALID_S - _AHEAD_S

    def keep(self, ended: threading.Event) -> None:
        """Overwrites the holder's file until the section ends, or another process holds the lease."""
        while not ended.wait(RENEW_S):
            try:
                since = Stopwatch()
                self._storage.overwrite(f"{self._path}/{self._number}", _holder())
                last = max(_look(self._storage, self._path)[0], default=0)
                # If the lease expired before its renewal was seen, another process may be about to acquire it.
                if last != self._number or not self.is_held():
                    self._lost = True
                    _log.warning("lock_lost", path=self._path)
                    return
                self._since = since
            except PhantombaseError as error:  # the next renewal may still be in time
                _log.warning("lock_not_renewed", path=self._path, error=str(error))


def _holder() -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()


_ENVIRONMENT = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "KRB5CCNAME")
_FIRST_S = 60.0
_TRIES_OF_ONE_NAME_NODE = "2"
"""A single name node that does not answer is reported within seconds, and not after minutes."""


def open_client(authority: str) -> Client:
    """The client of `HOST:PORT` or of a name service; UsageError: the settings cannot be used."""
    # A forked process needs connections of its own.
    return _opened(authority, tuple(os.environ.get(name) for name in _ENVIRONMENT), os.getpid())


@lru_cache(maxsize=64)
def _opened(authority: str, environment: tuple[str | None, ...], process: int) -> Client:
    host, _, port = authority.partition(":")
    # Reads of an observer name node may be older than what another process has written: only the active one is used.
    settings = {
        f"dfs.client.failover.proxy.provider.{host}": "org.apache.hadoop.hdfs.server.namenode.ha."
        "ConfiguredFailoverProxyProvider"
    }
    if port:
        settings["dfs.client.failover.max.attempts"] = _TRIES_OF_ONE_NAME_NODE
    try:
        client = Client(f"hdfs://{authority}", settings)
    except (OSError, RuntimeError, ValueError) as error:
        what = "the name node or name service cannot be used"
        expected = "hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH as hdfs-site.xml in HADOOP_CONF_DIR names it"
        raise UsageError(what, path=f"hdfs://{authority}", expected=expected, found=shown(error)) from error
    _check_answers(client, f"hdfs://{authority}")
    return client


def _check_answers(client: Client, url: str) -> None:
    """StorageError: the server takes connections, and does not answer; the client would wait for ever. Other errors
    are those of the first request."""
    answered = threading.Event()

    def ask() -> None:
        with suppress(BaseException):  # also a panic of the client
            client.get_file_info("/")
        answered.set()

    threading.Thread(target=ask, name="hdfs-first-answer", daemon=True).start()
    if not answered.wait(_FIRST_S):
        raise StorageError(
            "the name node does not answer",
            path=url,
            expected=f"an answer within {_FIRST_S:g} s",
            found="a server that takes connections",
            todo="Check that host and port are those of dfs.namenode.rpc-address.",
        )


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Translates errors of the client into those of the tree. `path`: the URL in messages."""
    try:
        with waiting(f"waiting for {path}"):
            yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file", path=path) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError("storage failed", path=path, found=shown(error)) from error


_IN_RUST = re.compile(r'[\w ]+\("?([^()"]+)"?\)')
"""How Rust prints an error for developers: `url parse(InvalidPort)`, `InvalidArgument("No NameNode hosts found")`."""


def shown(error: Exception) -> str:
    """An error in one line, without the server's stack."""
    text = str(error).replace("\\n\\tat", "\n\tat").partition("\n\tat")[0]
    if (inner := _IN_RUST.fullmatch(text)) is not None:
        text = inner[1] if " " in inner[1] else fault_of(inner[1])
    return without_classes(" ".join(text.split()))[:500] or fault_of(error)


_WHOLE_BYTES = 32 << 20
"""Up to this size a file is read at once when it is opened."""
_NEW = WriteOptions(overwrite=False, create_parent=True)


class NewFile(io.RawIOBase):
    """A new file, visible while it is written. One that is dropped exists until it is deleted."""

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
        """Does nothing: see `finish`."""

    def finish(self) -> None:
        """Completes the file, on the disks of its data nodes."""
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
        # io's own would close, and so publish an incomplete file.
        if getattr(self, "_file", None) is not None:
            self.drop()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raises a failed call as an OSError, like a full disk."""
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
