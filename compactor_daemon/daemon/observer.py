"""The events of a daemon's work, for an observer."""

from __future__ import annotations

from ..attempt.compact_instant import Compacted
from ..catalog.usage import PoolUsage
from ..services.done import ServiceDone


class Observer:
    """Ignores every event; subclasses override what they need. Tables are named by their path."""

    def looked(self, table: str, pending: int, parked: int, oldest_s: float | None) -> None:
        """A table was looked at."""

    def started(self, table: str, latency_s: float | None) -> None:
        """An instant was claimed, `latency_s` after it was requested."""

    def put_aside(self, table: str) -> None:
        """An instant that was started waits for writes now."""

    def resumed(self, table: str) -> None:
        """An instant that was put aside is at work again, or has ended."""

    def finished(self, table: str, compacted: Compacted | None) -> None:
        """Work on an instant ended; None: it was completed already, or the work failed or was stopped."""

    def failed(self, table: str) -> None:
        """A try of an instant failed (only errors that count as failures, see `weigh`)."""

    def served(self, table: str, done: ServiceDone) -> None:
        """A service ran on a table."""

    def zookeeper(self, connected: bool) -> None:
        """The connection to ZooKeeper came or went."""

    def trouble(self, table: str, error: str | None) -> None:
        """The last look at a table failed, or with None it did not."""

    def pool(self, use: PoolUsage) -> None:
        """What a pool uses now."""

    def forget(self, table: str) -> None:
        """The table is not served any more."""
