"""Tries what everything stands on in an object store, once in a process and bucket, before the first write needs it.

A store that takes the conditions of a request and does not keep them answers as one that does. So each promise is
broken on purpose, on throw-away objects.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

import obstore
from obstore.exceptions import BaseError, PreconditionError

from ..errors import StorageError, UnsupportedError
from .contract import Entry
from .folders import TEMPORARY
from .object_clients import Clients, version

_TRIES = 3


class Tried(Protocol):
    """What is tried of an object store: its operations as they are, without the question whether it keeps them."""

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


_proved: set[int] = set()
_trying = threading.Lock()


def ensure_promises(storage: Tried) -> None:
    """UnsupportedError names the promise that is not kept; StorageError: it cannot be tried."""
    identity = storage.clients.identity
    if identity in _proved:
        return
    with _trying:
        if identity not in _proved:
            _prove(storage)
            _proved.add(identity)


def _prove(storage: Tried) -> None:
    for left in reversed(range(_TRIES)):
        name = f"{TEMPORARY}/probe-{uuid.uuid4().hex}"
        try:
            with _throw_away(storage, f"{name}-put", f"{name}-placed") as (put, placed):
                _try_put(storage, put)
                _try_listing(storage, put)
                storage.copy_if_absent(put, placed)
                _try_replace(storage, put)
                _try_place(storage, put, placed)
            return
        except StorageError:  # an answer was lost, or the store cannot be reached
            if not left:
                raise


@contextmanager
def _throw_away(storage: Tried, *paths: str) -> Iterator[tuple[str, ...]]:
    try:
        yield paths
    finally:
        storage.delete_all(paths)


def _try_put(storage: Tried, put: str) -> None:
    """A second put is refused, and what the first one left says so: its id, which `put_with_id` reads back."""
    first, second = storage.put_with_id(put, b"1"), storage.put_with_id(put, b"2")
    if not first or storage.put_id(put) is None:
        raise _broken(storage, "metadata that is put with an object comes back with it")
    if second or storage.read(put) != b"1":
        raise _broken(storage, f"put-if-absent ({storage.clients.cloud.put}) never replaces an object")


def _try_listing(storage: Tried, put: str) -> None:
    folder, _, name = put.rpartition("/")
    if name not in {entry.name for entry in storage.list(folder)}:
        raise _broken(storage, "a listing shows an object that was just put")


def _try_place(storage: Tried, other: str, placed: str) -> None:
    """`placed` was copied when `other` had its first content."""
    if storage.copy_if_absent(other, placed) or storage.read(placed) != b"1":
        raise _broken(storage, f"copy-if-absent ({storage.clients.cloud.copy}) never replaces an object")


def _try_replace(storage: Tried, put: str) -> None:
    """With a version that is not that of the object."""
    store, key = storage.clients.once, storage.key(put)
    try:
        stale = obstore.head(store, key)
        obstore.put(store, key, b"newer", use_multipart=False)
        obstore.put(store, key, b"lost", mode=version(stale), use_multipart=False)
    except PreconditionError:
        return
    except (BaseError, OSError) as error:
        raise StorageError("storage failed", path=storage.base_path, found=str(error)[:300]) from error
    raise _broken(storage, f"replace-if-unchanged ({storage.clients.cloud.replace}) refuses an object that has changed")


def _broken(storage: Tried, promise: str) -> UnsupportedError:
    return UnsupportedError(
        "this object store does not keep a promise that phantombase needs",
        path=storage.base_path,
        expected=promise,
        found="it does not",
        todo="Nothing was changed. phantombase cannot work safely here; use a store with conditional writes.",
    )
