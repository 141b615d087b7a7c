"""Hudi's own compactor, as its single writers run it: takes no lock, asks nobody, and rolls back what is inflight.

C inflight   R.rollback.requested (what markers name), inflight; the files, C.inflight and the markers go; R done
then         C.inflight; for each operation a marker and the base file, named at once, of the plan's files only
at last      C.inflight must be there; the completed file; the markers go"""

from __future__ import annotations

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.compaction_plan import CompactionOperation
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.instant import Instant, State, next_time
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_metadata, encode_rollback_plan
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.in_progress import PendingRollback, pending_rollbacks
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Marker, MarkerKind, delete_markers, list_markers, make_marker
from phantombase.timeline.view.view import DataFile, FileSlice
from tests.world.simulation.rows import base_bytes, commit_bytes, slice_rows, stat, visibility_of


def compact_as_hudi(storage: Storage, token: str) -> str | None:
    """Executes the first pending compaction; its instant. ConflictError, MissingFileError: Hudi would have failed.
    `token`: of the base files it writes, its own each time."""
    table = Table.on(storage)
    pending = table.load_timeline().pending_compactions
    if not pending:
        return None
    requested = pending[0].at(State.REQUESTED)
    inflight = requested.at(State.INFLIGHT)
    instant = requested.requested_time
    rollback = _rollback_of(table, instant)
    if pending[0].state is State.INFLIGHT or rollback is not None:
        _roll_back(table, inflight, rollback)
    if not storage.put_if_absent(table.instant_path(inflight), b""):
        raise ConflictError("Hudi: somebody else has begun it", instant=instant)
    stats = []
    for operation in table.compaction_plan(instant).operations:
        name = BaseFileName(file_id=operation.file_id, token=token, instant=instant)
        partition = operation.partition_path
        make_marker(storage, instant, Marker(partition=partition, file=str(name), kind=MarkerKind.CREATE))
        data = base_bytes(_planned_rows(table, operation))
        if not storage.put_if_absent(f"{partition}/{name}", data):
            raise ConflictError("Hudi: the file is there", instant=instant)
        stats.append(stat(operation.file_id, f"{partition}/{name}", len(data)))
    if storage.find(table.instant_path(inflight)) is None:
        raise ConflictError("Hudi: the inflight file is gone", instant=instant)
    completion = _next_time(table) if table.layout.has_completion_times else None
    done = Instant(requested_time=instant, action="commit", state=State.COMPLETED, completion_time=completion)
    if not storage.put_if_absent(table.instant_path(done), commit_bytes(table, stats, compacted=True)):
        raise ConflictError("Hudi: it is completed already", instant=instant)
    delete_markers(storage, instant)
    return instant


def _planned_rows(table: Table, operation: CompactionOperation) -> list[str]:
    names = [LogFileName.parse(text) for text in operation.delta_file_paths]
    assert operation.data_file_path is not None
    slice_ = FileSlice(
        partition=operation.partition_path,
        file_id=operation.file_id,
        base_instant=str(operation.base_instant_time),
        base=DataFile(partition=operation.partition_path, name=BaseFileName.parse(operation.data_file_path), size=0),
        logs=tuple(DataFile(partition=operation.partition_path, name=name, size=0) for name in names),
    )
    base, logs, _ = slice_rows(table.storage, slice_, visibility_of(table, table.load_timeline()))
    return [*base, *logs]


def _rollback_of(table: Table, instant: str) -> PendingRollback | None:
    readable = (r for r in pending_rollbacks(table) if isinstance(r, PendingRollback))
    return next((r for r in readable if r.target == instant), None)


def _roll_back(table: Table, inflight: Instant, rollback: PendingRollback | None) -> None:
    """By markers, Hudi's default; one that another executor left pending is finished."""
    storage, instant = table.storage, inflight.requested_time
    if rollback is None:
        doomed = tuple((m.partition, m.file) for m in list_markers(storage, instant))
        plan = RollbackPlan(target=instant, action=inflight.action, doomed=doomed, revoked=())
        rollback = PendingRollback(instant=_next_time(table), plan=plan)
        storage.put_if_absent(
            table.instant_path(rollback.at(State.REQUESTED)), encode_rollback_plan(plan, storage.base_path)
        )
    plan = rollback.plan
    storage.put_if_absent(table.instant_path(rollback.at(State.INFLIGHT)), b"")
    for partition, name in plan.doomed:
        storage.delete(f"{partition}/{name}")
    storage.delete(table.instant_path(plan.instant.at(State.INFLIGHT)))
    delete_markers(storage, plan.target)
    completion = _next_time(table) if table.layout.has_completion_times else None
    done = Instant(
        requested_time=rollback.instant, action="rollback", state=State.COMPLETED, completion_time=completion
    )
    data = encode_rollback_metadata(plan, rollback.instant, 0, {}, storage.base_path)
    storage.put_if_absent(table.instant_path(done), data)


def _next_time(table: Table) -> str:
    return next_time(table.now(), table.load_timeline().used_times())
