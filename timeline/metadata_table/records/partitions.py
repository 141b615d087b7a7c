"""Which partitions of the metadata table phantombase can keep correct (pure).

    files, column_stats, partition_stats, bloom_filters   kept: their content follows from the files of a write
    record_index                                          follows rows: kept by a write that knows the keys it adds and
                                                          deletes; compactions move no rows
    secondary_index_*                                     follow rows
    expr_index_*                                          contain values of files that only Hudi can compute
    all others                                            unknown

A partition that is not kept is removed from `hoodie.table.metadata.partitions`, as Hudi does when it disables an index.
Readers then ignore it, and a Hudi writer that uses it builds it again. (Names: MetadataPartitionType of Hudi 0.15.0 and
1.2.0.)"""

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


OF_ROWS = (RECORD_INDEX, "secondary_index_")


_OF_FILES = ("expr_index_",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What a change means for each partition: `kept` correct, `left` unchanged, or `dropped`."""

    kept: tuple[str, ...]
    left: tuple[str, ...]
    dropped: tuple[str, ...]


def upkeep(
    built: Collection[str], building: Collection[str], *, moves_rows: bool, where: str, knows_keys: bool = False
) -> Upkeep:
    """Decides about the partitions that are `built` or being built.
    `moves_rows`: false for compactions and log compactions: rows do not change their file group. `knows_keys`: the
    change says which keys it adds and deletes, and the record index is global. UnsupportedError: an unknown partition;
    one that cannot be kept while Hudi is building it, since its builder skips commits that the metadata table knows."""
    kept, left, dropped = [], [], []
    for name in sorted({*built, *building}):
        if name in _KEPT or (name == RECORD_INDEX and moves_rows and knows_keys and name not in building):
            kept.append(name)
        elif name.startswith(OF_ROWS) and not moves_rows:
            left.append(name)
        elif not name.startswith((*OF_ROWS, *_OF_FILES)):
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
    """The error for a partition that cannot be kept, and cannot be dropped either at present."""
    what = "Hudi is building an index that phantombase cannot maintain"
    todo = "Wait until it is built, or drop it with Hudi, then write again."
    return UnsupportedError(what, path=where, found=name, todo=todo)
