"""Takes a pin, renews it while a reader reads, and removes it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..clocks import Stopwatch
from ..errors import PhantombaseError
from ..event_log import get_logger
from ..locks.heartbeat import process_name
from ..storage.contract import Storage
from .pin import PINS, PinOptions, encode

_log = get_logger()
_RENEWALS = 4
"""How often a pin is renewed in the time that it holds: a few failures in a row do no harm."""


class HeldPin:
    """One pin of this process."""

    def __init__(self, storage: Storage, options: PinOptions, holds: str) -> None:
        """Puts the pin. StorageError: it could not be put."""
        self._storage = storage
        self._options = options
        self._holds = holds
        self._path = ""
        self._put()

    def renew(self, holds: str | None = None) -> None:
        """Puts the pin anew where it is due, or where it is to hold another moment, and removes the old one.

        A pin that was released by hand stays released, and a warning says so.
        """
        if not self._path or (holds in (None, self._holds) and self._since.seconds() * _RENEWALS < self._options.for_s):
            return
        if self._storage.find(self._path) is None:
            _log.warning("pin_was_released", table=self._storage.base_path, pin=self._options.name)
            self._path = ""
            return
        self._holds, old = self._holds if holds is None else holds, self._path
        self._put()
        self._storage.delete(old)

    def remove(self) -> None:
        """Nothing is held any more."""
        if self._path:
            self._storage.delete(self._path)
        self._path = ""

    def _put(self) -> None:
        since = Stopwatch()
        path = f"{PINS}/{self._options.name}/{uuid.uuid4().hex}.json"
        self._storage.put_if_absent(path, encode(self._holds, process_name(), self._options.for_s))
        self._path, self._since = path, since


@contextmanager
def hold(storage: Storage, options: PinOptions, holds: str) -> Iterator[None]:
    """Holds a moment of the table while the body runs; a thread renews the pin."""
    pin = HeldPin(storage, options, holds)
    try:
        with renewing(storage, options, pin.renew):
            yield
    finally:
        with suppress(PhantombaseError, OSError):  # it expires
            pin.remove()


@contextmanager
def renewing(storage: Storage, options: PinOptions, renew: Callable[[], None]) -> Iterator[None]:
    """Calls `renew` in a thread while the body runs: at once, and then so often that it may fail a few times."""
    ended = threading.Event()

    def run() -> None:
        while True:
            try:
                renew()
            except (PhantombaseError, OSError) as error:
                _log.warning("pin_not_renewed", table=storage.base_path, pin=options.name, error=str(error))
            if ended.wait(min(options.for_s / _RENEWALS, 60)):
                return

    thread = threading.Thread(target=run, name="phantombase-pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
