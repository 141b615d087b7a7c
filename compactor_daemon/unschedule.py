"""Takes a requested compaction off the timeline: one section under the table lock.

    take back  a decision that was not published: see `take_back`
    end        every attempt without a fate is declared dead
    void       a new attempt is opened with the fate `void`: the tombstone, so that the instant is never used again
    remove     the plan; from here on the instant is unscheduled
    look back  attempts opened meanwhile (nobody takes the lock to open one) are ended too; where somebody who takes no
               lock, or an expired one, has touched the instant after all, the plan is put back

A crash before the plan is gone has changed nothing: readers and writers still see it, compactors may open further
attempts behind the `void`, and unscheduling is done anew, with all its checks. After it nothing can be decided: whoever
opens an attempt looks for the plan once more, and so does who decides. Should a `go` have come in between all the same
(a lock that was lost), the plan is put back. So there is never a `go` without a plan, nor two.

Refused where rows would be lost, doubled or hidden:

    a file of the instant   version 6: logs on its slice, which no reader would find; any version: a base file that an
                            executor of Hudi left. Once the instant is older than the timeline both count as committed
    a pending delta commit  version 6: it may be about to write such a log
    moved keys              see `moved_keys`

A log compaction that pends is in nobody's way: of it no reader or writer knows.

Hudi's own (CompactionAdminClient, with all writers off): 0.15 renames the logs, and removes the plan only where there
were some; 1.x removes the plan without a look at logs. Neither leaves a tombstone.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

import structlog

from compactor_daemon.compactor import pending_instants
from compactor_daemon.foreign import foreign_trace
from compactor_daemon.moved_keys import movable_keys, refuse_moved
from compactor_daemon.options import AttemptOptions
from compactor_daemon.probe import probe
from compactor_daemon.records import (
    Go,
    decide,
    decisions,
    declare_dead,
    find_go,
    instant_folder,
    open_next,
    read_fates,
    void_record,
)
from compactor_daemon.retire import remove_staged
from compactor_daemon.standing import refuse_rollback
from compactor_daemon.take_back import take_back
from timeline.errors import AttemptDeadError, BarrierError, ConflictError
from timeline.file_name import BaseFileName, parse_data_file
from timeline.gate import clock_ms
from timeline.heartbeat import is_live, process_name, read_heartbeat
from timeline.layout import Slicing
from timeline.lock import TableLock
from timeline.metadata_table.update import forget
from timeline.plan import CompactionPlan
from timeline.slice_log import may_delete
from timeline.storage import Storage
from timeline.table import Table, consistent
from timeline.view import TableView

_log = structlog.get_logger()

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscheduled:
    """A plan that is gone: its instant, its file groups, and the attempts that were ended with it."""

    instant: str
    file_groups: int
    attempts: tuple[int, ...]


def unschedule(table: Table, instant: str, lock: TableLock, options: AttemptOptions | None = None) -> Unscheduled:
    """Removes a pending compaction plan; `lock` is the one that all writers and schedulers share.

    UsageError: no such plan. ConflictError, BarrierError: see above; also where it is being published, an executor of
    Hudi was or is at work on it, or a rollback names it. Nothing was changed then.
    """
    pending_instants(table, instant)
    options = options or AttemptOptions()
    deletes = cache(partial(may_delete, table.storage))
    for _ in range(_TRIES):
        table = table.reload()
        view = consistent(partial(_view, table, instant))
        keys = movable_keys(view, instant, deletes)
        refuse_moved(table, view, instant, keys)
        probe(table.storage)
        with lock.hold("unschedule a compaction"):
            table = table.reload()
            plan, go = _refuse(table, instant, options)
            if movable_keys(_view(table, instant), instant, deletes) == keys:
                return _remove(table, instant, plan, go, options)
    raise ConflictError(
        "writes under this plan kept completing while their keys were looked at",
        path=table.storage.base_path,
        instant=instant,
        found=f"{_TRIES} rounds",
        todo="Run again while fewer writers are at work.",
    )


def _view(table: Table, instant: str) -> TableView:
    return table.reload().load_plan_view([table.compaction_plan(instant)])


def _refuse(table: Table, instant: str, options: AttemptOptions) -> tuple[CompactionPlan, Go | None]:
    """The plan, unless it must stay, and a decision that is to be taken back. Any other one found later stands."""
    (_,) = pending_instants(table, instant)
    storage, plan = table.storage, table.compaction_plan(instant)
    # Who publishes it holds the lock at the end; should its lock have expired, the heartbeat shows that it is alive: it
    # is older than the decision, so it is looked at afterwards.
    go, beat = find_go(storage, instant), read_heartbeat(storage, instant)
    if go is not None and is_live(beat, clock_ms(), options.heartbeat_expiry_s):
        raise _decided(instant)
    _refuse_touched(table, instant, plan, options)
    return plan, go


def _refuse_touched(table: Table, instant: str, plan: CompactionPlan, options: AttemptOptions) -> None:
    """Where others have begun, or may be about to, what rests on the plan."""
    storage = table.storage
    trace = foreign_trace(table, instant, ())
    if trace.inflight_ms is not None or trace.is_live(round(time.time() * 1000), options):
        raise ConflictError(
            "a Hudi compactor is or was at work on this instant",
            path=storage.base_path,
            instant=instant,
            found="an inflight file" if trace.inflight_ms is not None else "a fresh heartbeat",
            todo="Execute the compaction, with Hudi or compactor-daemon compact: its files may lie around.",
        )
    refuse_rollback(table, instant)
    pending = table.load_timeline().pending_delta_commits
    if table.layout.slicing is Slicing.BY_BASE_INSTANT and pending and not plan.merges_logs:
        raise BarrierError(
            "a pending write may be about to write logs on this plan",
            path=storage.base_path,
            instant=instant,
            expected="no pending delta commit",
            found=", ".join(i.requested_time for i in pending),
            todo="Let it complete, or be rolled back, then run again.",
        )
    _refuse_files(table, instant, plan)


def _refuse_files(table: Table, instant: str, plan: CompactionPlan) -> None:
    groups = plan.groups
    placed = {p.final for go in decisions(table.storage, instant) for p in go.placements}
    # Elsewhere a log of the instant is of a writer that takes no lock and began in the same millisecond; or it was
    # written under the plan while the table was of version 6.
    is_shared = table.load_timeline().find(instant, "deltacommit") is not None
    logs_too = table.layout.slicing is Slicing.BY_BASE_INSTANT or plan.merges_logs or not is_shared
    there = table.planned_partitions([plan])
    for partition in sorted({partition for partition, _ in groups}):
        for entry in table.storage.list(partition) if partition in there else ():
            name = parse_data_file(entry.name)
            if name is None or name.instant != instant or (partition, name.file_id) not in groups:
                continue
            path = f"{partition}/{entry.name}" if partition else entry.name
            if path not in placed and (logs_too or isinstance(name, BaseFileName)):
                raise ConflictError(
                    "a file of this instant is in the table; without the plan its rows would be lost or hide others",
                    path=path,
                    instant=instant,
                    todo="Execute this compaction (compactor-daemon compact): that keeps every row.",
                )


def _remove(table: Table, instant: str, plan: CompactionPlan, go: Go | None, options: AttemptOptions) -> Unscheduled:
    """In the lock, after all checks."""
    storage, who, nonce = table.storage, f"unscheduled by {process_name()}", uuid.uuid4().hex
    if go is not None:
        take_back(table, go, who)
    ended = _end_attempts(storage, instant, who)
    decide(storage, instant, open_next(storage, instant, who), void_record(nonce, who), nonce)
    path = table.instant_path(table.requested_merge(instant))
    data = storage.read(path)
    forget(table, instant)
    storage.delete(path)
    try:
        ended |= _end_attempts(storage, instant, who)
        _refuse_touched(table, instant, plan, options)
    except ConflictError:
        storage.put_if_absent(path, data)
        raise
    remove_staged(storage, instant)
    done = Unscheduled(instant=instant, file_groups=len(plan.operations), attempts=tuple(sorted(ended)))
    _log.info("unscheduled", instant=instant, file_groups=done.file_groups, attempts=done.attempts)
    return done


def _end_attempts(storage: Storage, instant: str, who: str) -> set[int]:
    """Declares dead until no attempt is without a fate; ConflictError: one of them has `go`."""
    ended: set[int] = set()
    while open_ := {number for number, fate in read_fates(storage, instant).items() if fate is None}:
        with suppress(AttemptDeadError):  # somebody else wrote it this moment: what, is looked at below
            declare_dead(storage, instant, who)
        ended |= open_
    if find_go(storage, instant) is not None:
        raise _decided(instant)
    return ended


def _decided(instant: str) -> ConflictError:
    return ConflictError(
        "this compaction is decided and is being published",
        path=instant_folder(instant),
        instant=instant,
        todo="compactor-daemon compact brings it to its end. Where that fails, run again once its heartbeat is stale.",
    )
