"""The columns that a table had at each time, where they evolve on read, and their names in older files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..codec.avro_schema import META_COLUMNS
from ..codec.stored_names import Names, StoredNames
from ..errors import MalformedError, UnsupportedError
from ..format.instant import Instant
from ..instants.instant_files import InstantFiles
from ..instants.timeline import Timeline
from ..storage.contract import Storage, listed_if_there
from .evolved_schema import (
    LATEST_SCHEMA,
    EvolvedColumns,
    columns_before,
    parse_columns,
    parse_history,
    unsupported_change,
)

_HISTORY = ".hoodie/.schema"
_SCHEMA_COMMIT = ".schemacommit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHistory:
    """The columns of all times, ascending. `unknown_before`: see `StoredNames`."""

    times: tuple[EvolvedColumns, ...]
    unknown_before: int = 0

    def at(self, instant: str) -> EvolvedColumns:
        """Those since the last change before an instant; the first ones before all."""
        return [self.times[0], *(one for one in self.times if one.since <= int(instant))][-1]


def load_columns(files: InstantFiles, timeline: Timeline, newest: str) -> ColumnHistory:
    """The columns of all times. `newest`: as the newest write records them.

    UnsupportedError: they changed in a way that cannot be followed, or Hudi's history of them is not there.
    """
    base, config = files.storage.base_path, files.config
    names = _histories(files.storage)
    path = _newest_path(files, timeline, names)
    times = [parse_columns(newest, base)]
    if path is not None:
        times += parse_history(files.storage.read(path).decode(), path)
    times.sort(key=lambda one: one.since)
    earlier, unknown = _before(files, timeline, times[0])
    fixed = {*META_COLUMNS, *config.record_key_fields, *config.partition_fields, *config.ordering_fields}
    every, ordering = [*earlier, *times], config.ordering_fields if config.has_logs else ()
    why = f"no file {_HISTORY}/*{_SCHEMA_COMMIT}" if path is None else unsupported_change(every, fixed, ordering)
    if why is not None:
        raise UnsupportedError(
            "this schema evolution on read is not supported",
            path=base,
            expected="columns added, dropped, renamed, int made long, both string, float double, their whole history",
            found=why,
            todo="Use Hudi for this table.",
        )
    return ColumnHistory(times=(*earlier, *times), unknown_before=times[0].since if unknown else 0)


def newest_history(storage: Storage, timeline: Timeline) -> str | None:
    """The newest completed write with a history of the columns. Hudi reads none whose write is not active."""
    return _newest(_histories(storage), timeline)


def carry_history(files: InstantFiles, timeline: Timeline, done: Instant) -> None:
    """The history of the columns once more, as that of a write that is about to complete, as Hudi's writers do.

    Hudi reads no history whose write is archived; no reader takes one whose write never completes.
    """
    path = _newest_path(files, timeline, _histories(files.storage))
    if path is None:
        raise MalformedError(
            "there is no history of the columns that evolve on read",
            path=files.storage.base_path,
            instant=done.requested_time,
            expected=f"a file {_HISTORY}/*{_SCHEMA_COMMIT} of a completed write",
            todo="Nothing of this write is visible. Write with Hudi (hoodie.schema.on.read.enable=true).",
        )
    name = f"{done.requested_time}_{done.completion_time}" if done.completion_time else done.requested_time
    files.storage.put_if_absent(f"{_HISTORY}/{name}{_SCHEMA_COMMIT}", files.storage.read(path))


def _newest_path(files: InstantFiles, timeline: Timeline, names: Mapping[str, str]) -> str | None:
    instant = _newest(names, timeline) or _archived_history(files, names)
    return None if instant is None else f"{_HISTORY}/{names[instant]}"


def _newest(names: Collection[str], timeline: Timeline) -> str | None:
    # That of a pending write may yet go with it.
    return max((time for time in names if time in timeline.completed_writes), default=None)


def _histories(storage: Storage) -> dict[str, str]:
    """The names of the files by their writes."""
    whole = (e for e in listed_if_there(storage, _HISTORY) or () if e.name.endswith(_SCHEMA_COMMIT))
    return {e.name.partition("_")[0].removesuffix(_SCHEMA_COMMIT): e.name for e in whole}


def _archived_history(files: InstantFiles, names: Collection[str]) -> str | None:
    """The newest one of an archived write: Hudi archives a write although nothing but compactions came after it."""
    from ..instants.archived_timeline import load_history  # late: few reads need it

    archived = {i.requested_time for i in load_history(files.storage, files.config) if i.is_write} if names else set()
    return max((time for time in names if time in archived), default=None)


def _before(files: InstantFiles, timeline: Timeline, first: EvolvedColumns) -> tuple[tuple[EvolvedColumns, ...], bool]:
    """The columns before the first change, which the history does not have; whether they are unknown."""
    active = [i for time, i in timeline.completed_writes.items() if int(time) < first.since]
    for instant in sorted(active, key=lambda i: i.requested_time, reverse=True):
        if text := files.commit_metadata(instant).extra_metadata.get("schema"):
            return (columns_before(text, first),), False
    from ..instants.archived_timeline import (
        archived_extras,  # late: few reads need it
        load_history,
    )

    history = load_history(files.storage, files.config)
    archived = [i for i in history if i.is_write and int(i.requested_time) < first.since]
    for _, recorded, _ in archived_extras(files.storage, files.config, archived):
        if text := recorded.get("schema"):
            return (columns_before(text, first),), False
    return (), bool(archived)


def names_in_files(files: InstantFiles, timeline: Timeline, own: EvolvedColumns, history: ColumnHistory) -> StoredNames:
    """The names in older files of these columns; nothing is read for them where all are the same."""
    changes = tuple((one.since, own.names_of(one)) for one in history.times)
    if not history.unknown_before and not any(names for _, names in changes):
        return StoredNames()
    commits = dict[str, Names]()
    for time, instant in timeline.completed_writes.items():
        recorded = files.commit_metadata(instant).extra_metadata.get(LATEST_SCHEMA)
        if recorded:
            commits[time] = own.names_of(parse_columns(recorded, files.path(instant)))
    return StoredNames(commits=commits, changes=changes, unknown_before=history.unknown_before)
