"""A table's clock: this process's, in the zone of the table's instants, and the times it may choose by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from ..clock.evidence import ZoneVerdict, judge
from ..clock.guard import check_clock, check_future, check_newest, check_zone
from ..clock.now import clock_ms
from ..clock.options import ClockOptions
from ..format.instant import format_time, next_time, parse_time
from ..format.table_config import TableConfig
from ..storage.contract import Storage
from .archived_timeline import with_archive
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

    def writers_zone(self, timeline: Timeline) -> ZoneVerdict:
        """Whether the table's writers are in this process's zone, as far as the timeline shows."""
        return judge(timeline.written.stamps, self.local, self.options.clock_skew_s)

    def check_zone(self, timeline: Timeline) -> ZoneVerdict:
        """ClockError where this process may choose no instant: the writers are in another zone."""
        return check_zone(self.storage.base_path, self.config.layout, timeline.written, self.local, self.options)

    def next_time(self, timeline: Timeline, also_above: Iterable[str] = ()) -> str:
        """A time greater than the clock and every time in use: of the timeline, reserved ones, and `also_above`.

        The only way to choose an instant or a completion time. `timeline`: loaded under the table lock. ClockError: see
        `clock_guard`.
        """
        self.check_zone(timeline)
        check_clock(self.storage, timeline.written, clock_ms, self.options)
        return next_time(self.now(), [*self._used(timeline), *also_above])

    def next_plan_time(self, timeline: Timeline, *, dry_run: bool) -> str:
        """The same for a plan, which hides what is completed before it: not ahead of the writers' clock either.

        `dry_run`: nothing is put on storage to know its clock.
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
        # Archived instants are older than active ones, unless nothing is active any more.
        known = timeline if timeline.instants else with_archive(self.storage, self.config, timeline)
        used, unnamed = [*known.used_times(), *self.reserved(timeline)], known.written.unnamed
        if unnamed is not None:
            check_future(self.storage.base_path, unnamed, clock_ms(), self.options)
            used.append(self.moment(unnamed.written_ms))
        return used
