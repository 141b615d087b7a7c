"""A table's clock: this process's clock in the zone of the table's instants, and the instant times chosen by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from ..clock.evidence import Stamp, ZoneVerdict, judge
from ..clock.guard import check_clock, check_future, check_newest, check_zone
from ..clock.now import clock_ms
from ..clock.options import ClockOptions
from ..errors import UsageError
from ..format.instant import Instant, format_time, next_time, parse_time
from ..format.table_config import TableConfig
from ..storage.contract import Storage
from .reserved_times import reserved_times
from .timeline import Timeline


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
        """The current time of day."""
        return datetime.now(self._zone).replace(tzinfo=None)

    def local(self, milliseconds: int) -> datetime:
        """A moment, given in milliseconds since the epoch, as the time of day at that moment."""
        return datetime.fromtimestamp(milliseconds / 1000, self._zone).replace(tzinfo=None)

    def moment(self, milliseconds: int) -> str:
        """A moment, given in milliseconds since the epoch, as an instant time."""
        return format_time(self.local(milliseconds))

    def milliseconds(self, time: str) -> int:
        """The moment that an instant time names, in milliseconds since the epoch. UsageError: not an instant time."""
        return round(parse_time(time).replace(tzinfo=self._zone).timestamp() * 1000)

    def _named(self, stamp: Stamp) -> int:
        """The moment that a file's name says; 0 where that is no time."""
        try:
            return self.milliseconds(stamp.time)
        except UsageError:
            return 0

    def latest(self) -> str:
        """The last instant time that is not in the future, even if this clock is behind by the allowed difference."""
        return format_time(self.now() + timedelta(seconds=self.options.clock_skew_s))

    def writers_zone(self, timeline: Timeline) -> ZoneVerdict:
        """Whether the table's writers are in this process's zone, as far as the timeline shows it."""
        return judge(timeline.written.stamps, self.local, self.options.clock_skew_s)

    def check_zone(self, timeline: Timeline) -> ZoneVerdict:
        """ClockError if this process must not choose an instant, because the writers are in another zone."""
        return check_zone(self.storage.base_path, self.config.layout, timeline.written, self.local, self.options)

    def check_zone_of(self, going: Iterable[Instant], timeline: Timeline) -> None:
        """The same before these instants are archived: those whose names have no completion time have that of their
        file, in this process's zone. The archive would keep wrong ones, by which Hudi 1.x slices log files.
        """
        if any(i.completion_time is None for i in going):
            self.check_zone(timeline)

    def next_time(self, timeline: Timeline, also_above: Iterable[str] = ()) -> str:
        """A time greater than the clock and every used time: of the timeline, reserved ones, and `also_above`.

        This is the only way to choose an instant or a completion time. `timeline`: loaded under the table lock.
        ClockError: see `clock.guard`.
        """
        self.check_zone(timeline)
        check_clock(self.storage, timeline.written, clock_ms, self.options)
        return next_time(self.now(), [*self._used(timeline), *also_above])

    def next_plan_time(self, timeline: Timeline, *, dry_run: bool) -> str:
        """The same for a plan. A plan hides writes that complete before it, so it must not be ahead of their clock.

        `dry_run`: puts no object on storage to learn the storage's clock.
        """
        verdict = self.check_zone(timeline)
        if not dry_run:
            check_clock(self.storage, timeline.written, clock_ms, self.options)
        now = self.now()
        time = next_time(now, self._used(timeline))
        check_newest(self.storage.base_path, time, parse_time(time) - now, verdict, self.options)
        return time

    def reserved(self, timeline: Timeline) -> Iterator[str]:
        """See `reserved_times`."""
        return reserved_times(self.storage, timeline, self.moment)

    def _used(self, timeline: Timeline) -> list[str]:
        from .archived_timeline import with_archive  # late: few commands need the archive

        # Archived instants are older than active ones, unless no instant is active any more.
        known = timeline if timeline.instants else with_archive(self.storage, self.config, timeline)
        used, unnamed = [*known.used_times(), *self.reserved(timeline)], known.written.unnamed
        if unnamed is not None:
            check_future(self.storage.base_path, unnamed, self._named(unnamed), clock_ms(), self.options)
            used.append(self.moment(unnamed.written_ms))
        return used
