"""The note about its work in a compactor's heartbeat: shows which process does what, also without ZooKeeper (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkNote:
    """An attempt at work. `since_ms`: when its work began, since the epoch.

    `done` and `total` count the file slices of the round being staged, without adopted ones; `bytes` is the size of
    their inputs. All are 0 before staging, and when only the publishing of a decision is left. `waiting`: 1 while it
    waits for writes that began before the compaction.
    """

    attempt: int
    since_ms: int
    done: int = 0
    total: int = 0
    bytes: int = 0
    waiting: int = 0

    def to_note(self) -> dict[str, int]:
        """The note as stored in the heartbeat."""
        return asdict(self)

    @staticmethod
    def from_note(note: Mapping[str, Any] | None) -> WorkNote | None:
        """Inverse of `to_note`; None if it is no such note. Names that later releases add are ignored."""
        known = {"waiting": 0, **(note or {})}  # earlier releases do not write `waiting`
        values = {f.name: known.get(f.name) for f in fields(WorkNote)}
        counts = {name: value for name, value in values.items() if isinstance(value, int) and value >= 0}
        return WorkNote(**counts) if len(counts) == len(values) else None
