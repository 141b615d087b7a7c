"""Claims of daemons without ZooKeeper, on the table's storage (`lock_file`).

On a file system they exclude `compactor-daemon compact`, compactions inside ingest jobs and other daemons from the
whole table; on an object store from the instant.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from phantombase.timeline.errors import ClaimedError
from phantombase.timeline.table.table import Table

from ..records.failures import WorkNote
from .claims import Claim
from .doorbell import claim, claim_path


@dataclass(frozen=True)
class _Shared:
    """A held lock, and the instants that are claimed by it."""

    is_held: Callable[[], bool]
    close: Callable[[], None]
    instants: set[str] = field(default_factory=set)


class TableClaims:
    """See `Claims`. The first claim by a lock takes it, and the end of the last one releases it."""

    available = True

    def __init__(self, table: Table, holder: str) -> None:
        self._table = table
        self._holder = holder
        self._ours: dict[str, Claim] = {}
        self._locks: dict[str, _Shared] = {}
        self._changing = threading.Lock()
        """Held while a lock is taken or released: that may take long, and the loop asks for names meanwhile."""

    def names(self) -> frozenset[str]:
        """See `Claims`. Claims of other processes are not listed; they only make `take` fail."""
        return frozenset(tuple(self._ours))

    def all(self) -> Mapping[str, Claim]:
        """See `Claims`."""
        return dict(self._ours)

    def take(self, instant: str) -> HeldTable | None:
        """See `Claims`."""
        path = claim_path(self._table, instant)
        with self._changing:
            if instant in self._ours:
                return None
            if path not in self._locks:
                stack = ExitStack()
                try:
                    self._locks[path] = _Shared(stack.enter_context(claim(self._table, instant)), stack.close)
                except ClaimedError:
                    return None
            self._locks[path].instants.add(instant)
            self._ours[instant] = Claim.of_this_process(instant, self._holder)
            return HeldTable(self, instant, self._locks[path].is_held)

    def close(self) -> None:
        """See `Claims`."""

    def _give_back(self, instant: str) -> None:
        path = claim_path(self._table, instant)
        with self._changing:
            self._ours.pop(instant, None)
            shared = self._locks.get(path)
            if shared is not None:
                shared.instants.discard(instant)
                if not shared.instants:
                    del self._locks[path]
                    shared.close()


class HeldTable:
    """See `HeldClaim`. A lock file is lost only when its process ends. The heartbeat shows the progress."""

    def __init__(self, claims: TableClaims, instant: str, is_held: Callable[[], bool]) -> None:
        self._claims = claims
        self._instant = instant
        self._is_held = is_held

    @property
    def lost(self) -> bool:
        """See `HeldClaim`."""
        return not self._is_held()

    def report(self, note: WorkNote) -> None:
        """Does nothing: other processes read the heartbeat."""

    def release(self) -> None:
        """See `HeldClaim`."""
        self._claims._give_back(self._instant)
