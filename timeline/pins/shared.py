"""A pin that many processes keep: each task of a query renews it while it runs, and any of them may be the last.

    <name>/<query>-<number>.json      the first has number 0; a renewal puts the next number

The number makes renewals safe without a lock: of tasks that renew at the same time, one puts the next object, and the
others find it there.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from ..event_log import get_logger
from ..locks.heartbeat import process_name
from ..storage.contract import Storage, listed_if_there
from ..storage.server_clock import storage_ms
from .pin import PINS, PinOptions, encode

_log = get_logger()
_RENEWED_AFTER = 0.5
"""Which part of its time is gone when a pin is renewed. Tasks look more often, so that failures do no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPin:
    """The pin of one query, as its tasks carry it. `query`: names the objects of this query among those of the pin."""

    options: PinOptions
    holds: str
    query: str

    @staticmethod
    def take(storage: Storage, options: PinOptions, holds: str) -> SharedPin:
        """Puts the pin. StorageError: it could not be put."""
        pin = SharedPin(options=options, holds=holds, query=uuid.uuid4().hex)
        pin._put(storage, 0)
        return pin

    def renew(self, storage: Storage) -> None:
        """Puts the pin anew where half of its time is gone, and removes what came before.

        Its age is by the clock of the storage. A pin that was released by hand, or that expired and was removed, stays
        away, and a warning says so.
        """
        objects = self._objects(storage)
        if not objects:
            _log.warning("pin_was_released", table=storage.base_path, pin=self.options.name)
            return
        newest = max(objects)
        age_ms = storage_ms(storage) - objects[newest]
        if age_ms >= self.options.for_s * 1000 * _RENEWED_AFTER and self._put(storage, newest + 1):
            storage.delete_all([self._path(number) for number in objects])

    def _objects(self, storage: Storage) -> dict[int, int]:
        """The numbers of the query's objects, each with the time when the storage took it in."""
        entries = listed_if_there(storage, f"{PINS}/{self.options.name}") or ()
        found = ((re.fullmatch(rf"{self.query}-(\d+)\.json", entry.name), entry) for entry in entries)
        return {int(match[1]): entry.modified_ms for match, entry in found if match is not None}

    def _put(self, storage: Storage, number: int) -> bool:
        return storage.put_if_absent(self._path(number), encode(self.holds, process_name(), self.options.for_s))

    def _path(self, number: int) -> str:
        return f"{PINS}/{self.options.name}/{self.query}-{number}.json"
