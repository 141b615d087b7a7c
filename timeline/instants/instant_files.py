"""The files of instants: one for each state, the content of commits and compaction plans, and what a clean retained."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codec.avro_container import NAMESPACE, STRING, Schema, optional, read_record, record_of, required, root_record
from ..errors import MalformedError, MissingFileError
from ..format.commit_metadata import CommitMetadata, decode_summary
from ..format.commit_metadata import decode as decode_commit
from ..format.compaction_plan import CompactionPlan, decode_plan
from ..format.instant import Instant, State
from ..format.table_config import TableConfig
from ..storage.contract import Storage, list_of_table
from ..storage.snapshot import list_ahead, without_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file of the timeline. `instant`: in the state that the file's name gives; `size` in bytes."""

    instant: Instant
    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """All state files of a timeline, by (requested time, family), lowest state first."""

    of: Mapping[tuple[str, str], Sequence[StateFile]]

    def files(self, instant: Instant) -> Sequence[StateFile]:
        """The files of an instant."""
        return self.of.get(instant.identity, ())

    def written(self, instants: Iterable[Instant], moment: Callable[[int], str]) -> dict[str, str]:
        """When the completed files of instants were written, by requested time. `moment`: converts a modification time
        to an instant time."""
        return {
            i.requested_time: moment(f.modified_ms)
            for i in instants
            if i.completed
            for f in self.files(i)
            if f.instant.completed
        }

    def begun(self, instants: Iterable[Instant], moment: Callable[[int], str]) -> dict[str, str]:
        """When the first files of pending instants were written, in the form of `written`."""
        first = ((i, next(iter(self.files(i)), None)) for i in instants if not i.completed)
        return {i.requested_time: moment(f.modified_ms) for i, f in first if f is not None}

    def doubled(self) -> frozenset[str]:
        """Times of instants with more than one completed file."""
        return frozenset(time for (time, _), files in self.of.items() if sum(f.instant.completed for f in files) > 1)


def load_state_files(storage: Storage, config: TableConfig) -> StateFiles:
    """Lists the timeline's folder."""
    found: defaultdict[tuple[str, str], list[StateFile]] = defaultdict(list)
    for entry in list_of_table(storage, config.timeline_folder):
        instant = None if entry.is_folder else config.layout.parse(entry.name)
        if instant is not None:
            found[instant.requested_time, instant.family].append(
                StateFile(
                    instant=instant,
                    path=f"{config.timeline_folder}/{entry.name}",
                    size=entry.size,
                    modified_ms=entry.modified_ms,
                )
            )
    return StateFiles(of={key: sorted(files, key=lambda f: f.instant.state) for key, files in found.items()})


def of_instants(files: StateFiles, instants: Iterable[Instant]) -> list[StateFile]:
    """The state files of these instants, in the order of the instants."""
    return [one for instant in instants for one in files.files(instant)]


_TORN_PAUSES_S = (0.02, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class InstantFiles:
    """Reads the files of a table's instants."""

    storage: Storage
    config: TableConfig

    def path(self, instant: Instant) -> str:
        """The instant's file, relative to the base path."""
        return f"{self.config.timeline_folder}/{instant.file_name or self.config.layout.file_name(instant)}"

    def completed_commits(self, only: str | None = None) -> list[Instant]:
        """Every completed commit on storage. With `only`: also delta commits, since a log compaction completes as one.
        On versions 8 and 9 one instant can have two completed files, since each name has its own completion time."""
        names = [e.name for e in list_of_table(self.storage, self.config.timeline_folder) if not e.is_folder]
        found = [i for n in names if (i := self.config.layout.parse(n)) and i.completed]
        if only is None:
            return [i for i in found if i.action == "commit"]
        return [i for i in found if i.requested_time == only and i.action in ("commit", "deltacommit")]

    def summary(self, instant: Instant) -> CommitMetadata:
        """The metadata of a completed write, perhaps without write statistics; see `commit_metadata`."""
        return self._decoded(instant, decode_summary)

    def commit_metadata(self, instant: Instant) -> CommitMetadata:
        """The metadata of a completed write. Hudi writes the file in place on local storage, so a reader may see it
        empty or incomplete for a short time. Metadata that cannot be decoded is therefore read again a few times before
        an error is raised."""
        return self._decoded(instant, decode_commit)

    def _decoded(self, instant: Instant, decode: Callable[[bytes, str], CommitMetadata]) -> CommitMetadata:
        path, storage = self.path(instant), self.storage
        for pause_s in _TORN_PAUSES_S:
            try:
                return decode(storage.read(path), path)
            except MalformedError:
                time.sleep(pause_s)
                storage = without_snapshot(storage)
        try:
            return decode(storage.read(path), path)
        except MalformedError as error:
            raise error.advising(_torn_todo(instant)) from error

    def recorded(self, instant: Instant) -> CommitMetadata | None:
        """The metadata of a completed write; None for an empty file of a commit or delta commit, as old Flink jobs
        leave it. Hudi then counts data files by their names; so does a view (`Witness.unread`). A replace commit with
        an empty file is an error: the file groups that it replaced are unknown. Errors as in `commit_metadata`."""
        if instant.family != "replacecommit" and not self.storage.read(self.path(instant)):
            return None
        return self.commit_metadata(instant)

    def read_ahead(self, instants: Iterable[Instant]) -> None:
        """Reads the files of these instants concurrently before their use, see `list_ahead`."""
        list_ahead(self.storage, (), reads=map(self.path, instants))

    def requested_merge(self, instant: str) -> Instant:
        """The requested instant of a log compaction if its plan exists, else of a compaction."""
        log = Instant(requested_time=instant, action="logcompaction", state=State.REQUESTED)
        return log if self.storage.find(self.path(log)) is not None else replace(log, action="compaction")

    def compaction_plan(self, instant: str) -> CompactionPlan:
        """The plan of a compaction or log compaction, pending or completed. MissingFileError: the plan does not exist.
        MalformedError: it cannot be read; the error says what to do."""
        requested = self.requested_merge(instant)
        path = self.path(requested)
        data = self.storage.read(path)
        try:
            return replace(decode_plan(data, path), action=requested.action)
        except MalformedError as error:
            raise MalformedError(
                error.what,
                path=path,
                instant=instant,
                expected=error.expected,
                found=error.found,
                todo=_unreadable_todo(instant, may_go=not data or requested.action == "logcompaction"),
            ) from error


def _unreadable_todo(instant: str, *, may_go: bool) -> str:
    """`may_go`: the plan can be cancelled: its writer died before the first byte, or it is a log compaction."""
    restore = (
        "restore the file, or restore the table to an instant before it: `compactor-daemon restore TABLE --to INSTANT`."
    )
    if not may_go:
        return f"If you have a copy, {restore}"
    return f"Cancel the plan: compactor-daemon unschedule TABLE {instant}. If that is refused, {restore}"


def _torn_todo(completed: Instant) -> str:
    """Hudi writes the file in place: a process killed while it writes the file has reported no write."""
    time = completed.requested_time
    way = {
        "deltacommit": "it has reported no write: while this is the newest one, "
        f"`compactor-daemon rollback TABLE {time}` rolls it back",
        "commit": f"`compactor-daemon repair TABLE {time}` rewrites the file of a compaction",
        "replacecommit": "it has reported no write: `compactor-daemon restore TABLE --to INSTANT`, to the write before "
        "it, undoes it with all that came after it",
    }.get(completed.action)
    back = f"If it was killed, {way}. " if way else ""
    return f"If its writer is still running, read again. {back}Otherwise restore the file from a copy."


_CLEAN = root_record(
    "HoodieCleanMetadata", optional("totalFilesDeleted", "int"), optional("earliestCommitToRetain", STRING)
)

_PLAN = root_record(
    "HoodieCleanerPlan",
    optional("earliestInstantToRetain", record_of(f"{NAMESPACE}.HoodieActionInstant", required("timestamp", STRING))),
)


def retained_by(files: InstantFiles, clean: Instant) -> str:
    """The earliest commit that a clean retained, by its requested time; the clean's own if it retained file versions.
    "": the clean removed nothing. MalformedError: its record or plan cannot be read, or its plan is missing.
    MissingFileError: its record is missing."""
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
    """As `retained_by` for an archived clean; the clean's own time, which is later, if its record is unknown (pure)."""
    try:
        return clean.requested_time if record is None else _cutoff(clean, read_record(record, "", _CLEAN)[1])
    except MalformedError:
        return clean.requested_time


def unreadable_plan(path: str, clean: Instant, error: MalformedError | MissingFileError) -> MalformedError:
    """The error for a pending clean whose plan, at `path`, cannot be read or is missing (pure)."""
    begun = clean.state > State.REQUESTED
    state = "has begun" if begun else "is pending"
    return MalformedError(
        f"the plan of a clean that {state} {'is gone' if isinstance(error, MissingFileError) else 'cannot be read'}",
        path=path,
        instant=clean.requested_time,
        found=error.found or error.what,
        todo="Restore the file from a copy. Without one, remove all files of this clean from the timeline: the newest "
        "state is complete; older ones may not be and must not be read."
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
