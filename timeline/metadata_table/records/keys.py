"""The metadata table's partitions that phantombase can keep correct, their keys, and the records of `files` (pure).

    partition                key                           kept correct
    files                    partition                     yes: the content follows from the files of a write
    column_stats             column | partition | file     yes
    partition_stats          column | partition            yes
    bloom_filters            partition | file              yes
    record_index             (by Java's hash)              by a write or clustering that knows its keys
    secondary_index_*        value$key (`RowIndex`)        with the record index, if the values before are known
    expr_index_*             column | partition | file     if its bounds can be computed here (`expressions_in`)

A partition that is not kept is removed from `hoodie.table.metadata.partitions`, as Hudi does when it disables an index:
readers ignore it, and a Hudi writer that uses it builds it again.

Keys are base64 text of hashes of UTF-8 bytes, in all versions. A partition or a column is xxHash64 with a fixed seed,
big-endian; a file is the MD5 of its name. The partition of a table without partitions, and of files in the table's base
folder, is ".". `files` has one record for each partition, merged into the older ones by file name, and one that lists
the partitions. (Hudi 0.15.0 and 1.2.0: MetadataPartitionType, PartitionIndexID, ColumnIndexID, FileIndexID, HashID.)"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import xxhash

from ...errors import UnsupportedError
from ...format.commit_metadata import CommitMetadata

FILES = "files"
COLUMN_STATS = "column_stats"
PARTITION_STATS = "partition_stats"
BLOOM_FILTERS = "bloom_filters"
RECORD_INDEX = "record_index"
_KEPT = frozenset({FILES, COLUMN_STATS, PARTITION_STATS, BLOOM_FILTERS})
SECONDARY_INDEX, EXPRESSION_INDEX = "secondary_index_", "expr_index_"
"""How the names of secondary and expression indexes begin."""
OF_ROWS = (RECORD_INDEX, SECONDARY_INDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """An index with an entry for each row: the record index, or a secondary index of a `column`. The key of a secondary
    entry is the value's text, $, the record key; both with a backslash before each backslash, $ and NUL; a null is NUL
    alone. `by_value`: all entries of a value are in one file group, so a look-up opens one (version 2 of the index)."""

    partition: str = RECORD_INDEX
    column: str = ""
    by_value: bool = False


_FILE_GROUPS = {
    FILES: ("files", 1),
    COLUMN_STATS: ("col-stats", 2),
    PARTITION_STATS: ("partition-stats", 1),
    BLOOM_FILTERS: ("bloom-filters", 4),
    RECORD_INDEX: ("record-index", 10),
}
"""The names of the file groups of new partitions, and Hudi's default number of them."""


def new_file_ids(partition: str, count: int | None = None) -> tuple[str, ...]:
    """The file ids of a new partition. `count`: None: Hudi's default."""
    of_rows = partition.startswith(OF_ROWS)
    name, usual = _FILE_GROUPS.get(partition, (partition.replace("_", "-"), 10 if of_rows else 2))
    return tuple(f"{name}-{number:04}-0" for number in range(count or usual))


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What a change means for each partition: `kept` correct, `left` unchanged, or `dropped`."""

    kept: tuple[str, ...]
    left: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsChange:
    """What a change does to rows, as far as indexes depend on it. `moves_rows`: false for compactions and log
    compactions: rows do not change their file group. `knows_keys`: the change says which keys it adds and deletes, and
    the record index is global. `same_rows`: of a clustering: the values of keys do not change. `followed`: secondary
    indexes of columns whose values can be compared before and after (Hudi finds their rows by the record index), and
    expression indexes that stay exact."""

    moves_rows: bool = True
    knows_keys: bool = False
    same_rows: bool = False
    followed: Collection[str] = ()


def upkeep(built: Collection[str], building: Collection[str], change: RowsChange, where: str) -> Upkeep:
    """Decides about the partitions that are `built` or being built. UnsupportedError: an unknown partition; one that
    cannot be kept while Hudi is building it, since its builder skips commits that the metadata table knows."""
    kept, left, dropped = [], [], []
    keeps_keys = change.moves_rows and change.knows_keys and RECORD_INDEX in built and RECORD_INDEX not in building
    for name in sorted({*built, *building}):
        is_secondary = keeps_keys and name.startswith(SECONDARY_INDEX) and name not in building
        is_expression = name.startswith(EXPRESSION_INDEX)
        is_followed = name in change.followed and (is_secondary or (is_expression and name not in building))
        if name in _KEPT or (name == RECORD_INDEX and keeps_keys) or is_followed:
            kept.append(name)
        elif name.startswith(OF_ROWS) and (not change.moves_rows or (is_secondary and change.same_rows)):
            left.append(name)
        elif not (is_expression or name.startswith(OF_ROWS)):
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


MetadataRecord: TypeAlias = dict[str, Any]
"""A `HoodieMetadataRecord` by field names, without meta columns; a field that its writer did not know is missing."""

ALL_PARTITIONS = "__all_partitions__"
"""Key of the one record of `files` that lists all partitions."""

NO_PARTITION = "."

_SEED = 0xFFFFFFFF_DABADABA
"""An int in Hudi, which Java widens with its sign."""


def partition_name(partition: str) -> str:
    """The name of a partition (relative path, "" for the base folder) in the metadata table."""
    return partition or NO_PARTITION


def refuse_unordered(partitions: Iterable[str], where: str) -> None:
    """UnsupportedError: a partition that Hudi does not find in the metadata table. It looks keys up in the order of
    UTF-16, an HFile has that of bytes: with characters above U+FFFF and from U+E000 on in two paths, 0.15.0 fails to
    write the file and 1.2.0 misses entries (seen)."""
    found = next((partition for partition in partitions if max(partition, default="") > "\uffff"), None)
    if found is not None:
        raise UnsupportedError(
            "a partition with characters above U+FFFF in a table with a metadata table: Hudi would not find its files",
            path=where,
            found=found[:60],
            todo="Use other values, or do without a metadata table: metadata_table=False for a new table, "
            "`compactor-daemon compact TABLE --drop-metadata-table` for one that has it, and "
            "hoodie.metadata.enable=false in Hudi's writers.",
        )


def partition_path(name: str) -> str:
    """Inverse of `partition_name`."""
    return "" if name == NO_PARTITION else name


def column_stats_key(column: str, partition: str, file_name: str) -> str:
    return _short_id(column) + _short_id(partition_name(partition)) + _file_id(file_name)


def partition_stats_key(column: str, partition: str) -> str:
    return _short_id(column) + _short_id(partition_name(partition))


def expression_stats_key(column: str, partition: str) -> str:
    """Of the bounds of a partition in an expression index; those of a file have the key of column statistics."""
    return _short_id(column) + _short_id("__partition_stat__") + _short_id(partition_name(partition))


def bloom_filter_key(partition: str, file_name: str) -> str:
    return _short_id(partition_name(partition)) + _file_id(file_name)


def file_group_index(key: str, count: int) -> int:
    """Which of a partition's `count` file groups holds the key: by Java's String.hashCode, over UTF-16 code units.
    Not for secondary indexes of table version 9, which hash a part of the key."""
    import numpy as np  # late: commands that show a status start without it

    units = np.frombuffer(key.encode("utf-16-be", "surrogatepass"), ">u2").astype(np.uint32)
    powers = np.full(len(units), 31, np.uint32)
    powers[-1:] = 1
    hashed = int((units * np.multiply.accumulate(powers[::-1])[::-1]).sum(dtype=np.uint32).view(np.int32))
    # Java: |-2**31| is -2**31, and a remainder has the sign of the dividend.
    return abs(hashed) % count


def _short_id(text: str) -> str:
    return _text(xxhash.xxh64_digest(text.encode(), seed=_SEED))


def _file_id(name: str) -> str:
    return _text(hashlib.md5(name.encode(), usedforsecurity=False).digest())


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


Sizes: TypeAlias = Mapping[str, Mapping[str, int]]
"""Files by partition path: name to size in bytes."""

_LIST_TYPE, _FILES_TYPE = 1, 2


def files_of(metadata: CommitMetadata) -> dict[str, dict[str, int]]:
    """Every file that a write names, by partition; partitions that it names without files are included."""
    found: dict[str, dict[str, int]] = {}
    for partition, stats in metadata.partition_to_write_stats.items():
        names = found.setdefault(partition, {})
        for stat in stats:
            if stat.path is not None:
                name = stat.path.rpartition("/")[2]
                names[name] = max(names.get(name, 0), stat.file_size_in_bytes)
                for cdc_path, size in (stat.cdc_stats or {}).items():
                    names[cdc_path.rpartition("/")[2]] = size
    return found


def files_of_rollback(commands: Mapping[tuple[str, str], int], revoked: Sizes) -> dict[str, dict[str, int]]:
    """The log files after a rollback with command blocks (version 6): those with the blocks, and the revoked ones.
    A writer that died early leaves empty files. Hudi's readers fail on a size of 0 (HoodieMetadataPayload), so Hudi's
    own rollbacks write 1."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (partition, name), size in commands.items():
        sizes = {**revoked.get(partition, {}), name: size}
        found[partition] |= {log: max(bytes_, 1) for log, bytes_ in sizes.items()}
    return dict(found)


def files_records(added: Sizes) -> list[tuple[str, MetadataRecord]]:
    """Keys and records of files that exist from now on."""
    partitions = {partition_name(p): {"size": 0, "isDeleted": False} for p in added}
    listed = {"key": ALL_PARTITIONS, "type": _LIST_TYPE, "filesystemMetadata": partitions}
    records = [(ALL_PARTITIONS, listed)]
    for partition, names in added.items():
        if names:
            key = partition_name(partition)
            sizes = {name: {"size": size, "isDeleted": False} for name, size in names.items()}
            records.append((key, {"key": key, "type": _FILES_TYPE, "filesystemMetadata": sizes}))
    return records


def removed_records(
    removed: Mapping[str, Collection[str]], partitions: Collection[str]
) -> list[tuple[str, MetadataRecord]]:
    """Keys and records of files that were removed, and of partitions that were removed with all their files."""
    records: list[tuple[str, MetadataRecord]] = []
    if partitions:
        gone = {partition_name(p): {"size": 0, "isDeleted": True} for p in partitions}
        records.append((ALL_PARTITIONS, {"key": ALL_PARTITIONS, "type": _LIST_TYPE, "filesystemMetadata": gone}))
    for partition, names in removed.items():
        if names:
            key = partition_name(partition)
            sizes = {name: {"size": 0, "isDeleted": True} for name in names}
            records.append((key, {"key": key, "type": _FILES_TYPE, "filesystemMetadata": sizes}))
    return records
