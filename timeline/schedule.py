"""Requests a compaction: one section under the table lock, nothing in it is split.

Inside: read hoodie.properties again, ask the trigger, load timeline and view, check that nothing pends that could write
under the plan, choose an instant greater than every time on storage, and make the plan visible by put-if-absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from timeline.active import Timeline
from timeline.errors import ConflictError, UnsupportedError
from timeline.gate import clock_ms, put_wanted, remove_wanted
from timeline.instant import Instant, State
from timeline.layout import HOODIE
from timeline.lock import TableLock
from timeline.plan import CompactionPlan, decode_plan, encode_plan, pending_clustering_file_groups
from timeline.planner import plan_compaction
from timeline.storage import Storage
from timeline.table import Table
from timeline.table_config import save_table_config
from timeline.triggers import PLAN_NOW, ScheduleOptions, TriggerStrategy, triggered
from timeline.view import GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A requested compaction, or None for `instant` with the reason in `why`."""

    instant: str | None
    plan: CompactionPlan | None
    why: str


def schedule_compaction(
    table: Table,
    lock: TableLock,
    reserved: Callable[[Storage], Iterable[str]] = lambda _: (),
    options: ScheduleOptions = PLAN_NOW,
) -> Scheduled:
    """Plans the file groups with log files, if the trigger has fired, and makes the plan visible.

    `reserved`: times that are taken though no timeline file shows them (records of attempts), asked under the
    lock. Where only a pending write is in the way of a due plan, writers are asked to wait (see `gate`).

    UnsupportedError: the metadata table is on. LockError, UnknownStateError: nothing was changed.
    """
    with lock.hold("schedule a compaction"):
        table = table.reload()
        refuse_metadata_table(table)
        trigger = triggered(table.load_timeline(), table.now(), options)
        if not trigger.fired:
            return Scheduled(instant=None, plan=None, why=f"not due: {trigger.why}")
        view = table.load_view()
        planned = plan_compaction(view, set(busy_file_groups(table, view.timeline)), options.target_io_bytes)
        if planned.waits_for is None:
            remove_wanted(table.storage)
        elif options.strategy is not TriggerStrategy.ALWAYS:
            put_wanted(table.storage, options.gate_s, clock_ms())
        if planned.plan is None:
            return Scheduled(instant=None, plan=None, why=planned.why)
        time = table.next_time(view.timeline, reserved(table.storage))
        instant = Instant(requested_time=time, action="compaction", state=State.REQUESTED)
        path = table.instant_path(instant)
        if not table.storage.put_if_absent(path, encode_plan(planned.plan)):
            raise ConflictError(
                "somebody else requested a compaction at the same instant",
                path=path,
                instant=time,
                todo="All writers and schedulers of a table must share one lock. Run again.",
            )
        return Scheduled(instant=time, plan=planned.plan, why=f"{planned.why}; {trigger.why}")


def busy_file_groups(table: Table, timeline: Timeline) -> Iterable[GroupKey]:
    """File groups in pending log compactions and clusterings: not planned before those are done."""
    yield from clustered_file_groups(table, timeline)
    for instant in timeline.pending("logcompaction"):
        requested = _requested_path(table, instant)
        plan = decode_plan(table.storage.read(requested), requested)
        yield from ((o.partition_path, o.file_id) for o in plan.operations)


def clustered_file_groups(table: Table, timeline: Timeline) -> Iterable[GroupKey]:
    """File groups in pending clusterings: nobody may write to them."""
    for instant in timeline.instants:
        requested = _requested_path(table, instant)
        if instant.family == "replacecommit" and not instant.completed and table.storage.find(requested) is not None:
            yield from pending_clustering_file_groups(table.storage.read(requested), requested)


def _requested_path(table: Table, instant: Instant) -> str:
    return f"{table.config.timeline_folder}/{instant.requested_time}.{instant.action}.requested"


def refuse_metadata_table(table: Table) -> None:
    """UnsupportedError while the metadata table is on: a commit that does not update it is invisible for ever."""
    if table.config.metadata_partitions:
        raise UnsupportedError(
            "the table's metadata table is on, and phantombase does not maintain it yet",
            path=table.storage.base_path,
            found="hoodie.table.metadata.partitions=" + ",".join(table.config.metadata_partitions),
            todo="Turn it off with --drop-metadata-table (the next Hudi writer with it on rebuilds it), "
            "or set hoodie.metadata.enable=false in all writers.",
        )


def drop_metadata_table(table: Table, lock: TableLock) -> Table:
    """Turns the metadata table off as a Hudi writer without it does; nothing to do where it is off.

    The property goes first: it is the switch readers obey. A crash in between leaves a folder nobody reads.
    """
    with lock.hold("drop the metadata table"):
        table = table.reload()
        if table.config.metadata_partitions:
            save_table_config(table.storage, table.config.without_metadata_table())
            table.storage.delete_folder(f"{HOODIE}/metadata")
        return table.reload()
