"""What to compact: a pure function of the view and of what is already under way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    """A plan, or None with the reason in `why`.

    `waits_for`: the pending write without which there would be a plan.
    """

    plan: CompactionPlan | None
    why: str
    waits_for: Instant | None = None


def pending_writer(view: TableView) -> Instant | None:
    """The earliest pending delta commit that could still add logs under a plan made now; None when there is none.

    On version 6 a delta commit names its log files by the base instant it saw when it began: a plan made while
    it runs would not hold them, and nobody would ever merge them. From version 8 on a log belongs to the slice
    its completion time says, so a pending delta commit is no obstacle.
    """
    if view.timeline.layout.has_completion_times:
        return None
    return min(view.timeline.pending_delta_commits, key=lambda i: i.requested_time, default=None)


def plan_compaction(view: TableView, busy: Collection[GroupKey], target_io_bytes: int | None = None) -> Planned:
    """A plan of the file groups that have log files and are not `busy` (in a pending table service).

    Largest log first, as Hudi's default strategy orders them, until what they read and write reaches
    `target_io_bytes`; None: all of them.
    """
    slices = [s for g in view.groups if (s := _candidate(g, view, busy)) is not None]
    if not slices:
        return Planned(plan=None, why="no file group has log files that are not already in a plan")
    writer = pending_writer(view)
    if writer is not None:
        return Planned(
            plan=None,
            why=f"{writer.action} {writer.requested_time} is pending: version 6 is planned only while no write pends",
            waits_for=writer,
        )
    slices.sort(key=lambda s: -s.log_bytes)
    chosen = slices[: _within(slices, target_io_bytes)]
    # Hudi 1.2 looks for logs only in partitions written since the last compaction, and in those its plan left out.
    left_out = sorted({s.partition for s in slices[len(chosen) :]})
    plan = CompactionPlan(
        operations=tuple(_operation(s) for s in chosen),
        extra_metadata={},
        missing_schedule_partitions=tuple(left_out) if view.timeline.layout.has_completion_times else None,
    )
    others = f", {len(slices) - len(chosen)} more are beyond the target of a plan" if left_out else ""
    return Planned(plan=plan, why=f"{len(chosen)} file groups with log files{others}")


def _within(slices: Sequence[FileSlice], target_io_bytes: int | None) -> int:
    """How many of them a plan takes: the one that reaches the target is the last."""
    if target_io_bytes is None:
        return len(slices)
    io_bytes = accumulate(_read_bytes(s) + _write_bytes(s) for s in slices)
    return next((count for count, total in enumerate(io_bytes, 1) if total >= target_io_bytes), len(slices))


def _read_bytes(slice_: FileSlice) -> int:
    return slice_.base_bytes + slice_.log_bytes


def _write_bytes(slice_: FileSlice) -> int:
    return slice_.base_bytes or _NEW_FILE_BYTES


def _candidate(group: FileGroup, view: TableView, busy: Collection[GroupKey]) -> FileSlice | None:
    if group.key in busy or group.pending_compaction is not None or is_replaced(group, view.facts):
        return None
    last = group.slices[-1] if group.slices else None
    return last if last is not None and last.logs else None


def _operation(slice_: FileSlice) -> CompactionOperation:
    """One operation, with the metrics Hudi 0.15 and 1.2 write (FileSliceMetricUtils): whole megabytes, floored."""
    base = slice_.base
    read_mb, write_mb = _read_bytes(slice_) // _MB, _write_bytes(slice_) // _MB
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
