"""Archived instants as rows of a history file (version 8 on), and the names of history files (pure).

instantTime, completionTime, action    texts; the action of the completed file
metadata                               the bytes of the completed file
plan                                   the bytes of the requested file of a table service or replace commit, or null
version                                1; Hudi requires it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phantombase.timeline.errors import MalformedError

PLANNED = frozenset({"clean", "compaction", "logcompaction", "clustering", "replacecommit"})
"""Actions whose requested file is kept as `plan`."""

ROW_SCHEMA = pa.schema(
    [
        ("instantTime", pa.string()),
        ("completionTime", pa.string()),
        ("action", pa.string()),
        ("metadata", pa.binary()),
        ("plan", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)
_VERSION = 1
_NAME = re.compile(r"(\d+)_(\d+)_(\d+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One completed instant."""

    time: str
    completion: str
    action: str
    metadata: bytes
    plan: bytes | None


def row_batch(rows: Sequence[Row]) -> pa.Table:
    """The rows in `ROW_SCHEMA`."""
    columns = (
        pa.array([r.time for r in rows], pa.string()),
        pa.array([r.completion for r in rows], pa.string()),
        pa.array([r.action for r in rows], pa.string()),
        pa.array([r.metadata for r in rows], pa.binary()),
        pa.array([r.plan for r in rows], pa.binary()),
        pa.array([_VERSION] * len(rows), pa.int32()),
    )
    return pa.Table.from_arrays(list(columns), schema=ROW_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HistoryName:
    """The name of a history file: its first and last instant, and its level."""

    first: str
    last: str
    level: int

    def __str__(self) -> str:
        return f"{self.first}_{self.last}_{self.level}.parquet"

    @staticmethod
    def parse(name: str) -> HistoryName | None:
        """None: not the name of a history file."""
        match = _NAME.fullmatch(name)
        return HistoryName(first=match[1], last=match[2], level=int(match[3])) if match else None

    @staticmethod
    def of(name: str, where: str) -> HistoryName:
        """MalformedError: not the name of a history file."""
        found = HistoryName.parse(name)
        if found is None:
            raise MalformedError(
                "not the name of a history file", path=where, expected="<first>_<last>_<level>.parquet", found=name
            )
        return found


def spanning(names: Iterable[HistoryName], level: int) -> HistoryName:
    """The name of the file that holds what these hold."""
    found = list(names)
    return HistoryName(first=min(n.first for n in found), last=max(n.last for n in found), level=level)
