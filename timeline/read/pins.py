"""Pins: the state of a table that a reader needs, recorded in the table so that no cleaner removes its files.

    .hoodie/.phantombase/pins/<name>/<nonce>.json               of one process (`HeldPin`)
    .hoodie/.phantombase/pins/<name>/<query>-<number>.json      of the tasks of a query (`SharedPin`)
    {"for_s": 7200, "holder": "host:pid", "holds": "20261121091550308", "version": 1}

`holds` is a moment on the axis of incremental reads: a completion time, on version 6 a requested time; "" is before all
others. The table's state at this moment and all later states are retained: a cleaner that retains commits from R on
keeps the newest slice below R of every file group, and all later ones. A pin expires `for_s` seconds after it was put,
by the clock of the storage. A pin's object is never rewritten: its holder renews it with a new object, and then removes
the old one. Each task of a query renews their pin while it runs, and any of them may be the last. The number, from 0
on, makes that safe without a lock: of tasks that renew at the same time, one puts the next object, and the others find
that it exists."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..clocks import Stopwatch, in_background
from ..errors import ConflictError, MissingFileError, PhantombaseError, UsageError
from ..event_log import get_logger
from ..instants.timeline import Timeline
from ..locks.heartbeat import process_name
from ..option import check_kinds, check_least, duration_s, spelled_class
from ..record_fields import Fields
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import RECORD_NAME, RECORDS
from ..storage.server_clock import storage_ms
from ..storage.snapshot import without_snapshot
from ..table.history import note_read, note_unpinned
from ..table.table import Table
from .windows import EARLIEST, completed_writes, moment_of_text, moment_to_hold

if TYPE_CHECKING:
    from .table_read import ReadOptions

PINS = f"{RECORDS}/pins"
PIN_FOR = "2h"
"""How long a pin holds if it is not renewed, by default."""
_LISTINGS = 5
_VERSION = 1
_TIME = re.compile(r"\d{0,17}")
_TODO = "Nothing may be cleaned before it can be read. If its reader has ended: timeline pins TABLE --release NAME"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class PinOptions:
    name: str
    for_s: int

    def __post_init__(self) -> None:
        check_kinds(self)
        checked_name(self.name)
        check_least(self, {"for_s": 1})

    @staticmethod
    def of(name: str, pin_for: str) -> PinOptions:
        """UsageError: no name for a file, or no duration like `2h`, `30m`, `1d` or `90s`."""
        return PinOptions(name=checked_name(name), for_s=duration_s(pin_for, "a pin"))

    @staticmethod
    def asked(name: str | None, pin_for: str | None) -> PinOptions | None:
        """The pin if one is requested, for `PIN_FOR` by default. UsageError: also a duration without a pin."""
        if name is not None:
            return PinOptions.of(name, PIN_FOR if pin_for is None else pin_for)
        if pin_for is not None:
            raise UsageError("pin_for belongs to a pin", found=pin_for, expected="also `pin`, its name")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin as read. `taken_ms`: when it was put, by the storage, since the epoch."""

    name: str
    path: str
    holds: str
    holder: str
    for_s: int
    taken_ms: int

    @property
    def expires_ms(self) -> int:
        """The time from which the pin has no effect."""
        return self.taken_ms + self.for_s * 1000

    def is_live(self, now_ms: int) -> bool:
        """Whether the pin holds at `now_ms` of the storage's clock; one of the future does: the clock was set back."""
        return now_ms < self.expires_ms


def checked_name(name: str) -> str:
    """UsageError: not a name of a pin."""
    if RECORD_NAME.fullmatch(name) is None:
        raise UsageError("not a name of a pin", expected="letters, digits, `.`, `_` and `-`, at most 100", found=name)
    return name


def encode(holds: str, holder: str, for_s: int) -> bytes:
    return json.dumps({"for_s": for_s, "holder": holder, "holds": holds, "version": _VERSION}, sort_keys=True).encode()


def all_pins(storage: Storage) -> list[Pin]:
    """Every pin, expired ones too, by name. MalformedError: an unreadable pin, which may hold any state.
    Listed without a snapshot, which may be older than a pin. A pin that is listed but no longer exists when it is read
    may have been renewed since, as an object that was not listed: then all pins are listed again."""
    storage = without_snapshot(storage)
    for _ in range(_LISTINGS):
        found = [_read(storage, folder, entry) for folder, entry in _objects(storage)]
        pins = [pin for pin in found if pin is not None]
        if len(pins) == len(found):
            return sorted(pins, key=lambda pin: (pin.name, pin.path))
    raise ConflictError(
        "pins come and go while they are read",
        path=f"{storage.base_path}/{PINS}",
        found=f"{_LISTINGS} times a pin was missing that had just been listed",
        todo="Run again.",
    )


def _objects(storage: Storage) -> Iterator[tuple[str, Entry]]:
    """The objects of all pins, each with its pin's name."""
    for folder in listed_if_there(storage, PINS) or ():
        if folder.is_folder:
            yield from ((folder.name, entry) for entry in listed_if_there(storage, f"{PINS}/{folder.name}") or ())


def live_pins(storage: Storage) -> list[Pin]:
    """The pins that hold now. MalformedError as in `all_pins`."""
    return _by_life(storage)[0]


def forget_expired(storage: Storage) -> None:
    """Removes the expired pins. MalformedError as in `all_pins`."""
    storage.delete_all([pin.path for pin in _by_life(storage)[1]])


def _by_life(storage: Storage) -> tuple[list[Pin], list[Pin]]:
    found = all_pins(storage)
    now_ms = storage_ms(storage) if found else 0
    return [pin for pin in found if pin.is_live(now_ms)], [pin for pin in found if not pin.is_live(now_ms)]


def release(storage: Storage, name: str, *, dry_run: bool = False) -> int:
    """Removes all pins of a name, readable or not; returns how many there were. A dry run only counts them."""
    folder = f"{PINS}/{checked_name(name)}"
    paths = [f"{folder}/{entry.name}" for entry in listed_if_there(storage, folder) or ()]
    if not dry_run:
        storage.delete_all(paths)
    return len(paths)


def _read(storage: Storage, name: str, entry: Entry) -> Pin | None:
    """The pin; None: it was removed since it was listed."""
    path = f"{PINS}/{name}/{entry.name}"
    try:
        fields = Fields.parse(storage.read(path), path, "unreadable pin", _TODO)
    except MissingFileError:
        return None
    if fields.whole("version") != _VERSION:
        raise fields.malformed(f"version {_VERSION}", f"version {fields.whole('version')}")
    pin = fields.of(Pin, name=name, path=path, taken_ms=entry.modified_ms)
    if _TIME.fullmatch(pin.holds) is None or pin.for_s <= 0:
        raise fields.malformed("a time", f"{pin.holds!r}, {pin.for_s} s")
    return pin


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
    note_read(storage)
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
        note_read(storage)
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
        note_unpinned(open_table)
        return nullcontext()
    table = open_table()
    return hold(table.storage, pin, held_moment(table, options))


def held_moment(table: Table, options: ReadOptions) -> str:
    """A moment on the axis of incremental reads, see `moment_to_hold`. UsageError: an impossible point in time."""
    timeline = table.load_timeline()
    if (text := options.first_state) is not None:
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
