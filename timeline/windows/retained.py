"""Which past states of a table are still whole: what cleans have retained."""

from __future__ import annotations

from typing import Any

from ..avro.container import NAMESPACE, STRING, Schema, optional, read_record, record_of, required, root_record
from ..errors import MalformedError, MissingFileError, UsageError
from ..format.instant import Instant, State
from ..instants.timeline import Timeline
from ..prefetch import prefetched
from ..table.table import Table
from .window import completed_writes

_CLEAN = root_record(
    "HoodieCleanMetadata", optional("totalFilesDeleted", "int"), optional("earliestCommitToRetain", STRING)
)

_PLAN = root_record(
    "HoodieCleanerPlan",
    optional("earliestInstantToRetain", record_of(f"{NAMESPACE}.HoodieActionInstant", required("timestamp", STRING))),
)


def cleans(timeline: Timeline) -> list[Instant]:
    """The cleans of a timeline; files of one that is pending may be gone already."""
    return [i for i in timeline.instants if i.action == "clean"]


def retained_since(table: Table, timeline: Timeline) -> str:
    """The newest instant whose state, and all later ones, every clean retains; "" if nothing was cleaned.

    The requested time of a write as the cleaner recorded it. A cleaner that retains file versions records none: then it
    is the clean's own time. A later clean may have retained more again, but what is gone stays gone. Archived cleans
    count as far as the archive is loaded. MalformedError: unreadable clean metadata.
    """
    active = max(prefetched(cleans(timeline), lambda clean: retained_by(table, clean)), default="")
    archived = [i for i in timeline.archived if i.action == "clean" and i.requested_time > active]
    records = table.archived_records(archived)
    return max((active, *(_archived_border(clean, records.get(clean)) for clean in archived)))


def _archived_border(clean: Instant, record: bytes | None) -> str:
    """What an archived clean retained; its own time, which is later, where its record is not known."""
    try:
        return clean.requested_time if record is None else _border(clean, read_record(record, "", _CLEAN)[1])
    except MalformedError:
        return clean.requested_time


def retained_by(table: Table, clean: Instant) -> str:
    """The earliest commit that one clean retained; its own time if it retained file versions. Errors as above."""
    if clean.completed:
        try:
            metadata = _read(table, clean, _CLEAN)
        except MalformedError as error:
            raise MalformedError(
                "the record of a completed clean cannot be read",
                path=table.instant_path(clean),
                instant=clean.requested_time,
                found=error.found or error.what,
                todo="Restore the file from a copy, or remove it: then `compactor-daemon clean TABLE` completes the "
                "clean once more, by its plan.",
            ) from error
        return _border(clean, metadata)
    requested = Instant(requested_time=clean.requested_time, action="clean", state=State.REQUESTED)
    try:
        plan = _read(table, requested, _PLAN)
    except (MalformedError, MissingFileError) as error:
        raise unreadable_plan(table.instant_path(requested), clean, error) from error
    return str((plan["earliestInstantToRetain"] or {}).get("timestamp") or clean.requested_time)


def _border(clean: Instant, metadata: dict[str, Any]) -> str:
    if metadata["earliestCommitToRetain"] or metadata["totalFilesDeleted"] == 0:
        return str(metadata["earliestCommitToRetain"] or "")
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


def earliest_whole(table: Table, timeline: Timeline) -> str:
    """The earliest moment whose state no clean has touched; "" if nothing was cleaned."""
    retained = retained_since(table, timeline)
    return earliest_state(timeline, retained) if retained else ""


def _read(table: Table, clean: Instant, schema: Schema) -> dict[str, Any]:
    path = table.instant_path(clean)
    return read_record(table.storage.read(path), path, schema)[1]


def earliest_state(timeline: Timeline, retained: str) -> str:
    """The earliest point of whole states, on the axis of `Timeline.counts_from` (pure).

    `retained`: see `retained_since`. A cleaner keeps the newest slice below it of every group, so the state just before
    it is whole too: that of the last of the writes that were requested before it.
    """
    before = (w for w in completed_writes(timeline) if w.requested_time < retained)
    # On version 6 archived writes are not known here: before the first known one there may have been others.
    unknown = "" if timeline.layout.has_completion_times else retained
    return max((timeline.counts_from(w) for w in before), default=unknown)


def check_as_of(table: Table, timeline: Timeline, as_of: str) -> None:
    """Refuses a point in time whose result would be incomplete or could still change, as Hudi does."""
    pending = [i.requested_time for i in timeline.inflight_writers]
    if pending and as_of >= min(pending):
        raise UsageError(
            "the as-of point is not before the first pending write",
            instant=as_of,
            expected=f"before {min(pending)}",
            found="a write that may still complete at or before it",
            todo="Let it end; if its writer is dead, the next write to the table rolls it back.",
        )
    if as_of < timeline.start and timeline.layout.has_completion_times:
        timeline = table.with_archive(timeline)
    retained = retained_since(table, timeline)
    if as_of < retained and _differs(table.with_archive(timeline), as_of, retained):
        raise UsageError(
            "files of that point in time may have been cleaned",
            instant=as_of,
            expected=f"{retained} or later",
        )


def _differs(timeline: Timeline, as_of: str, retained: str) -> bool:
    """Whether the state at a point may be another one than that at `retained`, which is whole (pure).

    It is the same if no write, plan or service was requested in between: so the newest write before a clean that
    retained file versions can be read. `timeline`: with its archive.
    """
    return any(i.is_write and as_of < i.requested_time <= retained for i in (*timeline.instants, *timeline.archived))
