"""A table's clock: this process's, in the zone of the table's instants, and the times it may choose by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from timeline.active import Timeline
from timeline.clock_evidence import Verdict, judge
from timeline.clock_guard import check_clock, check_future, check_newest, check_zone
from timeline.clock_options import ClockOptions
from timeline.gate import clock_ms
from timeline.instant import format_time, next_time, parse_time
from timeline.storage import Storage
from timeline.table_config import TableConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TableClock:
    """See the module. Times of day are naive, as instants are."""

    storage: Storage
    config: TableConfig
    options: ClockOptions

    @property
    def _zone(self) -> tzinfo | None:
        return self.options.zone(utc_timezone=self.config.utc_timezone)

    def now(self) -> datetime:
        """The time of day now."""
        return datetime.now(self._zone).replace(tzinfo=None)

    def local(self, milliseconds: int) -> datetime:
        """A moment since the epoch as the time of day then."""
        return datetime.fromtimestamp(milliseconds / 1000, self._zone).replace(tzinfo=None)

    def moment(self, milliseconds: int) -> str:
        """A moment since the epoch as an instant time."""
        return format_time(self.local(milliseconds))

    def milliseconds(self, time: str) -> int:
        """The moment an instant time names, since the epoch. UsageError: it names none."""
        return round(parse_time(time).replace(tzinfo=self._zone).timestamp() * 1000)

    def latest(self) -> str:
        """The last instant time that is not in the future, should this clock be behind by the skew."""
        return format_time(self.now() + timedelta(seconds=self.options.clock_skew_s))

    def writers_zone(self, timeline: Timeline) -> Verdict:
        """Whether the table's writers are in this process's zone, as far as the timeline shows."""
        return judge(timeline.written.stamps, self.local, self.options.clock_skew_s)

    def check_zone(self, timeline: Timeline) -> Verdict:
        """ClockError where this process may choose no instant: the writers are in another zone."""
        return check_zone(self.storage.base_path, self.config.layout, timeline.written, self.local, self.options)

    def next_time(self, now: datetime, timeline: Timeline, reserved: Iterable[str]) -> str:
        """A time greater than `now`, every time of the timeline and those `reserved`. ClockError: see `clock_guard`."""
        self.check_zone(timeline)
        check_clock(self.storage, timeline.written, clock_ms, self.options)
        return next_time(now, self._used(timeline, reserved))

    def next_plan_time(self, now: datetime, timeline: Timeline, reserved: Iterable[str], *, dry_run: bool) -> str:
        """The same for a plan, which hides what is completed before it: not ahead of the writers' clock either.

        `dry_run`: nothing is put on storage to know its clock.
        """
        verdict = self.check_zone(timeline)
        if not dry_run:
            check_clock(self.storage, timeline.written, clock_ms, self.options)
        time = next_time(now, self._used(timeline, reserved))
        check_newest(self.storage.base_path, time, parse_time(time) - now, verdict, self.options)
        return time

    def _used(self, timeline: Timeline, reserved: Iterable[str]) -> list[str]:
        used, unnamed = [*timeline.used_times(), *reserved], timeline.written.unnamed
        if unnamed is not None:
            check_future(self.storage.base_path, unnamed, clock_ms(), self.options)
            used.append(self.moment(unnamed.written_ms))
        return used
