"""Builds plans as Hudi writes them from the planner's choice (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ..format.compaction_plan import CompactionOperation, CompactionPlan, operation_metrics
from ..lazy_sequence import OnDemand
from ..view.view import FileSlice
from .candidate import HAS_LOGS
from .io_cost import read_bytes, write_bytes
from .log_compaction import LOG_STRATEGY, log_operation
from .notes import NOTES, encode_notes
from .partition_walk import Waiting
from .planner import Planned
from .universal import MergeKind


def drafts(planned: Planned, waiting: Sequence[Waiting], left_out: Sequence[str]) -> list[CompactionPlan]:
    """The plan of each request, in the order of their instants.

    The last plan records where the next planning must look. Hudi 1.2 looks for logs only in partitions written since
    the last plan, and in those that the plan left out, on version 6 too (0.15 ignores the field).
    """
    split = [
        (k, [c for c in plan if c.kind is k]) for plan in planned.plans for k in (MergeKind.MINOR, MergeKind.MAJOR)
    ]
    found = [(kind, chosen) for kind, chosen in split if chosen]
    last = len(found) - 1
    result: list[CompactionPlan] = []
    for number, (kind, chosen) in enumerate(found):
        reasons = {"/".join(c.slice.key): c.why for c in chosen if c.why != HAS_LOGS}
        notes = encode_notes(planned.notes, reasons, waiting if number == last else None)
        if kind is MergeKind.MINOR:
            plan = CompactionPlan(
                operations=OnDemand(chosen, lambda c: log_operation(c.slice, c.pieces)),
                extra_metadata={NOTES: notes},
                strategy=LOG_STRATEGY,
                preserve_hoodie_metadata=True,
                missing_schedule_partitions=(),
                action="logcompaction",
            )
        else:
            plan = CompactionPlan(
                operations=OnDemand(chosen, lambda c: operation(c.slice)),
                extra_metadata={NOTES: notes},
                missing_schedule_partitions=tuple(left_out),
            )
        result.append(plan)
    return result


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
