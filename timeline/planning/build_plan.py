"""Builds plans as Hudi writes them from the planner's choice (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..format.compaction_plan import CompactionOperation, CompactionPlan
from ..lazy_sequence import OnDemand
from .candidate import HAS_LOGS
from .log_compaction import LOG_STRATEGY, log_operation
from .notes import NOTES, encode_notes
from .operations.operation import operation
from .operations.packed import PackedPlan
from .partition_walk import Waiting
from .planner import Plan, Planned
from .universal import MergeKind


def drafts(planned: Planned, waiting: Sequence[Waiting], left_out: Sequence[str]) -> list[CompactionPlan]:
    """The plan of each request, in the order of their instants.

    The last plan records where the next planning must look. Hudi 1.2 looks for logs only in partitions written since
    the last plan, and in those that the plan left out, on version 6 too (0.15 ignores the field).
    """
    found = [kind_of for plan in planned.plans for kind_of in _by_kind(plan)]
    last = len(found) - 1
    result: list[CompactionPlan] = []
    for number, (kind, operations, reasons) in enumerate(found):
        notes = encode_notes(planned.notes, reasons, waiting if number == last else None)
        if kind is MergeKind.MINOR:
            plan = CompactionPlan(
                operations=operations,
                extra_metadata={NOTES: notes},
                strategy=LOG_STRATEGY,
                preserve_hoodie_metadata=True,
                missing_schedule_partitions=(),
                action="logcompaction",
            )
        else:
            plan = CompactionPlan(
                operations=operations,
                extra_metadata={NOTES: notes},
                missing_schedule_partitions=tuple(left_out),
            )
        result.append(plan)
    return result


def _by_kind(plan: Plan) -> Iterator[tuple[MergeKind, Sequence[CompactionOperation], dict[str, str]]]:
    """Each kind in a plan, its operations, and the reasons why file groups are in it."""
    if isinstance(plan, PackedPlan):
        yield MergeKind.MAJOR, plan.operations, {}
        return
    for kind, make in (
        (MergeKind.MINOR, lambda c: log_operation(c.slice, c.pieces)),
        (MergeKind.MAJOR, lambda c: operation(c.slice)),
    ):
        if chosen := [c for c in plan if c.kind is kind]:
            reasons = {"/".join(c.slice.key): c.why for c in chosen if c.why != HAS_LOGS}
            yield kind, OnDemand(chosen, make), reasons
