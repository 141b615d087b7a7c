"""The file groups that a write replaces: all that its partitions have when it begins.

What other processes change in these partitions until the write completes is a conflict (see `conflict`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey, is_replaced

from ..engine.engine import RowCounts
from ..files.task_context import without_base
from ..options import Operation, Write
from .transaction import Transaction


def replaced_groups(begun: Transaction, write: Write, counts: RowCounts) -> dict[str, tuple[str, ...]]:
    """File ids by partition; a partition that has none yet is named as well, as in Hudi. `counts`: of the rows.

    ConflictError: see `refuse_planned`. UnsupportedError: see `without_base`.
    """
    if not write.operation.replaces:
        return {}
    partitions = sorted(_partitions(begun, write, {partition for partition, _ in counts}))
    views, facts = begun.table.views, begun.facts
    found = prefetched(partitions, lambda partition: views.partition_groups(partition, begun.timeline, facts))
    living = [[g for g in groups if g.slices and not is_replaced(g, facts)] for groups in found]
    replaced = [group for groups in living for group in groups]
    refuse_planned(begun.table, begun.instant, write, [group.key for group in replaced])
    if begun.table.config.captures_changes:
        for group in replaced:
            if group.slices[-1].base is None:
                raise without_base(group.key, begun.instant)
    return {p: tuple(g.file_id for g in groups) for p, groups in zip(partitions, living, strict=True)}


def refuse_planned(table: Table, instant: str, write: Write, replaced: Iterable[GroupKey]) -> None:
    """ConflictError: a delete_partition replaces a file group of a pending compaction, which Hudi refuses too.

    Once the cleaner has removed the group, Hudi could never execute the plan. An overwrite goes on, as in Hudi: readers
    and compactors of phantombase leave out the replaced file group. With change data capture it does not: Hudi's CDC
    query looks for the replaced rows in a base file of the plan, and fails.
    """
    if write.operation is Operation.DELETE_PARTITION or table.config.captures_changes:
        for key in sorted(table.facts.pending_plans(table.load_timeline()).keys() & set(replaced)):
            raise ConflictError(
                "a pending compaction holds a file group of a partition that is to be deleted",
                path="/".join(key),
                instant=instant,
                todo="Nothing of this write is visible. Execute the compaction, or unschedule it; then write again. "
                "Where both are refused for a lost file, write its partition by insert_overwrite first.",
            )


def _partitions(begun: Transaction, write: Write, of_rows: set[str]) -> set[str]:
    """Also partitions whose folder is gone, if completed writes name files of them."""
    if write.operation is Operation.INSERT_OVERWRITE_TABLE:
        return of_rows.union(begun.table.partitions(), begun.facts.partitions)
    if write.operation is Operation.INSERT_OVERWRITE or write.partitions is None:
        return of_rows
    return matching(write.partitions, {*begun.table.partitions(), *begun.facts.partitions})


def matching(patterns: Iterable[str], partitions: Iterable[str]) -> set[str]:
    """The partitions that one of the patterns names; `*` stands for any text, `/` too, as in Hudi."""
    wanted = re.compile("|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.DOTALL)
    return {partition for partition in partitions if wanted.fullmatch(partition)}
