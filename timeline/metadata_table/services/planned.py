"""What a compaction of the metadata table merges: all its partitions together (pure)."""

from __future__ import annotations

from dataclasses import replace

from ...format.compaction_plan import CompactionOperation, CompactionPlan, operation_metrics
from ...view.view import FileSlice, TableView, latest_slice


def plan_all(view: TableView, instant: str) -> CompactionPlan | None:
    """The plan of a compaction at `instant`; None: no file group has log files for it."""
    found = [_below(one, view, instant) for g in view.groups if (one := latest_slice(g)) is not None]
    operations = tuple(_operation(slice_) for slice_ in found if slice_.logs and slice_.base_instant < instant)
    if not operations:
        return None
    missing = () if view.timeline.layout.has_completion_times else None
    return CompactionPlan(operations=operations, missing_schedule_partitions=missing)


def _below(slice_: FileSlice, view: TableView, instant: str) -> FileSlice:
    """The slice without log files that belong above `instant`: those of writes that completed after it."""
    if not view.timeline.layout.has_completion_times:
        return slice_
    times = {log.path: view.timeline.completion_time(log.name.instant) for log in slice_.logs}
    logs = tuple(log for log in slice_.logs if (time := times[log.path]) is not None and time < instant)
    return replace(slice_, logs=logs)


def _operation(slice_: FileSlice) -> CompactionOperation:
    return CompactionOperation(
        base_instant_time=slice_.base_instant,
        delta_file_paths=tuple(str(log.name) for log in slice_.logs),
        data_file_path=None if slice_.base is None else str(slice_.base.name),
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics=operation_metrics(
            len(slice_.logs), slice_.log_bytes, slice_.base_bytes + slice_.log_bytes, slice_.base_bytes
        ),
    )
