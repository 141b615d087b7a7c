"""What must hold before a completed write, a table or a plan is undone; each refusal says why and what to do.

work         no process is at work on the table, no clean or rollback is pending, no savepoint or pin needs the
             state
left out     no kept compaction has left out a file group that would be visible again
torn         Hudi left the completed file of a replace commit empty or torn: what the commit replaced is unknown. All of
             it is visible again after a restore to the state before the commit, unless `left out` refuses
upgraded     version 6 log files carry their base instant and hold blocks of many writes. From version 8 on a reader
             counts all blocks for the write in the name, so one write in such a file cannot be undone alone
plan         the plan of a restore or rollback is visible before anything is undone: from then on no process of
             phantombase builds upon what it names. A process may stall before the put and lose the lock, so the
             lock is checked again after the put. If it was lost, the plan, which has undone nothing, is removed under
             the lock
dependents   no Hudi executor, writer or rollback depends on a plan that is to be cancelled. A dead Hudi executor
             leaves an inflight file, and perhaps base files that no commit names: the base files are removed first,
             then the inflight file, so a crash leaves no base files without the file that shows their writer. An
             executor that resumes cannot complete without its inflight file"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from phantombase.timeline.errors import (
    BarrierError,
    ConflictError,
    LockError,
    LockLostPlanError,
    MalformedError,
    UsageError,
    in_table,
)
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import Process, is_live, read_heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.read.pins import live_pins
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.in_progress import (
    Guard,
    PendingRestore,
    check_lock,
    exclusive,
    may_be_service,
    pending_rollbacks,
)
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.table.traces import data_files, instants_in
from phantombase.timeline.view.view import GroupKey

from ..attempt.hudi_executors import foreign_trace, inflight_path
from ..attempt.hudi_executors import is_live as is_at_work
from ..attempt.outcome import decisions
from ..attempt.validity import refuse_rollback
from ..options import AttemptOptions
from .savepoint import savepoints

_OWN = dict.fromkeys(Guard, "what is removed is the plan of this process, which others must not meet")
_OTHERWISE = (
    "If it cannot be executed because of some file groups, write their partitions again by insert_overwrite: replaced "
    "file groups are passed over, and the others are compacted. Or restore the missing files, or the table to an "
    "instant before they were written: `compactor-daemon restore TABLE --to INSTANT`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadExecutor:
    """What a dead Hudi executor left: the path of its inflight file, and its base files."""

    inflight: str
    files: tuple[str, ...]


def refuse_touched(table: Table, instant: str, plan: CompactionPlan, options: AttemptOptions) -> DeadExecutor | None:
    """ConflictError, BarrierError: another process has started, or may soon start, work that depends on the plan.
    Otherwise returns what a dead executor left, which must be removed with the plan. A plan without operations
    represents an unreadable plan: then any file of the instant counts."""
    storage = table.storage
    trace = foreign_trace(table, instant, table.views.planned_partitions([plan]))
    if is_at_work(trace, table, options):
        raise _at_work(
            table,
            instant,
            "a recent inflight file, or recent files of its work"
            if trace.inflight_ms is not None
            else "a fresh heartbeat",
            options,
        )
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    is_dead = trace.inflight_ms is not None
    if is_dead and plan.merges_logs and by_base:
        raise ConflictError(
            "a Hudi compactor began this log compaction; file names do not show what it wrote",
            path=storage.base_path,
            instant=instant,
            todo="Let Hudi roll it back or execute it.",
        )
    refuse_rollback(table, instant)
    pending = table.load_timeline().pending_delta_commits
    if by_base and pending and not plan.merges_logs:
        raise BarrierError(
            "a pending write may be about to write logs on this plan",
            path=storage.base_path,
            instant=instant,
            expected="no pending delta commit",
            found=", ".join(i.requested_time for i in pending),
            todo="Wait until it has completed or was rolled back, then run again.",
        )
    left = _refuse_files(table, instant, plan, is_dead=is_dead)
    return DeadExecutor(inflight=inflight_path(table, instant), files=left) if is_dead else None


def written_groups(table: Table, instant: str, plan: CompactionPlan) -> frozenset[GroupKey]:
    """The file groups that must be kept in the plan of a pending compaction: a write has put a log onto it (version 6).
    Without the plan no reader would find such a log below the base file of its file group. Empty for a plan of log
    compactions, and from version 8 on."""
    if table.layout.slicing is not Slicing.BY_BASE_INSTANT or plan.merges_logs:
        return frozenset()
    found = ((path, name) for path, name in _files_of(table, instant, plan) if isinstance(name, LogFileName))
    return frozenset((path.rpartition("/")[0], name.file_id) for path, name in found)


def refuse_inflight(table: Table, instant: str, path: str, options: AttemptOptions) -> None:
    """ConflictError: an inflight file exists (`path`), although that of the dead executor was removed."""
    if table.storage.find(path) is not None:
        raise _at_work(table, instant, "an inflight file", options)


def _at_work(table: Table, instant: str, found: str, options: AttemptOptions) -> ConflictError:
    return ConflictError(
        "a Hudi compactor is or was at work on this instant",
        path=table.storage.base_path,
        instant=instant,
        expected=f"no heartbeat for {options.heartbeat_expiry_s:g} s, silence for {options.foreign_grace_s:g} s",
        found=found,
        todo="Wait until it has ended or counts as dead, then run again.",
    )


def _refuse_files(table: Table, instant: str, plan: CompactionPlan, *, is_dead: bool) -> tuple[str, ...]:
    """The base files of a dead executor. ConflictError: other files of the instant, which depend on the plan."""
    placed = {p.final for decision in decisions(table.storage, instant) for p in decision.placements}
    # From version 8 on, a log of the instant may be of a writer that takes no lock and began in the same
    # millisecond. If there is no such write, the log was written under the plan while the table had version 6.
    is_shared = table.load_timeline().find(instant, "deltacommit") is not None
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    logs_too = by_base or plan.merges_logs or not plan.operations or not is_shared
    left = []
    for path, name in _files_of(table, instant, plan):
        if path in placed or not (logs_too or isinstance(name, BaseFileName)):
            continue
        if is_dead and isinstance(name, BaseFileName) and plan.operations and not plan.merges_logs:
            left.append(path)
            continue
        raise ConflictError(
            "a file of this instant is in the table; without the plan its rows would be lost or hide others",
            path=path,
            instant=instant,
            todo=f"Execute this compaction (compactor-daemon compact): that keeps every row. {_OTHERWISE}",
        )
    return tuple(left)


def _files_of(table: Table, instant: str, plan: CompactionPlan) -> Iterator[tuple[str, BaseFileName | LogFileName]]:
    groups = plan.groups
    partitions: Collection[str] = table.views.planned_partitions([plan]) if groups else table.partitions()
    for partition in sorted(partitions):
        for entry in table.storage.list(partition):
            name = parse_data_file(entry.name)
            if name is None or name.instant != instant or (groups and (partition, name.file_id) not in groups):
                continue
            yield join(partition, entry.name), name


@contextmanager
def stale_plan_removed(table: Table, lock: TableLock, remove: Callable[[Table, str], None]) -> Iterator[None]:
    """Around the section that makes a plan visible: removes a plan put after the lock was lost, unless a process
    executes it. `remove`: called under the lock, with the instant of the plan. If the lock cannot be acquired, the plan
    is kept: see `refuse_overtaken`."""
    try:
        yield
    except LockLostPlanError as late:
        with suppress(LockError), exclusive(table, lock, "remove a stale plan", _OWN) as held:
            remove(held, late.instant or "")
        raise


def refuse_stale(table: Table, instant: str) -> None:
    """Called right after the put of a plan. LockLostPlanError: the lock was lost; `stale_plan_removed` removes it."""
    try:
        check_lock(table)
    except LockError as error:
        raise LockLostPlanError(
            error.what, path=error.path, instant=instant, expected=error.expected, found=error.found, todo=error.todo
        ) from error


def is_own(table: Table, instant: str) -> bool:
    """Whether the heartbeat of a plan is of this process: another executor of the plan removes that heartbeat."""
    beat = read_heartbeat(table.storage, instant)
    return beat is not None and beat.owner == Process.current()


def refuse_overtaken(table: Snapshot, restore: PendingRestore) -> None:
    """ConflictError: others have written since the plan of a restore was made, and it has undone nothing. The restore
    might undo the only copy of their rows. Its process stalled right before the put of the plan, lost the lock, and
    died; or a writer of Hudi did not check for restores."""
    requested, times = restore.at(State.REQUESTED), restore.plan.times
    if not times or not is_requested(table.timeline, requested):
        return
    later = (i for i in table.timeline.instants if i.is_write and i.requested_time > min(times))
    for write in later:
        if write.requested_time not in times:
            raise ConflictError(
                "the plan of a restore does not know a later write",
                path=table.instant_path(requested),
                instant=write.requested_time,
                found=f"a {write.action}; restore {restore.instant} has undone nothing",
                todo="Stop all processes that restore the table, remove this file by hand, and restore it again.",
            )


def is_requested(timeline: Timeline, instant: Instant) -> bool:
    """Whether the instant is on the timeline in state requested."""
    found = timeline.find(instant.requested_time, instant.family)
    return found is not None and found.state is State.REQUESTED


def refuse_upgraded_logs(table: Snapshot, undone: Collection[str], instant: str | None, *, begun: bool = False) -> None:
    """UsageError: a log file with blocks of a write of `undone`, or one to be removed, is shared with another write.
    Reads the block headers of all log files, unless the table was made in its present version. `instant`: what the
    command named. `begun`: a restore to it is in progress, and no other one can begin. Version 6 revokes single blocks,
    see `undo.undo`."""
    if not undone or not table.config.may_have_upgraded_logs:
        return
    shared: dict[str, str] = {}
    for partition in table.partitions():
        for entry, name in data_files(table, partition):
            if not isinstance(name, LogFileName):
                continue
            path = join(partition, entry.name)
            for time in set(instants_in(table, path)) - {name.instant}:
                if time in undone or (name.instant in undone and table.timeline.is_committed(time)):
                    shared[path] = max(shared.get(path, ""), time, name.instant)
    if shared:
        newest = max(shared.values())
        raise UsageError(
            "log files of before the upgrade from version 6 hold rows of writes that would be undone",
            path=in_table(min(shared)),
            instant=instant,
            expected=f"a state from {newest} on",
            found=f"{len(shared)} such log files",
            todo="The restore is in progress. Only Hudi can finish it: restore to the same instant with Hudi. It takes "
            "such a file whole or leaves it, so rows may be missing, or others come back: compare them then."
            if begun
            else f"Restore to {newest} or later. Older states can be read as of their instants, and written again.",
        )


_RECORDING = ("commit", "replacecommit")


def without_torn(table: Snapshot, undone: Collection[str]) -> Timeline:
    """The timeline without the compactions and replace commits of `undone` whose completed files cannot be read."""
    timeline = table.timeline
    recording = (i for i in timeline.completed if i.requested_time in undone and i.family in _RECORDING)
    torn = {i for i in recording if _why_torn(table, i) is not None}
    return replace(timeline, instants=tuple(i for i in timeline.instants if i not in torn)) if torn else timeline


def refuse_torn_target(table: Snapshot, target: str) -> None:
    """UsageError: the completed file of the write whose state is to be restored cannot be read."""
    if (error := _why_torn(table, table.timeline.completed_writes[target])) is not None:
        before = max((time for time in table.timeline.completed_writes if time < target), default=None)
        raise UsageError(
            "the completed file of this write cannot be read: behind a restore to it no reader could read the table",
            path=error.path,
            instant=target,
            found=error.found,
            todo=f"Restore to the write before it: --to {before}." if before else "Restore the file from a copy.",
        ) from error


def refuse_unknown_left_out(table: Snapshot, left: Timeline, undone: Collection[str], instant: str) -> None:
    """UsageError: a kept compaction lacks a planned file group, and what was replaced before it is not known. `left`:
    of `without_torn`; `instant`: what the command named."""
    if not any(i.family == "replacecommit" and i not in left.instants for i in table.timeline.completed):
        return
    replaced = table.facts.replaced_groups(left)
    for done in left.completed:
        if done.family != "commit" or done.requested_time in undone:
            continue
        metadata = table.commit_metadata(done)
        planned = table.compaction_plan(done.requested_time).groups if metadata.compacted else frozenset()
        if lacking := sorted(planned - metadata.written_groups - replaced.keys()):
            raise _unknown(join(*lacking[0]), instant, f"compaction {done.requested_time} made no base file of it")
    if table.layout.slicing is not Slicing.BY_BASE_INSTANT:
        return
    facts = table.with_timeline(left).load_facts()
    for partition in table.partitions():
        for group in table.views.partition_groups(partition, left, facts):
            if group.key in replaced:
                continue
            # Only a compaction, or the first write of a file group, has log files without a base file.
            for slice_ in group.slices[1:]:
                opened_by = slice_.base_instant
                if slice_.base is None and slice_.logs and opened_by not in (group.pending_compaction, *undone):
                    raise _unknown(slice_.logs[0].path, instant, f"compaction {opened_by} made no base file of it")


def _why_torn(table: Table, done: Instant) -> MalformedError | None:
    """Why the completed file of a write cannot be read; None: it can."""
    try:
        table.commit_metadata(done)
    except MalformedError as error:
        return error
    return None


def _unknown(path: str, instant: str, found: str) -> UsageError:
    return UsageError(
        "a compaction may have left out a file group that would be back",
        path=in_table(path),
        instant=instant,
        found=f"{found}; what was replaced before cannot be read",
        expected="a state before that compaction",
        todo="Or restore the completed file that cannot be read from a copy.",
    )


def refuse_left_out(table: Snapshot, undone: Collection[str], instant: str) -> None:
    """UsageError: a kept compaction left out a file group that a write of `undone` had replaced. Without that write,
    the group is visible again without the compaction's base file: Hudi's readers of version 6 would miss the rows below
    its logs, and on all versions keys that the plan deleted, and that were written elsewhere since, are found twice.
    `instant`: of the state, or the write, that the command named."""
    left = without_torn(table, undone)
    refuse_unknown_left_out(table, left, undone, instant)
    for compaction, groups in table.facts.left_out(left).items():
        if compaction in undone:
            continue
        for group, replaced in groups.items():
            if replaced in undone:
                raise _left_out(group, instant, compaction, replaced)
    # On version 6 an archiver of Hudi may have archived the compaction: its logs exist, and the base file does not.
    replaced_at = table.facts.replaced_groups(left)
    by_name = table.layout.slicing is Slicing.BY_BASE_INSTANT
    back = {group: time for group, time in replaced_at.items() if by_name and time in undone}
    for one in table.load_view().groups if back else ():
        if one.key in back:
            logs = ((log.name.instant, s.base_instant) for s in one.slices for log in s.logs)
            if compaction := max((named for named, base in logs if named != base and named not in undone), default=""):
                raise _left_out(one.key, instant, compaction, back[one.key])


def _left_out(group: GroupKey, instant: str, compaction: str, replaced: str) -> UsageError:
    return UsageError(
        "a compaction left out a file group that would be back",
        path=in_table(join(*group)),
        instant=instant,
        found=f"compaction {compaction} completed after {replaced} had replaced it",
        expected=f"a state before compaction {compaction}, or one behind {replaced}",
        todo="The rows can be read as of that instant, and written again.",
    )


def refuse_work(table: Snapshot, dead: Collection[str] = frozenset()) -> None:
    """ConflictError: a process is at work on a pending instant, or a clean or rollback is pending. `dead`: times of
    writes whose rollbacks do not count: they are finished before, or removed with what is undone."""
    for clean in table.timeline.pending("clean"):
        raise ConflictError(
            "a clean is pending",
            path=table.storage.base_path,
            instant=clean.requested_time,
            todo="`compactor-daemon clean`, or Hudi, finishes it.",
        )
    for rollback in pending_rollbacks(table):
        if rollback.target in dead:
            continue
        if isinstance(rollback, Torn):
            raise ConflictError(
                "the plan of a pending rollback cannot be read",
                path=rollback.path,
                instant=rollback.time,
                todo=rollback.todo,
            )
        raise ConflictError(
            "a rollback is pending",
            path=table.storage.base_path,
            instant=rollback.instant,
            todo="The next write finishes it; that of a completed write: `compactor-daemon rollback`, or Hudi.",
        )
    pending = [i for i in table.timeline.instants if i.is_write and not i.completed]
    beats = {i.requested_time: read_heartbeat(table.storage, i.requested_time) for i in pending}
    now_ms = storage_ms(table.storage) if any(beats.values()) else 0
    for instant in pending:
        beat = beats[instant.requested_time]
        if beat is not None and is_live(beat, now_ms):
            raise ConflictError(
                "a process is at work on the table",
                path=table.storage.base_path,
                instant=instant.requested_time,
                found=f"a heartbeat of a pending {instant.action}",
                todo="Stop all writers and compactors, then run again.",
            )


def refuse_writers(table: Snapshot) -> None:
    """ConflictError: a write that does not count as dead is pending. A clustering is no write, also on version 6."""
    for instant in table.timeline.inflight_writers:
        if may_be_service(table, instant):
            continue
        raise ConflictError(
            f"a {instant.action} is pending",
            path=table.storage.base_path,
            instant=instant.requested_time,
            todo="Stop its writer, or let it end, then run again.",
        )


def refuse_held(table: Snapshot, after: str) -> None:
    """UsageError, ConflictError: a savepoint or pin holds a state later than that of the instant `after`."""
    for kept in savepoints(table):
        if kept.instant > after:
            raise UsageError(
                "a later savepoint would be lost",
                path=table.storage.base_path,
                instant=kept.instant,
                todo="Delete it first, if it is not needed: `compactor-daemon savepoint delete`.",
            )
    timeline = table.timeline
    moment = max((timeline.moment_of(w) for t, w in timeline.completed_writes.items() if t <= after), default="")
    for pin in live_pins(table.storage):
        if pin.holds > moment:
            raise ConflictError(
                "a reader holds a state that would be undone",
                path=table.storage.base_path,
                found=f"pin {pin.name} at {pin.holds}",
                todo=f"Wait for its reader, or `timeline pins TABLE --release {pin.name}`.",
            )
