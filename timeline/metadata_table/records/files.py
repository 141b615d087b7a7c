"""Records of the `files` partition: files that a data table's partitions have gained (pure).

There is one record for each partition, merged into the older ones by file name, and one that lists the partitions. A
partition's name is its path, or `.` in a table without partitions. (hudi-format.md 10.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TypeAlias

from ...format.commit_metadata import CommitMetadata
from .keys import ALL_PARTITIONS, MetadataRecord, partition_name

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
    """The log files that a rollback with command blocks leaves (version 6): those with the blocks and the revoked ones.

    A writer that died early leaves empty files. Hudi's readers fail on a size of 0 (HoodieMetadataPayload), and Hudi's
    own rollbacks write 1.
    """
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
    """Keys and records of files that are gone, and of partitions that are gone with all their files."""
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
