"""Which partitions of the metadata table a write of ours can keep true (pure).

    files, column_stats, partition_stats, bloom_filters   kept: what they say follows from the files a write names
    record_index, secondary_index_*                       follow rows: compactions move none, so only writes change them
    expr_index_*                                          say of files what only Hudi can compute
    anything else                                         unknown

What is not kept is taken out of `hoodie.table.metadata.partitions`, as Hudi does when it disables an index: readers do
not look at it then, and a Hudi writer that wants it builds it anew. (Names: MetadataPartitionType of 0.15.0 and 1.2.0.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...errors import UnsupportedError

FILES = "files"
COLUMN_STATS = "column_stats"
PARTITION_STATS = "partition_stats"
BLOOM_FILTERS = "bloom_filters"
RECORD_INDEX = "record_index"

_KEPT = frozenset({FILES, COLUMN_STATS, PARTITION_STATS, BLOOM_FILTERS})
_OF_ROWS = (RECORD_INDEX, "secondary_index_")
_OF_FILES = ("expr_index_",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What a change does about each partition: `kept` true, `left` since nothing changes in it, `dropped`."""

    kept: tuple[str, ...]
    left: tuple[str, ...]
    dropped: tuple[str, ...]


def upkeep(built: Collection[str], building: Collection[str], *, moves_rows: bool, where: str) -> Upkeep:
    """What is to be done about the partitions that are `built` or being built.

    `moves_rows`: false for compactions and log compactions: every row stays in its file group.
    UnsupportedError: an unknown partition; one that cannot be kept while Hudi is building it, since its builder skips
    commits that the metadata table knows.
    """
    kept, left, dropped = [], [], []
    for name in sorted({*built, *building}):
        if name in _KEPT:
            kept.append(name)
        elif name.startswith(_OF_ROWS) and not moves_rows:
            left.append(name)
        elif not name.startswith((*_OF_ROWS, *_OF_FILES)):
            raise UnsupportedError(
                "unknown partition of the metadata table",
                path=where,
                expected=", ".join(sorted(_KEPT)),
                found=name,
                todo="Drop that index with Hudi, turn the metadata table off with --drop-metadata-table, "
                "or use a newer phantombase.",
            )
        elif name in building:
            raise being_built(name, where)
        else:
            dropped.append(name)
    return Upkeep(kept=tuple(kept), left=tuple(left), dropped=tuple(dropped))


def being_built(name: str, where: str) -> UnsupportedError:
    """A partition that cannot be kept, and cannot be dropped either now."""
    return UnsupportedError(
        "Hudi is building an index that phantombase cannot keep",
        path=where,
        found=name,
        todo="Wait until it is built, or drop it with Hudi, then write again.",
    )
