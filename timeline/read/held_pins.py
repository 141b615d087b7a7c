"""Puts the pin that a read needs, renews it while the read runs, and removes it.

The tasks of a query share a pin (`SharedPin`): each task renews it while running, and any of them may be the last.

    <name>/<query>-<number>.json      the first has number 0; a renewal puts the next number

The number makes renewals safe without a lock: of tasks that renew at the same time, one puts the next object, and the
others find that it exists."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from ..clocks import Stopwatch, in_background
from ..errors import PhantombaseError
from ..event_log import get_logger
from ..instants.timeline import Timeline
from ..locks.heartbeat import process_name
from ..storage.contract import Storage, listed_if_there
from ..storage.server_clock import storage_ms
from ..table.table import Table
from .pins import PINS, PinOptions, encode, moment_to_hold
from .table_read import Query, ReadOptions
from .windows import EARLIEST, completed_writes, moment_of_text

_log = get_logger()

_RENEWALS = 4
"""Number of renewals in the time that a pin holds, so that it survives a few failures in a row."""


class HeldPin:
    def __init__(self, storage: Storage, options: PinOptions, holds: str) -> None:
        """Puts the pin. StorageError: it could not be put."""
        self._storage, self._options, self._holds, self._path = storage, options, holds, ""
        self._put()

    def renew(self, holds: str | None = None) -> None:
        """Puts the pin again if its renewal is due or if it must hold another moment, and removes the old object.
        A pin that was released by hand is not put again, and a warning is logged."""
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
    """Calls `renew` in a thread while the body runs: at once, then at least `_RENEWALS` times in a pin's time."""

    def run(ended: threading.Event) -> None:
        while True:
            try:
                renew()
            except (PhantombaseError, OSError) as error:
                _log.warning("pin_not_renewed", table=storage.base_path, pin=options.name, error=str(error))
            if ended.wait(min(options.for_s / _RENEWALS, 60)):
                return

    with in_background(run, "phantombase-pin"):
        yield


_RENEWED_AFTER = 0.5
"""The part of its time after which a pin is renewed. Tasks check more often, so that it survives failures."""


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
        """Puts the pin again once half of its time has passed, and removes the older objects.
        Its age is by the clock of the storage. A pin that was released by hand, or that expired and was removed, is not
        put again, and a warning is logged."""
        objects = self._objects(storage)
        if not objects:
            _log.warning("pin_was_released", table=storage.base_path, pin=self.options.name)
            return
        newest = max(objects)
        age_ms = storage_ms(storage) - objects[newest]
        if age_ms >= self.options.for_s * 1000 * _RENEWED_AFTER and self._put(storage, newest + 1):
            storage.delete_all([self._path(number) for number in objects])

    def _objects(self, storage: Storage) -> dict[int, int]:
        """The numbers of the query's objects, each with its modification time on the storage."""
        entries = listed_if_there(storage, f"{PINS}/{self.options.name}") or ()
        found = ((re.fullmatch(rf"{self.query}-(\d+)\.json", entry.name), entry) for entry in entries)
        return {int(match[1]): entry.modified_ms for match, entry in found if match is not None}

    def _put(self, storage: Storage, number: int) -> bool:
        return storage.put_if_absent(self._path(number), encode(self.holds, process_name(), self.options.for_s))

    def _path(self, number: int) -> str:
        return f"{PINS}/{self.options.name}/{self.query}-{number}.json"


def pinned(
    open_table: Callable[[], Table], options: ReadOptions, pin: PinOptions | None
) -> AbstractContextManager[None]:
    """Holds the state that a read needs while it runs, if it has a pin. The pin is put before the files are planned, so
    that every clean planned from then on sees it."""
    if pin is None:
        return nullcontext()
    table = open_table()
    return hold(table.storage, pin, held_moment(table, options))


def held_moment(table: Table, options: ReadOptions) -> str:
    """A moment on the axis of incremental reads, see `moment_to_hold`. UsageError: an impossible point in time."""
    text = options.begin if options.query is Query.CHANGES else options.end
    timeline = table.load_timeline()
    if text is not None:
        moment = moment_of_text(table, text)
    elif options.as_of is not None:
        moment = moment_of_as_of(timeline, table.point_in_time(options.as_of))
    else:
        moment = max((timeline.counts_from(w) for w in completed_writes(timeline)), default=EARLIEST)
    return moment_to_hold(timeline, moment)


def moment_of_as_of(timeline: Timeline, as_of: str) -> str:
    """The last moment before the newest write that is visible at the point in time (pure). States retained from that
    moment on begin at that write or earlier. For a point in the archive: before all moments."""
    writes = {w.requested_time: timeline.counts_from(w) for w in completed_writes(timeline)}
    shown = max((time for time in writes if time <= as_of), default=None)
    return EARLIEST if shown is None else max((m for m in writes.values() if m < writes[shown]), default=EARLIEST)
