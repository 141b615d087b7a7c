"""A table's clock, which chooses instants in the table's time zone, and the loader of its timeline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import cache

from ..clocks import clock_ms
from ..errors import ClockError, MissingFileError, UsageError
from ..event_log import get_logger
from ..format.instant import Instant, State, format_time, hidden_writes, highest_states, is_time, next_time, parse_time
from ..format.layout import Slicing
from ..format.rollback_plan import RestorePlan, decode_restore_plan, decode_rollback_plan
from ..format.table_config import TableConfig
from ..storage.contract import Entry, Storage, list_of_table
from ..storage.folders import AFTER_INSTANTS, HOODIE
from ..storage.server_clock import ahead_of
from ..storage.snapshot import without_snapshot
from .clock_check import (
    ClockOptions,
    Stamp,
    Zone,
    ZoneVerdict,
    check_clock,
    check_future,
    check_zone,
    in_the_future,
    judge,
    written,
)
from .instant_files import InstantFiles
from .reserved_times import recorded_instants, reserved_times
from .timeline import Timeline

_log = get_logger()

_FARTHEST = timedelta(hours=26)
"""The greatest difference of time zones: an instant further ahead is artificial, or a clock was wrong."""
_OLD = timedelta(minutes=10)
"""No clock of a writer is so slow."""
_QUARTER_MS, _QUARTERS = 900_000, 13
_SKEW_MAX_S = 1e9


@dataclass(frozen=True, slots=True)
class _Used:
    """A used time and its instant; None: reserved, or of the metadata table. `always`: counts even if in the future."""

    time: str
    by: Instant | None
    always: bool = False

    def counts(self, patience: str, going: Collection[str]) -> bool:
        """Whether new times must exceed this time, although it is in the future. See `TableClock._chosen`."""
        if self.always or self.by is None:
            return self.always
        is_visible = self.by.is_write and self.by.completed
        return (is_visible or self.time <= patience) and self.by.requested_time not in going


@cache
def _zone_of(options: ClockOptions, utc_timezone: bool) -> tzinfo | None:
    """Asked for each time that is read."""
    return options.zone(utc_timezone=utc_timezone)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableClock:
    """Reads and chooses times in the table's time zone. Times of day are naive, as instants are."""

    storage: Storage
    config: TableConfig
    options: ClockOptions

    @property
    def _zone(self) -> tzinfo | None:
        return _zone_of(self.options, self.config.utc_timezone)

    def now(self) -> datetime:
        return self.local(clock_ms())

    def local(self, milliseconds: int) -> datetime:
        """A time, given in milliseconds since the epoch, as date and time of day in the zone."""
        return datetime.fromtimestamp(milliseconds / 1000, self._zone).replace(tzinfo=None)

    def moment(self, milliseconds: int) -> str:
        """A time, given in milliseconds since the epoch, as an instant time."""
        return format_time(self.local(milliseconds))

    def milliseconds(self, time: str) -> int:
        """The time that an instant time names, in milliseconds since the epoch. UsageError: not an instant time."""
        return round(parse_time(time).replace(tzinfo=self._zone).timestamp() * 1000)

    def _named(self, stamp: Stamp) -> int:
        """The time in a file's name, in milliseconds since the epoch; 0 if it is not a date."""
        try:
            return self.milliseconds(stamp.time)
        except UsageError:
            return 0

    def newest_possible(self) -> str:
        """The last instant time that is not in the future, even if this clock is slow by the allowed difference."""
        return format_time(self.now() + timedelta(seconds=self.options.clock_skew_s))

    def writers_zone(self, timeline: Timeline) -> ZoneVerdict:
        """Whether the table's writers are in this process's zone, as far as the timeline shows it."""
        return judge(timeline.written.stamps, self.local, self.options.clock_skew_s)

    def check_zone(self, timeline: Timeline) -> ZoneVerdict:
        """ClockError if this process must not choose an instant, because the writers are in another zone."""
        return check_zone(self.storage.base_path, self.config, timeline.written, self.local, self.options)

    def check_zone_of(self, going: Iterable[Instant], timeline: Timeline) -> None:
        """`check_zone` before these instants are archived. Where a name has no completion time, the file's time in this
        process's zone stands for it. A wrong one would be kept in the archive, and Hudi 1.x slices log files by it."""
        if any(i.completion_time is None for i in going):
            self.check_zone(timeline)

    def next_time(self, timeline: Timeline, also_above: Iterable[str] = (), undone: Collection[str] = ()) -> str:
        """A time greater than the clock and every used time: those of the timeline, reserved ones, and `also_above`.
        This is the only way to choose an instant or a completion time. `timeline`: loaded under the table lock.
        `undone`: times of instants that are about to be undone. ClockError: see `clock_check` and `_chosen`."""
        verdict = self.check_zone(timeline)
        check_clock(self.storage, timeline.written, clock_ms, self.options)
        used = [*self._used(timeline, undone), *(_Used(time, None, always=True) for time in also_above)]
        return self._chosen(used, verdict, self._shown(), undone, probes=True)

    def next_plan_time(self, timeline: Timeline, *, dry_run: bool) -> str:
        """`next_time` for a plan. A plan hides writes that complete before it, so it must not be ahead of their clock.
        `dry_run`: puts no object on storage to read the storage's clock."""
        verdict = self.check_zone(timeline)
        if not dry_run:
            check_clock(self.storage, timeline.written, clock_ms, self.options)
        waits = self.now() + _FARTHEST
        used = self._used(timeline)
        return self._chosen(used, verdict, self.now(), probes=not dry_run, waits=waits)

    def check_reached(self, instant: str, timeline: Timeline) -> None:
        """ClockError if a pending plan is in the future: executed now, it would hide the next writes."""
        plans = [i for i in timeline.pending_merges if i.requested_time == instant]
        used = [_Used(instant, plan, always=True) for plan in plans]
        self._chosen(used, self.writers_zone(timeline), self._shown(), probes=True)

    def future(self, timeline: Timeline) -> ClockError | None:
        """Why no instant can be chosen now: the newest one is in the future. Puts no object on storage."""
        verdict = self.writers_zone(timeline)
        used = [_Used(time, i) for i in timeline.completed for time in (i.requested_time, i.completion_time) if time]
        try:
            self._chosen(used, verdict, self._shown(), probes=False)
        except ClockError as error:
            return error
        return None

    def _shown(self) -> datetime:
        """The greatest time of day that a right clock has shown by now: daylight saving in a LOCAL zone repeats an
        hour, after a time that is a multiple of 15 minutes."""
        quarter = clock_ms() // _QUARTER_MS
        return max(self.now(), *(self.local((quarter - n) * _QUARTER_MS - 1) for n in range(_QUARTERS)))

    def _chosen(
        self,
        used: Sequence[_Used],
        verdict: ZoneVerdict,
        shown: datetime,
        undone: Collection[str] = (),
        *,
        probes: bool,
        waits: datetime | None = None,
    ) -> str:
        """A time greater than the clock and the used times, but none in the future. Of the used times that exceed
        `shown` by more than the allowed difference, only those of completed writes (and `always` ones) count: a time
        chosen below the others hides nothing and differs from them. Up to `waits` all instants count. Instants of
        `undone` never count. ClockError: the times that count are in the future. `probes`: the storage's clock may be
        read, if this one seems to be slow."""
        now = self.now()
        time = next_time(now, (u.time for u in used))
        skew = timedelta(seconds=min(self.options.clock_skew_s, _SKEW_MAX_S))
        reach = shown + skew - (verdict.offset if verdict.zone is Zone.AHEAD else timedelta())
        if time <= format_time(reach):
            return time
        if probes:
            reach += timedelta(milliseconds=max(0, -ahead_of(self.storage, clock_ms).most_ms))
        bound, patience = format_time(reach), format_time(max(reach, waits) if waits else reach)
        used = [u for u in used if u.time <= bound or u.counts(patience, undone)]
        time = next_time(now, (u.time for u in used))
        if time <= bound:
            return time
        newest = max(used, key=lambda u: u.time.ljust(17, "9") if is_time(u.time) else "")
        ahead = parse_time(time) - now if time < "9" * 17 else None
        raise in_the_future(self.storage.base_path, newest.by, newest.time, time, ahead, self.options.clock_skew_s)

    def going(self, timeline: Timeline) -> set[str]:
        """Times of the instants that pending rollbacks and restores undo, as far as their plans can be read."""
        files = InstantFiles(self.storage, self.config)
        targets = {files.plan(instant, decode_rollback_plan).target for instant in timeline.pending("rollback")}
        restores = (files.plan(instant, decode_restore_plan) for instant in timeline.pending("restore"))
        times = (plan.times for plan in restores if isinstance(plan, RestorePlan))
        return {target for target in targets if target is not None}.union(*times)

    def reserved(self, timeline: Timeline) -> Iterator[str]:
        return reserved_times(self.storage, timeline, recorded_instants(self.storage), self.moment)

    def _used(self, timeline: Timeline, undone: Collection[str] = ()) -> list[_Used]:
        from .archived_timeline import with_archive  # late: few commands need the archive

        # Archived instants are older than active ones, unless no instant is active any more.
        known = timeline if timeline.instants else with_archive(self.storage, self.config, timeline)
        used = [
            _Used(time, i)
            for i in (*known.instants, *known.archived)
            for time in (i.requested_time, i.completion_time)
            if time
        ]
        # A completion time decided for a pending compaction may become visible at any time; others are only not reused.
        pending = {i.requested_time for i in timeline.instants if not i.completed}
        recorded = recorded_instants(self.storage)
        for of, decided in ((pending.intersection(recorded), True), (set(recorded) - pending, False)):
            times = reserved_times(self.storage, timeline, sorted(of), self.moment)
            used += [_Used(time, None, always=decided and time not in of) for time in times]
        unnamed = known.written.unnamed
        if unnamed is not None and unnamed.time not in undone:
            check_future(self.storage.base_path, unnamed, self._named(unnamed), clock_ms(), self.options)
            used.append(_Used(self.moment(unnamed.written_ms), None))
        return used


@dataclass(frozen=True, slots=True)
class TimelineLoader:
    """`clock`: converts a file's modification time to an instant time."""

    storage: Storage
    config: TableConfig
    clock: TableClock

    def load(self, *, archived: bool = False) -> Timeline:
        """The active timeline; with `archived` the archived instants too. The archived instants are always loaded where
        no active write is completed: all active writes may be rolled back, and earlier ones archived.
        UnknownStateError: an archived timeline exists and cannot be read."""
        return self.of(list_of_table(self.storage, self.config.timeline_folder), archived=archived)

    def of(self, entries: Sequence[Entry], *, archived: bool = False) -> Timeline:
        """`load` by a listing of the timeline's folder."""
        layout = self.config.layout
        parsed = {e.name: layout.parse(e.name) for e in entries if not e.is_folder}
        files = [(i, e.modified_ms) for e in entries if (i := parsed.get(e.name)) is not None]
        legacy = {
            instant.requested_time: self.clock.moment(modified_ms)
            for instant, modified_ms in files
            if instant.completed and instant.completion_time is None and layout.has_completion_times
        }
        instants = highest_states(i for i, _ in files)
        timeline = Timeline(
            layout=layout,
            instants=instants,
            hidden=hidden_writes((i for i, _ in files), instants),
            legacy_completions=legacy,
            written=written(files),
            commits_are_writes=not self.config.has_logs,
            starts_behind=_starts_behind(files) if layout.slicing is Slicing.BY_BASE_INSTANT else False,
        )
        return self.with_its_archive(timeline) if archived or not timeline.completed else timeline

    def with_archive(self, timeline: Timeline) -> Timeline:
        """The timeline with its archived instants loaded, including those archived since it was listed."""
        from .archived_timeline import with_archive  # late: few commands need the archive

        return with_archive(self.storage, self.config, timeline)

    def with_its_archive(self, timeline: Timeline) -> Timeline:
        """The timeline with the archived instants of its own snapshot, see `Timeline.with_its_archived`."""
        found = timeline.with_its_archived(self.with_archive(timeline).archived)
        if (slow := found.before_archived) is not None:
            _log.warning(
                "write_before_archived_ones",
                table=self.storage.base_path,
                instant=slow.requested_time,
                why="Hudi's readers leave out all rows of the archived writes that are later",
                todo="correct the clock of its writer, and run `compactor-daemon archive TABLE` until it is archived",
            )
        return found

    def mark(self, entries: Sequence[Entry], timeline: Timeline) -> TimelineMark:
        """What is compared later to see whether the timeline has changed since it was listed."""
        last = max((e.name for e in entries if e.name < AFTER_INSTANTS and not e.is_folder), default="")
        newest = max((i.requested_time for i in timeline.instants), default="")
        is_old = is_time(newest) and self.clock.now() - parse_time(newest) > _OLD
        by_last = is_old and all(i.completed for i in timeline.instants) and self.config.timeline_folder != HOODIE
        return TimelineMark(
            storage=without_snapshot(self.storage),
            folder=self.config.timeline_folder,
            names=hash(tuple(entries)),
            last=last if by_last and not self.storage.is_file_system else "",
            is_old=is_old,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    """See `TimelineLoader.mark`. `names`: a hash of all entries of the folder. `last`: the last name, where only later
    ones are asked for, which costs an object store the less the more instants there are: nothing is pending, and no
    clock is so wrong that a new instant is earlier. What is removed, or added before it, is not seen. `is_old`: the
    newest instant is."""

    storage: Storage
    folder: str
    names: int
    last: str
    is_old: bool

    @property
    def is_passed(self) -> bool:
        """Whether the timeline has changed. One request."""
        if self.last:
            return bool(self.storage.list_below(self.folder, AFTER_INSTANTS, self.last))
        try:
            return hash(tuple(list_of_table(self.storage, self.folder))) != self.names
        except MissingFileError:
            return True


def _starts_behind(files: Iterable[tuple[Instant, int]]) -> bool:
    """Whether the first write completed after a later one began, and so perhaps after later ones were archived: by the
    files' modification times (ms). True where these show nothing, since the files were copied without them."""
    writes = [(instant, ms) for instant, ms in files if instant.is_write]
    start = min((i.requested_time for i, _ in writes), default="")
    done = [ms for i, ms in writes if i.completed and i.requested_time == start]
    first = [ms for i, ms in writes if i.state is State.REQUESTED and i.requested_time == start]
    later = [ms for i, ms in writes if i.state is State.REQUESTED and i.requested_time > start]
    return bool(done) and (max(done) >= min(later, default=max(done) + 1) or max(done) <= max(first, default=-1))
