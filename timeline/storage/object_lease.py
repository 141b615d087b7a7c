"""A lock in an object store: an object with its holder and the end of its validity, replaced only if it is unchanged.

    {"expired":false,"validUntil":<ms since the epoch>,"owner":"<uuid>"}

It is Hudi's own (StorageBasedLockProvider of 1.x). The lock is free if there is no object, if the object is expired, or
if its validity ended more than half a second ago. The holder renews it, and marks it expired at the end; the object is
not deleted.

The times in it are those of the holder's clock, which was compared with the store's before (`server_clock`)."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import obstore
from obstore.exceptions import BaseError

from ..clocks import LEASE_AGAIN, Stopwatch, clock_ms, in_background, retries, tries
from ..errors import LockError, reason_of
from ..event_log import get_logger
from .object_clients import Clients, version
from .object_reads import read_object

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
    clients: Clients, key: str, shown: str, timeout_s: float, busy: LockError
) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`."""
    lease = _Lease(clients, key)
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

    def __init__(self, clients: Clients, key: str) -> None:
        self._clients, self._key = clients, key
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
