"""Finds a table's schema in its completed writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from ..arrow.stored_names import Names, StoredNames
from ..avro.schema import META_COLUMNS, arrow_schema, with_meta_columns, without_meta_columns
from ..errors import MalformedError, UnsupportedError
from ..format.commit_metadata import SERVICE_OPERATIONS
from ..instants.instant_files import InstantFiles
from ..instants.timeline import Timeline
from ..storage.contract import listed_if_there
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


@dataclass(frozen=True)
class TableSchema:
    """`commit_text`: as recorded in commits; `file_text`: as stored in data files (Avro JSON).

    `evolved`: Hudi's own record of the columns, where they evolve on read; `names`: of the columns in older files.
    """

    commit_text: str
    file_text: str
    evolved: str | None = None
    names: StoredNames = StoredNames()

    @staticmethod
    def of(text: str, *, populate_meta_fields: bool) -> TableSchema:
        """The schema of a table whose commits record `text`: with meta columns in its files if it has them."""
        own = without_meta_columns(text)  # version 6 delete_partition commits record the meta columns too
        return TableSchema(commit_text=own, file_text=with_meta_columns(own) if populate_meta_fields else own)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The data files' schema."""
        return arrow_schema(self.file_text)

    @property
    def recorded(self) -> dict[str, str]:
        """What a commit's extra metadata says of it."""
        return {"schema": self.commit_text, **({LATEST_SCHEMA: self.evolved} if self.evolved else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSchema:
    """A schema as a commit records it, see `TableSchema`."""

    text: str
    evolved: str | None = None
    names: StoredNames = StoredNames()


def find_schema(files: InstantFiles, timeline: Timeline, *, before: str | None = None) -> FoundSchema:
    """The table's Avro schema without meta columns: the schema of the newest completed write that records one.

    Newest by requested time. Table services come last, since they repeat the schema that they found. Where no active
    write is completed, archived ones count: all active ones may be rolled back. After them comes the schema of CREATE
    TABLE. `before`: where columns evolve on read, only writes requested before this instant count,
    as for Hudi: its readers look up the columns of a file by the time in the file's name.

    MalformedError: the table has none. UnsupportedError: columns evolve on read (`hoodie.schema.on.read.enable`) in a
    way that cannot be followed, see `unsupported_change`.
    """
    found = _newest(files, timeline, None)
    if found.evolved is None:
        return found
    history = _history(files, timeline, found.evolved)
    if before is not None:
        found = _newest(files, timeline, before)
    if found.evolved is None:
        return found
    own = parse_columns(found.evolved, files.storage.base_path)
    return replace(found, names=_names(files, timeline, own, history))


def names_in_inputs(files: InstantFiles, timeline: Timeline, instant: str, evolved: str | None) -> StoredNames:
    """The names in older files of the columns that an instant wrote. `evolved`: as its commit records them, if known.

    UnsupportedError: see `find_schema`.
    """
    newest = _newest(files, timeline, None).evolved
    if newest is None:
        return StoredNames()
    history = _history(files, timeline, newest)
    if evolved is None and instant in timeline.completed_writes:
        evolved = files.commit_metadata(timeline.completed_writes[instant]).extra_metadata.get(LATEST_SCHEMA)
    if evolved is not None:
        own = parse_columns(evolved, files.storage.base_path)
    else:
        own = [history.times[0], *(one for one in history.times if one.since <= int(instant))][-1]
    return _names(files, timeline, own, history)


def _newest(files: InstantFiles, timeline: Timeline, before: str | None) -> FoundSchema:
    fallback: FoundSchema | None = None
    for requested, recorded, operation in _recorded(files, timeline):
        if before is not None and requested >= before:
            continue
        text, evolved = recorded.get("schema", ""), recorded.get(LATEST_SCHEMA)
        if text and operation not in SERVICE_OPERATIONS:
            return FoundSchema(text=text, evolved=evolved or None)
        if text and fallback is None:
            fallback = FoundSchema(text=text, evolved=evolved or None)
    if fallback is not None:
        return fallback
    if not files.config.create_schema:
        raise MalformedError("no commit of the table records its schema", path=files.storage.base_path)
    return FoundSchema(text=files.config.create_schema)


def _recorded(files: InstantFiles, timeline: Timeline) -> Iterator[tuple[str, Mapping[str, str], str | None]]:
    """What writes record beside their files, the newest first: time, entries, operation."""
    for requested in sorted(timeline.completed_writes, reverse=True):
        metadata = files.commit_metadata(timeline.completed_writes[requested])
        yield requested, metadata.extra_metadata, metadata.operation_type
    if not timeline.completed_writes:
        from ..instants.archived_extras import archived_extras  # late: few reads need it

        yield from archived_extras(files.storage, files.config, timeline.archived)


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """The columns of all times, ascending. `unknown_before`: see `StoredNames`."""

    times: tuple[EvolvedColumns, ...]
    unknown_before: int = 0


def _history(files: InstantFiles, timeline: Timeline, newest: str) -> _History:
    """UnsupportedError: see `find_schema`, or the history is not there."""
    base, config = files.storage.base_path, files.config
    entries = listed_if_there(files.storage, _HISTORY) or ()
    names = {e.name.partition("_")[0].removesuffix(_SCHEMA_COMMIT): e.name for e in entries if _is_whole(e.name)}
    # That of a pending write may yet go with it.
    instant = max((time for time in names if time in timeline.completed_writes), default=None)
    times = [parse_columns(newest, base)]
    if instant is not None:
        path = f"{_HISTORY}/{names[instant]}"
        times += parse_history(files.storage.read(path).decode(), path)
    times.sort(key=lambda one: one.since)
    earlier, unknown = _before(files, timeline, times[0])
    fixed = {*META_COLUMNS, *config.record_key_fields, *config.partition_fields, *config.ordering_fields}
    why = f"no file {_HISTORY}/*{_SCHEMA_COMMIT}" if instant is None else unsupported_change([*earlier, *times], fixed)
    if why is not None:
        raise UnsupportedError(
            "this schema evolution on read is not supported",
            path=base,
            expected="columns added, dropped, renamed, and int made long or string, with the history of all of them",
            found=why,
            todo="Use Hudi for this table.",
        )
    return _History(times=(*earlier, *times), unknown_before=times[0].since if unknown else 0)


def _is_whole(name: str) -> bool:
    return name.endswith(_SCHEMA_COMMIT)


def _before(files: InstantFiles, timeline: Timeline, first: EvolvedColumns) -> tuple[tuple[EvolvedColumns, ...], bool]:
    """The columns before the first change, which the history does not have; whether they are unknown."""
    active = [i for time, i in timeline.completed_writes.items() if int(time) < first.since]
    for instant in sorted(active, key=lambda i: i.requested_time, reverse=True):
        if text := files.commit_metadata(instant).extra_metadata.get("schema"):
            return (columns_before(text, first),), False
    from ..instants.archived_extras import archived_extras  # late: few reads need it
    from ..instants.archived_timeline import load_history

    history = load_history(files.storage, files.config)
    archived = [i for i in history if i.is_write and int(i.requested_time) < first.since]
    for _, recorded, _ in archived_extras(files.storage, files.config, archived):
        if text := recorded.get("schema"):
            return (columns_before(text, first),), False
    return (), bool(archived)


def _names(files: InstantFiles, timeline: Timeline, own: EvolvedColumns, history: _History) -> StoredNames:
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
