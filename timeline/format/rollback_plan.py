"""Hudi's records of rollbacks and restores: their plans and results (pure).

    <R>.rollback.requested, <R>.rollback     `HoodieRollbackPlan`, `HoodieRollbackMetadata`
    <T>.restore.requested, <T>.restore       `HoodieRestorePlan`, `HoodieRestoreMetadata`

All are Avro container files, in the same schemas in all table versions. A restore undoes its instants one by one, the
newest first; each is recorded as a rollback. Hudi names files by absolute paths, with or without a scheme, or by name
alone. Each file is in its request's partition, and only its name is used, so a table may be moved. phantombase writes
absolute paths without a scheme."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ..codec.avro_container import (
    NAMESPACE,
    STRING,
    array_of,
    defaulted,
    listed,
    map_of,
    optional,
    plain,
    read_record,
    record_of,
    root_record,
    write_record,
)
from ..errors import MalformedError
from ..storage.folders import inside_table
from .instant import Instant, State

_ROLLBACK_PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedSlice:
    """A file slice that gets a command block (version 6). `logs`: names and sizes (bytes) of the revoked log files."""

    partition: str
    file_id: str
    base_instant: str
    logs: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.partition, self.file_id, self.base_instant


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """How the pending instant `target` of an action is undone.
    `doomed`: files to delete, (partition, name). `revoked`: slices that get a command block."""

    target: str
    action: str
    doomed: tuple[tuple[str, str], ...] = ()
    revoked: tuple[RevokedSlice, ...] = ()

    @property
    def instant(self) -> Instant:
        return Instant(requested_time=self.target, action=self.action, state=State.INFLIGHT)

    def with_all_of(self, other: RollbackPlan) -> RollbackPlan:
        """This plan and another plan of the same target, combined. Hudi 0.15 has one request for each log file, and
        writes 1 for its size. So for each slice the logs of both plans are combined, with the greater size."""
        slices: dict[tuple[str, str, str], RevokedSlice] = {}
        for slice_ in (*other.revoked, *self.revoked):
            known = slices[slice_.key].logs if slice_.key in slices else {}
            logs = {name: max(size, known.get(name, 0)) for name, size in slice_.logs.items()}
            slices[slice_.key] = replace(slice_, logs={**known, **logs})
        return RollbackPlan(
            target=self.target,
            action=self.action,
            doomed=tuple(sorted({*self.doomed, *other.doomed})),
            revoked=tuple(slices[key] for key in sorted(slices)),
        )


def decode_rollback_plan(data: bytes, where: str) -> RollbackPlan:
    """The plan in a requested file. MalformedError: unreadable, without an instant, a file outside the table."""
    _, record = read_record(data, where, _ROLLBACK_PLAN_SCHEMA)
    target = record["instantToRollback"]
    if target is None:
        raise MalformedError("rollback plan without an instant", path=where)
    doomed, revoked = [], []
    for request in record["RollbackRequests"] or ():
        partition = request["partitionPath"]
        if not inside_table(partition):
            raise MalformedError("rollback plan with a partition outside the table", path=where, found=repr(partition))
        doomed += [(partition, path.rpartition("/")[2]) for path in request["filesToBeDeleted"]]
        logs = {path.rpartition("/")[2]: size for path, size in (request["logBlocksToBeDeleted"] or {}).items()}
        if logs:
            if not request["fileId"] or not request["latestBaseInstant"]:
                raise MalformedError(
                    "rollback plan with log blocks but without their slice", path=where, found=repr(request)
                )
            base = request["latestBaseInstant"]
            revoked.append(RevokedSlice(partition=partition, file_id=request["fileId"], base_instant=base, logs=logs))
    return RollbackPlan(
        target=target["commitTime"], action=target["action"], doomed=tuple(doomed), revoked=tuple(revoked)
    )


def encode_rollback_plan(plan: RollbackPlan, base_path: str) -> bytes:
    """The bytes of a requested file: one request for each deleted file, and one for each revoked slice."""
    deletes = [
        {"partitionPath": partition, "filesToBeDeleted": [_absolute(base_path, partition, name)],
         "fileId": "", "latestBaseInstant": "", "logBlocksToBeDeleted": {}}
        for partition, name in plan.doomed
    ]  # fmt: skip
    revokes = [
        {"partitionPath": s.partition, "filesToBeDeleted": [],
         "fileId": s.file_id, "latestBaseInstant": s.base_instant, "logBlocksToBeDeleted": dict(s.logs)}
        for s in plan.revoked
    ]  # fmt: skip
    record = {
        "instantToRollback": {"commitTime": plan.target, "action": plan.action},
        "RollbackRequests": [*deletes, *revokes],
        "version": _ROLLBACK_PLAN_VERSION,
    }
    return write_record(record, _ROLLBACK_PLAN_SCHEMA)


def encode_rollback_metadata(
    plan: RollbackPlan, rollback: str, milliseconds: int, command_logs: Mapping[tuple[str, str], int], base_path: str
) -> bytes:
    """The bytes of a completed file; arguments as in `rollback_record`."""
    return write_record(
        rollback_record(plan, rollback, milliseconds, command_logs, base_path), _ROLLBACK_METADATA_SCHEMA
    )


def rollback_record(
    plan: RollbackPlan, rollback: str, milliseconds: int, command_logs: Mapping[tuple[str, str], int], base_path: str
) -> dict[str, Any]:
    """Record of a completed rollback. `command_logs`: (partition, name) of command blocks' log files, with sizes."""
    deleted = _by_partition((p, (_absolute(base_path, p, name), 0)) for p, name in plan.doomed)
    commands = _by_partition((p, (_absolute(base_path, p, name), size)) for (p, name), size in command_logs.items())
    revoked = _by_partition(
        (s.partition, (_absolute(base_path, s.partition, name), size))
        for s in plan.revoked
        for name, size in s.logs.items()
    )
    partitions = sorted({*deleted, *commands, *revoked})
    return {
        "startRollbackTime": rollback,
        "timeTakenInMillis": milliseconds,
        "totalFilesDeleted": len(plan.doomed),
        "commitsRollback": [plan.target],
        "partitionMetadata": {
            partition: {
                "partitionPath": partition,
                "successDeleteFiles": list(deleted.get(partition, ())),
                "failedDeleteFiles": [],
                "rollbackLogFiles": commands.get(partition, {}),
                "logFilesFromFailedCommit": revoked.get(partition, {}),
            }
            for partition in partitions
        },
        "version": _ROLLBACK_PLAN_VERSION,
        "instantsRollback": [{"commitTime": plan.target, "action": plan.action}],
    }


def rolled_back_instants(data: bytes, where: str) -> tuple[str, ...]:
    """The instants that a completed rollback undid."""
    _, record = read_record(data, where, _ROLLBACK_METADATA_SCHEMA)
    return tuple(record["commitsRollback"])


def _absolute(base_path: str, partition: str, name: str) -> str:
    return "/".join(part for part in (base_path.rstrip("/"), partition, name) if part)


def _by_partition(items: Iterable[tuple[str, tuple[str, int]]]) -> dict[str, dict[str, int]]:
    grouped = groupby(sorted(items), key=lambda item: item[0])
    return {partition: dict(pair for _, pair in group) for partition, group in grouped}


INSTANT_SCHEMA = record_of("HoodieInstantInfo", "commitTime", "action")
_ROLLBACK_PLAN_SCHEMA = root_record(
    "HoodieRollbackPlan",
    optional("instantToRollback", INSTANT_SCHEMA, doc="Hoodie instant that needs to be rolled back"),
    optional(
        "RollbackRequests",
        array_of(
            record_of(
                "HoodieRollbackRequest",
                "partitionPath",
                optional("fileId", STRING),
                optional("latestBaseInstant", STRING),
                listed("filesToBeDeleted", STRING),
                optional("logBlocksToBeDeleted", map_of("long")),
            )
        ),
    ),
    defaulted("version", "int", 1),
)
_METADATA_FIELDS = (
    "startRollbackTime",
    plain("timeTakenInMillis", "long"),
    plain("totalFilesDeleted", "int"),
    plain("commitsRollback", array_of(STRING)),
    plain(
        "partitionMetadata",
        map_of(
            record_of(
                "HoodieRollbackPartitionMetadata",
                "partitionPath",
                plain("successDeleteFiles", array_of(STRING)),
                plain("failedDeleteFiles", array_of(STRING)),
                optional("rollbackLogFiles", map_of("long")),
                optional("logFilesFromFailedCommit", map_of("long")),
            )
        ),
    ),
    defaulted("version", "int", 1),
    listed("instantsRollback", INSTANT_SCHEMA),
)
_ROLLBACK_METADATA_SCHEMA = root_record("HoodieRollbackMetadata", *_METADATA_FIELDS)
ROLLBACK_SCHEMA = record_of("HoodieRollbackMetadata", *_METADATA_FIELDS)
"""Schema of a completed rollback, also inside the record of a restore."""

_RESTORE_PLAN_VERSION = 2
_RESTORE_METADATA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """`target`: the instant whose state is restored; None: Hudi's plan names none. `undone`: (time, action) of the
    instants to undo, in this order; `action` is `commit` for a completed compaction."""

    target: str | None
    undone: tuple[tuple[str, str], ...]

    @property
    def times(self) -> frozenset[str]:
        return frozenset(time for time, _ in self.undone)


def decode_restore_plan(data: bytes, where: str) -> RestorePlan:
    """The plan in a requested file. MalformedError."""
    _, record = read_record(data, where, _RESTORE_PLAN_SCHEMA)
    undone = tuple((one["commitTime"], one["action"]) for one in record["instantsToRollback"])
    return RestorePlan(target=record["savepointToRestoreTimestamp"], undone=undone)


def encode_restore_plan(plan: RestorePlan) -> bytes:
    """The bytes of a requested file."""
    record = {
        "instantsToRollback": _infos(plan.undone),
        "version": _RESTORE_PLAN_VERSION,
        "savepointToRestoreTimestamp": plan.target,
    }
    return write_record(record, _RESTORE_PLAN_SCHEMA)


def encode_restore_metadata(
    plan: RestorePlan, restore: str, milliseconds: int, rollbacks: Mapping[str, dict[str, Any]]
) -> bytes:
    """The bytes of a completed file. `rollbacks`: the `rollback_record` of each undone instant."""
    record = {
        "startRestoreTime": restore,
        "timeTakenInMillis": milliseconds,
        "instantsToRollback": [time for time, _ in plan.undone],
        "hoodieRestoreMetadata": {time: [rollback] for time, rollback in rollbacks.items()},
        "version": _RESTORE_METADATA_VERSION,
        "restoreInstantInfo": _infos(plan.undone),
    }
    return write_record(record, _RESTORE_METADATA_SCHEMA)


def restored_instants(data: bytes, where: str) -> tuple[str, ...]:
    """The instants that a completed restore undid."""
    _, record = read_record(data, where, _RESTORE_METADATA_SCHEMA)
    rollbacks = (r for listed in record["hoodieRestoreMetadata"].values() for r in listed if r is not None)
    return tuple(instant for rollback in rollbacks for instant in rollback["commitsRollback"])


def _infos(undone: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"commitTime": time, "action": action} for time, action in undone]


_RESTORE_PLAN_SCHEMA = root_record(
    "HoodieRestorePlan",
    listed("instantsToRollback", INSTANT_SCHEMA),
    defaulted("version", "int", _RESTORE_PLAN_VERSION),
    optional("savepointToRestoreTimestamp", STRING),
)
_RESTORE_METADATA_SCHEMA = root_record(
    "HoodieRestoreMetadata",
    "startRestoreTime",
    plain("timeTakenInMillis", "long"),
    plain("instantsToRollback", array_of(STRING)),
    plain("hoodieRestoreMetadata", map_of({**array_of(["null", ROLLBACK_SCHEMA]), "default": []})),
    defaulted("version", "int", _RESTORE_METADATA_VERSION),
    # The schema of a rollback defines the schema of an instant.
    listed("restoreInstantInfo", f"{NAMESPACE}.HoodieInstantInfo"),
)
