"""Whether a decision still stands: a `go` authorises, the timeline decides.

    stands    its plan is there, and so is every write that it merged
    waits     a restore, or a rollback that concerns it, or may, is under way: when that has ended the answer is another
    past      it was completed, and archived since, or that cannot be ruled out: its files stay, nothing is published
    fallen    its plan is gone (restored away, rolled back, unscheduled), or a write it merged was rolled back: what it
              placed is taken back (`take_back`), for ever

Asked under the table lock, before anything is published, and before a decision is made. A process may sleep between
its decision and the lock for any time: an operator restores or rolls back, others publish and archive meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.format.compaction_plan import planned_paths
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.half_upgraded import refuse_half_upgraded
from phantombase.timeline.table.pending_rollbacks import UnreadableRollback, pending_rollbacks
from phantombase.timeline.table.table import Table

from ..records.fate import Go


class Standing(Enum):
    """See above."""

    STANDS = "stands"
    WAITS = "waits"
    PAST = "past"
    FALLEN = "fallen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What was found of a decision, and why it does not stand. `todo`: where that is not the usual."""

    standing: Standing
    why: str = ""
    todo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a ruling needs to know of a table, all read at one moment.

    `timeline`: with its archived instants where the plan is gone or a merged write is not in it. `has_plan`: the
    requested file is there. `undone`: targets of pending rollbacks. `unreadable`: the plans of pending rollbacks whose
    target is unknown. `tells_times_apart`: whether two actions may share an instant's time; the metadata table cannot.
    `back`: file groups that were passed over as replaced, and are not any more: the replace commit was rolled back.
    """

    timeline: Timeline
    has_plan: bool
    undone: frozenset[str]
    unreadable: tuple[UnreadableRollback, ...] = ()
    tells_times_apart: bool
    back: tuple[str, ...] = ()


def rule(instant: Instant, merged: Collection[str], oldest: str, seen: Evidence) -> Ruling:
    """Whether a decision on `instant`, not completed on the active timeline, that merged these writes stands (pure).

    `oldest`: where the active timeline began then.
    """
    time, timeline = instant.requested_time, seen.timeline
    restores = timeline.pending("restore")
    if restores:
        return Ruling(standing=Standing.WAITS, why=f"restore {restores[0].requested_time} is pending")
    if not seen.has_plan:
        return _without_plan(instant, seen)
    undone = sorted(seen.undone & {time, *merged})
    if undone:
        return Ruling(standing=Standing.WAITS, why=f"a rollback of {undone[0]} is pending")
    if seen.unreadable:
        first = seen.unreadable[0]
        return Ruling(standing=Standing.WAITS, why=_unreadable(first), todo=first.todo)
    gone = sorted(t for t in merged if not _counts(t, oldest, timeline))
    if gone:
        return Ruling(standing=Standing.FALLEN, why=f"write {gone[0]}, which it merged, was rolled back")
    if seen.back:
        return Ruling(standing=Standing.FALLEN, why=f"file group {seen.back[0]} is not replaced any more")
    others = [i.action for i in timeline.instants if i.requested_time == time and i.family != instant.family]
    if others and not seen.tells_times_apart:
        why = f"a {others[0]} has the same time, and the metadata table cannot tell them apart (--drop-metadata-table)"
        return Ruling(standing=Standing.FALLEN, why=why)
    return Ruling(standing=Standing.STANDS)


def _counts(time: str, oldest: str, timeline: Timeline) -> bool:
    """Whether a write that counted once still does; archived: before the decision, or since as the archive tells.

    That it is older than the active timeline proves nothing: the oldest writes may be those that were rolled back.
    """
    if time in timeline.completed_writes or any(i.requested_time == time and i.is_write for i in timeline.archived):
        return True
    return time < (oldest or timeline.start) and time not in timeline.pending_writes


def _without_plan(instant: Instant, seen: Evidence) -> Ruling:
    """Archiving takes the oldest completed instants, so where it passed this one the archive has it, or older ones."""
    archived = seen.timeline.archived
    time = instant.requested_time
    if any(i.requested_time == time and i.is_write for i in archived):
        return Ruling(standing=Standing.PAST, why="it was completed and archived meanwhile")
    if time < seen.timeline.start and not any(i.requested_time < time for i in archived):
        return Ruling(standing=Standing.PAST, why="the timeline begins behind it and the archive does not reach back")
    return Ruling(standing=Standing.FALLEN, why="its plan is gone from the timeline")


def gather_evidence(
    table: Table, instant: str, merged: Collection[str] = (), oldest: str = "", passed: Collection[str] = ()
) -> Evidence:
    """What `rule` asks, to be relied on under the table lock. Errors of the tree: what cannot be read is unknown."""
    seen = evidence_of_planned(table)
    timeline, has_plan = seen.timeline, _has_plan(table, instant)
    if not has_plan or not all(_counts(t, oldest, timeline) for t in merged):
        timeline = table.with_archive(timeline)
    back = _back(table, timeline, instant, passed) if passed and has_plan else ()
    return replace(seen, timeline=timeline, has_plan=has_plan, back=back)


def evidence_of_planned(table: Table) -> Evidence:
    """What holds for every instant that has a plan, and has merged nothing yet. Errors as `gather_evidence`."""
    refuse_half_upgraded(table)
    timeline, rollbacks = table.load_timeline(), pending_rollbacks(table)
    return Evidence(
        timeline=timeline,
        has_plan=True,
        undone=frozenset(r.target for r in rollbacks if r.target is not None),
        unreadable=tuple(r for r in rollbacks if isinstance(r, UnreadableRollback)),
        tells_times_apart=not table.config.metadata_partitions,
    )


def _back(table: Table, timeline: Timeline, instant: str, passed: Collection[str]) -> tuple[str, ...]:
    """Of a replace commit that was archived since the files are gone; of one that was rolled back they are there."""
    replaced = table.facts.replaced_groups(timeline)
    found, plan = [], table.compaction_plan(instant)
    for operation in plan.operations:
        partition, group = operation.partition_path, f"{operation.partition_path}/{operation.file_id}"
        if group in passed and (partition, operation.file_id) not in replaced:
            paths = planned_paths(replace(plan, operations=(operation,)))
            if any(table.storage.find(path) is not None for path in paths):
                found.append(group)
    return tuple(found)


def standing_of(table: Table, go: Go) -> Ruling:
    """That of a decision whose instant is not completed on the active timeline; the caller holds the table lock."""
    instant = decided_instant(table, go)
    return rule(instant, go.merged, go.oldest, gather_evidence(table, go.instant, go.merged, go.oldest, go.passed))


def decided_instant(table: Table, go: Go) -> Instant:
    """The completed instant that a decision names. MalformedError: its name is none."""
    found = table.layout.parse(go.completed_path.rpartition("/")[2])
    if found is None:
        raise MalformedError("not the name of a completed commit", path=go.completed_path, instant=go.instant)
    return found


def refuse(table: Table, instant: str, ruling: Ruling) -> None:
    """ConflictError unless it stands."""
    if ruling.standing is Standing.STANDS:
        return
    raise ConflictError(
        "this compaction cannot be published",
        path=table.storage.base_path,
        instant=instant,
        found=ruling.why,
        todo=ruling.todo
        or {
            Standing.WAITS: "Let it end, then run again.",
            Standing.PAST: "Nothing is left to be done.",
        }.get(
            ruling.standing,
            "Nothing of it is visible. Where it is still pending, run again, or take it back: "
            f"compactor-daemon unschedule TABLE {instant}.",
        ),
    )


def _has_plan(table: Table, instant: str) -> bool:
    return table.storage.find(table.instant_path(table.files.requested_merge(instant))) is not None


def refuse_rollback(table: Table, instant: str) -> None:
    """ConflictError while a rollback names the instant, or may."""
    for rollback in pending_rollbacks(table):
        if isinstance(rollback, UnreadableRollback):
            raise ConflictError(
                "a rollback that may be of this compaction is pending",
                path=table.storage.base_path,
                instant=instant,
                found=_unreadable(rollback),
                todo=rollback.todo,
            )
        if rollback.target == instant:
            raise ConflictError(
                "a rollback of this compaction is pending",
                path=table.storage.base_path,
                instant=instant,
                found=f"rollback {rollback.instant}",
                todo="Let Hudi finish the rollback (a compaction run of Hudi does), then run again.",
            )


def _unreadable(rollback: UnreadableRollback) -> str:
    return f"the plan of a pending rollback cannot be read: {rollback.path}"
