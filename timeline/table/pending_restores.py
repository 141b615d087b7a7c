"""Pending restores: while one is half-way, nothing else may be begun, since it may remove what would be built upon."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConflictError
from ..format.instant import Instant, State
from ..format.restore import RestorePlan, decode_restore_plan
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
        return PendingRestore(instant=instant.requested_time, plan=decode_restore_plan(table.storage.read(path), path))
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
