"""Plans that cannot be read, and whether one may be taken back unread.

Hudi writes a plan in place on local storage; killed while it writes, it leaves an empty file. No process can have
worked under an empty compaction plan, because readers and writers fail on it. And no reader or writer depends on a log
compaction plan, whatever its content. So such a plan may be removed, if nothing of its instant exists. But the file
may also have been emptied later, by a damaged disk: a write that came after the plan may depend on it.
"""

from __future__ import annotations

from phantombase.timeline.errors import BarrierError, ConflictError, MalformedError
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.locks.heartbeat import is_live, read_heartbeat
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table

from ..decisions.hudi_executors import inflight_path
from ..options import AttemptOptions
from ..records.fate import decisions
from .untouched import refuse_touched

_RESTORE = (
    "Restore the file from a copy, or restore the table to an instant before it: `compactor-daemon restore TABLE --to "
    "INSTANT`."
)


def is_unreadable(table: Table, instant: str) -> bool:
    """Whether a pending plan is unreadable and may be taken back unread. MalformedError: unreadable, and must stay."""
    try:
        table.compaction_plan(instant)
    except MalformedError:
        requested = table.files.requested_merge(instant)
        if requested.action == "logcompaction" or not table.storage.read(table.instant_path(requested)):
            return True
        raise
    return False


def refuse_begun(table: Table, instant: str, options: AttemptOptions) -> CompactionPlan:
    """A plan without operations, as a substitute for the unreadable one; the caller holds the table lock.

    ConflictError, BarrierError: something of the instant exists, or may still appear, or a write may depend on the
    plan.
    """
    storage, requested = table.storage, table.files.requested_merge(instant)
    path = table.instant_path(requested)
    entry, now_ms = storage.find(path), storage_ms(storage)
    if entry is None or now_ms - entry.modified_ms < options.heartbeat_expiry_s * 1000:
        raise ConflictError(
            "a process may still be writing this plan, which cannot be read",
            path=path,
            instant=instant,
            expected=f"a file that has not changed for {options.heartbeat_expiry_s:g} s",
            todo="Wait, then run again.",
        )
    beat = read_heartbeat(storage, instant)
    is_fresh = is_live(beat, now_ms, options.heartbeat_expiry_s)
    begun = "an inflight file" if storage.find(inflight_path(table, instant)) is not None else ""
    begun = begun or ("a fresh heartbeat" if is_fresh else "") or ("a decision" if decisions(storage, instant) else "")
    if begun:
        raise ConflictError(
            "a compactor began on a plan that cannot be read any more",
            path=path,
            instant=instant,
            found=begun,
            todo=_RESTORE,
        )
    plan = CompactionPlan(operations=(), action=requested.action)
    if not plan.merges_logs:
        _refuse_written(table, instant, path)
    refuse_touched(table, instant, plan, options)
    return plan


def _refuse_written(table: Table, instant: str, path: str) -> None:
    """ConflictError, BarrierError: a write came after the plan.

    It may have read the plan, and put keys into other file groups because of it.
    """
    later = [i for i in table.load_timeline().instants if i.family == "deltacommit" and i.requested_time > instant]
    for write in later:
        if write.completed:
            raise ConflictError(
                "a write came after a plan that cannot be read; without the plan its rows may be lost or doubled",
                path=path,
                instant=instant,
                expected="no delta commit after it",
                found=write.requested_time,
                todo=_RESTORE,
            )
        raise BarrierError(
            "a pending write may depend on a plan that cannot be read",
            path=path,
            instant=instant,
            expected="no delta commit after it",
            found=write.requested_time,
            todo="Wait until it was rolled back, then run again.",
        )
