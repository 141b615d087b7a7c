"""Hudi's request of a write that replaces file groups, `<t>.replacecommit.requested` (pure).

An Avro container file of one `HoodieRequestedReplaceMetadata`. Only clusterings have a plan in it (see
`compaction_plan.pending_clustering_file_groups`): which file groups another write replaces is in its commit alone.
"""

from __future__ import annotations

from typing import Any

from ..avro.container import (
    STRING,
    array_of,
    defaulted,
    map_of,
    optional,
    record_of,
    required,
    root_record,
    write_record,
)

_DELETE_PARTITION = "DELETE_PARTITION"


def encode_replace_request(operation: str, *, names_deletes: bool) -> bytes:
    """The bytes of the requested file of a write. `operation`: Hudi's name, such as INSERT_OVERWRITE.

    `names_deletes`: from version 8 on, Hudi names the operation DELETE_PARTITION here; all else is null.
    """
    named = names_deletes and operation == _DELETE_PARTITION
    record: dict[str, Any] = {
        "operationType": operation if named else None,
        "clusteringPlan": None,
        "extraMetadata": {} if named else None,
        "version": _VERSION if named else None,
    }
    return write_record(record, _SCHEMA)


_VERSION = 1
_VERSION_FIELD = defaulted("version", "int", _VERSION)
_TEXTS = map_of(STRING)
_SLICE = record_of(
    "HoodieSliceInfo",
    optional("dataFilePath", STRING),
    optional("deltaFilePaths", array_of(STRING)),
    required("fileId", STRING),
    optional("partitionPath", STRING),
    optional("bootstrapFilePath", STRING),
    _VERSION_FIELD,
)
_GROUP = record_of(
    "HoodieClusteringGroup",
    optional("slices", array_of(_SLICE)),
    optional("metrics", map_of("double")),
    defaulted("numOutputFileGroups", "int", 1),
    optional("extraMetadata", _TEXTS),
    _VERSION_FIELD,
)
_STRATEGY = record_of(
    "HoodieClusteringStrategy",
    optional("strategyClassName", STRING),
    optional("strategyParams", _TEXTS),
    _VERSION_FIELD,
)
_PLAN = record_of(
    "HoodieClusteringPlan",
    optional("inputGroups", array_of(_GROUP)),
    optional("strategy", _STRATEGY),
    optional("extraMetadata", _TEXTS),
    _VERSION_FIELD,
    optional("preserveHoodieMetadata", "boolean"),
)
_SCHEMA = root_record(
    "HoodieRequestedReplaceMetadata",
    optional("operationType", STRING),
    optional("clusteringPlan", _PLAN),
    optional("extraMetadata", _TEXTS),
    _VERSION_FIELD,
)
