"""What to compact: a pure function of the view and of what is already under way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from timeline.instant import Instant
from timeline.plan import (
    TOTAL_IO_MB,
    TOTAL_IO_READ_MB,
    TOTAL_IO_WRITE_MB,
    TOTAL_LOG_FILES,
    TOTAL_LOG_FILES_SIZE,
    CompactionOperation,
    CompactionPlan,
)
from timeline.view import FileGroup, FileSlice, GroupKey, TableView, is_replaced

_MB = 1 << 20
_NEW_FILE_BYTES = 120 * _MB
"""Hudi's target size of a base file (`hoodie.parquet.max.file.size`), its guess for a slice without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, or None with the reason in `why`."""

    plan: CompactionPlan | None
    why: str


def pending_writer(view: TableView) -> Instant | None:
    """The earliest pending delta commit that could still add logs under a plan made now; None when there is none.

    On version 6 a delta commit names its log files by the base instant it saw when it began: a plan made while
    it runs would not hold them, and nobody would ever merge them. From version 8 on a log belongs to the slice
    its completion time says, so a pending delta commit is no obstacle.
    """
    if view.timeline.layout.has_completion_times:
        return None
    return min(view.timeline.pending_delta_commits, key=lambda i: i.requested_time, default=None)


def plan_compaction(view: TableView, busy: Collection[GroupKey]) -> Planned:
    """A plan of every file group that has log files and is not `busy` (in a pending table service).

    Largest log first, as Hudi's default strategy orders them.
    """
    writer = pending_writer(view)
    if writer is not None:
        return Planned(
            plan=None,
            why=f"{writer.action} {writer.requested_time} is pending: version 6 is planned only while no write pends",
        )
    slices = [s for g in view.groups if (s := _candidate(g, view, busy)) is not None]
    if not slices:
        return Planned(plan=None, why="no file group has log files that are not already in a plan")
    slices.sort(key=lambda s: -s.log_bytes)
    plan = CompactionPlan(
        operations=tuple(_operation(s) for s in slices),
        extra_metadata={},
        missing_schedule_partitions=() if view.timeline.layout.has_completion_times else None,
    )
    return Planned(plan=plan, why=f"{len(slices)} file groups with log files")


def _candidate(group: FileGroup, view: TableView, busy: Collection[GroupKey]) -> FileSlice | None:
    if group.key in busy or group.pending_compaction is not None or is_replaced(group, view.facts):
        return None
    last = group.slices[-1] if group.slices else None
    return last if last is not None and last.logs else None


def _operation(slice_: FileSlice) -> CompactionOperation:
    """One operation, with the metrics Hudi 0.15 and 1.2 write (FileSliceMetricUtils): whole megabytes, floored."""
    base = slice_.base
    read_mb = (slice_.base_bytes + slice_.log_bytes) // _MB
    write_mb = (slice_.base_bytes or _NEW_FILE_BYTES) // _MB
    return CompactionOperation(
        base_instant_time=base.name.instant if base else slice_.logs[0].name.instant,
        delta_file_paths=tuple(str(log.name) for log in slice_.logs),
        data_file_path=str(base.name) if base else None,
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics={
            TOTAL_LOG_FILES: float(len(slice_.logs)),
            TOTAL_LOG_FILES_SIZE: float(slice_.log_bytes),
            TOTAL_IO_READ_MB: float(read_mb),
            TOTAL_IO_WRITE_MB: float(write_mb),
            TOTAL_IO_MB: float(read_mb + write_mb),
        },
    )
