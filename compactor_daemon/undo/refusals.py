"""What must not be while completed writes are taken back."""

from __future__ import annotations

from collections.abc import Collection

from phantombase.timeline.errors import ConflictError, UsageError
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import is_live, read_heartbeat
from phantombase.timeline.read.pins import live_pins
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.pending import UnreadableRollback, may_be_service, pending_rollbacks
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from .savepoint import savepoints
from .torn import refuse_unknown_left_out, without_torn


def refuse_left_out(table: Table, timeline: Timeline, undone: Collection[str], instant: str) -> None:
    """UsageError: a compaction that stays left a file group out that a write of `undone` had replaced.

    With that write gone, the group is back without the compaction's base file: Hudi's readers of version 6 would miss
    the rows below its logs, and on all versions keys that the plan deleted, and that lie elsewhere since, are found
    twice. `instant`: of the state, or the write, that the command named.
    """
    left = without_torn(table, timeline, undone)
    refuse_unknown_left_out(table, timeline, left, undone, instant)
    for compaction, groups in table.facts.left_out(left).items():
        if compaction in undone:
            continue
        for group, replaced in groups.items():
            if replaced in undone:
                raise _left_out(group, instant, compaction, replaced)
    # On version 6 an archiver of Hudi may have taken the compaction: its logs are there, and the base file is not.
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
        path=join(*group),
        instant=instant,
        found=f"compaction {compaction} completed after {replaced} had replaced it",
        expected=f"a state before compaction {compaction}, or one behind {replaced}",
        todo="The rows can be read as of that instant, and written anew.",
    )


def refuse_work(table: Table, timeline: Timeline, dead: Collection[str] = frozenset()) -> None:
    """ConflictError: a process is at work on a pending instant, or a clean or rollback is pending.

    `dead`: times of writes whose rollbacks do not count: they will have been finished, or go with what is undone.
    """
    for clean in timeline.pending("clean"):
        raise ConflictError(
            "a clean is pending",
            path=table.storage.base_path,
            instant=clean.requested_time,
            todo="`compactor-daemon clean`, or Hudi, finishes it.",
        )
    for rollback in pending_rollbacks(table):
        if rollback.target in dead:
            continue
        if isinstance(rollback, UnreadableRollback):
            raise ConflictError(
                "the plan of a pending rollback cannot be read",
                path=rollback.path,
                instant=rollback.instant,
                todo=rollback.todo,
            )
        raise ConflictError(
            "a rollback is pending",
            path=table.storage.base_path,
            instant=rollback.instant,
            todo="The next write finishes it; that of a completed write: `compactor-daemon rollback`, or Hudi.",
        )
    pending = [i for i in timeline.instants if i.is_write and not i.completed]
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


def refuse_writers(table: Table, timeline: Timeline) -> None:
    """ConflictError: a write is pending that does not count as dead. A clustering is none, also on version 6."""
    for instant in timeline.inflight_writers:
        if may_be_service(table, instant):
            continue
        raise ConflictError(
            f"a {instant.action} is pending",
            path=table.storage.base_path,
            instant=instant.requested_time,
            todo="Stop its writer, or let it end, then run again.",
        )


def refuse_held(table: Table, timeline: Timeline, after: str) -> None:
    """UsageError, ConflictError: a savepoint or pin holds a state later than that of the instant `after`."""
    for kept in savepoints(table, timeline):
        if kept.instant > after:
            raise UsageError(
                "a later savepoint would be lost",
                path=table.storage.base_path,
                instant=kept.instant,
                todo="Delete it first, if it is not needed: `compactor-daemon savepoint delete`.",
            )
    moment = max((timeline.moment_of(w) for t, w in timeline.completed_writes.items() if t <= after), default="")
    for pin in live_pins(table.storage):
        if pin.holds > moment:
            raise ConflictError(
                "a reader holds a state that would be taken back",
                path=table.storage.base_path,
                found=f"pin {pin.name} at {pin.holds}",
                todo=f"Wait for its reader, or `timeline pins TABLE --release {pin.name}`.",
            )
