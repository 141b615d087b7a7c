"""A lock in an object store: an object with its holder and the end of its validity, replaced only if it is unchanged.

    {"expired":false,"validUntil":<ms since the epoch>,"owner":"<uuid>"}

It is Hudi's own (StorageBasedLockProvider of 1.x). The lock is free if there is no object, if the object is expired, or
if its validity ended more than half a second ago. The holder renews it, and marks it expired at the end; the object is
not deleted.

The times in it are those of the holder's clock, which was compared with the store's before (`server_clock`).

What the lock and all writes depend on stands here too. The promises of a store are tested once per process and bucket:
one that ignores the conditions of a request answers like one that checks them, so the test violates each condition on
purpose, on temporary objects. And the answers to reads of small objects are checked: the content is whole, and of the
version that comes with it."""

from __future__ import annotations

import errno
import json
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

import obstore
from obstore.exceptions import BaseError, PreconditionError

from ..clocks import LEASE_AGAIN, READ_AGAIN, Stopwatch, clock_ms, in_background, retries, tries
from ..errors import LockError, MissingFileError, StorageError, UnsupportedError, reason_of
from ..event_log import get_logger
from ..prefetch import Threads
from .contract import Entry
from .folders import TEMPORARY
from .object_clients import Clients, version
from .server_clock import note_agreed
from .snapshot import is_of


def read_object(clients: Clients, key: str) -> tuple[bytes, Any]:
    """The content of an object, and the store's answer. FileNotFoundError, BaseError, OSError: also if its answers stay
    shorter than the object. A proxy may shorten an answer and its Content-Length alike, and a server may send the tag
    of a newer content. Only the tag shows that, where it is a sum of the content: one that is of nothing is found with
    the same content a second time."""
    store, known = clients.patient, clients.known
    seen: tuple[bytes, str] | None = None
    for _ in retries(READ_AGAIN):
        found = obstore.get(store, key)
        data, tag = bytes(found.bytes()), content_tag(found.meta)
        if not known.sums or is_of(tag, data):
            return data, found
        size = obstore.head(store, key)["size"]
        if len(data) == size and seen == (data, tag):
            known.sums = False
            return data, found
        seen = data, tag
    raise OSError(errno.EIO, f"an answer of {len(data)} bytes for an object of {size}, which its tag is not of")


def content_tag(meta: Any) -> str:
    """The ETag without quotes, which some answers have; "" without one."""
    return (meta.get("e_tag") or "").strip('"')


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
    with Threads(_TRIED_AT_ONCE) as pool:
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


_log = get_logger()


VALID_S = 45.0
"""How long a lease excludes others after its holder died."""


RENEW_S = 9.0


LEFT_S = 1.0
"""A lease counts as held while its validity lasts longer than this: a step that starts now takes time."""


_DRIFT_MS = 500
"""The difference of clocks that Hudi allows."""


_POLL_S = 0.1, 1.0
"""Pauses between tries to change a lease that this process still holds."""


_GIVEN_BACK_MAX = 1000


@contextmanager
def hold_lease(
    clients: Clients, key: str, shown: str, timeout_s: float, busy: LockError, *, is_new: bool = False
) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`. `is_new`: there is probably no such object yet, so it is made without a look for one."""
    lease = _Lease(clients, key, is_new)
    try:
        if not any(lease.try_take() for _ in tries(timeout_s, *_POLL_S)):
            raise busy
    except (BaseError, OSError, ValueError) as error:
        raise LockError("the lock object cannot be used", path=shown, found=reason_of(error)) from error

    def keep(ended: threading.Event) -> None:
        while not ended.wait(RENEW_S) and not lease.lost:
            try:
                lease.renew()
            except (BaseError, OSError, ValueError) as error:  # the next renewal may still be in time
                _log.warning("lock_not_renewed", path=shown, error=str(error))

    try:
        with in_background(keep, f"lease-{shown}"):
            yield lease.is_held
    finally:
        try:
            if lease.lost or not lease.release():
                _log.warning("lock_lost", path=shown)
        except (BaseError, OSError, ValueError) as error:  # it expires
            _log.warning("lock_not_released", path=shown, error=str(error))


class _Lease:
    """One holder's view of the lock object. `lost`: another process owns it, or it does not exist."""

    def __init__(self, clients: Clients, key: str, is_new: bool = False) -> None:
        self._clients, self._key, self._is_new = clients, key, is_new
        self._owner = str(uuid.uuid4())
        self._version: Any = None
        self._until = 0
        self._since = self._taken = Stopwatch()
        self.lost = False

    def try_take(self) -> bool:
        """Takes the lease if it is free; whether it is held now."""
        # While the object has the version that this process released, no other process has held the lease since.
        given_back = self._clients.known.given_back.pop(self._key, None)
        if given_back is not None and self._take(given_back):
            return True
        is_new, self._is_new = self._is_new, False
        if is_new and given_back is None and self._take("create"):
            return True
        there, found = self._look()
        if self._taken.was_set():
            what = "the clock was set, or the machine suspended, while a lock was waited for: it may be another's still"
            raise LockError(what, path=self._key, todo="Run again.")
        return (there is None or self._is_free(there)) and self._take(found or "create")

    def _take(self, mode: Any) -> bool:
        self.lost = False  # in an earlier try another process was first
        return self._put_mine(mode)

    def _is_free(self, there: dict[str, Any]) -> bool:
        # Its own: an earlier try succeeded, and only its answer was lost.
        over = there.get("expired") or there.get("owner") == self._owner
        return bool(over) or clock_ms() > there["validUntil"] + _DRIFT_MS

    def renew(self) -> None:
        """Extends the lease, or finds that it is lost. Does nothing if the clock was set since."""
        if self._taken.was_set():
            return
        self._put_mine(self._version)

    def release(self) -> bool:
        """Releases the lease; False: it was lost, or is held until its validity ends."""
        is_given_back = self._put({"expired": True, "validUntil": self._until, "owner": self._owner}, self._version)
        if is_given_back:
            left = self._clients.known.given_back
            while len(left) >= _GIVEN_BACK_MAX:
                left.pop(next(iter(left)), None)
            left[self._key] = self._version
        return is_given_back

    def is_held(self) -> bool:
        """Whether no other process can hold the lease, now and for `LEFT_S` more."""
        return not self.lost and not self._taken.was_set() and self._since.seconds() < VALID_S - LEFT_S

    def _put_mine(self, mode: Any) -> bool:
        since, until = Stopwatch(), clock_ms() + round(VALID_S * 1000)  # before the request: it may take long
        if not self._put({"expired": False, "validUntil": until, "owner": self._owner}, mode):
            return False
        self._since, self._until = since, until
        return True

    def _look(self) -> tuple[dict[str, Any] | None, Any]:
        try:
            # Content and version are of one another: else a lease that another process just took looks free.
            data, found = read_object(self._clients, self._key)
            there = json.loads(data)
        except FileNotFoundError:
            return None, None
        if not isinstance(there, dict) or not isinstance(there.get("validUntil"), int):
            raise ValueError(f"not a lock: {there!r}"[:200])
        return there, version(found.meta)

    def _put(self, lock: dict[str, Any], mode: Any) -> bool:
        """Puts the lock object; whether it is there now. Sets `lost` only where the outcome is known."""
        data = json.dumps(lock, separators=(",", ":")).encode()
        for _ in retries(LEASE_AGAIN):
            try:
                self._version = version(
                    obstore.put(self._clients.once, self._key, data, mode=mode, use_multipart=False)
                )
                return True
            except (BaseError, OSError):  # failed; or done, and only its answer lost: the object shows which
                there, found = self._look()
            if there == lock:
                self._version = found
                return True
            if (found or "create") != mode:  # else the put had no effect: the object to replace still exists
                if there is None or there.get("owner") != self._owner:
                    self.lost = True
                    return False
                mode = found  # still this process's own: the put had no effect
        return False
