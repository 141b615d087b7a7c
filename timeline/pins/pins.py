"""Puts, renews, lists and removes the pins of a table."""

from __future__ import annotations

import os
import socket

from ..elapsed import Since
from ..errors import MissingFileError, UsageError
from ..prefetch import prefetched
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.server_clock import storage_ms
from ..table.table import Table
from .pin import COMPLETED, PINS, REQUESTED, FoundPin, Pin, check_name, decode_pin, name_of, pin_path

_RENEWALS = 3
"""How often a pin is written again before it would expire."""


def pins(storage: Storage) -> tuple[FoundPin, ...]:
    """All pins, expired ones included, by name. MalformedError: one cannot be read, so what it holds is not known."""
    files = [e for e in listed_if_there(storage, PINS) or () if not e.is_folder]
    found = prefetched(files, lambda entry: _found(storage, entry))
    return tuple(one for one in found if one is not None)


def _found(storage: Storage, entry: Entry) -> FoundPin | None:
    """None: it was removed since it was listed."""
    name = name_of(entry.name)
    try:
        return FoundPin(pin=decode_pin(name, storage.read(pin_path(name))), written_ms=entry.modified_ms)
    except MissingFileError:
        return None


def release_pin(storage: Storage, name: str) -> bool:
    """Removes a pin, readable or not; whether there was one."""
    was_there = storage.find(pin_path(name)) is not None
    storage.delete(pin_path(name))
    return was_there


class HeldPin:
    """A pin of a reader in this process. Put it before the timeline is read: what it holds must be there then."""

    def __init__(self, table: Table, name: str, seconds: int) -> None:
        """UsageError: no name of a pin, or it would expire at once."""
        check_name(name)
        if seconds < 1:
            raise UsageError("a pin needs time", expected="at least 1 second", found=str(seconds))
        self._storage = table.storage
        self._axis = COMPLETED if table.layout.has_completion_times else REQUESTED
        self._name, self._seconds = name, seconds
        self._pin: Pin | None = None
        self._written = Since()

    def put(self, moment: str) -> None:
        """Holds the state at a moment and all later ones, in the place of what it held before."""
        self._write(
            Pin(
                name=self._name,
                axis=self._axis,
                moment=moment,
                seconds=self._seconds,
                holder=f"{socket.gethostname()}:{os.getpid()}",
            )
        )

    def keep(self) -> None:
        """Writes it again when a third of its time is over."""
        if self._pin is not None and self._written.seconds() > self._seconds / _RENEWALS:
            self._write(self._pin)

    def release(self) -> None:
        """Removes it."""
        if self._pin is not None:
            release_pin(self._storage, self._name)
        self._pin = None

    def _write(self, pin: Pin) -> None:
        since = Since()
        self._storage.overwrite(pin.path, pin.encode())
        self._pin, self._written = pin, since


def check_free(storage: Storage, name: str) -> None:
    """UsageError: a reader has a live pin of that name, which a second one would move."""
    entry = storage.find(pin_path(name))
    found = None if entry is None else _found(storage, entry)
    if found is not None and found.is_live(storage_ms(storage)):
        raise UsageError(
            "a pin of this name is held",
            path=pin_path(name),
            found=f"by {found.pin.holder}, from {found.pin.moment} on",
            todo=f"Choose another name, or if that reader is gone: timeline pins TABLE --release {name}",
        )
