"""The operation of a plan that makes a new base file of a file slice (pure)."""

from __future__ import annotations

from ...format.compaction_plan import CompactionOperation, operation_metrics
from ...view.view import FileSlice
from .io_cost import read_bytes, write_bytes


def operation(slice_: FileSlice) -> CompactionOperation:
    """One operation, which makes a new base file."""
    base = slice_.base
    return CompactionOperation(
        base_instant_time=base.name.instant if base else slice_.logs[0].name.instant,
        delta_file_paths=tuple(str(log.name) for log in slice_.logs),
        data_file_path=str(base.name) if base else None,
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics=operation_metrics(len(slice_.logs), slice_.log_bytes, read_bytes(slice_), write_bytes(slice_)),
    )
