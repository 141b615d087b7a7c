"""Completed writes, the metadata table and the times of version 6, compared with what is on storage.

On version 6, files of completed instants may have times that make Hudi 1.x read the table differently from 0.15.
Hudi 1.x uses the modification time of a completed file as the completion time of its instant B. It assigns the log
files that are named after B to the newest slice of their file group that was opened by then; 0.15 and phantombase
assign them to B itself. The two agree if

    B <= modification time of B's completed file < the next slice of each file group with log files on B

A copy without modification times breaks this for all but the newest slices, and a clock that is ahead for some. From
version 8 on, file names contain completion times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import StorageError, UsageError
from ..format.instant import Instant, State, parse_time
from ..format.layout import Slicing
from ..instants.clock_check import Stamp
from ..instants.timeline import commits_since_compaction
from ..metadata_table.record_index import missing_entries
from ..metadata_table.validate import Validation, damaged_partitions
from ..metadata_table.validate import validate as compare_metadata
from ..shown import Shown
from ..table.table import Snapshot, Table, from_one_snapshot, open_metadata_table
from ..view.grouping import counted_by_name
from ..view.view import FileGroup, TableView
from ..view.witness import Flaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistimed(Shown):
    """A completed file with a wrong time. `modified`: the wrong time as an instant time; `why`: what it contradicts."""

    instant: str
    path: str
    modified: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """A file whose modification time is reset to the point in time that `time` names."""

    path: str
    time: str


def mistimed(groups: Iterable[FileGroup], completed: Mapping[str, str], now: str) -> dict[str, str]:
    """Instants with wrong times, and why (pure). `completed`: instants with their files' times, as instant times."""
    found: dict[str, str] = {instant: "in the future" for instant, time in completed.items() if time > now}
    for group in groups:
        for at, slice_ in enumerate(group.slices):
            base, later = slice_.base_instant, group.slices[at + 1 :]
            time = completed.get(base)
            if time is None or base in found or (later and not slice_.logs):
                continue  # archived instants have no file; a log never joins an older slice
            if time < base.ljust(len(time), "0"):
                found[base] = "before the instant itself"
            elif later and time >= later[0].base_instant:
                found[base] = f"not before the next slice {later[0].base_instant} of {'/'.join(group.key)}"
    return found


def find_mistimed(table: Table) -> tuple[Mistimed, ...]:
    """The wrong times in a table of version 6, by instant; empty for other versions. Errors as in `Table.load_view`.
    ClockError: the instants are in another time zone than this process, so all times would look wrong."""
    if table.layout.slicing is not Slicing.BY_BASE_INSTANT:
        return ()
    view = table.load_view(exactly=table.partitions())  # missing partitions are not reported here
    table.times.check_zone(view.timeline)
    stamps = {s.file_name: s for _, s in _files(table)}
    done = (i for i in view.timeline.instants if i.is_write and i.completed and i.file_name in stamps)
    of_writes = {i.requested_time: stamps[i.file_name] for i in done}
    times = {instant: table.times.moment(stamp.written_ms) for instant, stamp in of_writes.items()}
    wrong = mistimed(view.groups, times, table.times.newest_possible())
    return tuple(
        Mistimed(instant=instant, path=_path(table, of_writes[instant]), modified=times[instant], why=wrong[instant])
        for instant in sorted(wrong)
    )


def _files(table: Table) -> list[tuple[Instant, Stamp]]:
    """Every file of the timeline, with the write time that its name contains."""
    entries = table.storage.list(table.config.timeline_folder)
    parsed = [(table.layout.parse(e.name), e.modified_ms) for e in entries if not e.is_folder]
    return [
        (i, Stamp(time=i.completion_time or i.requested_time, written_ms=ms, file_name=i.file_name))
        for i, ms in parsed
        if i is not None
    ]


def all_files(table: Table) -> tuple[Retimed, ...]:
    """Every file of the timeline whose name contains its write time, so no files of pending instants."""
    chosen = (s for i, s in _files(table) if i.state is not State.INFLIGHT and _is_time(s.time))
    return tuple(Retimed(path=_path(table, s), time=s.time) for s in chosen)


def repair_times(table: Table, files: Iterable[Retimed]) -> None:
    """Sets the modification times of timeline files to the given times, in the zone of the table's instants.
    StorageError: the storage cannot set times, or does not keep them. May be repeated."""
    for one in files:
        wanted = table.times.milliseconds(one.time)
        table.storage.set_modified(one.path, wanted)
        entry = table.storage.find(one.path)
        if entry is None or entry.modified_ms != wanted:
            what = "the storage does not keep the modification time that was set"
            raise StorageError(
                what, path=one.path, expected=str(wanted), found="no file" if entry is None else str(entry.modified_ms)
            )


def _path(table: Table, stamp: Stamp) -> str:
    return f"{table.config.timeline_folder}/{stamp.file_name}"


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except UsageError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Shown):
    """What was compared, and all that differs.

    metadata             the metadata table: what it names, and where it disagrees with storage
    metadata_commits     its delta commits since its last compaction, None without a metadata table
    damaged_indexes      other partitions of the metadata table that cannot be read, or lack files, and why
    record_index         what shows that it lacks entries of rows, "": nothing does
    mistimed             instants of version 6 whose files have times that give a wrong slice
    lost                 files that completed writes name and that are missing, or have another size
    unreadable_commits   completed instants whose file cannot be read
    strays               paths of files that are ignored: of other attempts, or that only look like data files
    unnamed              paths of files that no known write names and whose rows count all the same"""

    metadata: Validation
    metadata_commits: int | None
    damaged_indexes: Mapping[str, str]
    record_index: str
    mistimed: tuple[Mistimed, ...]
    lost: tuple[Flaw, ...]
    unreadable_commits: tuple[str, ...]
    strays: tuple[str, ...]
    unnamed: tuple[str, ...]

    @property
    def good(self) -> bool:
        indexes = (self.metadata.differences, self.record_index, self.damaged_indexes)
        return not any((*indexes, self.mistimed, self.lost, self.unnamed))


def validated(table: Table) -> Validated:
    """Reads the complete archive. Errors as in `metadata_table.validate`, and those of views."""
    mistimed = from_one_snapshot(lambda: find_mistimed(table.snapshot(cached=False)))
    metadata, commits = Validation(partitions=0, files=0, differences=()), None
    if table.config.metadata_partitions:
        metadata = from_one_snapshot(lambda: compare_metadata(table.snapshot(cached=False)))
        commits = commits_since_compaction(open_metadata_table(table).load_timeline())
    view, witnessed = from_one_snapshot(lambda: _views(table.snapshot(cached=False)))
    return Validated(
        metadata=metadata,
        metadata_commits=commits,
        damaged_indexes=damaged_partitions(table, contents=True),
        record_index=missing_entries(table.snapshot(cached=False)),
        mistimed=mistimed,
        lost=tuple(flaw for group in witnessed.living() for flaw in group.flaws),
        unreadable_commits=tuple(sorted(witnessed.facts.witness.unread)),
        strays=tuple(table.views.strays(view)),
        unnamed=tuple(counted_by_name(view, witnessed)),
    )


def _views(table: Snapshot) -> tuple[TableView, TableView]:
    return table.load_view(), table.load_view(archive=True)
