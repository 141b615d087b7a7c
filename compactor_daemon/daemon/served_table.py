"""A table as the daemon's loop needs it: a protocol. `table_on_storage` implements it for real tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from phantombase.timeline.planning.schedule import Scheduled

from ..attempt.attempt import Aside
from ..attempt.compact_instant import Compacted
from ..claims.claims import Claims, HeldClaim
from ..services.done import ServiceDone
from ..time_limit import Limit
from .table_state import Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """What a snapshot found: the pending instants, earliest first, the claimed instants, and whether a plan is due.

    `oldest_s`: age of the oldest pending instant in seconds, None if none is pending.
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

    def snapshot(self) -> SeenTable:
        """Looks at the table: what is pending, claimed and due."""
        ...

    def request(self) -> Scheduled:
        """Requests a compaction."""
        ...

    def sweep(self) -> None:
        """Finishes completed instants that other compactors left behind."""
        ...

    def serve(self, every_s: float, stopping: Callable[[], bool]) -> tuple[ServiceDone, ...]:
        """Runs the services, except those that a process ran less than about `every_s` ago.

        None begins once `stopping`.
        """
        ...

    def done_among(self, instants: Iterable[str]) -> frozenset[str]:
        """Which of the instants daemons have completed since they were found pending; the others may be done, too."""
        ...

    def execute(self, instant: str, held: HeldClaim, limit: Limit, aside: Aside) -> Compacted | None:
        """Executes a claimed instant; None: it is not pending any more. The wait for writes runs inside `aside`."""
        ...

    def failed(self, instant: str, error: Exception) -> None:
        """Records a failure in the table, so that every daemon sees it."""
        ...

    def close(self) -> None:
        """The daemon does not serve the table any more."""
        ...
