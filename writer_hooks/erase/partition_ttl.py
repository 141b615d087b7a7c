"""Deletes partitions that are past their time, by Hudi's strategies (`hoodie.partition.ttl.*`); never by default.

    keep-by-time            the time of a partition is that of its newest base file or log file
    keep-by-creation-time   that of its first write, as `.hoodie_partition_metadata` has it

Hudi's KEEP_BY_TIME knows base files only: it deletes a partition whose rows were updated yesterday, if no compaction
was since. Here such a partition stays. What is past its time is asked again of the state from which the deletion
begins, and a write that completes in a partition meanwhile is a conflict: so no partition goes that was just written.

A partition with a file group in a pending compaction or clustering stays until that has ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from phantombase.compactor_daemon.options import PartitionTtl, PartitionTtlOptions
from phantombase.timeline.errors import MissingFileError, UsageError
from phantombase.timeline.format.file_name import PARTITION_METADATA
from phantombase.timeline.format.instant import parse_time
from phantombase.timeline.locks.table_lock import check_writers_known, table_lock
from phantombase.timeline.option import path_text, spelled
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.in_progress import clustered_file_groups
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.view.view import FileGroup, TableView, latest_slice

from ..engine.engine import LocalEngine
from ..options import Operation, Write, WriteOptions
from ..schema.table_schema import columns_of
from ..write.write import write


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPartition(Shown):
    """A partition past its time that was not deleted, and why."""

    partition: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredPartitions(Shown):
    """`instant`: of the deletion; None: nothing was deleted. `partitions`: those that were deleted, or would be, and
    the time of each. `left`: what could not be deleted now, or whose time is unknown."""

    instant: str | None
    partitions: Mapping[str, str]
    left: tuple[KeptPartition, ...] = ()


@spelled
def partition_ttl(
    table: Table | str | os.PathLike[str],
    options: PartitionTtlOptions,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    writes: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> ExpiredPartitions:
    """Deletes partitions past their time, in one commit: see the module. `lock`: that all writers share; `sole_writer`:
    no other process writes. `writes`: the options of the table's writers. UsageError: no time was given, the table has
    no partitions, or neither lock nor sole_writer (a dry run needs none). ConflictError: another process has just
    written to one of them; nothing was deleted."""
    if not dry_run:
        risk = "The rows of a write that is under way may be lost."
        check_writers_known(lock, sole_writer, "partition-ttl", risk, names="lock= and sole_writer=True")
    own = writes or WriteOptions()
    opened = table if isinstance(table, Table) else Table.open(path_text(table), storage_options).with_clock(own.clock)
    if options.days_retain is None:
        raise UsageError("from when on a partition is past its time is not said", todo="Give the days, --days-retain.")
    if not opened.config.partition_fields:
        raise UsageError("the table has no partitions", path=opened.storage.base_path, todo="Delete rows by key.")
    is_expired = _Expiry(options)
    times, left = from_one_snapshot(lambda: _choose(opened.snapshot(), is_expired, options))
    if dry_run or not times:
        return ExpiredPartitions(instant=None, partitions=times, left=left)
    own = replace(own, lock=lock, clock=opened.clock)
    rows = LocalEngine(columns_of(opened).empty_table(), slots=1)
    what = Write(
        operation=Operation.DELETE_PARTITION,
        options=own,
        partitions=tuple(times),
        deletes_if=is_expired.is_past,
        lock=table_lock(opened.storage, lock, sole_writer=sole_writer),
    )
    done = write(opened, rows, what)
    gone = {partition: time for partition, time in times.items() if partition in is_expired.past}
    return ExpiredPartitions(instant=done.instant, partitions=gone, left=left)


def _choose(
    seen: Snapshot, is_expired: _Expiry, options: PartitionTtlOptions
) -> tuple[dict[str, str], tuple[KeptPartition, ...]]:
    """The partitions to delete, with their times, and those that are left."""
    view, found, left = seen.load_view(), dict[str, str](), list[KeptPartition]()
    seen, held = seen.with_timeline(view.timeline), _held(seen, view)
    by_partition = dict[str, list[FileGroup]]()
    for group in view.living():
        by_partition.setdefault(group.partition, []).append(group)
    for partition, groups in sorted(by_partition.items()):
        if options.partitions and partition not in options.partitions:
            continue
        time = is_expired.time_of(seen, partition, groups)
        try:
            if not is_expired.is_over(seen, time):
                continue
        except UsageError:
            left.append(KeptPartition(partition=partition, why=f"its time is unknown: {time or 'none is recorded'}"))
            continue
        if (why := held.get(partition)) is None and "*" in partition:
            why = "a name with * cannot be deleted alone"
        if why is None and len(found) >= options.max_partitions:
            why = f"one run deletes at most {options.max_partitions}"
        if why is None:
            found[partition] = time
        else:
            left.append(KeptPartition(partition=partition, why=why))
    gone = (p for p in options.partitions if p not in by_partition)
    left += (KeptPartition(partition=one, why="the table has no rows in a partition of this path") for one in gone)
    return found, tuple(left)


def _held(seen: Snapshot, view: TableView) -> dict[str, str]:
    """The partitions that a pending service holds, and which."""
    held = {partition: "in a pending clustering" for partition, _ in clustered_file_groups(seen)}
    plans = ((g.partition, g.pending_compaction) for g in view.living() if g.pending_compaction is not None)
    return held | {partition: f"in the pending compaction {instant}" for partition, instant in plans}


class _Expiry:
    """Which partitions are past their time. `past`: those that were, when a deletion asked last."""

    def __init__(self, options: PartitionTtlOptions) -> None:
        self._options = options
        self._times: tuple[Snapshot, Mapping[str, str]] | None = None
        self.past = set[str]()

    def is_past(self, seen: Snapshot, partition: str, groups: Sequence[FileGroup]) -> bool:
        """See `Write.deletes_if`. A partition whose time is unknown by now stays."""
        try:
            is_past = bool(groups) and self.is_over(seen, self.time_of(seen, partition, groups))
        except UsageError:
            is_past = False
        (self.past.add if is_past else self.past.discard)(partition)
        return is_past

    def is_over(self, seen: Snapshot, time: str) -> bool:
        """UsageError: it is not a time."""
        return (seen.now() - parse_time(time)) / timedelta(days=1) > (self._options.days_retain or 0)

    def time_of(self, seen: Snapshot, partition: str, groups: Sequence[FileGroup]) -> str:
        """The time from which on it counts; "": it is not recorded."""
        if self._options.strategy is PartitionTtl.KEEP_BY_CREATION_TIME:
            return _created(seen, partition)
        if self._times is None or self._times[0] is not seen:
            self._times = seen, _last_writes(seen)
        slices = [one for group in groups if (one := latest_slice(group)) is not None]
        # Names of log files do not show it on version 6; an archived write is older than the timeline.
        archived = seen.timeline.start if any(one.logs for one in slices) else ""
        return max("", self._times[1].get(partition, archived), *(one.base_instant for one in slices))


def _last_writes(seen: Snapshot) -> Mapping[str, str]:
    """The last write of each partition that the active timeline has; compactions write nothing new."""
    found, timeline = dict[str, str](), seen.timeline
    writes = [i for i in timeline.completed if not timeline.is_compaction(i)]
    for write_, metadata in zip(writes, prefetched(writes, seen.commit_metadata), strict=True):
        for partition in metadata.partition_to_write_stats:
            found[partition] = max(found.get(partition, ""), timeline.completed_at(write_))
    return found


def _created(seen: Snapshot, partition: str) -> str:
    try:
        text = seen.storage.read(join(partition, PARTITION_METADATA)).decode(errors="replace")
    except MissingFileError:
        return ""
    named = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in named if name.strip() == "commitTime"), "")
