"""Hudi's records of cleans and savepoints (pure).

    <T>.clean.requested                                      the plan, one `HoodieCleanerPlan`
    <T>.clean                                                the result, one `HoodieCleanMetadata`
    <t>.savepoint, from version 8 on <t>_<completion>.savepoint        one `HoodieSavepointMetadata`

All are Avro container files, in the same schemas in all table versions. The inflight file of a clean is the plan again
on version 6, and empty from version 8 on; that of a savepoint is empty, and a savepoint has no requested file. Hudi
names files in plans by absolute URIs. Each file is in its partition, and only its name is used: a table may be moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..codec.avro_container import (
    NAMESPACE,
    STRING,
    array_of,
    defaulted,
    map_of,
    optional,
    plain,
    read_record,
    record_of,
    root_record,
    write_record,
)
from ..errors import MalformedError, UnsupportedError
from ..shown import Shown
from ..storage.folders import as_uri, inside_table
from .file_name import parse_data_file

_SAVEPOINT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint(Shown):
    """A retained state: `files` are the names of its base and log files, by partition. `made_ms`: since the epoch."""

    user: str
    comment: str
    made_ms: int
    files: Mapping[str, tuple[str, ...]]


def encode_savepoint(savepoint: Savepoint) -> bytes:
    """The bytes of the completed file."""
    record = {
        "savepointedBy": savepoint.user,
        "savepointedAt": savepoint.made_ms,
        "comments": savepoint.comment,
        "partitionMetadata": {
            partition: {"partitionPath": partition, "savepointDataFile": list(names)}
            for partition, names in savepoint.files.items()
        },
        "version": _SAVEPOINT_VERSION,
    }
    return write_record(record, _SCHEMA)


def decode_savepoint(data: bytes, where: str) -> Savepoint:
    """The record in a completed file. MalformedError."""
    _, record = read_record(data, where, _SCHEMA)
    found = record["partitionMetadata"]
    return Savepoint(
        user=record["savepointedBy"],
        comment=record["comments"],
        made_ms=record["savepointedAt"],
        files={partition: tuple(one["savepointDataFile"]) for partition, one in found.items()},
    )


_SCHEMA = root_record(
    "HoodieSavepointMetadata",
    "savepointedBy",
    plain("savepointedAt", "long"),
    "comments",
    plain(
        "partitionMetadata",
        map_of(
            record_of("HoodieSavepointPartitionMetadata", "partitionPath", plain("savepointDataFile", array_of(STRING)))
        ),
    ),
    defaulted("version", "int", _SAVEPOINT_VERSION),
)

_CLEAN_VERSION = 2
_SAVEPOINTS = "savepointed_timestamps"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """What a clean removes: names of files by partition, and `partitions` that become empty. `retained`: requested time
    and action of the earliest commit whose state remains complete; None where only file versions are retained: Hudi's
    archiver then treats every replace commit before the clean as cleaned. `last_completed`: the newest completed commit
    when the plan was made. `savepoints`: times of the savepoints at that time: Hudi 1.2 archives nothing beyond the
    first one after this clean, even if it was deleted since then."""

    policy: str
    files: Mapping[str, tuple[str, ...]]
    retained: tuple[str, str] | None = None
    last_completed: str = ""
    partitions: tuple[str, ...] = ()
    savepoints: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(map(len, self.files.values()))


def encode_clean_plan(plan: CleanPlan, base_path: str) -> bytes:
    """The bytes of a requested file."""
    base = as_uri(base_path)
    retained = plan.retained and {"timestamp": plan.retained[0], "action": plan.retained[1], "state": "COMPLETED"}
    record = {
        "earliestInstantToRetain": retained,
        "lastCompletedCommitTimestamp": plan.last_completed,
        "policy": plan.policy,
        "filesToBeDeletedPerPartition": {},
        "version": _CLEAN_VERSION,
        "filePathsToBeDeletedPerPartition": {
            partition: [
                {"filePath": "/".join(p for p in (base, partition, name) if p), "isBootstrapBaseFile": False}
                for name in names
            ]
            for partition, names in plan.files.items()
        },
        "partitionsToBeDeleted": list(plan.partitions),
        "extraMetadata": _extra(plan),
    }
    return write_record(record, _PLAN)


def decode_clean_plan(data: bytes, where: str) -> CleanPlan:
    """The plan in a requested file. MalformedError: unreadable, or an entry is not a data file of the table.
    UnsupportedError: files of a bootstrapped table, which are outside the table's folder."""
    _, record = read_record(data, where, _PLAN)
    return clean_plan_of(record, where)


def clean_plan_of(record: Mapping[str, Any], where: str) -> CleanPlan:
    """The plan in a record of Hudi's schema; the archive of version 6 has it too. Errors of `decode_clean_plan`."""
    files = {p: tuple(names) for p, names in (record["filesToBeDeletedPerPartition"] or {}).items()}
    for partition, infos in (record["filePathsToBeDeletedPerPartition"] or {}).items():
        if any(info["isBootstrapBaseFile"] for info in infos):
            raise UnsupportedError("a clean of a bootstrapped table is not supported", path=where)
        names = (str(info["filePath"] or "").rpartition("/")[2] for info in infos)
        files[partition] = (*files.get(partition, ()), *names)
    partitions = tuple(record["partitionsToBeDeleted"] or ())
    for partition in (*files, *partitions):
        if not inside_table(partition):
            raise MalformedError("clean plan with a partition outside the table", path=where, found=repr(partition))
    for name in (name for names in files.values() for name in names):
        if "/" in name or parse_data_file(name) is None:
            raise MalformedError("clean plan with a file that is no data file", path=where, found=repr(name))
    retained = record["earliestInstantToRetain"]
    return CleanPlan(
        policy=record["policy"],
        files=files,
        retained=None if retained is None else (retained["timestamp"], retained["action"]),
        last_completed=record["lastCompletedCommitTimestamp"],
        partitions=partitions,
        savepoints=tuple(filter(None, (record["extraMetadata"] or {}).get(_SAVEPOINTS, "").split(","))),
    )


def encode_clean_metadata(plan: CleanPlan, instant: str, milliseconds: int, gone: frozenset[str]) -> bytes:
    """The bytes of a completed file; all files of the plan are removed, and the folders of `gone` partitions."""
    record = {
        "startCleanTime": instant,
        "timeTakenInMillis": milliseconds,
        "totalFilesDeleted": plan.count,
        "earliestCommitToRetain": plan.retained[0] if plan.retained else "",
        "lastCompletedCommitTimestamp": plan.last_completed,
        "partitionMetadata": {
            partition: {
                "partitionPath": partition,
                "policy": plan.policy,
                "deletePathPatterns": list(plan.files.get(partition, ())),
                "successDeleteFiles": list(plan.files.get(partition, ())),
                "failedDeleteFiles": [],
                "isPartitionDeleted": partition in gone,
            }
            for partition in sorted({*plan.files, *gone})
        },
        "version": _CLEAN_VERSION,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": _extra(plan),
    }
    return write_record(record, _METADATA)


def _extra(plan: CleanPlan) -> dict[str, str]:
    return {_SAVEPOINTS: ",".join(plan.savepoints)} if plan.savepoints else {}


_TEXTS = map_of(STRING)
_PLAN = root_record(
    "HoodieCleanerPlan",
    optional("earliestInstantToRetain", record_of(f"{NAMESPACE}.HoodieActionInstant", "timestamp", "action", "state")),
    plain("lastCompletedCommitTimestamp", STRING, default=""),
    "policy",
    optional("filesToBeDeletedPerPartition", map_of(array_of(STRING))),
    defaulted("version", "int", 1),
    optional(
        "filePathsToBeDeletedPerPartition",
        map_of(
            array_of(
                record_of(
                    f"{NAMESPACE}.HoodieCleanFileInfo",
                    optional("filePath", STRING),
                    optional("isBootstrapBaseFile", "boolean"),
                )
            )
        ),
    ),
    optional("partitionsToBeDeleted", array_of(STRING)),
    optional("extraMetadata", _TEXTS),
)
_OF_PARTITION = f"{NAMESPACE}.HoodieCleanPartitionMetadata"
_METADATA = root_record(
    "HoodieCleanMetadata",
    "startCleanTime",
    plain("timeTakenInMillis", "long"),
    plain("totalFilesDeleted", "int"),
    "earliestCommitToRetain",
    plain("lastCompletedCommitTimestamp", STRING, default=""),
    plain(
        "partitionMetadata",
        map_of(
            record_of(
                _OF_PARTITION,
                "partitionPath",
                "policy",
                plain("deletePathPatterns", array_of(STRING)),
                plain("successDeleteFiles", array_of(STRING)),
                plain("failedDeleteFiles", array_of(STRING)),
                optional("isPartitionDeleted", "boolean"),
            )
        ),
    ),
    defaulted("version", "int", 1),
    optional("bootstrapPartitionMetadata", map_of(_OF_PARTITION)),
    optional("extraMetadata", _TEXTS),
)
