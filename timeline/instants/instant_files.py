"""The files of instants: their names, and the content of commits and compaction plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..errors import MalformedError
from ..format.commit_metadata import CommitMetadata, decode_summary
from ..format.commit_metadata import decode as decode_commit
from ..format.compaction_plan import CompactionPlan, decode_plan
from ..format.instant import Instant, State
from ..format.table_config import TableConfig
from ..storage.contract import Storage, list_of_table
from ..storage.snapshot import latest, list_ahead

_TORN_PAUSES_S = (0.02, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class InstantFiles:
    """See the module."""

    storage: Storage
    config: TableConfig

    def path(self, instant: Instant) -> str:
        """The instant's file, relative to the base path."""
        return f"{self.config.timeline_folder}/{instant.file_name or self.config.layout.file_name(instant)}"

    def completed_commits(self, only: str | None = None) -> list[Instant]:
        """Every completed commit on storage. With `only`: also delta commits, since a log compaction completes as one.

        On versions 8 and 9 one instant can have two completed files, since each name has its own completion time.
        """
        names = [e.name for e in list_of_table(self.storage, self.config.timeline_folder) if not e.is_folder]
        found = [i for n in names if (i := self.config.layout.parse(n)) and i.completed]
        if only is None:
            return [i for i in found if i.action == "commit"]
        return [i for i in found if i.requested_time == only and i.action in ("commit", "deltacommit")]

    def summary(self, instant: Instant) -> CommitMetadata:
        """The metadata of a completed write, perhaps without write statistics; see `commit_metadata`."""
        return self._decoded(instant, decode_summary)

    def commit_metadata(self, instant: Instant) -> CommitMetadata:
        """The metadata of a completed write.

        Hudi writes it in place on local storage, so a reader may see it empty or incomplete for a moment. Metadata that
        cannot be decoded is therefore read again a few times before that is an error.
        """
        return self._decoded(instant, decode_commit)

    def _decoded(self, instant: Instant, decode: Callable[[bytes, str], CommitMetadata]) -> CommitMetadata:
        path, storage = self.path(instant), self.storage
        for pause_s in _TORN_PAUSES_S:
            try:
                return decode(storage.read(path), path)
            except MalformedError:
                time.sleep(pause_s)
                storage = latest(storage)
        try:
            return decode(storage.read(path), path)
        except MalformedError as error:
            raise error.advising(_torn_todo(instant)) from error

    def recorded(self, instant: Instant) -> CommitMetadata | None:
        """The metadata of a completed write; None: of a commit or delta commit whose file is empty, as old Flink jobs
        leave it.

        Hudi counts its files by their names; so does a view (`Witness.unread`). A replace commit's would hide which
        file groups it replaced. Errors as in `commit_metadata`.
        """
        if instant.family != "replacecommit" and not self.storage.read(self.path(instant)):
            return None
        return self.commit_metadata(instant)

    def read_ahead(self, instants: Iterable[Instant]) -> None:
        """Reads the files of instants that will be asked for at the same time, see `list_ahead`."""
        list_ahead(self.storage, (), reads=map(self.path, instants))

    def requested_merge(self, instant: str) -> Instant:
        """The requested instant of a log compaction if its plan exists, else of a compaction."""
        log = Instant(requested_time=instant, action="logcompaction", state=State.REQUESTED)
        return log if self.storage.find(self.path(log)) is not None else replace(log, action="compaction")

    def compaction_plan(self, instant: str) -> CompactionPlan:
        """The plan of a compaction or log compaction, pending or completed.

        MissingFileError: there is none. MalformedError: it cannot be read; the error says what to do.
        """
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
    """`may_go`: no process worked on the plan: its writer died before the first byte, or it is a log compaction."""
    restore = (
        "restore the file, or restore the table to an instant before it: `compactor-daemon restore TABLE --to INSTANT`."
    )
    if not may_go:
        return f"If you have a copy, {restore}"
    return f"Take it back: compactor-daemon unschedule TABLE {instant}. If that is refused, {restore}"


def _torn_todo(completed: Instant) -> str:
    """A process of Hudi that is killed while it writes the file in place has reported no write."""
    time = completed.requested_time
    way = {
        "deltacommit": "it has reported no write: while this is the newest one, "
        f"`compactor-daemon rollback TABLE {time}` takes it back",
        "commit": f"`compactor-daemon repair TABLE {time}` writes the file of a compaction anew",
        "replacecommit": "it has reported no write: `compactor-daemon restore TABLE --to INSTANT`, to the write before "
        "it, takes it back with all that came after it",
    }.get(completed.action)
    back = f"If it was killed meanwhile, {way}. " if way else ""
    return f"If its writer is still running, read again. {back}Otherwise restore the file from a copy."
