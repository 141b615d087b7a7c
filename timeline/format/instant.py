"""Instants: an action on a table, its time, and its state (pure).

An instant is (requested time, action, state). Times are digit strings, `yyyyMMddHHmmssSSS` in the table's time zone
(older tables: 14 digits, without the milliseconds), and are compared as plain strings. An action that is pending under
one name may complete under another: `compaction` completes as `commit`, `logcompaction` as `deltacommit`, `clustering`
(v8+) as `replacecommit`; `family` is the name after completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache

from ..errors import UsageError


class State(IntEnum):
    """The progress of an action; a higher state hides the lower ones of the same instant."""

    REQUESTED = 0
    INFLIGHT = 1
    COMPLETED = 2


ACTIONS = frozenset(
    {
        "commit",
        "deltacommit",
        "compaction",
        "logcompaction",
        "clean",
        "rollback",
        "replacecommit",
        "clustering",
        "savepoint",
        "restore",
        "indexing",
        "schemacommit",
    }
)

_FAMILY = {"compaction": "commit", "logcompaction": "deltacommit", "clustering": "replacecommit"}

MERGES = frozenset({"compaction", "logcompaction"})
"""Actions that merge the files of file slices: log files into base files, log files into one."""

SERVICES = MERGES | {"clustering"}
"""Actions that rearrange written data. In version 6 clustering is named `replacecommit`; only its plan shows it."""

WRITE_FAMILIES = frozenset({"commit", "deltacommit", "replacecommit"})
"""Actions whose completed instants make base files and log blocks visible."""

_TIME = re.compile(r"\d{14}(\d{3})?")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Instant:
    """One action of a table at its highest known state.
    `completion_time` is None while pending, and for completed instants of layout 1, whose names do not contain it."""

    requested_time: str
    action: str
    state: State
    completion_time: str | None = None
    file_name: str = ""

    @property
    def family(self) -> str:
        return _FAMILY.get(self.action, self.action)

    @property
    def identity(self) -> tuple[str, str]:
        """Requested time and family: what an instant keeps in all its states, and in the archive."""
        return (self.requested_time, self.family)

    @property
    def completed(self) -> bool:
        return self.state is State.COMPLETED

    @property
    def is_write(self) -> bool:
        """Whether this action makes data visible when it completes."""
        return self.family in WRITE_FAMILIES

    def at(self, state: State) -> Instant:
        """The same action in another state, with only the fields that the name itself gives."""
        return Instant(requested_time=self.requested_time, action=self.action, state=state)


def highest_states(instants: Iterable[Instant]) -> tuple[Instant, ...]:
    """One instant per (time, family), at its highest state, ordered by time.
    A pending delta commit hides a pending log compaction of the same time: other processes must wait for the write."""
    best: dict[tuple[str, str], Instant] = {}
    for instant in instants:
        key = instant.identity
        if key not in best or _height(best[key]) < _height(instant):
            best[key] = instant
    return tuple(sorted(best.values(), key=lambda i: i.identity))


def hidden_writes(instants: Iterable[Instant], shown: Iterable[Instant]) -> tuple[Instant, ...]:
    """Completed delta commits that `highest_states` omitted: a write and a log compaction may have the same time."""
    kept = frozenset(shown)
    completed = {i for i in instants if i.completed and i.family == "deltacommit"}
    return tuple(sorted(completed - kept, key=lambda i: (i.requested_time, i.completion_time or "")))


def _height(instant: Instant) -> tuple[bool, bool, State]:
    return instant.completed, instant.action not in SERVICES, instant.state


def format_time(moment: datetime) -> str:
    """`moment` as an instant time of 17 digits."""
    return moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"


@lru_cache(maxsize=1 << 15)
def parse_time(text: str) -> datetime:
    """The time that an instant time names (no zone: the table's own)."""
    if not _TIME.fullmatch(text):
        raise UsageError("not an instant time", expected="14 or 17 digits, yyyyMMddHHmmss[SSS]", found=repr(text))
    try:
        base = datetime.strptime(text[:14], "%Y%m%d%H%M%S")
    except ValueError as error:
        raise UsageError("not an instant time", expected="a date and time of day", found=repr(text)) from error
    return base + timedelta(milliseconds=int(text[14:] or "999"))


def next_time(now: datetime, used: Iterable[str]) -> str:
    """An instant time greater than the clock's last millisecond and greater than every time in `used`.
    If the clock is slow or steps back (daylight saving in a LOCAL zone), the result is max(used) + 1 ms. Times in
    `used` need not be dates."""
    # Compared at 17 digits: a 14-digit instant stands for its last millisecond.
    floor = max((u.ljust(17, "9") for u in used if is_time(u)), default="")
    candidate = format_time(now)
    return candidate if candidate > floor else _after(floor)


def is_time(text: str) -> bool:
    """Whether a text has the form of an instant time. It need not be a date: `20260230000000000` has the form."""
    return _TIME.fullmatch(text) is not None


def real_time(text: str) -> datetime:
    """As `parse_time`; for a time that is not a date, the next real date."""
    try:
        return parse_time(text)
    except UsageError:
        return parse_time(_after(text.ljust(17, "9"))) if is_time(text) else datetime.min


_PARTS: tuple[tuple[int, str, timedelta, dict[str, int]], ...] = (
    (14, "%Y%m%d%H%M%S", timedelta(milliseconds=1), {}),
    (12, "%Y%m%d%H%M", timedelta(minutes=1), {}),
    (10, "%Y%m%d%H", timedelta(hours=1), {}),
    (8, "%Y%m%d", timedelta(days=1), {}),
    (6, "%Y%m", timedelta(days=31), {"day": 1}),
    (4, "%Y", timedelta(days=366), {"month": 1, "day": 1}),
)
"""Number of leading digits, their format, and the step to the next such time: a span, and fields to set after it."""


def _after(time: str) -> str:
    """A real date after a time of 17 digits, which need not be a date (March 1 after February 30); 17 nines: none."""
    for digits, form, span, fields in _PARTS:
        try:
            begin = datetime.strptime(time[:digits], form)
            moment = begin + timedelta(milliseconds=int(time[14:])) if digits == 14 else begin
            while (found := format_time(moment)) <= time:
                moment = (moment + span).replace(**fields)  # type: ignore[arg-type]
            return found
        except (ValueError, OverflowError):
            continue
    return "9" * 17


def later(time: str, milliseconds: int) -> str:
    return format_time(parse_time(time) + timedelta(milliseconds=milliseconds)) if milliseconds else time


_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,3})?)?")
_EPOCH = re.compile(r"\d{10}(\d{3})?")
_DATE_HOUR = re.compile(r"20\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])\d*")
"""10 or 13 digits that begin with a date and an hour; as a time since the epoch they would mean 2033 or later."""


def parse_as_of(text: str, moment: Callable[[int], str]) -> str:
    """A point in time from a user, as an instant time, in every form that Hudi accepts. 14 or 17 digits: an instant; 10
    or 13 digits: seconds or milliseconds since the epoch, which `moment` (given milliseconds) converts to the table's
    zone; else a date with an optional time of day after a blank or a `T`. UsageError: another form, or 10 or 13 digits
    that begin like an instant: a time years ahead means the newest state."""
    if _TIME.fullmatch(text):
        parse_time(text)
        return text
    try:
        if (match := _EPOCH.fullmatch(text)) and not _DATE_HOUR.fullmatch(text):
            return moment(int(text) if match[1] else int(text) * 1000)
        if _DATE_TIME.fullmatch(text):
            return format_time(datetime.fromisoformat(text))
    except (ValueError, OverflowError, OSError):
        pass
    raise UsageError(
        "not a point in time",
        expected="an instant (17 digits), 'yyyy-MM-dd HH:mm:ss.SSS', 'yyyy-MM-dd', or seconds or milliseconds since "
        "the epoch",
        found=repr(text),
    )
