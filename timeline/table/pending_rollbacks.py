"""Finds pending rollbacks and what each of them undoes, as far as that is readable.

Hudi writes `<R>.rollback.requested` in place: a process killed meanwhile leaves an empty or incomplete file. What such
a rollback was meant to undo is unknown, so each caller must decide what to do about it. What is known:
    nothing has been undone   Hudi reads the plan from the file before it undoes anything
    Hudi's next writer        removes it if it is only requested; an inflight one is ignored, for ever
    its possible targets      any instant that existed before its file did: the target is chosen first
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..errors import ConflictError, MalformedError, MissingFileError
from ..format.instant import Instant, State
from ..format.rollback_plan import (
    RollbackPlan,
    decode_rollback_plan,
    rolled_back_instants,
)
from ..instants.reserved_times import has_tombstone, reserved_path
from ..instants.timeline import Timeline
from .table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRollback:
    """A rollback at instant `instant` that has not completed yet."""

    instant: str
    plan: RollbackPlan

    @property
    def target(self) -> str:
        """The instant that it undoes."""
        return self.plan.target

    def at(self, state: State) -> Instant:
        """The rollback's own instant in a state."""
        return _at(self.instant, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRollback:
    """A rollback at instant `instant` that has not completed yet.

    `path`: of the unreadable plan. `inflight`: path of the inflight file, if it has one.
    """

    instant: str
    path: str
    inflight: str | None = None

    @property
    def target(self) -> None:
        """Unknown."""
        return None

    @property
    def todo(self) -> str:
        """What to do so that other processes need not wait for it any longer."""
        if self.inflight is None:
            return (
                "The next Hudi writer of the table removes this file: it has undone nothing. So do `compactor-daemon "
                "restore`, `rollback` and `archive` once it has not changed for two minutes."
            )
        return (
            f"Hudi ignores it for ever. Stop all processes that roll back or restore, then remove {self.inflight} by "
            f"hand, and {self.path} if it exists. The write to undo is still pending; it is rolled back later."
        )

    def at(self, state: State) -> Instant:
        """The rollback's own instant in a state."""
        return _at(self.instant, state)


AnyRollback: TypeAlias = PendingRollback | UnreadableRollback


def pending_rollbacks(table: Table) -> tuple[AnyRollback, ...]:
    """Every pending rollback, of Hudi or phantombase: readable ones, latest target first, then unreadable ones."""
    readable, unreadable = list[PendingRollback](), list[AnyRollback]()
    for instant in table.load_timeline().pending("rollback"):
        path = table.instant_path(instant.at(State.REQUESTED))
        try:
            plan = decode_rollback_plan(table.storage.read(path), path)
        except (MalformedError, MissingFileError):
            inflight = table.instant_path(instant) if instant.state is State.INFLIGHT else None
            unreadable.append(UnreadableRollback(instant=instant.requested_time, path=path, inflight=inflight))
        else:
            readable.append(PendingRollback(instant=instant.requested_time, plan=plan))
    return (*sorted(readable, key=lambda r: r.target, reverse=True), *unreadable)


def refuse_half_rolled_back(table: Table, timeline: Timeline) -> None:
    """ConflictError while a rollback of a completed write or clustering is pending.

    What is built upon that write now stays in the way of the rollback, and the rollback of all writes.
    """
    if (error := half_way(table, timeline)) is not None:
        raise error


def half_way(table: Table, timeline: Timeline) -> ConflictError | None:
    """The error of what `refuse_half_rolled_back` refuses; None: nothing is half-way."""
    for rollback in rollbacks_of_completed(table, timeline):
        return half_rolled_back(table, rollback)
    clustering = half_taken_back(table, timeline)
    return None if clustering is None else _half_taken_back(table, clustering)


def half_taken_back(table: Table, timeline: Timeline) -> Instant | None:
    """The completed clustering that `undo.roll_back_clustering` has buried, and not hidden yet.

    It is the newest write then. One behind which others began was buried too late: its process has lost the lock. One
    whose plan is gone was completed after it had been taken back (see `clustering.stale`).
    """
    newest = max((i for i in timeline.instants if i.is_write), key=lambda i: i.requested_time, default=None)
    if newest is None or newest.family != "replacecommit" or not newest.completed:
        return None
    if not has_tombstone(table.storage, newest.requested_time):
        return None
    plan = table.instant_path(replace(newest.at(State.REQUESTED), action=table.layout.pending_clustering))
    return newest if table.storage.find(plan) is not None else None


def rollbacks_of_completed(table: Table, timeline: Timeline) -> tuple[PendingRollback, ...]:
    """The pending rollbacks of completed writes, which have undone nothing yet."""
    found = pending_rollbacks(table) if timeline.pending("rollback") else ()
    return tuple(r for r in found if isinstance(r, PendingRollback) and undoes_completed(timeline, r))


def undoes_completed(timeline: Timeline, rollback: PendingRollback) -> bool:
    """Whether its target is completed: it has undone nothing yet."""
    target = timeline.find(rollback.target, rollback.plan.instant.family)
    return target is not None and target.completed


def half_rolled_back(table: Table, rollback: PendingRollback) -> ConflictError:
    """The error of a pending rollback whose target is completed."""
    return ConflictError(
        "the rollback of a completed write is half-way",
        path=table.storage.base_path,
        instant=rollback.target,
        found=f"rollback {rollback.instant}, of Hudi or phantombase",
        todo=f"`compactor-daemon rollback TABLE {rollback.target}`, or Hudi, finishes it. If something was built upon "
        "the write meanwhile, that command says how to keep it; `compactor-daemon restore` to a state before it takes "
        "all of it back.",
    )


def _half_taken_back(table: Table, clustering: Instant) -> ConflictError:
    time = clustering.requested_time
    return ConflictError(
        "the rollback of a clustering is half-way",
        path=table.instant_path(clustering),
        instant=time,
        todo=f"`compactor-daemon rollback TABLE {time}` finishes it. To keep the clustering instead, stop all "
        f"processes that roll back, and remove {reserved_path(time, 0, time)} by hand.",
    )


def _at(instant: str, state: State) -> Instant:
    return Instant(requested_time=instant, action="rollback", state=state)


def completed_rollback_of(table: Table, target: str) -> str | None:
    """The completed rollback that undid an instant, if the active timeline contains it."""
    done = (i for i in table.load_timeline().instants if i.action == "rollback" and i.completed)
    later = (i for i in done if i.requested_time > target)
    return next((i.requested_time for i in later if target in _undone_by(table, i)), None)


def _undone_by(table: Table, rollback: Instant) -> tuple[str, ...]:
    """The instants that a completed rollback undid. A killed Hudi may leave its record empty or torn: its plan says so
    then. Empty where neither can be read."""
    path = table.instant_path(rollback)
    try:
        return rolled_back_instants(table.storage.read(path), path)
    except MalformedError:
        planned = table.instant_path(rollback.at(State.REQUESTED))
    with suppress(MalformedError, MissingFileError):
        return (decode_rollback_plan(table.storage.read(planned), planned).target,)
    return ()
