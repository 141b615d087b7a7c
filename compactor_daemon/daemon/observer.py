"""What a daemon tells of its work."""

from __future__ import annotations

from ..attempt.compact_instant import Compacted


class Observer:
    """By default nobody listens. Tables are named by their path."""

    def looked(self, table: str, pending: int, parked: int, oldest_s: float | None) -> None:
        """A table was looked at."""

    def started(self, table: str, latency_s: float | None) -> None:
        """An instant was claimed, so long after it was requested."""

    def put_aside(self, table: str) -> None:
        """An instant that was started waits for writes, and is not worked on."""

    def resumed(self, table: str) -> None:
        """An instant that was put aside is worked on again, or at its end."""

    def finished(self, table: str, compacted: Compacted | None) -> None:
        """An instant was executed; None: there was nothing to do any more, or the work was stopped."""

    def failed(self, table: str) -> None:
        """An instant failed (see `weigh`: what is no failure of it is not told)."""

    def zookeeper(self, connected: bool) -> None:
        """ZooKeeper came or went."""
