"""Tests the promises of an object store once per process and bucket, before the first write depends on them.

A store that ignores the conditions of a request answers like one that checks them. So the test violates each condition
on purpose, on temporary objects."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import obstore
from obstore.exceptions import BaseError, PreconditionError

from ..clocks import Stopwatch, clock_ms
from ..errors import MissingFileError, StorageError, UnsupportedError
from .contract import Entry
from .folders import TEMPORARY
from .object_clients import Clients, version
from .server_clock import note_agreed

_TRIES = 3
_TRIED_AT_ONCE = 5


class Tried(Protocol):
    """The operations of an object store that are tested; none of them calls `ensure_promises`."""

    @property
    def base_path(self) -> str: ...

    @property
    def clients(self) -> Clients: ...

    def key(self, path: str) -> str: ...

    def put_with_id(self, path: str, data: bytes) -> bool: ...

    def put_id(self, path: str) -> str | None: ...

    def copy_if_absent(self, source: str, target: str) -> bool: ...

    def read(self, path: str) -> bytes: ...

    def list(self, folder: str) -> list[Entry]: ...

    def delete_all(self, paths: Collection[str]) -> None: ...


def ensure_promises(storage: Tried) -> None:
    """Tests once. UnsupportedError names the promise that is not kept; StorageError: it cannot be tested."""
    known = storage.clients.known
    if known.keeps_promises:
        return
    with known.trying:
        if not known.keeps_promises:
            _prove(storage)
            known.keeps_promises = True


def _prove(storage: Tried) -> None:
    for left in reversed(range(_TRIES)):
        name = f"{TEMPORARY}/probe-{uuid.uuid4().hex}"
        try:
            paths = [f"{name}-{what}" for what in ("put", "other", "taken", "placed")]
            try:
                _try_all(storage, *paths)
            finally:
                storage.delete_all(paths)
            return
        except StorageError:  # an answer was lost, or the store cannot be reached
            if not left:
                raise


def _try_all(storage: Tried, put: str, other: str, taken: str, placed: str) -> None:
    """Independent tests run at the same time, each on its own object."""
    since, began_ms = Stopwatch(), clock_ms()
    with ThreadPoolExecutor(_TRIED_AT_ONCE) as pool:
        older, there = pool.submit(_put, storage, other, b"older"), pool.submit(_put, storage, taken, b"1")
        is_put = storage.put_with_id(put, b"1")
        stale = older.result()
        there.result()
        listed = pool.submit(_try_listing, storage, put)
        tried: list[Future[None]] = [
            pool.submit(_try_put, storage, put, is_put),
            pool.submit(_try_replace, storage, other, stale),
            pool.submit(_try_copy, storage, put, placed),
            pool.submit(_try_place, storage, other, taken),
        ]
        for one in tried:
            one.result()
    note_agreed(storage.clients.known, since, began_ms, listed.result().modified_ms)


def _try_put(storage: Tried, put: str, is_put: bool) -> None:
    """A second put is refused, and the object keeps the id of the first one, which `put_with_id` reads back."""
    again = storage.put_with_id(put, b"2")
    if not is_put or storage.put_id(put) is None:
        raise _broken(storage, "metadata that is put with an object comes back with it")
    if again or storage.read(put) != b"1":
        raise _broken(storage, f"put-if-absent ({storage.clients.cloud.put}) never replaces an object")


def _try_listing(storage: Tried, put: str) -> Entry:
    folder, _, name = put.rpartition("/")
    found = next((entry for entry in storage.list(folder) if entry.name == name), None)
    if found is None:
        raise _broken(storage, "a listing shows an object that was just put")
    return found


def _try_copy(storage: Tried, put: str, placed: str) -> None:
    storage.copy_if_absent(put, placed)
    try:
        is_made = storage.read(placed) == b"1"
    except MissingFileError:
        is_made = False
    if not is_made:
        raise _broken(storage, f"copy-if-absent ({storage.clients.cloud.copy}) has made a copy when it is answered")


def _try_place(storage: Tried, other: str, taken: str) -> None:
    """Copies onto `taken`, which has other content."""
    if storage.copy_if_absent(other, taken) or storage.read(taken) != b"1":
        raise _broken(storage, f"copy-if-absent ({storage.clients.cloud.copy}) never replaces an object")


def _put(storage: Tried, path: str, data: bytes, **mode: Any) -> Any:
    """Puts an object, and returns the store's answer; PreconditionError, StorageError."""
    try:
        return obstore.put(storage.clients.once, storage.key(path), data, use_multipart=False, **mode)
    except PreconditionError:
        raise
    except (BaseError, OSError) as error:
        raise StorageError("storage failed", path=storage.base_path, found=str(error)[:300]) from error


def _try_replace(storage: Tried, other: str, stale: Any) -> None:
    """Replaces a version that the object no longer has. `stale`: the store's answer to its first content."""
    _put(storage, other, b"newer")
    try:
        _put(storage, other, b"lost", mode=version(stale))
    except PreconditionError:
        return
    raise _broken(storage, f"replace-if-unchanged ({storage.clients.cloud.replace}) refuses an object that has changed")


def _broken(storage: Tried, promise: str) -> UnsupportedError:
    what = "this object store does not keep a promise that phantombase needs"
    todo = "Nothing was changed. phantombase cannot work safely here; use a store with conditional writes."
    return UnsupportedError(what, path=storage.base_path, expected=promise, found="it does not", todo=todo)
