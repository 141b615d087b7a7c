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
from timeline.log_pieces import LogPiece, LogRun, log_runs
from timeline.plan import (
    TOTAL_IO_MB,
    TOTAL_IO_READ_MB,
    TOTAL_IO_WRITE_MB,
    TOTAL_LOG_FILES,
    TOTAL_LOG_FILES_SIZE,
    CompactionOperation,
    CompactionPlan,
    CompactionStrategy,
    encode_plan,
)
from timeline.planner import pending_writer
from timeline.read import slice_rules
from timeline.schedule import busy_file_groups, refuse_metadata_table
from timeline.slice_log import check_slice, slice_blocks
from timeline.slice_rules import SliceRules
from timeline.storage import Storage
from timeline.table import Table
from timeline.view import FileSlice, GroupKey, TableView, is_replaced

_MB = 1 << 20
_STRATEGY = CompactionStrategy(
    compactor_class_name="org.apache.hudi.table.action.compact.LogCompactionExecutionHelper", strategy_params={}
)
"""What Hudi 0.15.0 and 1.2.0 write."""


def runs_of(storage: Storage, slice_: FileSlice, rules: SliceRules, pending: Iterable[Instant]) -> tuple[LogRun, ...]:
    """See `log_runs`; reads the headers of the slice's log blocks. `pending`: delta commits of writers."""
    times = [i.requested_time for i in pending]
    return log_runs(slice_, slice_blocks(storage, slice_), rules.visibility, times)


def log_operation(slice_: FileSlice, pieces: Sequence[LogPiece]) -> CompactionOperation:
    """The operation that merges neighbouring pieces of a slice; metrics in whole megabytes, as Hudi counts."""
    files = sorted({f for p in pieces for f in (*p.files, *p.replaced)}, key=lambda f: f.name.sort_key)
    size, read = sum(f.size for f in files), sum(p.log_bytes for p in pieces)
    return CompactionOperation(
        base_instant_time=slice_.base_instant,
        delta_file_paths=tuple(str(f.name) for f in files),
        data_file_path=str(slice_.base.name) if slice_.base else None,
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics={
            TOTAL_LOG_FILES: float(len(files)),
            TOTAL_LOG_FILES_SIZE: float(size),
            TOTAL_IO_READ_MB: float(read // _MB),
            TOTAL_IO_WRITE_MB: float(read // _MB),
            TOTAL_IO_MB: float(2 * (read // _MB)),
        },
    )


def planned_pieces(runs: Iterable[LogRun], operation: CompactionOperation) -> tuple[tuple[LogPiece, ...], bool]:
    """The pieces an operation names, and whether they are the bottom of the slice's logs (pure).

    ConflictError: they are no neighbours of one run (any more), or one of them is named in part. Planned files without
    a block that counts are passed over: Hudi plans those too.
    """
    names = set(operation.delta_file_paths)
    for run in runs:
        inside = [n for n, piece in enumerate(run.pieces) if names & _names(piece)]
        if inside:
            chosen = run.pieces[inside[0] : inside[-1] + 1]
            others = [p for r in runs if r is not run for p in r.pieces if names & _names(p)]
            if not others and all(_names(p) <= names for p in chosen):
                return chosen, run.bottom and inside[0] == 0
            break
    raise ConflictError(
        "the planned log files cannot be merged with each other",
        path=f"{operation.partition_path}/{operation.file_id}",
        expected="neighbours, all files of each instant, no pending or rolled back write between them",
        found=", ".join(sorted(names)),
        todo="Plan again; if this plan is pending, unschedule it (compactor-daemon unschedule).",
    )


def _names(piece: LogPiece) -> set[str]:
    return {str(f.name) for f in (*piece.files, *piece.replaced)}


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
        _check(table, view, operations, {*busy_file_groups(table, view.timeline), *view.facts.pending_plans})
        time = table.next_time(view.timeline, reserved(table.storage))
        path = table.instant_path(Instant(requested_time=time, action="logcompaction", state=State.REQUESTED))
        plan = CompactionPlan(
            operations=tuple(operations),
            extra_metadata={},
            strategy=_STRATEGY,
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
    writer = pending_writer(view)
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
