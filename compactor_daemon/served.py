"""A table as the daemon's loop needs it. `served_table` serves real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from compactor_daemon.attempt import Aside
from compactor_daemon.claims import Claims, HeldClaim
from compactor_daemon.compactor import Compacted
from compactor_daemon.limit import Limit
from compactor_daemon.table_state import Pending
from timeline.schedule import Scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look found: pending instants, earliest first; the instants others have claimed; whether a plan is due.

    `oldest_s`: age of the oldest pending instant in seconds, None where nothing pends.
    """

    pending: tuple[Pending, ...]
    claimed: frozenset[str]
    due: bool
    oldest_s: float | None


class Served(Protocol):
    """Each method may be called from any thread, and raises errors of the tree."""

    @property
    def path(self) -> str:
        """The table's base path."""
        ...

    @property
    def claims(self) -> Claims:
        """The claims on its instants."""
        ...

    def look(self) -> Seen:
        """What is pending."""
        ...

    def request(self) -> Scheduled:
        """Requests a compaction."""
        ...

    def sweep(self) -> None:
        """Finishes what others left behind."""
        ...

    def is_done(self, instant: str) -> bool:
        """Whether a daemon has completed it since it was found pending; False may be out of date."""
        ...

    def execute(self, instant: str, held: HeldClaim, limit: Limit, aside: Aside) -> Compacted | None:
        """Executes a claimed instant; None: it is not pending any more. `aside`: where it waits for writes."""
        ...

    def failed(self, instant: str, error: Exception) -> None:
        """Keeps a failure where every daemon sees it."""
        ...
