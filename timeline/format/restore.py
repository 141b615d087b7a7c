"""Hudi's records of a restore: its plan (`<T>.restore.requested`) and its result (`<T>.restore`) (pure).

Avro container files of one `HoodieRestorePlan` or `HoodieRestoreMetadata`, in the same schemas in all table versions. A
restore undoes its instants one by one, the newest first; what was done for each is recorded as a rollback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..avro.container import (
    NAMESPACE,
    STRING,
    array_of,
    defaulted,
    map_of,
    optional,
    plain,
    read_record,
    root_record,
    write_record,
)
from .rollback_plan import INSTANT_SCHEMA, ROLLBACK_SCHEMA

_PLAN_VERSION = 2
_METADATA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """`target`: the instant whose state comes back; None: Hudi's plan does not say. `undone`: (time, action) of the
    instants to undo, in this order; `action` is `commit` for a completed compaction.
    """

    target: str | None
    undone: tuple[tuple[str, str], ...]

    @property
    def times(self) -> frozenset[str]:
        """The times of the instants to undo."""
        return frozenset(time for time, _ in self.undone)


def decode_restore_plan(data: bytes, where: str) -> RestorePlan:
    """The plan in a requested file. MalformedError."""
    _, record = read_record(data, where, _PLAN_SCHEMA)
    undone = tuple((one["commitTime"], one["action"]) for one in record["instantsToRollback"])
    return RestorePlan(target=record["savepointToRestoreTimestamp"], undone=undone)


def encode_restore_plan(plan: RestorePlan) -> bytes:
    """The bytes of a requested file."""
    record = {
        "instantsToRollback": _infos(plan.undone),
        "version": _PLAN_VERSION,
        "savepointToRestoreTimestamp": plan.target,
    }
    return write_record(record, _PLAN_SCHEMA)


def encode_restore_metadata(
    plan: RestorePlan, restore: str, milliseconds: int, rollbacks: Mapping[str, dict[str, Any]]
) -> bytes:
    """The bytes of a completed file. `rollbacks`: by instant what was done for it, see `rollback_record`."""
    record = {
        "startRestoreTime": restore,
        "timeTakenInMillis": milliseconds,
        "instantsToRollback": [time for time, _ in plan.undone],
        "hoodieRestoreMetadata": {time: [rollback] for time, rollback in rollbacks.items()},
        "version": _METADATA_VERSION,
        "restoreInstantInfo": _infos(plan.undone),
    }
    return write_record(record, _METADATA_SCHEMA)


def restored_instants(data: bytes, where: str) -> tuple[str, ...]:
    """The instants that a completed restore undid."""
    _, record = read_record(data, where, _METADATA_SCHEMA)
    rollbacks = (r for listed in record["hoodieRestoreMetadata"].values() for r in listed if r is not None)
    return tuple(instant for rollback in rollbacks for instant in rollback["commitsRollback"])


def _infos(undone: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"commitTime": time, "action": action} for time, action in undone]


_PLAN_SCHEMA = root_record(
    "HoodieRestorePlan",
    {"name": "instantsToRollback", "type": {**array_of(INSTANT_SCHEMA), "default": []}, "default": []},
    defaulted("version", "int", _PLAN_VERSION),
    optional("savepointToRestoreTimestamp", STRING),
)
_METADATA_SCHEMA = root_record(
    "HoodieRestoreMetadata",
    plain("startRestoreTime", STRING),
    plain("timeTakenInMillis", "long"),
    plain("instantsToRollback", array_of(STRING)),
    plain("hoodieRestoreMetadata", map_of({**array_of(["null", ROLLBACK_SCHEMA]), "default": []})),
    defaulted("version", "int", _METADATA_VERSION),
    # The schema of an instant is defined inside that of a rollback.
    {
        "name": "restoreInstantInfo",
        "type": {"type": "array", "items": f"{NAMESPACE}.HoodieInstantInfo", "default": []},
        "default": [],
    },
)
