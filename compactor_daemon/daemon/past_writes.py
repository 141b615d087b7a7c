"""The writes of a table's history, active and archived, with the files that each of them made: what `replay` goes by.

Only the timeline is read, no data file. Times are in ms of the table's own clock. A write counts from its completion,
on version 6, which does not record that, from its request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.commit_metadata import LOG_COMPACT, CommitMetadata, WriteStat
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, real_time
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.instants.archived_timeline import archived_writes
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.option import check_above_zero, check_least, option, spelled_class
from phantombase.timeline.prefetch import prefetched_when_slow
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import BaseFile, DataFile, GroupKey, LogFile
from phantombase.timeline.view.witness import FileRecord, Marks

_EPOCH = datetime(1970, 1, 1)


def time_ms(time: str) -> int:
    """An instant time in ms since 1970 of the table's own clock; negative: an artificial one."""
    return (real_time(time) - _EPOCH) // timedelta(milliseconds=1)


def clock_at(ms: float) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


class PastKind(Enum):
    WRITE = "write"
    MAJOR = "compaction"
    MINOR = "log compaction"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PastLog:
    """A log file in a file group, see `History.groups`. `instant`: that wrote it. `at_ms`: of its oldest
    row. `rows`: its entries, `deletes` and
    `inserts` among them. `merged`: the log files that it replaced."""

    group: int
    file: LogFile
    instant: str
    at_ms: int
    rows: int = 0
    deletes: int = 0
    inserts: int = 0
    merged: tuple[LogFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PastBase:
    """A base file in a file group, and its rows."""

    group: int
    file: BaseFile
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastWrite:
    """A completed write. `at_ms`: when it became visible. `replaced`: the file groups that it replaced. `work_s`: what
    the tasks of a compaction took together, in seconds, 0 where its commit does not say."""

    kind: PastKind
    instant: Instant
    at_ms: int
    requested_ms: int
    logs: tuple[PastLog, ...] = ()
    bases: tuple[PastBase, ...] = ()
    replaced: tuple[int, ...] = ()
    work_s: float = 0.0


@dataclass(kw_only=True)
class History:
    """`writes`: in the order in which they became visible. `unknown`: completed writes of which the archive has no
    record, or whose time is not a date. `first`: the base files that file groups had before the first known write to
    them, with the size of the first one known since then."""

    layout: Layout
    groups: list[GroupKey] = field(default_factory=list)
    writes: list[PastWrite] = field(default_factory=list)
    first: list[PastBase] = field(default_factory=list)
    unknown: int = 0

    @property
    def delta_commits(self) -> int:
        return sum(one.kind is PastKind.WRITE and one.instant.action == "deltacommit" for one in self.writes)


def load_history(table: Table) -> History:
    """The history of a table. UsageError: it has no delta commits with log files. UnknownStateError: the archive cannot
    be read. MissingFileError: instants were archived meanwhile."""
    timeline = table.load_timeline(archived=True)
    reader = _Reader(timeline)
    for instant, metadata in _recorded(table.with_timeline(timeline)):
        reader.add(instant, metadata)
    found = reader.history
    found.writes.sort(key=lambda one: (one.at_ms, one.instant.requested_time))
    every = sum(i.is_write and i.completed for i in (*timeline.completed, *timeline.archived))
    found.unknown = every - len(found.writes)
    if not any(one.logs and one.kind is PastKind.WRITE for one in found.writes):
        raise UsageError(
            "the table has no history to replay",
            path=table.storage.base_path,
            expected="completed delta commits that wrote log files",
            found=f"{len(found.writes)} completed writes, none of which did",
            todo="Replay it once rows of it were updated; of archived writes the archive must have the records.",
        )
    found.first = list(_first_bases(found, {number for number, (_, is_older) in reader.seen.items() if is_older}))
    return found


def _recorded(table: Snapshot) -> Iterator[tuple[Instant, CommitMetadata]]:
    """The completed writes with what they record; an empty file, as old Flink jobs leave it, records nothing."""
    active = {i.identity for i in table.timeline.completed}
    gone = [i for i in table.timeline.archived if i.is_write and i.identity not in active]
    yield from archived_writes(table.storage, table.config, gone)
    files = table.files
    for instant, metadata in prefetched_when_slow(table.timeline.completed, lambda i: (i, files.recorded(i))):
        if metadata is not None:
            yield instant, metadata


class _Reader:
    """`seen`: by file group its first known write, and whether there was a base file before. The archive has no
    order."""

    def __init__(self, timeline: Timeline) -> None:
        self.history = History(layout=timeline.layout)
        self.seen: dict[int, tuple[int, bool]] = {}
        self._timeline = timeline
        self._numbers: dict[GroupKey, int] = {}

    def add(self, instant: Instant, metadata: CommitMetadata) -> None:
        time = self._timeline.moment_of(instant)
        at_ms, requested_ms = time_ms(time), time_ms(instant.requested_time)
        if requested_ms < 0 or at_ms < 0:
            return
        kind = PastKind.MAJOR if metadata.compacted and self._timeline.is_compaction(instant) else PastKind.WRITE
        if metadata.operation_type == LOG_COMPACT:
            kind = PastKind.MINOR
        logs, bases = list[PastLog](), list[PastBase]()
        marks = Marks(known=_NONE, writes=(FileRecord(instant=instant.requested_time, size=0),), is_stray=False)
        work_ms = 0
        for partition, stats in metadata.partition_to_write_stats.items():
            for stat in stats:
                name = parse_data_file((stat.path or "").rpartition("/")[2])
                if isinstance(name, LogFileName) and not name.is_cdc:
                    logs.append(self._log(partition, name, stat, at_ms, instant.requested_time, marks))
                elif isinstance(name, BaseFileName):
                    bases.append(self._base(partition, name, stat, at_ms))
                if (took := stat.runtime_stats) is not None:
                    work_ms += took.total_scan_time + took.total_create_time + took.total_upsert_time
        self.history.writes.append(
            PastWrite(
                kind=kind,
                instant=instant,
                at_ms=at_ms,
                requested_ms=requested_ms,
                logs=tuple(logs),
                bases=tuple(bases),
                replaced=tuple(self._number(key, at_ms, is_older=False) for key in metadata.replaced_groups),
                work_s=work_ms / 1000,
            )
        )

    def _number(self, key: GroupKey, at_ms: int, *, is_older: bool) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.history.groups)
            self.history.groups.append(key)
            self.seen[number] = at_ms, is_older
        elif at_ms < self.seen[number][0]:
            self.seen[number] = at_ms, is_older
        return number

    def _log(
        self, partition: str, name: LogFileName, stat: WriteStat, at_ms: int, instant: str, marks: Marks
    ) -> PastLog:
        end = stat.file_size_in_bytes or stat.total_write_bytes
        size = max(0, end - (stat.log_offset or 0))
        return PastLog(
            group=self._number((partition, name.file_id), at_ms, is_older=bool(stat.base_file)),
            file=DataFile(partition=partition, name=name, size=size, marks=marks),
            instant=instant,
            at_ms=at_ms,
            rows=stat.num_writes + stat.num_deletes,
            deletes=stat.num_deletes,
            inserts=stat.num_inserts,
        )

    def _base(self, partition: str, name: BaseFileName, stat: WriteStat, at_ms: int) -> PastBase:
        is_older = stat.prev_commit not in (None, "", "null")
        size = stat.file_size_in_bytes or stat.total_write_bytes
        return PastBase(
            group=self._number((partition, name.file_id), at_ms, is_older=is_older),
            file=DataFile(partition=partition, name=name, size=size),
            rows=stat.num_writes,
        )


_NONE = frozenset[str]()
_BEFORE = "0" * 17
"""The instant of a base file from before the history."""


def _first_bases(history: History, wanted: set[int]) -> Iterator[PastBase]:
    for write in history.writes:
        for base in write.bases:
            if base.group in wanted:
                wanted.discard(base.group)
                yield replace(base, file=replace(base.file, name=replace(base.file.name, instant=_BEFORE)))


GB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Shown):
    """What compactions of a table do. `growth`: bytes that a base file grows by for each merged log byte; `fresh`: the
    same without a base file before. `core_s_per_gb`: core-seconds for each GB read; `measured`: by the tasks of its own
    compactions."""

    growth: float = 0.0
    fresh: float = 1.0
    core_s_per_gb: float = 30.0
    measured: bool = False

    def core_s(self, size: int) -> float:
        """For bytes that compactions read."""
        return size / GB * self.core_s_per_gb

    def core_hours(self, size: int) -> float:
        return round(self.core_s(size) / 3600, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost(Shown):
    """What compactions cost, and how fresh the table was. `log_compactions`: those that wrote no base file.
    `log_depth`: log files of a file group, the mean over all file groups and the time. `lag`: the age of the oldest row
    in no base file, in seconds; it was below `lag_p95_s` for 95 % of the time."""

    compactions: int
    log_compactions: int
    bytes_read: int
    bytes_written: int
    log_depth_max: int
    log_depth_mean: float
    lag_max_s: float
    lag_p95_s: float
    core_hours: float


@spelled_class
@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The machines of a replay, and its speed; `core_s_per_gb` None: see `replay`, or the default of `Rates`."""

    cores: int = option(2, "cores that execute a plan, one for each of its file slices", least=1)
    core_s_per_gb: float | None = option(
        None,
        "core-seconds for each GB that a compaction reads [default: as the table's compactions took, else 30]",
        flag="core_seconds_per_gb",
    )

    def __post_init__(self) -> None:
        check_least(self, {"cores": 1})
        check_above_zero(self, "core_s_per_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Shown):
    """What one of the settings gives. `settings`: as options of commands. `keeps`: whether the lag stayed below the
    goal; None: there is none."""

    settings: str
    outcome: ReplayCost
    keeps: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(Shown):
    """`since`, `until`: the first and the last write, instant times. `unknown_writes`: those that the archive has no
    record of, and that were left out. `rates`: what was assumed. `recorded`: the table's own compactions, by the same
    measure. `tried`: the given settings; with `best` all that were tried, the best first. `best`: the cheapest settings
    that keep the goal, None if none does or none was asked for."""

    since: str
    until: str
    delta_commits: int
    file_groups: int
    unknown_writes: int
    rates: Rates
    goal_s: float | None
    recorded: ReplayCost
    tried: tuple[Replay, ...]
    best: Replay | None = None
