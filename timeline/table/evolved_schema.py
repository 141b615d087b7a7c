"""A table's columns where they evolve on read (`hoodie.schema.on.read.enable`): Hudi's record, and older files' names.

Each column has an id that is kept when its name changes. A commit has the columns of its time as `latest_schema` in its
metadata; `.hoodie/.schema/<instant>.schemacommit` has those of all times, as `{"schemas": [...]}`. A record has
`fields` with `id`, `name` and `type`; an array `element_id` and `element`; a map `key_id`, `key`, `value_id` and
`value`; any other type is a text (seen in tables of Hudi 0.15.0 and 1.2.0)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..codec.avro_schema import (
    COMMIT_TIME,
    META_COLUMNS,
    parse_avro,
    with_meta_columns,
    without_meta_columns,
    without_null,
)
from ..codec.stored_names import Names, StoredNames
from ..errors import MalformedError, UnsupportedError, reason_of
from ..format.commit_metadata import LATEST_SCHEMA
from ..format.instant import Instant
from ..instants.instant_files import InstantFiles
from ..instants.timeline import Timeline
from ..storage.contract import Storage, listed_if_there

_ALIKE = (frozenset({"int", "long", "string"}), frozenset({"float", "double"}))
"""Types between which a column may change: old values in files are read as in Hudi."""
_KNOWN_KINDS = frozenset({"boolean", "int", "long", "float", "double", "string", "record", "array", "map"})
"""Types with the same name in Avro."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvedColumn:
    """A column, or a part of one. `kind`: the type's text, or `record`, `array` or `map`; None if unknown."""

    id: int | None
    kind: str | None


Path: TypeAlias = tuple[str, ...]
"""The name of a column, then those of its part; `element`, `key` and `value` are parts of arrays and maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvedColumns:
    """The columns since a change. `since`: the instant of the change, as a number."""

    since: int
    parts: Mapping[Path, EvolvedColumn]

    def names_of(self, older: EvolvedColumns) -> Names:
        """The names in a file that has the older columns."""
        there = {column.id: path[0] for path, column in older.parts.items() if len(path) == 1}
        named = ((path[0], there.get(column.id)) for path, column in self.parts.items() if len(path) == 1)
        return {name: old for name, old in named if old != name and (old is not None or (name,) in older.parts)}


def parse_columns(text: str, where: str) -> EvolvedColumns:
    """The columns of a `latest_schema`. MalformedError: the text is not one; `where` names its file."""
    return _columns(_loaded(text, where), where)


def parse_history(text: str, where: str) -> tuple[EvolvedColumns, ...]:
    """The columns of all times in a `.schemacommit` file. MalformedError: the text is not one."""
    schemas = _loaded(text, where).get("schemas")
    if not isinstance(schemas, list):
        raise _malformed(where, "no list of schemas")
    return tuple(_columns(schema, where) for schema in schemas)


def unsupported_change(
    times: Iterable[EvolvedColumns], fixed: Collection[str], ordering: Collection[str] = ()
) -> str | None:
    """A change that cannot be followed from file to file; None: there is none. An int may become a long, both a string,
    a float a double. Columns may be renamed, dropped and added again, except their parts and the `fixed` columns, which
    the table's settings name. The `ordering` columns must keep their type: text orders 10 before 9, and a delete with
    an int as its ordering value wins over every row of longs."""
    every = list(times)
    for name in sorted(ordering):
        known = (one.parts.get((name,)) for one in every)
        types = {found.kind for found in known if found is not None and found.kind is not None}
        if len(types) > 1:
            return f"ordering column {name} changed its type: {', '.join(sorted(types))}"
    for name in sorted(fixed):
        if len({None if (found := one.parts.get((name,))) is None else found.id for one in every}) > 1:
            return f"column {name}, which the table's settings name, is another one than at first"
    unnumbered, numbered = set[Path](), set[str]()
    kinds, ids = defaultdict[int, set[str]](set), defaultdict[Path, set[int]](set)
    parts = defaultdict[int, set[Path]](set)
    for one in every:
        without = {path[0] for path, column in one.parts.items() if column.id is None}
        numbered |= {f"#{one.parts[path].id}" for path in one.parts if len(path) == 1 and path[0] not in without}
        for path, column in one.parts.items():
            part = (f"#{one.parts[path[:1]].id}", *path[1:])
            if column.id is None:
                unnumbered.add(part)
                continue
            if column.kind is not None:
                kinds[column.id].add(column.kind)
            if len(kinds[column.id]) > 1 and not any(kinds[column.id] <= alike for alike in _ALIKE):
                return f"{'.'.join(path)} changed its type: {', '.join(sorted(kinds[column.id]))}"
            ids[part].add(column.id)
            parts[column.id].add(part)
            if len(ids[part]) > 1 or len(parts[column.id]) > 1:
                return f"{'.'.join(path)} was renamed or added again: it is a part of a column"
    if lost := sorted(part for part in unnumbered - ids.keys() if part[0] in numbered):
        return f"part {'.'.join(lost[0][1:])} of a column was renamed or dropped"
    return None


def columns_before(text: str, first: EvolvedColumns) -> EvolvedColumns:
    """The columns before the first change, by the Avro schema of that time: Hudi numbers them in order, its own first.
    `first`: the columns after the change. Parts of columns have no number in the result."""
    own = without_meta_columns(text)
    fields = parse_avro(with_meta_columns(own) if (COMMIT_TIME,) in first.parts else own)["fields"]
    parts = dict[Path, EvolvedColumn]()
    for number, field in enumerate(fields):
        kind, _ = without_null(field["type"])
        name = kind if isinstance(kind, str) else None if kind.get("logicalType") else kind["type"]
        path = (field["name"],)
        parts[path] = EvolvedColumn(id=number, kind=name if name in _KNOWN_KINDS else None)
        parts |= {part: EvolvedColumn(id=None, kind=None) for part in _parts_of(path, kind)}
    return EvolvedColumns(since=0, parts=parts)


def _parts_of(path: Path, kind: Any) -> Iterator[Path]:
    if isinstance(kind, str):
        return
    below: dict[str, Any] = {}
    if kind["type"] == "record":
        below = {field["name"]: field["type"] for field in kind["fields"]}
    elif kind["type"] == "array":
        below = {"element": kind["items"]}
    elif kind["type"] == "map":
        below = {"key": "string", "value": kind["values"]}
    for name, part in below.items():
        yield (*path, name)
        yield from _parts_of((*path, name), without_null(part)[0])


def _columns(schema: Any, where: str) -> EvolvedColumns:
    try:
        return EvolvedColumns(since=int(schema["version_id"]), parts=dict(_fields(schema["fields"], ())))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _malformed(where, reason_of(error)) from error


def _fields(fields: list[dict[str, Any]], above: Path) -> Iterator[tuple[Path, EvolvedColumn]]:
    for field in fields:
        yield from _column((*above, field["name"]), int(field["id"]), field["type"])


def _column(path: Path, number: int, kind: Any) -> Iterator[tuple[Path, EvolvedColumn]]:
    if isinstance(kind, str):
        yield path, EvolvedColumn(id=number, kind=kind)
        return
    yield path, EvolvedColumn(id=number, kind=kind["type"])
    if kind["type"] == "record":
        yield from _fields(kind["fields"], path)
    elif kind["type"] == "array":
        yield from _column((*path, "element"), int(kind["element_id"]), kind["element"])
    elif kind["type"] == "map":
        yield from _column((*path, "key"), int(kind["key_id"]), kind["key"])
        yield from _column((*path, "value"), int(kind["value_id"]), kind["value"])
    else:
        raise ValueError(f"unknown type {kind['type']}")


def _loaded(text: str, where: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _malformed(where, str(error)) from error
    if not isinstance(found, dict):
        raise _malformed(where, "no JSON object")
    return found


def _malformed(where: str, found: str) -> MalformedError:
    return MalformedError("cannot read a record of evolved columns", path=where, found=found)


_HISTORY = ".hoodie/.schema"
_SCHEMA_COMMIT = ".schemacommit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHistory:
    """The columns of all times, ascending. `unknown_before`: see `StoredNames`."""

    times: tuple[EvolvedColumns, ...]
    unknown_before: int = 0

    def at(self, instant: str) -> EvolvedColumns:
        """The columns at an instant: those of the last change up to it, or the first ones."""
        return [self.times[0], *(one for one in self.times if one.since <= int(instant))][-1]


def load_columns(files: InstantFiles, timeline: Timeline, newest: str) -> ColumnHistory:
    """The columns of all times. `newest`: as the newest write records them. UnsupportedError: they changed in a way
    that cannot be followed, or Hudi's history of them does not exist."""
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
            expected="columns added, dropped, renamed, int made long, both string, float double, all their history",
            found=why,
            todo="Use Hudi for this table.",
        )
    return ColumnHistory(times=(*earlier, *times), unknown_before=times[0].since if unknown else 0)


def newest_history(storage: Storage, timeline: Timeline) -> str | None:
    """The newest completed write with a history of the columns. Hudi reads only histories of active writes."""
    return _newest(_histories(storage), timeline)


def carry_history(files: InstantFiles, timeline: Timeline, done: Instant) -> None:
    """Copies the history of the columns for a write that is about to complete, as Hudi's writers do. Hudi reads only
    histories of active writes; readers ignore the history of a write that never completes."""
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
    # The history of a pending write may be removed with it.
    return max((time for time in names if time in timeline.completed_writes), default=None)


def _histories(storage: Storage) -> dict[str, str]:
    """The names of the history files by the instants of their writes."""
    whole = (e for e in listed_if_there(storage, _HISTORY) or () if e.name.endswith(_SCHEMA_COMMIT))
    return {e.name.partition("_")[0].removesuffix(_SCHEMA_COMMIT): e.name for e in whole}


def _archived_history(files: InstantFiles, names: Collection[str]) -> str | None:
    """The newest history of an archived write: Hudi archives a write even if only compactions came after it."""
    from ..instants.archived_timeline import load_history  # late: few reads need it

    archived = {i.requested_time for i in load_history(files.storage, files.config) if i.is_write} if names else set()
    return max((time for time in names if time in archived), default=None)


def _before(files: InstantFiles, timeline: Timeline, first: EvolvedColumns) -> tuple[tuple[EvolvedColumns, ...], bool]:
    """The columns before the first change, which the history lacks, and whether they are unknown."""
    active = [i for time, i in timeline.completed_writes.items() if int(time) < first.since]
    for instant in sorted(active, key=lambda i: i.requested_time, reverse=True):
        if text := files.commit_metadata(instant).extra_metadata.get("schema"):
            return (columns_before(text, first),), False
    # Late: few reads need it.
    from ..instants.archived_timeline import archived_extras, load_history

    history = load_history(files.storage, files.config)
    archived = [i for i in history if i.is_write and int(i.requested_time) < first.since]
    for _, recorded, _ in archived_extras(files.storage, files.config, archived):
        if text := recorded.get("schema"):
            return (columns_before(text, first),), False
    return (), bool(archived)


def names_in_files(files: InstantFiles, timeline: Timeline, own: EvolvedColumns, history: ColumnHistory) -> StoredNames:
    """The names of these columns in older files; no metadata is read if all names are equal."""
    changes = tuple((one.since, own.names_of(one)) for one in history.times)
    if not history.unknown_before and not any(names for _, names in changes):
        return StoredNames()
    commits = dict[str, Names]()
    for time, instant in timeline.completed_writes.items():
        recorded = files.commit_metadata(instant).extra_metadata.get(LATEST_SCHEMA)
        if recorded:
            commits[time] = own.names_of(parse_columns(recorded, files.path(instant)))
    return StoredNames(commits=commits, changes=changes, unknown_before=history.unknown_before)
