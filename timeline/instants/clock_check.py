r"""Refuses to choose an instant if this process's clock or time zone differs from that of the table's writers.

A compaction requested at C hides later writes whose completion time is before C (see `view`). So a process whose clock
is ahead of the writers' would hide all their writes until their clock passes C. A process whose clock is slow chooses
max + 1 ms, which hides nothing. But on version 6 Hudi 1.x compares C with modification times in the writers' zone, and
C must be greater than these. `ClockOptions` is the only place that defines the zone and the allowed difference.

The timeline shows whether this process is in the zone of the table's writers (`judge`). A writer chooses an instant by
its clock in its zone, and writes the file at once. So the storage's time of the file, converted to this process's zone,
is slightly later than the instant. Any other difference means:
    hours, nearly a multiple of 15 minutes     the writer is in another zone
    anything else, or more than 26 hours       unknown: the table was copied without its times, or the instants are
                                               artificial, or a file was written long after its instant

Only times that writers had just chosen are used: a plan is written minutes after its instant, and a decided compaction
is completed when a compactor handles it. The files of a copy can differ by a multiple of 15 minutes by chance. But they
were all written at one time, while their instants are spread over time. So another zone is concluded only if the times
of the files advance together with their instants:

    12:00:01.000  deltacommit   file of 17:00:01.050  \  5 h, and the second file is as much later as its instant:
    12:07:30.000  deltacommit   file of 17:07:30.040  /  the writers are 5 hours behind

A clock that was wrong for a while by a multiple of 15 minutes looks like another zone. It counts as corrected when
enough later writes agree with this process's zone: `_SETTLED` times the number of writes from the first to the last
that disagree. A writer in another zone that writes occasionally between writes of this zone never meets this condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from heapq import nlargest
from itertools import combinations
from zoneinfo import ZoneInfo

from ..errors import ClockError, UsageError
from ..format.instant import MERGES, Instant, State, parse_time
from ..format.table_config import UTC_PROPERTY, TableConfig
from ..option import check_least, least_of, option, spelled_class
from ..record_fields import gathered
from ..storage.contract import Storage
from ..storage.server_clock import ahead_of

_WRITES = ("deltacommit", "replacecommit")
_NEWEST = 20
"""Number of newest writes compared: after this number of writes in another zone, the writers have moved there."""
_SETTLED = 3
_FEW = 3
_STEP = timedelta(minutes=15)
_FARTHEST = timedelta(hours=26)
"""From UTC-12 to UTC+14."""
_LATE = timedelta(seconds=90)
_LATE_AT_ONCE = timedelta(seconds=5)
_EARLY_MAX = timedelta(seconds=60)
_MOVED = timedelta(seconds=2)
"""Instants this far apart show whether the times of their files advanced with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A time in a timeline file's name, and when that file was written (milliseconds since the epoch)."""

    time: str
    written_ms: int
    file_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEvidence:
    """What the modification times of a timeline's files show. `stamps`: the newest files whose time a writer had just
    chosen. `newest_ms`: newest time of all files. `unnamed`: of the completed files without a completion time in their
    name (version 6), the one written last: Hudi 1.x uses its modification time as the completion time."""

    stamps: tuple[Stamp, ...] = ()
    newest_ms: int = 0
    unnamed: Stamp | None = None


class Zone(Enum):
    AGREES = "the writers are in this process's zone"
    BEHIND = "the writers' instants are earlier than this process's clock"
    AHEAD = "the writers' instants are ahead of this process's clock"
    UNKNOWN = "nothing to compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneVerdict:
    """`offset`: how far this process's clock is ahead of instants of another zone; `witness`: the newest such file."""

    zone: Zone
    offset: timedelta = timedelta()
    witness: Stamp | None = None


def written(files: Iterable[tuple[Instant, int]]) -> ClockEvidence:
    """Evidence from the instants of timeline files, each with the time (ms since the epoch) when it was written."""
    known = list(files)
    chosen = [one for one in known if one[0].completion_time is not None and one[0].action in _WRITES]
    if len(chosen) < _FEW:
        # Less precise: a writer requests an instant some time after it chose it, but completes right after choosing.
        chosen += [one for one in known if one[0].action == "deltacommit" and one[0].state is State.REQUESTED]
    unnamed = [one for one in known if one[0].completed and one[0].completion_time is None]
    stamps = tuple(map(_stamp, nlargest(_NEWEST, chosen, key=_written_ms)))
    last = _stamp(max(unnamed, key=_written_ms)) if unnamed else None
    return ClockEvidence(stamps=stamps, newest_ms=max(map(_written_ms, known), default=0), unnamed=last)


def _written_ms(file: tuple[Instant, int]) -> int:
    return file[1]


def _stamp(file: tuple[Instant, int]) -> Stamp:
    instant, written_ms = file
    time = instant.completion_time or instant.requested_time
    return Stamp(time=time, written_ms=written_ms, file_name=instant.file_name)


def judge(stamps: Sequence[Stamp], local: Callable[[int], datetime], skew_s: float) -> ZoneVerdict:
    """Compares the writers' zone with this process's zone. `local`: converts milliseconds since the epoch to this
    process's time of day at that time (naive, as instants are), so that a change to or from daylight saving time does
    not look like another zone. `skew_s`: how far the writers' clocks may be ahead of the storage's. If some writers
    agree with this process and others do not, the writers whose instants are earlier decide: their next writes would be
    older than what this process requests. They do not decide if they only had a wrong clock that was corrected since
    (see above)."""
    early = min(timedelta(seconds=skew_s), _EARLY_MAX)
    newest = sorted(stamps, key=lambda s: s.written_ms, reverse=True)
    seen = (_seen(stamp, local, early) for stamp in newest)
    by_zone = gathered((one.zone, one) for one in seen if one is not None)
    here = by_zone.pop(timedelta(), ())
    others = {z: of for z, of in by_zone.items() if _is_convincing(of, len(newest))}
    behind = [z for z in others if z > timedelta()]
    if behind and not _is_over([s.stamp for z in behind for s in others[z]], [s.stamp for s in here], newest):
        farthest = max(behind)
        return ZoneVerdict(zone=Zone.BEHIND, offset=farthest, witness=others[farthest][0].stamp)
    if here:
        return ZoneVerdict(zone=Zone.AGREES, witness=here[0].stamp)
    if others:
        farthest = min(others)
        return ZoneVerdict(zone=Zone.AHEAD, offset=farthest, witness=others[farthest][0].stamp)
    return ZoneVerdict(zone=Zone.UNKNOWN, witness=newest[0] if newest else None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file, the zone that it indicates, and how much later than its instant it was written, given that zone."""

    stamp: Stamp
    time: datetime
    zone: timedelta
    late: timedelta


def _seen(stamp: Stamp, local: Callable[[int], datetime], early: timedelta) -> _Seen | None:
    try:
        time = parse_time(stamp.time)
    except UsageError:
        return None
    offset = local(stamp.written_ms) - time
    zone = (offset + early) // _STEP * _STEP
    late = offset - zone
    if abs(zone) > _FARTHEST or late > _LATE:
        return None
    return _Seen(stamp, time, zone, late)


def _is_over(others: Sequence[Stamp], here: Sequence[Stamp], newest: Sequence[Stamp]) -> bool:
    """Whether the evidence for other zones came from a wrong clock: enough later writes agree with this zone."""
    places = [newest.index(s) for s in others]
    since = sum(newest.index(s) < min(places) for s in here)
    return since >= _SETTLED * (max(places) - min(places) + 1)


def _is_convincing(seen: Sequence[_Seen], of: int) -> bool:
    """Whether files that indicate another zone cannot be copies: the times of two of them advanced with their instants.
    If all instants are so close that no time can have advanced, all files must agree, each written at once."""
    pairs = list(combinations(seen, 2))
    if any((gap := abs(a.time - b.time)) >= _MOVED and abs(a.late - b.late) <= gap / 2 for a, b in pairs):
        return True
    close = all(abs(a.time - b.time) < _MOVED for a, b in pairs)
    return close and len(seen) == of > 1 and all(s.late <= _LATE_AT_ONCE for s in seen)


LOCAL = "LOCAL"
"""Hudi's name for the zone of the process."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOptions:
    """How times of instants are chosen and read (by every stage that requests or completes an instant)."""

    timezone: str = option(
        LOCAL,
        "time zone of the table's instants, must be that of its writers: LOCAL (this process's), UTC, or a name like "
        "America/New_York; ignored if the table has hoodie.table.timeline.timezone=UTC",
        metavar="ZONE",
    )
    clock_skew_s: float = option(
        30.0,
        "how far this process's clock may be ahead of the storage's, and a file's time ahead of this clock",
        least=0,
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(ClockOptions))
        self.zone(utc_timezone=False)

    def zone(self, *, utc_timezone: bool) -> tzinfo | None:
        """The zone of a table's instants, None for this process's; `utc_timezone`: the table's. UsageError: unknown."""
        if utc_timezone or self.timezone.upper() == "UTC":
            return UTC
        if self.timezone.upper() == LOCAL:
            return None
        try:
            return ZoneInfo(self.timezone)
        except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise UsageError(
                "no such time zone",
                expected="LOCAL, UTC or a name like America/New_York",
                found=repr(self.timezone),
                todo="If the name is right, install the time zones (the package tzdata).",
            ) from error


_DAYS_FROM_H = 72
REPAIR = "If the table was copied without its files' times, `timeline repair-times` sets them back."


def zone_todo(*, in_utc: bool) -> str:
    """The advice for another zone. `in_utc`: the table's own setting, which overrides all options."""
    if not in_utc:
        return "Set the writers' zone: --timezone ZONE (writers: .timezone(ZONE)), or TZ in the environment."
    return (
        f"The table says {UTC_PROPERTY}=UTC, and its writers do not follow it: set it to LOCAL in "
        ".hoodie/hoodie.properties while nothing writes, and give all processes the writers' zone: --timezone ZONE "
        "(writers: .timezone(ZONE)), or TZ in the environment."
    )


def check_zone(
    base_path: str, config: TableConfig, seen: ClockEvidence, local: Callable[[int], datetime], options: ClockOptions
) -> ZoneVerdict:
    """ClockError if the writers are in another zone and this is harmful."""
    layout = config.layout
    verdict = judge(seen.stamps, local, options.clock_skew_s)
    if verdict.zone is Zone.BEHIND or (verdict.zone is Zone.AHEAD and not layout.has_completion_times):
        assert verdict.witness is not None
        raise ClockError(
            "another time zone than that of the table's writers: an instant chosen here could hide their next writes",
            path=base_path,
            expected="instants close to the times at which their files were written",
            found=described(verdict, local),
            todo=f"{zone_todo(in_utc=config.utc_timezone)} {REPAIR}",
        )
    return verdict


def described(verdict: ZoneVerdict, local: Callable[[int], datetime]) -> str:
    """The file that shows an offset, the offset, and the zone that it suggests."""
    assert verdict.witness is not None
    hours = human_offset(abs(verdict.offset))
    side = "behind" if verdict.zone is Zone.BEHIND else "ahead of"
    written = local(verdict.witness.written_ms)
    zone = written - datetime(1970, 1, 1) - timedelta(milliseconds=verdict.witness.written_ms) - verdict.offset
    return (
        f"instants {hours} {side} this process's clock, probably in {_utc(zone)}: {verdict.witness.file_name} "
        f"was written at {written:%Y-%m-%d %H:%M:%S} in this process's time zone"
    )


def human_offset(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    hours, days = minutes // 60, minutes // 1440
    return f"{hours} h {minutes % 60:02d} min" if hours < _DAYS_FROM_H else f"{days:,} days"


def _utc(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def check_clock(storage: Storage, seen: ClockEvidence, now_ms: Callable[[], int], options: ClockOptions) -> None:
    """ClockError if this process's clock is ahead of the storage's. The clock is compared with the newest file of the
    timeline if that is recent enough; otherwise with the time of an object that is put and removed."""
    skew_ms = options.clock_skew_s * 1000
    if seen.newest_ms and now_ms() - seen.newest_ms <= skew_ms:
        return
    ahead_ms = ahead_of(storage, now_ms).least_ms
    if ahead_ms > skew_ms:
        raise ClockError(
            "this process's clock is ahead of the storage's: an instant chosen by it could hide the next writes",
            path=storage.base_path,
            expected=f"at most {options.clock_skew_s:g} s (--clock-skew)",
            found=f"{ahead_ms / 1000:,.0f} s",
            todo="Set the clock of this machine, or of the machine that holds the files.",
        )


def check_future(base_path: str, stamp: Stamp, named_ms: int, now_ms: int, options: ClockOptions) -> None:
    """ClockError if a completed file without a completion time was written in the future, by this process's clock.
    `named_ms`: the time in its name, in milliseconds since the epoch."""
    ahead_ms, skew_ms = stamp.written_ms - now_ms, options.clock_skew_s * 1000
    if ahead_ms > skew_ms:
        is_named = named_ms - now_ms > skew_ms
        raise ClockError(
            "a completed instant has a modification time in the future; Hudi 1.x uses it as its completion time, "
            "which a new instant must exceed",
            path=f"{base_path}: {stamp.file_name}",
            expected=f"at most {options.clock_skew_s:g} s ahead of this process's clock (--clock-skew)",
            found=f"{ahead_ms / 1000:,.0f} s",
            todo="Set the clock of this machine; if the file's time is wrong, run `timeline repair-times TABLE --all`."
            if not is_named
            else "Set the clock of this machine. If it is right, that of another one was ahead when the instant was "
            "chosen: wait until then, or roll it back while it is the newest write (`compactor-daemon rollback`), or, "
            "where no Hudi 1.x reads the table, continue with a --clock-skew above that.",
        )


def in_the_future(
    base_path: str, above: Instant | None, time: str, chosen: str, ahead: timedelta | None, skew_s: float
) -> ClockError:
    """The error where a new instant, to exceed all others, would have a time that no right clock has shown yet.
    `above`: the instant to exceed, None for a reserved time. `time`: its requested or completion time. `chosen`: the
    time of the new instant. `ahead`: how far that is ahead of this process's clock, None if it is not a date."""
    name = f"{above.action} {above.requested_time}" if above is not None else f"the reserved time {time}"
    if above is not None and time == above.completion_time:
        name += f", which completed at {time}"
    return ClockError(
        "an instant of the table is in the future: a new one above it could hide the next writes of other processes",
        path=base_path,
        instant=above.requested_time if above is not None else None,
        expected=f"a next instant at most {skew_s:g} s ahead of this process's clock (--clock-skew)",
        found=f"{chosen}, above {name}" + (f": {human_offset(ahead)} ahead" if ahead is not None else ""),
        todo=f"{_way_back(above)} Or wait until that time has passed. If the writers are in another time zone: "
        "--timezone ZONE (writers: .timezone(ZONE)), or TZ in the environment.",
    )


def _way_back(above: Instant | None) -> str:
    """The advice for removing an instant in the future from the timeline."""
    if above is None or not above.is_write:
        return "Find the process that chose it; `schedule --drop-metadata-table` ends it where only that table has it."
    time, later = above.requested_time, "`compactor-daemon restore TABLE --to INSTANT`"
    if above.action in MERGES:
        return f"Cancel the plan: `compactor-daemon unschedule TABLE {time}`."
    if above.action == "clustering":
        return f"Cancel the plan: `compactor-daemon cluster TABLE --cancel`, or {later}, to the write before it."
    if not above.completed:
        return f"If its writer is dead: `compactor-daemon rollback TABLE {time}`, or the next write, rolls it back."
    return (
        f"Roll it back while it is the newest write: `compactor-daemon rollback TABLE {time}`; or, with all that came "
        f"after the last good write: {later}. Then write its rows again."
    )
