"""Keys of the metadata table's records, and the file group of a key (pure).

Format (Hudi PartitionIndexID, ColumnIndexID, FileIndexID, HashID; versions 6, 8 and 9 alike): base64 text of hashes of
UTF-8 bytes. A partition or a column is xxHash64 with a fixed seed, big-endian; a file is the MD5 of its name.

    files             partition
    column_stats      column | partition | file
    partition_stats   column | partition
    bloom_filters     partition | file

The partition of a table without partitions, and of files in the table's base folder, is ".".
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, TypeAlias

import numpy as np
import xxhash

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


def partition_path(name: str) -> str:
    """Inverse of `partition_name`."""
    return "" if name == NO_PARTITION else name


def column_stats_key(column: str, partition: str, file_name: str) -> str:
    """The key of one column of one file."""
    return _short_id(column) + _short_id(partition_name(partition)) + _file_id(file_name)


def partition_stats_key(column: str, partition: str) -> str:
    """The key of one column of one partition."""
    return _short_id(column) + _short_id(partition_name(partition))


def bloom_filter_key(partition: str, file_name: str) -> str:
    """The key of a base file's filter."""
    return _short_id(partition_name(partition)) + _file_id(file_name)


def file_group_index(key: str, count: int) -> int:
    """Which of a partition's `count` file groups holds the key: by Java's String.hashCode, over UTF-16 code units.

    Not for secondary indexes of table version 9, which hash a part of the key.
    """
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
