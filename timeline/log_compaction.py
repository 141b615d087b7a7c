"""Log compactions, the minor ones: some neighbouring log files of a file slice become one. Plans, and their request.

    <t>.logcompaction.requested     the plan, as of a compaction, with Hudi's name of the execution class
    .<file id>_<t>.log.1_<token>    version 6: .<file id>_<base instant>.log.<next version>_<token>
    <t>_<completion>.deltacommit

The new file's blocks name the instants they stand for, and readers leave those out; a cleaner takes the old files with
their slice. So nothing is ever removed by a log compaction, and what comes behind it stays on top.

A plan names the files of its pieces and those these stand for: whoever executes it, Hudi too, sees the same pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from timeline.errors import BarrierError, ConflictError, UnsupportedError, UsageError
from timeline.instant import Instant, State
from timeline.lock import TableLock
from timeline.log_plan import LOG_STRATEGY, planned_pieces
from timeline.plan import CompactionOperation, CompactionPlan, encode_plan
from timeline.planner import pending_writer
from timeline.read import slice_rules
from timeline.schedule import busy_file_groups, refuse_metadata_table
from timeline.slice_log import check_slice, runs_of
from timeline.storage import Storage
from timeline.table import Table
from timeline.view import GroupKey, TableView, is_replaced


def request_log_compaction(
    table: Table,
    lock: TableLock,
    reserved: Callable[[Storage], Iterable[str]],
    operations: Sequence[CompactionOperation],
    *,
    readers_1x_only: bool = False,
) -> str:
    """Makes a plan of log compactions visible, all in one section under the table lock; its instant.

    `operations`: see `log_operation`; they are checked again under the lock. `reserved`: as for `schedule_compaction`.
    `readers_1x_only`: nobody reads the table with Hudi 0.15, whose default scan takes a merged log file for the newest
    write: without it version 6 is refused.

    Writers that are pending: from version 8 on one that began before the newest planned file may complete between two
    planned ones (`log_pieces`), so such plans are refused; those that begin later come behind. On version 6 a writer
    chooses its place when it lists the files, so nothing is planned while one pends, as for compactions.

    UsageError: no operation, a file group twice, less than two pieces. UnsupportedError: version 6, the metadata table,
    blocks that cannot be merged. BarrierError: version 6 and a write pends. ConflictError: a file group is in another
    plan, has a new slice, or its files are no neighbours. Nothing was changed then.
    """
    with lock.hold("request a log compaction"):
        table = table.reload()
        refuse_metadata_table(table)
        by_name = not table.layout.has_completion_times
        if by_name and not readers_1x_only:
            raise UnsupportedError(
                "log compactions of version 6 tables are not for readers with Hudi 0.15",
                path=table.storage.base_path,
                todo="Set readers_1x_only if all readers are of Hudi 1.x, or compact the file groups.",
            )
        keys = [(o.partition_path, o.file_id) for o in operations]
        if not keys or len(set(keys)) < len(keys):
            raise UsageError("a log compaction needs operations, one a file group", found=f"{len(keys)} operations")
        view = table.load_view(exactly={part for part, _ in keys})
        _refuse_pending_writer(table, view)
        _check(table, view, operations, {*dict(busy_file_groups(table, view.timeline)), *view.facts.pending_plans})
        time = table.next_time(view.timeline, reserved(table.storage))
        path = table.instant_path(Instant(requested_time=time, action="logcompaction", state=State.REQUESTED))
        plan = CompactionPlan(
            operations=tuple(operations),
            extra_metadata={},
            strategy=LOG_STRATEGY,
            preserve_hoodie_metadata=True,
            missing_schedule_partitions=None if by_name else (),
        )
        if not table.storage.put_if_absent(path, encode_plan(plan)):
            raise ConflictError(
                "somebody else requested a log compaction at the same instant",
                path=path,
                instant=time,
                todo="All writers and schedulers of a table must share one lock. Run again.",
            )
        return time


def _refuse_pending_writer(table: Table, view: TableView) -> None:
    writer = pending_writer(view.timeline)
    if writer is not None:
        raise BarrierError(
            "version 6 is planned only while no write pends",
            path=table.storage.base_path,
            found=f"{writer.action} {writer.requested_time}",
            todo="Let it complete, or be rolled back, then plan again.",
        )


def _check(
    table: Table, view: TableView, operations: Sequence[CompactionOperation], busy: Collection[GroupKey]
) -> None:
    rules = slice_rules(table, view.timeline, table.schema(table.schema_text(view.timeline)))
    groups = view.by_key()
    for operation in operations:
        group = groups.get((operation.partition_path, operation.file_id))
        slice_ = group.slices[-1] if group is not None and group.slices else None
        if group is None or slice_ is None or group.key in busy or is_replaced(group, view.facts):
            raise _taken(operation, "no slice, replaced, or in another plan")
        if operation.base_instant_time != slice_.base_instant:
            raise _taken(operation, f"its newest slice is {slice_.base_instant}")
        pending = view.timeline.pending_delta_commits
        pieces, _ = planned_pieces(runs_of(table.storage, slice_, rules, pending), operation)
        if len(pieces) < 2:
            raise UsageError("a log compaction of less than two pieces", path=f"{group.partition}/{group.file_id}")
        check_slice(table.storage, slice_, rules)


def _taken(operation: CompactionOperation, found: str) -> ConflictError:
    return ConflictError(
        "this file group is not there to be planned (any more)",
        path=f"{operation.partition_path}/{operation.file_id}",
        expected=f"slice {operation.base_instant_time}, in no pending plan",
        found=found,
        todo="Plan again.",
    )
