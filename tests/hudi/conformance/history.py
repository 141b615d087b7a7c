"""What was written to a table of the matrix, as the one who made it wrote it down: the source of the model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""Partition and id."""

HUDI = {6: "0.15.0", 8: "1.2.0", 9: "1.2.0"}
"""Which real Hudi makes and judges a table version."""

SHAPES = {"base": "base + logs", "logs": "log-only", "phantom": "phantom base only", "deleted": "all deleted"}
"""Partitions of each table, one file group in each, and what it is."""

BASED = ("base", "phantom", "deleted")
"""Those whose file group begins with a base file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One completed write. `completed`: None on version 6. `rows`: partition, id, ts, v; `deletes`: their keys only."""

    instant: str
    completed: str | None
    deletes: bool
    rows: tuple[tuple[str, str, int, int], ...]

    @property
    def moment(self) -> str:
        """When windows count it."""
        return self.completed or self.instant


@dataclass(slots=True, kw_only=True)
class History:
    """The writes in the order in which they were requested. `based`: for a partition, how many of the writes its newest
    base file holds; partitions without a base file lack. `made_by`: which writer made the table; `forged`: what was
    done to its files by hand, "" for nothing. `restamped`: the log compaction whose instant the rows that it merged
    carry, instead of that of their write."""

    version: int
    made_by: str
    restamped: str | None = None
    forged: str = ""
    writes: list[Write] = field(default_factory=list)
    based: dict[str, int] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        """As JSON."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(file: Path) -> History:
        """What `save` has written."""
        found = json.loads(file.read_text())
        writes = [Write(**{**w, "rows": tuple((p, i, ts, v) for p, i, ts, v in w["rows"])}) for w in found["writes"]]
        return History(**{**found, "writes": writes})
