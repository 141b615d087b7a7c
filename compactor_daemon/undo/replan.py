"""Replaces a pending compaction plan by one that takes in the logs written since (docs/internals/protocol.md: Replacing
a plan). From version 8 on: a log belongs to the slice of the last plan before its completion, so only a plan with a
later instant takes it in.

One section under the table lock: all checks of `unschedule`, the new plan is made, a record of the old one is left, the
old plan is removed, the new one is put, the record is removed. Between the removal and the put the file groups are in
no plan. No order of changes to single files avoids this: with both plans a file group would be in two, and no list of
logs is right at both instants. A process that plans holds the lock, so no other plan comes between; and no row depends
on the old plan, or `unschedule` would refuse.

A process that dies in between leaves the record: the next run of `replan`, `compact` or a daemon plans the file groups
(`attempt.finish`). A process that dies before has changed nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.planning.options import PLAN_NAMED
from phantombase.timeline.planning.partition_walk import Rule
from phantombase.timeline.planning.schedule import Scheduled, choose_plans, put_plans, schedule_compaction
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.in_progress import regardless
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import GroupKey

from ..attempt.compact_or_resume import pending_instants
from ..attempt.outcome import replaced_groups
from ..attempt.publish import remove_staged
from ..options import AttemptOptions
from .unschedule import Removable, group_of, removable, remove_plan

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned(Shown):
    """A plan that another one has replaced. `replaced_by`: its instant, in a dry run the one that it would have; None:
    the plan is kept, see `why`. `file_groups`: of the new plan. `log_files`: how many more than in the old one.
    `attempts`: those that were ended."""

    instant: str
    replaced_by: str | None
    file_groups: int = 0
    log_files: int = 0
    attempts: tuple[int, ...] = ()
    why: str = ""


def replan(
    table: Table, instant: str, lock: TableLock, options: AttemptOptions | None = None, *, dry_run: bool = False
) -> Replanned:
    """Replaces a pending compaction plan by one of the same file groups that takes in the logs written since: see the
    module. Arguments and errors as of `unschedule`. UnsupportedError: version 6, or a log compaction. ConflictError: a
    process works on the compaction, or a file group cannot be planned again. After a refusal the plan still exists.
    After another error the same call continues, and so does each daemon of the table."""
    options, seen = options or AttemptOptions(), table.snapshot(cached=False)
    if seen.timeline.find(instant, "commit") is None and (left := replaced_groups(seen.storage, instant)):
        return _continued(table, instant, lock, left, dry_run=dry_run)
    pending_instants(seen, instant)
    _refuse_kind(seen, instant)
    with removable(table, instant, lock, options, "replace a compaction plan", dry_run=dry_run) as found:
        _refuse_begun(found)
        again = choose_plans(found.table, PLAN_NAMED, only=found.plan.groups, dry_run=dry_run, without=instant)
        _refuse_left_out(found, again)
        new = again.requested[0]
        logs = _logs(new.plan, new.plan)
        if not (taken := logs ^ _logs(found.plan, new.plan)):
            return Replanned(instant=instant, replaced_by=None, why="no log was written to its file groups since")
        done = Replanned(
            instant=instant, replaced_by=new.instant, file_groups=len(new.plan.operations), log_files=len(taken & logs)
        )
        if dry_run:
            return done
        ended = remove_plan(found, options, f"replanned by {process_name()}", replaced=True)
        put_plans(found.table, again)
        remove_staged(regardless(found.table).storage, instant)
    done = replace(done, attempts=tuple(sorted(ended)))
    _log.info("replanned", instant=instant, by=done.replaced_by, file_groups=done.file_groups, log_files=done.log_files)
    return done


def _continued(
    table: Table, instant: str, lock: TableLock, groups: Collection[GroupKey], *, dry_run: bool
) -> Replanned:
    """Plans the file groups of a plan whose replacement died behind its removal, unless another process has."""
    found = schedule_compaction(table, lock, PLAN_NAMED, only=groups, dry_run=dry_run)
    if not dry_run:
        remove_staged(table.storage, instant)
    plans = table.snapshot(cached=False).load_facts().pending_plans
    by = max((plans[group] for group in groups if group in plans), default=found.instant)
    why = f"an earlier run had removed the plan; this one {'would finish' if dry_run else 'has finished'} its work"
    return Replanned(instant=instant, replaced_by=by, file_groups=len(groups), why=why)


def _refuse_kind(table: Snapshot, instant: str) -> None:
    path = table.storage.base_path
    if any(i.requested_time == instant for i in table.timeline.pending("logcompaction")):
        raise UnsupportedError(
            "a log compaction is not replaced",
            path=path,
            instant=instant,
            todo=f"`compactor-daemon unschedule TABLE {instant}`, then `compactor-daemon schedule TABLE`.",
        )
    if table.layout.slicing is Slicing.BY_BASE_INSTANT:
        raise UnsupportedError(
            "on version 6 no plan takes in the logs written since the pending one: they lie on its own slice",
            path=path,
            instant=instant,
            todo="`compactor-daemon compact TABLE` executes it; the next plan takes them in.",
        )


def _refuse_begun(found: Removable) -> None:
    if found.torn is not None:
        raise found.torn.error()
    if found.beat is not None or found.decision is not None:
        raise ConflictError(
            "a process works on this compaction, or has decided it",
            path=found.table.storage.base_path,
            instant=found.instant,
            todo="Let it finish: the next plan takes in the logs written since. `compactor-daemon compact TABLE` "
            f"finishes the work of a dead one; `compactor-daemon cancel TABLE {found.instant}` ends it before.",
        )


def _refuse_left_out(found: Removable, again: Scheduled) -> None:
    """ConflictError: a file group of the plan would be in none. Those that were replaced, and those whose logs were
    rolled back, need none."""
    left = {(one.partition, one.file_id): one for one in (again.notes.left if again.notes is not None else ())}
    planned = again.requested[0].plan.groups if again.requested else frozenset()
    needs = [left[key] for key in sorted(found.plan.groups - planned) if key in left]
    first = next((one for one in needs if one.rule is not Rule.NO_LOGS), None)
    if first is not None or not planned:
        raise ConflictError(
            "a file group of this plan cannot be planned again",
            path=first.path if first is not None else found.table.storage.base_path,
            instant=found.instant,
            found=first.why if first is not None else again.why,
            todo=f"The plan is kept. `compactor-daemon unschedule TABLE {found.instant}` removes it.",
        )


def _logs(plan: CompactionPlan, of: CompactionPlan) -> set[tuple[GroupKey, str]]:
    """The logs of a plan in the file groups of another one."""
    groups = of.groups
    return {(group_of(o), log) for o in plan.operations if group_of(o) in groups for log in o.merged_logs}
