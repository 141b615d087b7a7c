"""Finds a table's schema in its completed writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from ..codec.avro_schema import hudi_types
from ..codec.stored_names import StoredNames
from ..errors import MalformedError, UnsupportedError
from ..format.commit_metadata import LATEST_SCHEMA, SERVICE_OPERATIONS, TableSchema
from ..format.instant import Instant
from ..instants.instant_files import InstantFiles
from ..instants.timeline import Timeline
from .evolved_schema import load_columns, names_in_files, parse_columns

_NOT_SUPPORTED = frozenset({"blob", "variant", "vector"})

WasVisible: TypeAlias = Callable[[Instant], bool]
"""Whether a completed write counts in a past state."""


def find_schema(
    files: InstantFiles, timeline: Timeline, *, before: str | None = None, then: WasVisible | None = None
) -> TableSchema:
    """The schema of the newest completed write that records one. Newest by requested time. Table services come last,
    since they copy the schema that they found. Where no active write is completed, archived ones count: all active ones
    may be rolled back. The schema of CREATE TABLE comes after them. `before`: where columns evolve on read, only writes
    requested before this instant count, as in Hudi: its readers look up the columns of a file by the time in the file's
    name. `then`: the schema of a past state, from the completed writes that were visible in it. MalformedError: they
    record none. UnsupportedError: no write is completed; or columns evolve on read (`hoodie.schema.on.read.enable`) in
    a way that cannot be followed, see `unsupported_change`."""
    if then is not None:
        return _schema_then(files, timeline, then)
    found = _newest(files, timeline, None)
    if found.evolved is None:
        return found
    history = load_columns(files, timeline, found.evolved)
    if before is not None:
        found = _newest(files, timeline, before)
    if found.evolved is None:
        return found
    own = parse_columns(found.evolved, files.storage.base_path)
    return replace(found, names=names_in_files(files, timeline, own, history))


def _schema_then(files: InstantFiles, timeline: Timeline, was_visible: WasVisible) -> TableSchema:
    """The schema of a past state; if none of its writes is known, the schema of the first known write."""
    then = replace(timeline, instants=tuple(filter(was_visible, timeline.completed)))
    if not then.completed_writes:
        from ..instants.archived_timeline import load_history  # late: few reads need it

        archived = timeline.archived or tuple(load_history(files.storage, files.config))
        then = replace(then, archived=tuple(filter(was_visible, archived)))
    found = _told(files, then, None) or _told(files, _first(timeline), None)
    newest = find_schema(files, timeline)
    if found is None or newest.evolved is None or found.evolved is None:
        return newest if found is None else found
    history = load_columns(files, timeline, newest.evolved)
    own = parse_columns(found.evolved, files.storage.base_path)
    return replace(found, names=names_in_files(files, timeline, own, history))


def _first(timeline: Timeline) -> Timeline:
    first = min(timeline.completed_writes, default="")
    return replace(timeline, instants=tuple(i for i in timeline.instants if i.requested_time <= first))


def names_in_inputs(files: InstantFiles, timeline: Timeline, instant: str, evolved: str | None) -> StoredNames:
    """The names in older files of an instant's columns. `evolved`: in its commit. Errors as in `find_schema`."""
    newest = _newest(files, timeline, None).evolved
    if newest is None:
        return StoredNames()
    history = load_columns(files, timeline, newest)
    if evolved is None and instant in timeline.completed_writes:
        evolved = files.commit_metadata(timeline.completed_writes[instant]).extra_metadata.get(LATEST_SCHEMA)
    own = history.at(instant) if evolved is None else parse_columns(evolved, files.storage.base_path)
    return names_in_files(files, timeline, own, history)


def _newest(files: InstantFiles, timeline: Timeline, before: str | None) -> TableSchema:
    found = _told(files, timeline, before)
    if found is None:
        if len(timeline.completed_writes) == 0:
            raise UnsupportedError(
                "the table has no schema yet: no write is completed",
                path=files.storage.base_path,
                todo="Write to it first; `timeline show TABLE` lists writes that are pending.",
            )
        raise MalformedError("no commit of the table records its schema", path=files.storage.base_path)
    return found


def _told(files: InstantFiles, timeline: Timeline, before: str | None) -> TableSchema | None:
    fallback: tuple[str, str | None] | None = None
    for requested, recorded, operation in _recorded(files, timeline):
        if before is not None and requested >= before:
            continue
        text, evolved = recorded.get("schema", ""), recorded.get(LATEST_SCHEMA) or None
        if text and operation not in SERVICE_OPERATIONS:
            return _schema(files, text, evolved)
        if text and fallback is None:
            fallback = text, evolved
    if fallback is not None:
        return _schema(files, *fallback)
    if not files.config.create_schema:
        return None
    return _schema(files, files.config.create_schema, None)


def _schema(files: InstantFiles, text: str, evolved: str | None) -> TableSchema:
    if unlike := {path: kind for path, kind in hudi_types(text).items() if kind in _NOT_SUPPORTED}:
        raise UnsupportedError(
            "columns of a type that Hudi 1.2 added are not supported",
            path=files.storage.base_path,
            expected="no column of the types VARIANT, VECTOR and BLOB",
            found=", ".join(f"{path}: {kind.upper()}" for path, kind in sorted(unlike.items())),
            todo="Read, write, compact and cluster this table with Hudi. phantombase cleans and archives "
            "it; `compactor-daemon metadata TABLE --create --indexes files` builds its metadata table.",
        )
    schema = TableSchema.of(text, populate_meta_fields=files.config.populate_meta_fields)
    return replace(schema, evolved=evolved)


def _recorded(files: InstantFiles, timeline: Timeline) -> Iterator[tuple[str, Mapping[str, str], str | None]]:
    """The extra metadata of writes, the newest first: time, entries, operation."""
    for requested in sorted(timeline.completed_writes, reverse=True):
        metadata = files.summary(timeline.completed_writes[requested])
        yield requested, metadata.extra_metadata, metadata.operation_type
    if not timeline.completed_writes:
        from ..instants.archived_timeline import archived_extras  # late: few reads need it

        yield from archived_extras(files.storage, files.config, timeline.archived)
