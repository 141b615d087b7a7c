"""Which rollbacks pend, and what each undoes, as far as that can be read.

Hudi writes `<R>.rollback.requested` in place: killed meanwhile it leaves a file of no bytes, or half of one. What such
a rollback was to undo is unknown, so each caller has to say what it does about it:

    nothing has been undone   Hudi asks the file for its plan before it undoes anything
    Hudi's next writer        removes it, where it is only requested; one that went inflight is passed over, for ever
    what it may name          any instant that was there before its file was: the target is chosen first
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import MalformedError, MissingFileError
from ..format.instant import Instant, State
from ..format.rollback_plan import RollbackPlan, decode_rollback_plan
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

    `path`: of the plan that cannot be read. `inflight`: path of the inflight file, where it has one.
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
        """What ends the waiting for it."""
        if self.inflight is None:
            return (
                "The next Hudi writer of the table removes this file. Where no Hudi process is left "
                "that writes to the table, remove it by hand: it has undone nothing."
            )
        return (
            f"Hudi passes over it for ever. Stop what rolls back or restores, then remove {self.inflight} by hand, and "
            f"{self.path} where it is there: a write that it was to undo pends still, and is rolled back anew."
        )

    def at(self, state: State) -> Instant:
        """The rollback's own instant in a state."""
        return _at(self.instant, state)


AnyRollback: TypeAlias = PendingRollback | UnreadableRollback


def pending_rollbacks(table: Table) -> tuple[AnyRollback, ...]:
    """Every pending rollback, Hudi's and ours: the readable ones, latest target first, then the unreadable ones."""
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


def _at(instant: str, state: State) -> Instant:
    return Instant(requested_time=instant, action="rollback", state=state)
