"""Refuses to choose an instant if this process's clock or time zone differs from that of the table's writers.

A compaction requested at C hides later writes whose completion time is before C (see `view`). So a process whose clock
is ahead of the writers' would hide all their writes until their clock passes C. A process whose clock is slow chooses
max + 1 ms, which hides nothing. But on version 6 Hudi 1.x compares C with modification times in the writers' zone, and
C must be greater than these. `ClockOptions` is the only place that defines the zone and the allowed difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from ..errors import ClockError, UsageError
from ..format.instant import MERGES, Instant
from ..format.table_config import UTC_PROPERTY, TableConfig
from ..option import check_least, least_of, option
from ..storage.contract import Storage
from ..storage.server_clock import ahead_of
from .clock_evidence import ClockEvidence, Stamp, Zone, ZoneVerdict, judge

LOCAL = "LOCAL"
"""Hudi's name for the zone of the process."""


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
