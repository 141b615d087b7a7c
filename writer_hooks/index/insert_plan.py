"""The files for rows of new keys: small base files first, then new ones (pure except for the new files' names).

The rule is Hudi's: a base file takes inserts while it is below the small file limit, has no logs, and is in no pending
table service. A hash of the key gives a row its file, in proportion to the room of each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantombase.timeline.codec.row_hash import row_hashes
from phantombase.timeline.format.record_key import plain_file_id
from phantombase.timeline.view.view import FileGroup, GroupKey

ROW_BYTES = 1024
"""Hudi's estimate of a row's size in a file (`hoodie.copyonwrite.record.size.estimate`)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Files of one partition; each takes rows up to a fraction of all hashes (`until`: ascending, the last is 1)."""

    file_ids: tuple[str, ...]
    until: tuple[float, ...]

    def pick(self, keys: pa.StringArray) -> npt.NDArray[np.int64]:
        """The number of each key's file."""
        # Not the bits that chose the slot, so that the rows of one slot are spread like all rows.
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
    """Plans the inserts. `new_rows`: rows of new keys by partition. `busy`: file groups in pending table services."""
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
    """How many more rows a file group's base file may take."""
    last = group.slices[-1]
    if group.flaws or group.pending_compaction is not None or group.key in busy or last.base is None or last.logs:
        return 0
    return int((file_bytes - last.base.size) / row_bytes) if last.base.size < small_file_bytes else 0
