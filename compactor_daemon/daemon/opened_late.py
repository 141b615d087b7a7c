"""A served table that is opened by the first look at it, in a thread of the daemon.

So a table that cannot be opened is in trouble like any other one, and is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from phantombase.timeline.errors import UnknownStateError
from phantombase.timeline.planning.schedule import Scheduled

from ..attempt.attempt import Aside
from ..attempt.compact_instant import Compacted
from ..claims.claims import Claim, Claims, HeldClaim
from ..services.done import ServiceDone
from ..time_limit import Limit
from .served_table import Seen, Served


class _NoClaims:
    """The claims on a table that was not opened yet."""

    available = False

    def names(self) -> frozenset[str]:
        """See `Claims`."""
        return frozenset()

    def all(self) -> Mapping[str, Claim]:
        """See `Claims`."""
        return {}

    def take(self, instant: str) -> HeldClaim | None:
        """See `Claims`."""
        raise UnknownStateError("the table was not opened yet")

    def close(self) -> None:
        """See `Claims`."""


class OpenedLate:
    """See the module, and `Served`. `open_it` is tried at each look until it succeeds."""

    def __init__(self, path: str, open_it: Callable[[], Served]) -> None:
        self.path = path
        self._open_it = open_it
        self._opening = threading.Lock()
        self._served: Served | None = None
        self._closed = False

    @property
    def claims(self) -> Claims:
        """See `Served`."""
        return _NoClaims() if self._served is None else self._served.claims

    def open(self) -> Served:
        """The table. Errors of the tree: it cannot be opened now."""
        with self._opening:
            if self._served is None:
                self._served = self._open_it()
                if self._closed:
                    self._served.close()
            return self._served

    def look(self) -> Seen:
        """See `Served`."""
        return self.open().look()

    def request(self) -> Scheduled:
        """See `Served`."""
        return self.open().request()

    def sweep(self) -> None:
        """See `Served`."""
        self.open().sweep()

    def serve(self, every_s: float, stopping: Callable[[], bool]) -> tuple[ServiceDone, ...]:
        """See `Served`."""
        return self.open().serve(every_s, stopping)

    def done_among(self, instants: Iterable[str]) -> frozenset[str]:
        """See `Served`."""
        return self.open().done_among(instants)

    def execute(self, instant: str, held: HeldClaim, limit: Limit, aside: Aside) -> Compacted | None:
        """See `Served`."""
        return self.open().execute(instant, held, limit, aside)

    def failed(self, instant: str, error: Exception) -> None:
        """See `Served`."""
        self.open().failed(instant, error)

    def close(self) -> None:
        """See `Served`."""
        self._closed = True
        if self._served is not None:
            self._served.close()
