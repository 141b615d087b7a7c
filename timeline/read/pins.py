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
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ..errors import ConflictError, MissingFileError, UsageError
from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..option import check_kinds, check_least, duration_s, spelled_class
from ..record_fields import Fields
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import RECORD_NAME, RECORDS
from ..storage.server_clock import storage_ms
from ..storage.snapshot import without_snapshot


def moment_to_hold(timeline: Timeline, moment: str) -> str:
    """The moment that a pin holds for a reader of the state at `moment`, on the axis of `Timeline.counts_from`. Pending
    instants may complete during the read and count from before `moment`: a compaction counts from its requested time
    on, a clustering from the completion time that it has decided, and on version 6 every write from its requested time
    on. The state at `moment` then changes, and a cleaner may remove files that the reader still reads. So the moment
    held is before all of these."""
    pending: Collection[Instant] = timeline.pending_writes.values()
    if timeline.layout.has_completion_times:
        pending = [i for i in pending if i.action in ("compaction", "clustering")]
    first = min((i.requested_time for i in pending), default=None)
    if first is None or moment < first:
        return moment
    counted = (timeline.counts_from(w) for w in timeline.completed_writes.values())
    return max((m for m in counted if m < first), default="")


def earliest_to_retain(timeline: Timeline, holds: Iterable[str]) -> str | None:
    """The greatest R that retains the states at these moments, and all later ones; None: any R does.
    R is the first requested time of a write that is not in the earliest of the states: one that completed later, or is
    pending. `timeline`: with its archive if it has completion times, so that no archived write is missed."""
    earliest = min(holds, default=None)
    if earliest is None:
        return None
    completed = {i.requested_time: i for i in (*timeline.archived, *timeline.instants) if i.is_write and i.completed}
    later = (time for time, write in completed.items() if timeline.counts_from(write) > earliest)
    return min((*later, *timeline.pending_writes), default=None)


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
