"""Pauses: a person asks all processes to begin no work on a table, or none of some services, until it is resumed.

    .hoodie/.phantombase/0-pause-<id>     JSON: who, why, since when and until when (ms since the epoch), which services

Each pause is a file of its own, so that none replaces another one; the table is resumed when all are removed. The names
begin with a digit: the listing of the records of instants shows them too, which a process reads before it begins work.
An expired pause counts as none, by the clock of the process that asks. One that cannot be read is an error: then it is
unknown whether the table is paused. What has begun goes on, also to its commit decision: `compactor-daemon cancel`
ends it. What undoes writes (rollback, restore, unschedule) is a person's own act, and is not held."""

from __future__ import annotations

import getpass
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

from ..clocks import clock_ms, utc_text
from ..errors import MalformedError, MissingFileError, PausedError, PhantombaseError
from ..instants.reserved_times import record_names
from ..option import spelled_class
from ..record_fields import Fields
from ..shown import Shown
from ..storage.contract import Storage
from ..storage.folders import RECORDS

COMPACTION: Final = "compaction"
"""Compactions are requested and executed; the other names are those of services."""
SILENCE = "alerts"
"""Nothing waits: the table is known to be bad, and is left out of exit codes and alerts."""
_PREFIX = "0-pause-"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Shown):
    """`until_ms`: since the epoch, None: until it is removed. `services`: those that wait; none: all."""

    who: str
    reason: str
    since_ms: int
    until_ms: int | None = None
    services: tuple[str, ...] = ()

    def holds(self, service: str, now_ms: int) -> bool:
        return (not self.services or service in self.services) and not self.is_over(now_ms)

    def silences(self, now_ms: int) -> bool:
        return not self.is_over(now_ms) and SILENCE in self.services

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms

    @property
    def words(self) -> str:
        """In one line for people."""
        if self.services == (SILENCE,):
            of = "silenced"
        else:
            of = f"{', '.join(self.services)} paused" if self.services else "paused"
        end = "" if self.until_ms is None else f" until {utc_text(self.until_ms)} UTC"
        return f"{of} by {self.who}{end}: {self.reason}"

    def error(self, table: str) -> PausedError:
        return PausedError(self.words, path=table, todo=f"To go on: compactor-daemon resume {table}")


def user_name() -> str:
    """Hudi's own is empty, too, where none is given."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user on this machine, as in some containers
        return ""


def pauses(storage: Storage, names: Iterable[str] | None = None) -> tuple[Pause, ...]:
    """The pauses of a table, the longest one first; expired ones too. `names`: see `record_names`, if they are known.
    MalformedError: one cannot be read."""
    read = (_read(storage, path) for path in pause_files(storage, names))
    found = [one for one in read if one is not None]
    return tuple(sorted(found, key=lambda one: (one.until_ms is not None, -(one.until_ms or 0), one.since_ms)))


def readable_pauses(storage: Storage) -> Iterator[Pause | MalformedError]:
    """To be shown: each pause, or the error with which it is read."""
    for path in pause_files(storage):
        try:
            yield from pauses(storage, [path.rpartition("/")[2]])
        except MalformedError as error:
            yield error


def held_by(storage: Storage, service: str, names: Iterable[str] | None = None) -> Pause | None:
    """The pause that holds a service now. Errors: see `pauses`."""
    now = clock_ms()
    return next((one for one in pauses(storage, names) if one.holds(service, now)), None)


def silence(of_table: Callable[[], Storage]) -> str:
    """What a person has said of a table that is known to be bad, in a line; "": nothing, or it cannot be read."""
    now = clock_ms()
    try:
        found = (one for one in readable_pauses(of_table()) if isinstance(one, Pause))
        return next((one.words for one in found if one.silences(now)), "")
    except PhantombaseError:
        return ""


_KNOWN_S = 30.0


class KnownPauses:
    """The pauses of a table during a step of several services: read once, and again after a while."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._read_s, self._known = storage, -_KNOWN_S, tuple[Pause, ...]()

    def held_by(self, service: str) -> Pause | None:
        """As `held_by`; of pauses that are some seconds old at most."""
        if time.monotonic() - self._read_s >= _KNOWN_S:
            self._known, self._read_s = pauses(self._storage), time.monotonic()
        now = clock_ms()
        return next((one for one in self._known if one.holds(service, now)), None)


def refuse_paused(storage: Storage, service: str) -> None:
    """PausedError: the service is paused. MalformedError: whether it is cannot be read."""
    if (one := held_by(storage, service)) is not None:
        raise one.error(storage.base_path)


def put_pause(storage: Storage, pause: Pause) -> None:
    """Pauses a table; expired pauses are removed."""
    for path in pause_files(storage):
        old = _read(storage, path)
        if old is not None and old.is_over(pause.since_ms):
            storage.delete(path)
    storage.put_if_absent(f"{RECORDS}/{_PREFIX}{uuid.uuid4().hex[:12]}", json.dumps(asdict(pause)).encode())


def pause_files(storage: Storage, names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Their paths, also of those that cannot be read: to be removed."""
    names = record_names(storage) if names is None else names
    return tuple(f"{RECORDS}/{name}" for name in names if name.startswith(_PREFIX))


def _read(storage: Storage, path: str) -> Pause | None:
    try:
        data = storage.read(path)
    except MissingFileError:  # removed since the listing
        return None
    todo = f"To remove it: compactor-daemon resume {storage.base_path}"
    return Fields.parse(data, path, "unreadable pause: whether the table is paused is unknown", todo).of(Pause)
