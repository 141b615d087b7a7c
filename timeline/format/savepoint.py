"""Hudi's record of a savepoint, `<t>.savepoint` (from version 8 on `<t>_<completion>.savepoint`) (pure).

An Avro container file of one `HoodieSavepointMetadata`, the same in all table versions. The inflight file is empty, and
there is no requested one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..avro.container import (
    STRING,
    array_of,
    defaulted,
    map_of,
    plain,
    read_record,
    record_of,
    root_record,
    write_record,
)

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A state that is kept: `files` are names, base and log files, by partition. `made_ms`: since the epoch."""

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
        "version": _VERSION,
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
    plain("savepointedBy", STRING),
    plain("savepointedAt", "long"),
    plain("comments", STRING),
    plain(
        "partitionMetadata",
        map_of(
            record_of(
                "HoodieSavepointPartitionMetadata",
                plain("partitionPath", STRING),
                plain("savepointDataFile", array_of(STRING)),
            )
        ),
    ),
    defaulted("version", "int", _VERSION),
)
