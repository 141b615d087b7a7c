"""Claims of a single dedicated daemon, without ZooKeeper: a lock file, held while it works on the table.

It excludes `compactor-daemon compact`, compactions inside ingest jobs and other daemons without ZooKeeper.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack

from phantombase.timeline.errors import ClaimedError
from phantombase.timeline.table.table import Table

from ..state.work_note import WorkNote
from .claims import Claim
from .lock_file import claim


class TableClaims:
    """See `Claims`. All instants of the table are claimed together: the first claim takes the lock file, and the end of
    the last one releases it."""

    available = True

    def __init__(self, table: Table, holder: str) -> None:
        self._table = table
        self._holder = holder
        self._ours: dict[str, Claim] = {}
        self._file = ExitStack()
        self._lock = threading.Lock()

    def names(self) -> frozenset[str]:
        """See `Claims`. Claims of other processes are not listed; they only make `take` fail."""
        with self._lock:
            return frozenset(self._ours)

    def all(self) -> Mapping[str, Claim]:
        """See `Claims`."""
        with self._lock:
            return dict(self._ours)

    def take(self, instant: str) -> HeldTable | None:
        """See `Claims`."""
        with self._lock:
            if instant in self._ours:
                return None
            if not self._ours:
                try:
                    self._file.enter_context(claim(self._table))
                except ClaimedError:
                    return None
            self._ours[instant] = Claim.of_this_process(instant, self._holder)
            return HeldTable(self, instant)

    def _give_back(self, instant: str) -> None:
        with self._lock:
            self._ours.pop(instant, None)
            if not self._ours:
                self._file.close()


class HeldTable:
    """See `HeldClaim`. A lock file is lost only when its process ends. The heartbeat shows the progress."""

    lost = False

    def __init__(self, claims: TableClaims, instant: str) -> None:
        self._claims = claims
        self._instant = instant

    def report(self, note: WorkNote) -> None:
        """Does nothing: other processes read the heartbeat."""

    def release(self) -> None:
        """See `HeldClaim`."""
        self._claims._give_back(self._instant)
