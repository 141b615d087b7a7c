"""The files of instants: one for each state, the content of commits and compaction plans, and what a clean retained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from ..clocks import TORN_AGAIN, retries
from ..codec.avro_container import NAMESPACE, STRING, optional, read_record, record_of, required, root_record
from ..errors import MalformedError, MissingFileError
from ..format.commit_metadata import CommitMetadata, decode_summary
from ..format.commit_metadata import decode as decode_commit
from ..format.compaction_plan import CompactionPlan, decode_plan
from ..format.instant import MERGES, Instant, State, highest_states
from ..format.table_config import TableConfig
from ..record_fields import gathered
from ..storage.contract import Entry, Storage, list_of_table
from ..storage.local import large_file, names_of_table
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
        return self.of.get(instant.identity, ())

    def written(self, instants: Iterable[Instant], moment: Callable[[int], str]) -> dict[str, str]:
        """When completed files were written, by requested time. `moment`: makes an instant of a modification time."""
        files = ((i.requested_time, f) for i in instants if i.completed for f in self.files(i))
        return {time: moment(f.modified_ms) for time, f in files if f.instant.completed}

    def begun(self, instants: Iterable[Instant], moment: Callable[[int], str]) -> dict[str, str]:
        """When the first files of pending instants were written, in the form of `written`."""
        first = ((i, next(iter(self.files(i)), None)) for i in instants if not i.completed)
        return {i.requested_time: moment(f.modified_ms) for i, f in first if f is not None}

    def doubled(self) -> frozenset[str]:
        """Times of instants with more than one completed file."""
        return frozenset(time for (time, _), files in self.of.items() if sum(f.instant.completed for f in files) > 1)


def load_state_files(storage: Storage, config: TableConfig) -> StateFiles:
    folder = config.timeline_folder
    found = gathered(
        (i.identity, StateFile(instant=i, path=f"{folder}/{e.name}", size=e.size, modified_ms=e.modified_ms))
        for e in list_of_table(storage, folder)
        if not e.is_folder and (i := config.layout.parse(e.name)) is not None
    )
    return StateFiles(of={key: sorted(files, key=lambda f: f.instant.state) for key, files in found.items()})


def states_by_names(storage: Storage, config: TableConfig, times: Collection[str]) -> tuple[Instant, ...]:
    """The active instants of these requested times at their highest states, by one listing of names. A name that is
    added or removed at this moment may be shown or not; all others are."""
    lengths = {len(time) for time in times}
    names = names_of_table(storage, config.timeline_folder)
    near = (name for name in names if any(name[:length] in times for length in lengths))
    return highest_states(i for name in near if (i := config.layout.parse(name)) and i.requested_time in times)


def of_instants(files: StateFiles, instants: Iterable[Instant]) -> list[StateFile]:
    return [one for instant in instants for one in files.files(instant)]


P = TypeVar("P")


@lru_cache(maxsize=64)
def _large_summary(storage: Storage, path: str, entry: Entry) -> CommitMetadata:
    """`InstantFiles.summary` of a large file, without all that is large. `entry`: a completed file is put once."""
    found = decode_summary(storage.read(path), path)
    return CommitMetadata(extra_metadata=found.extra_metadata, operation_type=found.operation_type)


@dataclass(frozen=True, slots=True)
class InstantFiles:
    storage: Storage
    config: TableConfig

    def path(self, instant: Instant) -> str:
        """The instant's file, relative to the base path."""
        return f"{self.config.timeline_folder}/{instant.file_name or self.config.layout.file_name(instant)}"

    def completed_commits(self, only: str | None = None) -> list[Instant]:
        """Every completed commit on storage. With `only`: also delta commits and replace commits, since log compactions
        and clusterings complete as these.
        On versions 8 and 9 one instant can have two completed files, since each name has its own completion time."""
        names = [e.name for e in list_of_table(self.storage, self.config.timeline_folder) if not e.is_folder]
        found = [i for n in names if (i := self.config.layout.parse(n)) and i.completed]
        if only is None:
            return [i for i in found if i.action == "commit"]
        return [i for i in found if i.requested_time == only and i.is_write]

    def summary(self, instant: Instant) -> CommitMetadata:
        """The extra metadata and operation of a completed write, perhaps with the rest; see `commit_metadata`."""
        if (found := large_file(self.storage, path := self.path(instant))) is not None:
            with suppress(MalformedError):
                return _large_summary(found[0], path, found[1])
        return self._decoded(instant, decode_summary)

    def commit_metadata(self, instant: Instant) -> CommitMetadata:
        """The metadata of a completed write. Hudi writes the file in place on local storage, so a reader may see it
        empty or incomplete for a short time. Metadata that cannot be decoded is read again a few times."""
        return self._decoded(instant, decode_commit)

    def _decoded(self, instant: Instant, decode: Callable[[bytes, str], CommitMetadata]) -> CommitMetadata:
        path, storage = self.path(instant), self.storage
        for is_last in retries(TORN_AGAIN):
            try:
                return decode(storage.read(path), path)
            except MalformedError as error:
                if is_last:
                    raise error.below(storage.base_path).advising(_torn_todo(instant)) from error
                storage = without_snapshot(storage)
        raise AssertionError("the last try raises")

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

    def plan(self, instant: Instant, decode: Callable[[bytes, str], P]) -> P | Torn:
        """The plan of an instant, in any state. MissingFileError: that of a compaction, which has ended then."""
        path, data = self.path(instant.at(State.REQUESTED)), None
        try:
            data = self.storage.read(path)
            return decode(data, path)
        except (MalformedError, MissingFileError) as error:
            if data is None and instant.action in MERGES:
                raise
            reason = f"{error.what}: {error.found}" if error.found else error.what
            return Torn(instant=instant, path=path, reason=reason, size=None if data is None else len(data))

    def compaction_plan(self, instant: str) -> CompactionPlan:
        """The plan of a compaction or log compaction, pending or completed. MissingFileError: the plan does not exist.
        MalformedError: it cannot be read; the error says what to do."""
        requested = self.requested_merge(instant)
        found = self.plan(requested, decode_plan)
        if isinstance(found, Torn):
            there = load_state_files(self.storage, self.config).files(requested)
            state = max((one.instant.state for one in there), default=State.REQUESTED)
            raise replace(found, instant=replace(requested, state=state)).error()
        return replace(found, action=requested.action)

    def needed_plan(self, instant: Instant, decode: Callable[[bytes, str], P]) -> P:
        """As `plan`. MalformedError: it is torn."""
        found = self.plan(instant, decode)
        if isinstance(found, Torn):
            raise found.error()
        return found

    def plan_there(self, instant: Instant, decode: Callable[[bytes, str], P]) -> P | None:
        """As `needed_plan`; None: it is gone, since the instant has ended or was never requested."""
        found = self.plan(instant, decode)
        if not isinstance(found, Torn):
            return found
        if found.size is None:
            return None
        raise found.error()


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """A plan that cannot be read: Hudi writes a plan in place, and was killed. What it names is unknown. `instant`: as
    it is on the timeline. `path`: of the plan, and its `size`; None: the file is gone."""

    instant: Instant
    path: str
    reason: str
    size: int | None

    @property
    def time(self) -> str:
        return self.instant.requested_time

    @property
    def target(self) -> None:
        """None: what it undoes is unknown."""
        return None

    @property
    def name(self) -> str:
        return {"logcompaction": "log compaction", "replacecommit": "clustering"}.get(
            self.instant.action, self.instant.action
        )

    @property
    def has_begun(self) -> bool:
        """Whether a process began to execute it: each one reads the plan from its file before it makes it inflight."""
        return self.instant.state > State.REQUESTED

    @property
    def todo(self) -> str:
        return self._todo(begun=self.has_begun)

    def _todo(self, *, begun: bool) -> str:
        action, restore = self.instant.action, f"If that is refused, {_RESTORE}"
        if not begun and (action == "logcompaction" or (action == "compaction" and not self.size)):
            return f"Cancel the plan: compactor-daemon unschedule TABLE {self.time}. {restore}"
        inflight = f"{self.path.removesuffix('requested')}inflight"
        way = None if self.instant.completed else _WAYS_OUT.get((self.name, begun))
        return (way or f"If you have a copy, {_RESTORE}").format(path=self.path, inflight=inflight)

    def error(self, begun: str = "") -> MalformedError:
        """The error for who needs the plan. `begun`: what shows that a process began to execute it."""
        state = "has begun" if self.has_begun or begun else "is pending"
        state = "is completed" if self.instant.completed else state
        return MalformedError(
            f"the plan of a {self.name} that {state} {'is gone' if self.size is None else 'cannot be read'}",
            path=self.path,
            instant=self.time,
            found=begun or self.reason,
            todo=self._todo(begun=self.has_begun or bool(begun)),
        )


_RESTORE = (
    "restore the file, or restore the table to an instant before it: `compactor-daemon restore TABLE --to INSTANT`."
)
_WAYS_OUT = {
    ("clean", False): "If no process is writing it any more, `compactor-daemon clean TABLE` removes it.",
    ("clean", True): "Restore the file from a copy. Without one, remove all files of this clean from the timeline: the "
    "newest state is complete; older ones may not be and must not be read.",
    ("clustering", False): "If no process works on it, `compactor-daemon cluster TABLE --cancel` removes it, two "
    "minutes after its last change.",
    ("restore", False): "Hudi's process may still be writing it. It has undone nothing: `compactor-daemon restore "
    "TABLE` removes it once it has not changed for two minutes.",
    (
        "restore",
        True,
    ): "It has begun, and to which instant is unknown here. Stop its process; `compactor-daemon restore "
    "TABLE --to INSTANT`, to that instant or an earlier one, finishes it two minutes after its last change.",
    ("rollback", False): "The next Hudi writer of the table removes this file: it has undone nothing. So does "
    "`compactor-daemon archive TABLE` once it has not changed for two minutes.",
    ("rollback", True): "Hudi ignores it for ever. Stop all processes that roll back or restore, then remove "
    "{inflight} by hand, and {path} if it exists. The write to undo is still pending; it is rolled back later.",
}
"""By what the pending plan is of, and whether it has begun."""


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
    "": the clean removed nothing. MalformedError, MissingFileError: its record or plan."""
    if clean.completed:
        path = files.path(clean)
        try:
            metadata = read_record(files.storage.read(path), path, _CLEAN)[1]
        except MalformedError as error:
            raise MalformedError(
                "the record of a completed clean cannot be read",
                path=path,
                instant=clean.requested_time,
                found=error.found or error.what,
                todo="Restore the file from a copy, or remove it: then `compactor-daemon clean TABLE` completes the "
                "clean once more, by its plan.",
            ) from error
        return _cutoff(clean, metadata)
    plan = files.needed_plan(clean, lambda data, path: read_record(data, path, _PLAN)[1])
    return str((plan["earliestInstantToRetain"] or {}).get("timestamp") or clean.requested_time)


def retained_by_archived(clean: Instant, record: bytes | None) -> str:
    """As `retained_by` for an archived clean; the clean's own time, which is later, if its record is unknown (pure)."""
    try:
        return clean.requested_time if record is None else _cutoff(clean, read_record(record, "", _CLEAN)[1])
    except MalformedError:
        return clean.requested_time


def _cutoff(clean: Instant, metadata: dict[str, Any]) -> str:
    if metadata["earliestCommitToRetain"] or metadata["totalFilesDeleted"] == 0:
        return str(metadata["earliestCommitToRetain"] or "")
    return clean.requested_time
