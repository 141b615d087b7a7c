"""Tables with consistent-hashing buckets, and the file groups that a resize of these will make.

Hudi resizes such buckets by a clustering: `<t>.clustering.requested`, on version 6 `<t>.replacecommit.requested`. The
extra metadata of each input group of its plan has the partition, and the new buckets as JSON:

    [{"value": 715827882, "fileIdPrefix": "8e2f...", "tag": "REPLACE"}, ...]      file id: <fileIdPrefix>-0

While the resize is pending, Hudi's writers write each row twice, into the old file group and into the new one. A bucket
with the tag DELETE is one that goes.
"""

from __future__ import annotations

import json
from typing import Any

from ..codec.avro_container import STRING, array_of, map_of, optional, read_record, record_of, root_record
from ..errors import MalformedError
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import HOODIE

HASHING_METADATA = f"{HOODIE}/.bucket_index/consistent_hashing_metadata"
"""The folder that a table with such buckets has: a folder for each partition, with files `<instant>.hashing_meta`."""

_PARTITION, _NODES = "clustering.group.partition", "clustering.group.child.node"


def is_consistently_hashed(storage: Storage) -> bool:
    """Whether the table has hashing metadata."""
    return listed_if_there(storage, HASHING_METADATA) is not None


def forming_groups(data: bytes, where: str) -> frozenset[tuple[str, str]]:
    """(partition, file id) of the buckets that a pending clustering will make; none if it is not a resize (pure).

    `data`: the requested file. MalformedError: it cannot be read.
    """
    if not data:
        return frozenset()
    _, record = read_record(data, where, _SCHEMA)
    groups = (record["clusteringPlan"] or {}).get("inputGroups") or ()
    return frozenset(key for group in groups for key in _made(group["extraMetadata"] or {}, where))


def _made(extra: dict[str, str], where: str) -> list[tuple[str, str]]:
    if _NODES not in extra:
        return []
    try:
        nodes: list[dict[str, Any]] = json.loads(extra[_NODES])
        return [(extra[_PARTITION], f"{node['fileIdPrefix']}-0") for node in nodes if node["tag"] != "DELETE"]
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(
            "the plan of a bucket resize cannot be read", path=where, found=repr(error), todo="Let Hudi complete it."
        ) from error


_GROUP = record_of("HoodieClusteringGroup", optional("extraMetadata", map_of(STRING)))
_SCHEMA = root_record(
    "HoodieRequestedReplaceMetadata",
    optional("clusteringPlan", record_of("HoodieClusteringPlan", optional("inputGroups", array_of(_GROUP)))),
)
