"""Incremental reads: the rows that the writes of a window have written, as they are at the end of the window.

Such a read merges the slice and filters afterwards. Merging only the window's log files would be wrong where the base
file or an older log wins, as with stale rows under event time.

A log compaction of Hudi 1.2 puts its own time into the rows that it merges, as does a clustering that does not preserve
commit times. The rows still belong to the writes that the service merged. So slices are read without the window's log
compactions, whose originals are still in the slice, and rows of a clustering are traced to their writes (`Origins`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_schema import COMMIT_TIME, RECORD_KEY
from ..codec.columns import flat
from ..codec.row_hash import KeyLookup
from ..errors import MissingFileError, UnsupportedError, UsageError
from ..event_log import get_logger
from ..filter.tree import And, Compare, Filter, In, Op, Or
from ..format.commit_metadata import CLUSTER, LEDGER, LOG_COMPACT, SERVICE_OPERATIONS, CommitMetadata, WriteStat
from ..format.file_name import LogFileName, parse_data_file
from ..format.instant import Instant
from ..format.ledger import expired_rows
from ..instants.timeline import Timeline
from ..record_fields import gathered
from ..table.table import Snapshot, Table
from ..view.view import FileGroup, FileSlice, GroupKey, latest_slice
from ..view.witness import lost_completion
from .windows import (
    EARLIEST,
    Window,
    WindowState,
    check_still_whole,
    completed_writes,
    earliest_whole,
    fix_window,
    load_state,
    moment_of_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWrites:
    """`writes`: requested times of the window's writes. `groups`: the file groups that hold their rows; None: any may.
    `replaced`: file groups that its writes have replaced with other data, as far as their commits are known. A log
    compaction of Hudi 1.2 writes its own time into the rows that it merges, as a clustering may. `stamps`: table
    services of the window whose time may stand in rows of its writes, so without log compactions that merged only
    earlier writes. `log_compactions`: all of the window. `compacted_logs`: paths of the log files that these wrote,
    each with its instant. `clusterings`: those of the window. `unlisted`: the window begins before the earliest known
    write, so it may hold archived ones. `left_out`: moments from which on rows are missing that a compaction left out
    as past their time; it has changed nothing else."""

    writes: frozenset[str]
    groups: frozenset[GroupKey] | None
    replaced: frozenset[GroupKey]
    stamps: frozenset[str]
    log_compactions: frozenset[str]
    compacted_logs: Mapping[str, str]
    clusterings: frozenset[str]
    unlisted: bool
    left_out: frozenset[str]


def find_window_writes(table: Snapshot, window: Window) -> WindowWrites:
    """Reads the commits of the window, and the plans of its log compactions."""
    # The state at the end of the window has these writes; a compaction may count before it completes.
    counted = (w for w in completed_writes(table.timeline) if table.timeline.counts_from(w) <= window.end)
    inside = [w for w in counted if window.begin < table.timeline.moment_of(w)]
    active = ((i, table.files.recorded(i)) for i in inside if i in table.timeline.instants)
    found = {i: metadata for i, metadata in active if metadata is not None}
    found |= table.archived_commits([i for i in inside if i not in table.timeline.instants])
    services = {i for i in inside if table.timeline.is_compaction(i)}
    services |= {i for i, metadata in found.items() if metadata.operation_type in SERVICE_OPERATIONS}
    writes = frozenset(i.requested_time for i in inside if i not in services)
    compacting = {i for i in services & found.keys() if found[i].operation_type == LOG_COMPACT}
    logs = {i.requested_time for i in compacting}
    merged = {log: _originals(table, log, logs) for log in logs}
    outside = {log for log, times in merged.items() if times is not None and times.isdisjoint(writes)}
    known = table.timeline.start
    if table.layout.has_completion_times:  # the archive is loaded; its oldest part may be removed
        known = min((table.timeline.moment_of(w) for w in completed_writes(table.timeline)), default="")
    unlisted = window.begin < known
    complete = len(found) == len(inside) and not unlisted
    return WindowWrites(
        writes=writes,
        groups=frozenset().union(*(m.written_groups for m in found.values())) if complete else None,
        replaced=frozenset().union(*(found[i].replaced_groups for i in found.keys() - services)),
        stamps=frozenset(i.requested_time for i in services) - outside,
        log_compactions=frozenset(logs),
        compacted_logs={path: i.requested_time for i in compacting for path in found[i].named_files},
        clusterings=frozenset(i.requested_time for i in services & found.keys() if found[i].operation_type == CLUSTER),
        unlisted=unlisted,
        left_out=frozenset(table.timeline.counts_from(i) for i in services & found.keys() if _left_out(found[i])),
    )


def _left_out(metadata: CommitMetadata) -> bool:
    return expired_rows(metadata.extra_metadata.get(LEDGER), "a commit") > 0


def _originals(table: Table, log_compaction: str, others: set[str]) -> frozenset[str] | None:
    """The writes whose log files a log compaction merged; None if its plan does not show them.
    The plan shows them only on versions 8 and 9, where a log file's name has its delta commit's time. If the log
    compaction merged files of `others`, the plan also names their originals."""
    if not table.layout.has_completion_times:
        return None
    try:
        operations = table.compaction_plan(log_compaction).operations
    except MissingFileError:
        return None
    names = [parse_data_file(name) for operation in operations for name in operation.delta_file_paths]
    times = {name.instant for name in names if isinstance(name, LogFileName)}
    return frozenset(times - others)


_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """The plan of an incremental read. `timeline`: as first loaded. `rows`: filter; None if every row belongs to it.
    `services`: the table services that may have put their time into its rows, and whose inputs no clean has removed."""

    timeline: Timeline
    window: Window
    state: WindowState
    slices: tuple[FileSlice, ...]
    rows: Filter | None
    services: WindowWrites


def load_window(table: Table, begin: str | None, end: str | None, *, whole: bool = False) -> tuple[Snapshot, Window]:
    """The table with its archive where windows need it, and the window on it. UsageError: an impossible one; with
    `whole` also one that does not reach its end.
    MissingFileError: the completed file of a write of the window is lost, so its rows are unknown."""
    if begin is None:
        raise UsageError("a window needs its begin", todo="Give a begin; `earliest` is before the first write.")
    if not table.config.populate_meta_fields:
        what = "the table has no meta columns, so the writes of its rows are unknown"
        raise UnsupportedError(what, path=table.storage.base_path, found="hoodie.populate.meta.fields=false")
    timeline = table.load_timeline(archived=table.layout.has_completion_times)
    if timeline.may_be_archived_later and not timeline.archived:  # the window may hold archived writes
        timeline = table.timelines.with_its_archive(timeline)
    last = None if end is None else moment_of_text(table, end)
    window = fix_window(timeline, moment_of_text(table, begin), last)
    path = table.storage.base_path
    if whole and window.end != last:
        raise UsageError(
            "the window does not reach to its end any more",
            path=path,
            expected=last,
            found=window.end or "earliest",
            todo="A write below it is pending, or its last write was rolled back. Read again when that is over.",
        )
    for time, later in sorted(table.facts.uncompleted(timeline).items()):
        # It completed between its own time and that of the instant that shows this.
        if time < window.end and window.begin < later.instant:
            raise lost_completion(time, later, path)
    if window.begin_requested:
        _log.warning("begin_is_a_requested_time", table=path, begin=window.begin, expected="a completion time")
    if window.blocked_by is not None:
        _log.warning("window_ends_before_a_pending_write", table=path, end=window.end, pending=window.blocked_by)
    return table.with_timeline(timeline), window


def plan_increment(
    table: Table, begin: str | None, end: str | None, partition: str | None, *, full_scan: bool, whole: bool
) -> Increment:
    """The slices of a window and the filter of their rows; reads no data files. `whole`: see `load_window`.
    `full_scan`: if the state at the end is cleaned, reads the newest state instead, without rows overwritten since.
    UsageError: an impossible window, or a cleaned one."""
    seen, window = load_window(table, begin, end, whole=whole)
    earliest = earliest_whole(seen)
    scanned = window.end < earliest
    if scanned and not full_scan:
        raise UsageError(
            "files of the table at the end of the window have been cleaned",
            path=table.storage.base_path,
            expected=f"an end from {earliest} on, with any begin",
            found=window.end or "earliest",
            todo="`full-scan` as fallback gives the rows of the window that were not overwritten since.",
        )
    if scanned:
        _log.warning("window_is_cleaned", table=table.storage.base_path, end=window.end, earliest=earliest)
        state = WindowState(view=table.load_view(partition))
    else:
        state = load_state(seen, window.end, partition)
        check_still_whole(seen, window.end)
    found = find_window_writes(seen, window)
    slices = tuple(s for g, s in state.slices() if scanned or found.groups is None or g.key in found.groups)
    everything = window.begin == EARLIEST and not scanned
    return Increment(
        timeline=seen.timeline,
        window=window,
        state=state,
        slices=slices,
        rows=None if everything else wanted_rows(seen.timeline, window, found),
        services=found if window.begin >= earliest else replace(found, compacted_logs={}, clusterings=frozenset()),
    )


def wanted_rows(timeline: Timeline, window: Window, found: WindowWrites) -> Filter:
    """The rows of a window, by the commit times that they carry (pure)."""
    after = Compare(COMMIT_TIME, Op.GT, window.begin)
    if not timeline.layout.has_completion_times:
        return And((after, Compare(COMMIT_TIME, Op.LE, window.end)))
    wanted = In(COMMIT_TIME, tuple(sorted(found.writes | found.stamps)))
    oldest = min((w.requested_time for w in completed_writes(timeline)), default="")
    if window.begin >= oldest:
        return wanted
    # Rows of writes that were also removed from the archive: they completed after their requested time.
    return Or((wanted, And((after, Compare(COMMIT_TIME, Op.LT, oldest)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedWrite:
    """One completed write: when it became visible, and how many files, bytes and rows it wrote.
    The counts of an archived write are 0 if the archive does not have them."""

    moment: str
    files: int = 0
    bytes: int = 0
    rows: int = 0


def writes_after(table: Table, begin: str, known: dict[Instant, StreamedWrite | None]) -> list[StreamedWrite]:
    """The writes after a moment, by their moments; on version 6 up to the first pending write.
    A write that completed before the first complete state has that state's moment: no batch can end before it. Reads
    the commits that are not `known` yet, and keeps them there. UsageError: no moment, no meta columns."""
    seen, window = load_window(table, begin, None)
    timeline = seen.timeline
    waiting = [w for w in completed_writes(timeline) if window.holds(timeline.moment_of(w))]
    new = [w for w in waiting if w not in known]
    archived = table.archived_commits([w for w in new if w not in timeline.instants])
    for write in new:
        metadata = table.commit_metadata(write) if write in timeline.instants else archived.get(write)
        known[write] = None if timeline.is_compaction(write) else _streamed(timeline.moment_of(write), metadata)
    earliest = earliest_whole(seen)
    found = (replace(one, moment=max(one.moment, earliest)) for w in waiting if (one := known[w]) is not None)
    return sorted(found, key=lambda w: w.moment)


def groups_written(table: Table, begin: str, moment: str) -> list[tuple[GroupKey, StreamedWrite]]:
    """The counts of the writes at a moment after `begin` for each file group, by partition and file id.
    Reads their commits; unknown counts of archived writes are left out."""
    timeline = load_window(table, begin, moment)[0].timeline
    writes = [w for w in completed_writes(timeline) if timeline.moment_of(w) == moment]
    writes = [w for w in writes if not timeline.is_compaction(w)]
    found = {w: table.commit_metadata(w) for w in writes if w in timeline.instants}
    found |= table.archived_commits([w for w in writes if w not in found])
    commits = (metadata for metadata in found.values() if metadata.operation_type not in SERVICE_OPERATIONS)
    written = (item for metadata in commits for item in metadata.partition_to_write_stats.items())
    stats = gathered(((partition, stat.file_id or ""), stat) for partition, of in written for stat in of)
    return [(group, _counted(moment, stats[group])) for group in sorted(stats)]


def _counted(moment: str, stats: Sequence[WriteStat]) -> StreamedWrite:
    return StreamedWrite(
        moment=moment,
        files=len(stats),
        bytes=sum(stat.total_write_bytes for stat in stats),
        rows=sum(stat.num_writes + stat.num_deletes for stat in stats),
    )


def _streamed(moment: str, metadata: CommitMetadata | None) -> StreamedWrite | None:
    """None: a table service, which changes no row."""
    if metadata is None:
        return StreamedWrite(moment=moment)
    if metadata.operation_type in SERVICE_OPERATIONS:
        return None
    return _counted(moment, [stat for stats in metadata.partition_to_write_stats.values() for stat in stats])


MARKS = (RECORD_KEY, COMMIT_TIME)
"""The columns that identify the write of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The inputs of table services: `stamps` are the services' instants, `slices` hold the rows that they merged."""

    stamps: frozenset[str]
    slices: tuple[FileSlice, ...]


@dataclass(frozen=True, kw_only=True)
class Origins:
    """Replaces stamps by the times of writes. `read`: keys and commit times of an origin.
    An origin is read at the first row with its stamp; memory then holds its keys and times."""

    origins: Sequence[Origin]
    read: Callable[[Origin], Iterable[pa.RecordBatch]]
    _loaded: dict[Origin, tuple[KeyLookup, pa.Array]] = field(default_factory=dict, init=False)

    def restored(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, each row with the time of its write; a stamped row whose origin is not found keeps its stamp."""
        for batch in batches:
            times = batch.column(COMMIT_TIME)
            for origin in self._newest_first:
                times = self._of_writes(origin, batch.column(RECORD_KEY), times)
            at = batch.schema.get_field_index(COMMIT_TIME)
            yield batch.set_column(at, batch.schema.field(at), times)

    @cached_property
    def _newest_first(self) -> list[Origin]:
        """The origins, newest first: a service merges rows that earlier services have stamped."""
        return sorted(self.origins, key=lambda origin: max(origin.stamps), reverse=True)

    def _of_writes(self, origin: Origin, keys: pa.Array, times: pa.Array) -> pa.Array:
        stamped = np.flatnonzero(pc.is_in(times, pa.array(sorted(origin.stamps), times.type)))
        if not len(stamped):
            return times
        lookup, known = self._lookup(origin)
        places = lookup.find(keys.take(pa.array(stamped)))
        sources = np.arange(len(times))
        sources[stamped[places >= 0]] = len(times) + places[places >= 0]
        return pa.chunked_array([times, known.cast(times.type)]).take(pa.array(sources)).combine_chunks()

    def _lookup(self, origin: Origin) -> tuple[KeyLookup, pa.Array]:
        if origin not in self._loaded:
            found = [batch.select(MARKS) for batch in self.read(origin)]
            schema = pa.schema([(name, pa.string()) for name in MARKS])
            table = pa.Table.from_batches(found) if found else schema.empty_table()
            encoded = flat(table.column(RECORD_KEY)).dictionary_encode()
            first = np.unique(np.asarray(encoded.indices), return_index=True)[1]
            self._loaded[origin] = KeyLookup(encoded.dictionary), flat(table.column(COMMIT_TIME)).take(pa.array(first))
        return self._loaded[origin]


def find_origins(
    state: WindowState, slices: Iterable[FileSlice], found: WindowWrites
) -> dict[GroupKey, tuple[Origin, ...]]:
    """The inputs of the table services of a window whose rows these slices of a state may hold, by slice (pure).
    Of log compactions: the logs of earlier slices; the slices themselves are read without log compactions. Of
    clusterings: the last slices of the file groups of the same partition that they replaced."""
    if not found.compacted_logs and not found.clusterings:
        return {}
    groups, own = state.view.by_key(), {one.key: one.base_instant for one in slices}
    replaced: defaultdict[str, defaultdict[str, list[FileGroup]]] = defaultdict(lambda: defaultdict(list))
    for key, instant in state.view.facts.replaced.items():
        if instant in found.clusterings and key in groups:
            replaced[key[0]][instant].append(groups[key])
    shared: dict[str, list[Origin]] = {}
    for partition, clustered in replaced.items():
        shared[partition] = [one for taken in clustered.values() for g in taken for one in _logs_of(g, found)]
        for instant, taken in clustered.items():
            last = (latest_slice(group, state.as_of) for group in taken)
            origin = Origin(stamps=frozenset({instant}), slices=tuple(s for s in last if s is not None))
            shared[partition].append(origin)
    origins = {k: (*_logs_of(groups[k], found, before=own[k]), *shared.get(k[0], ())) for k in own}
    return {key: those for key, those in origins.items() if those}


def _logs_of(group: FileGroup, found: WindowWrites, before: str | None = None) -> Iterator[Origin]:
    """The inputs of the log compactions of a file group's slices; `before`: only slices below this base instant."""
    for one in group.slices:
        stamps = frozenset(found.compacted_logs[log.path] for log in one.logs if log.path in found.compacted_logs)
        if stamps and (before is None or one.base_instant < before):
            yield Origin(stamps=stamps, slices=(replace(one, base=None),))
