"""Where rows of new keys go: into small base files first, then into new ones (pure but for the new files' names).

As Hudi: a base file takes inserts while it is below the small file limit, has no logs and is in no pending table
service. Which row goes where is decided by a hash of its key, in proportion to the room each file has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantombase.timeline.arrow.row_hash import row_hashes
from phantombase.timeline.view.view import FileGroup, GroupKey

from .bucket import plain_file_id

ROW_BYTES = 1024
"""Hudi's guess of a row's size in a file (`hoodie.copyonwrite.record.size.estimate`)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Files of one partition, and up to which fraction of all hashes each takes rows (ascending, the last is 1)."""

    file_ids: tuple[str, ...]
    until: tuple[float, ...]

    def pick(self, keys: pa.StringArray) -> npt.NDArray[np.int64]:
        """For each key the number of its file."""
        # Other bits than those that chose the slot: the rows of one slot spread as all do.
        fraction = (row_hashes([keys], len(keys)) >> np.uint64(11)) / float(1 << 53)
        found = np.searchsorted(np.asarray(self.until), fraction, side="right")
        return np.minimum(found, len(self.file_ids) - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """A spread for each partition with new rows, and the existing files among their targets."""

    spreads: Mapping[str, Spread]
    rewritten: frozenset[GroupKey]


def plan_inserts(
    new_rows: Mapping[str, int],
    groups: Mapping[str, Iterable[FileGroup]],
    busy: frozenset[GroupKey],
    *,
    small_file_bytes: int,
    file_bytes: int,
    row_bytes: float,
) -> InsertPlan:
    """`new_rows`: rows of new keys by partition; `busy`: file groups in pending table services."""
    spreads: dict[str, Spread] = {}
    rewritten: set[GroupKey] = set()
    per_file = max(1, int(file_bytes / row_bytes))
    for partition, rows in new_rows.items():
        shares: list[tuple[str, int]] = []
        left = rows
        for group in groups.get(partition, ()):
            room = _room(group, busy, small_file_bytes, file_bytes, row_bytes)
            if room and left:
                shares.append((group.file_id, min(room, left)))
                rewritten.add(group.key)
                left -= min(room, left)
        files = -(-left // per_file)
        shares += [(plain_file_id(), left // files) for _ in range(files)]
        ends = np.cumsum([share for _, share in shares], dtype=np.float64)
        spreads[partition] = Spread(tuple(i for i, _ in shares), tuple((ends / ends[-1]).tolist()))
    return InsertPlan(spreads, frozenset(rewritten))


def _room(group: FileGroup, busy: frozenset[GroupKey], small_file_bytes: int, file_bytes: int, row_bytes: float) -> int:
    """How many rows a file group's base file may still take."""
    last = group.slices[-1]
    if group.pending_compaction is not None or group.key in busy or last.base is None or last.logs:
        return 0
    return int((file_bytes - last.base.size) / row_bytes) if last.base.size < small_file_bytes else 0
