"""What a compactor says of its work in its heartbeat: storage tells who does what also where no ZooKeeper is (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkNote:
    """An attempt at work. `since_ms`: when its work began, since the epoch.

    `done` and `total`: file slices of the round being staged, adopted ones not among them, and `bytes`: of their
    inputs; all 0 before staging, and where only a decision is left to publish. `waiting`: 1 while it waits for writes
    that began before the compaction.
    """

    attempt: int
    since_ms: int
    done: int = 0
    total: int = 0
    bytes: int = 0
    waiting: int = 0

    def to_note(self) -> dict[str, int]:
        """As the heartbeat carries it."""
        return asdict(self)

    @staticmethod
    def from_note(note: Mapping[str, Any] | None) -> WorkNote | None:
        """Inverse of `to_note`; None for what is no such note. Names of later versions are ignored."""
        known = {"waiting": 0, **(note or {})}  # not known to earlier releases
        values = {f.name: known.get(f.name) for f in fields(WorkNote)}
        counts = {name: value for name, value in values.items() if isinstance(value, int) and value >= 0}
        return WorkNote(**counts) if len(counts) == len(values) else None
