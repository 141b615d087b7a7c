"""Pending restores: while one is half-way, nothing else may be begun, since it may remove what would be built upon."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConflictError, MalformedError, MissingFileError
from ..format.instant import Instant, State
from ..format.rollback_plan import RestorePlan, decode_restore_plan
from ..instants.timeline import Timeline
from .table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRestore:
    """A restore at instant `instant` that has not completed yet."""

    instant: str
    plan: RestorePlan

    def at(self, state: State) -> Instant:
        """The restore's own instant in a state."""
        return Instant(requested_time=self.instant, action="restore", state=state)


def pending_restore(table: Table, timeline: Timeline) -> PendingRestore | None:
    """The earliest pending restore, of Hudi or phantombase. MalformedError: its plan cannot be read."""
    for instant in timeline.pending("restore"):
        path = table.instant_path(instant.at(State.REQUESTED))
        try:
            plan = decode_restore_plan(table.storage.read(path), path)
        except (MalformedError, MissingFileError) as error:
            raise MalformedError(
                "the plan of a restore cannot be read",
                path=path,
                instant=instant.requested_time,
                found=str(error),
                todo="Hudi's process may still be writing it. It has undone nothing: `compactor-daemon restore` "
                "removes it once it has not changed for two minutes."
                if instant.state is State.REQUESTED
                else "It has begun: restore the table with Hudi to the same instant.",
            ) from error
        return PendingRestore(instant=instant.requested_time, plan=plan)
    return None


def refuse_pending_restore(table: Table, timeline: Timeline) -> None:
    """ConflictError while a restore is pending."""
    for instant in timeline.pending("restore"):
        raise ConflictError(
            "a restore of the table is half-way",
            path=table.storage.base_path,
            instant=instant.requested_time,
            todo="`compactor-daemon restore TABLE` finishes it, and so does Hudi's restore to the same instant.",
        )
