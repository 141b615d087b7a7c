"""Plans every file group that has log files: as `planner.plan_compaction` without limits, for very many (pure).

The rules of the planner are asked about file groups that are not plain only (`view.plain_slices`); of plain ones, which
are nearly all, nothing but the bytes of the operation is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from .limits import Cost, shared
from .operations.packed import PackedSlices
from .options import ScheduleOptions
from .planner import Check, PartitionGroups, Planned, Planner, Situation, SliceMeasure
from .universal import Picking


def takes_everything(options: ScheduleOptions, *, all_due: bool) -> bool:
    """Whether every file group with log files is planned, whatever is in the files."""
    chosen = options.limited or options.strategies or options.exclude or options.picking is not Picking.ALL
    return all_due and not chosen


def plan_everything(
    looks: Iterable[PartitionGroups],
    situation: Situation,
    options: ScheduleOptions,
    measure: SliceMeasure,
    check: Check,
) -> Planned:
    """As `plan_compaction`, for options that `takes_everything`; `looks` may have plain slices."""
    planner, found = Planner(situation, options, measure, check), PackedSlices()
    for look in looks:
        others = [candidate.slice for candidate in planner.candidates(look)]
        partition = look.waiting.folder
        found.add(partition, planner.take(look.plain, partition), others)
    order = found.largest_logs_first()
    plans = shared(found.io_bytes(order), order, options.max_plans)
    read, written = found.read_bytes, found.write_bytes
    total = Cost(slices=len(found), source_bytes=read, io_bytes=read + written)
    return planner.outcome(tuple(map(found.plan, plans)), total, found.files - len(found))
