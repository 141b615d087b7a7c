"""What a clean has retained, by its record or its plan."""

from __future__ import annotations

from typing import Any

from ..avro.container import NAMESPACE, STRING, Schema, optional, read_record, record_of, required, root_record
from ..errors import MalformedError, MissingFileError
from ..format.instant import Instant, State
from .instant_files import InstantFiles

_CLEAN = root_record(
    "HoodieCleanMetadata", optional("totalFilesDeleted", "int"), optional("earliestCommitToRetain", STRING)
)

_PLAN = root_record(
    "HoodieCleanerPlan",
    optional("earliestInstantToRetain", record_of(f"{NAMESPACE}.HoodieActionInstant", required("timestamp", STRING))),
)


def retained_by(files: InstantFiles, clean: Instant) -> str:
    """The earliest commit that a clean retained, by its requested time; the clean's own if it retained file versions.

    "": it removed nothing. MalformedError: its record or plan cannot be read, or its plan is gone. MissingFileError:
    its record is gone.
    """
    if clean.completed:
        try:
            metadata = _read(files, clean, _CLEAN)
        except MalformedError as error:
            raise MalformedError(
                "the record of a completed clean cannot be read",
                path=files.path(clean),
                instant=clean.requested_time,
                found=error.found or error.what,
                todo="Restore the file from a copy, or remove it: then `compactor-daemon clean TABLE` completes the "
                "clean once more, by its plan.",
            ) from error
        return _cutoff(clean, metadata)
    requested = clean.at(State.REQUESTED)
    try:
        plan = _read(files, requested, _PLAN)
    except (MalformedError, MissingFileError) as error:
        raise unreadable_plan(files.path(requested), clean, error) from error
    return str((plan["earliestInstantToRetain"] or {}).get("timestamp") or clean.requested_time)


def retained_by_archived(clean: Instant, record: bytes | None) -> str:
    """What an archived clean retained; its own time, which is later, where its record is not known (pure)."""
    try:
        return clean.requested_time if record is None else _cutoff(clean, read_record(record, "", _CLEAN)[1])
    except MalformedError:
        return clean.requested_time


def unreadable_plan(path: str, clean: Instant, error: MalformedError | MissingFileError) -> MalformedError:
    """The error for a pending clean whose plan, at `path`, cannot be read or is gone (pure)."""
    begun = clean.state > State.REQUESTED
    state = "has begun" if begun else "is pending"
    return MalformedError(
        f"the plan of a clean that {state} {'is gone' if isinstance(error, MissingFileError) else 'cannot be read'}",
        path=path,
        instant=clean.requested_time,
        found=error.found or error.what,
        todo="Restore the file from a copy. Without one, remove all files of this clean from the timeline: the newest "
        "state is whole, older ones may not be and must not be read any more."
        if begun
        else "If no process is writing it any more, `compactor-daemon clean TABLE` removes it.",
    )


def _cutoff(clean: Instant, metadata: dict[str, Any]) -> str:
    if metadata["earliestCommitToRetain"] or metadata["totalFilesDeleted"] == 0:
        return str(metadata["earliestCommitToRetain"] or "")
    return clean.requested_time


def _read(files: InstantFiles, clean: Instant, schema: Schema) -> dict[str, Any]:
    path = files.path(clean)
    return read_record(files.storage.read(path), path, schema)[1]
