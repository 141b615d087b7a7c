"""The tables of a catalog that stand for a Hudi table, as Hudi's HiveSyncTool makes them, and their changed partitions.

    Avro                              Hive                            Spark
    string, enum                      string                          string
    bytes, fixed                      binary                          binary
    boolean int long float double     boolean int bigint float double boolean integer long float double
    date                              date                            date
    timestamps in UTC                 bigint, or timestamp            timestamp
    local timestamps                  bigint, or timestamp            timestamp_ntz
    decimal(p, s)                     decimal(p,s)                    decimal(p,s)
    array, map, record                array<>, map<string,>, struct<> objects of their own

Hive has a type as text, Spark one as JSON, which is kept in parts. Source: the tables that Hudi 0.15.0 and 1.2.0 made
in a metastore (tests/hudi/sync/recorded.json).

A table of a catalog says up to which write it was synced (`Mark`). Writes that completed later are on the active
timeline if that has the write of the mark: archiving goes from the oldest instant on and never passes a pending one,
and a mark never passes one either. Otherwise the archive has them, on versions 8 and 9 with their metadata. Where it
has not, all partitions are compared: a folder may be that of a deleted one, whose write is archived once its files are
gone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from phantombase.timeline.codec.avro_schema import META_COLUMNS, parse_avro, without_null
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.table import Snapshot, Table

from .catalog import PROVIDER, CatalogColumn, CatalogTable
from .options import Names, SyncOptions

_INPUT = "org.apache.hudi.hadoop."
READ_OPTIMIZED, SNAPSHOT = f"{_INPUT}HoodieParquetInputFormat", f"{_INPUT}realtime.HoodieParquetRealtimeInputFormat"
MARK, COMPLETED_MARK = "last_commit_time_sync", "last_commit_completion_time_sync"
"""The parameters that say up to which write a table was synced: its instant, and from version 8 on its completion."""
_OF_ATHENA = "hudi.metadata-listing-enabled"
"""In Glue: whether Athena lists files by the metadata table."""
_SCHEMA = "spark.sql.sources.schema."
_HIVE = {"boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double"}
_SPARK = {"int": "integer", "bytes": "binary", "fixed": "binary", "enum": "string"}
_SPARK_MOMENTS = {"timestamp-millis": "timestamp", "timestamp-micros": "timestamp"}
_LOCAL = ("local-timestamp-millis", "local-timestamp-micros")


def tables_of(
    config: TableConfig, avro: str, location: str, database: str, options: SyncOptions
) -> tuple[CatalogTable, ...]:
    """The tables of a Hudi table as they should be, without what says when they were synced. `avro`: the schema of its
    files. `location`: its base path as in the catalog."""
    name = (options.name or config.name).lower()
    fields = [f for f in parse_avro(avro)["fields"] if options.meta_columns or f["name"] not in META_COLUMNS]
    by_name = {field["name"]: field for field in fields}
    partition = [by_name.get(one, {"name": one, "type": "string"}) for one in config.partition_fields]
    own = [field for field in fields if field["name"] not in config.partition_fields]
    columns = tuple(_column(field, options) for field in own)
    keys = tuple(_column(field, options) for field in partition)
    of_spark = dict(_for_spark([*own, *partition], config.partition_fields, options)) if options.for_spark else {}
    given = dict(pair.split("=", 1) for pair in options.table_properties)
    if options.is_glue:
        given = {_OF_ATHENA: str(options.metadata_listing).upper(), **given}
    serde = dict(pair.split("=", 1) for pair in options.serde_properties)

    def table(name: str, *, read_optimized: bool) -> CatalogTable:
        spark = {"hoodie.query.as.ro.table": str(read_optimized).lower()} if options.for_spark else {}
        return CatalogTable(
            database=database,
            name=name,
            location=location,
            columns=columns,
            partition_columns=keys,
            input_format=READ_OPTIMIZED if read_optimized or not config.has_logs else SNAPSHOT,
            serde_properties={"serialization.format": "1", "path": location, **serde, **spark},
            parameters={"EXTERNAL": "TRUE", **given, **of_spark},
        )

    if not config.has_logs:
        return (table(name, read_optimized=False),)
    if options.strategy is not Names.ALL:
        return (table(name, read_optimized=options.strategy is Names.RO),)
    found = [table(name if not options.ro_suffix else f"{name}_ro", read_optimized=True)]
    found.append(table(f"{name}_rt", read_optimized=False))
    if options.plain_name and options.ro_suffix:
        found.append(table(name, read_optimized=False))
    return tuple(found)


def _column(field: Mapping[str, Any], options: SyncOptions) -> CatalogColumn:
    comment = str(field.get("doc") or "") if options.comments else ""
    return CatalogColumn(name=field["name"].lower(), type=hive_type(field["type"], options.timestamps), comment=comment)


def hive_type(node: Any, timestamps: bool) -> str:
    """The type of a column, from one of `parse_avro`. `timestamps`: moments are timestamps, otherwise bigint."""
    inner, _ = without_null(node)
    kind, logical = (inner, None) if isinstance(inner, str) else (inner["type"], inner.get("logicalType"))
    if logical == "decimal":
        return f"decimal({inner['precision']},{inner.get('scale', 0)})"
    if logical == "date":
        return "date"
    if timestamps and logical in (*_SPARK_MOMENTS, *_LOCAL):
        return "timestamp"
    if kind == "array":
        return f"array<{hive_type(inner['items'], timestamps)}>"
    if kind == "map":
        return f"map<string,{hive_type(inner['values'], timestamps)}>"
    if kind == "record":
        parts = (f"{field['name'].lower()}:{hive_type(field['type'], timestamps)}" for field in inner["fields"])
        return f"struct<{','.join(parts)}>"
    return _HIVE.get(kind) or ("binary" if kind in ("bytes", "fixed") else "string")


def _for_spark(
    fields: Sequence[Mapping[str, Any]], partition: Sequence[str], options: SyncOptions
) -> Iterator[tuple[str, str]]:
    """The parameters that make it a data source table of Spark, with its schema in parts."""
    text = json.dumps({"type": "struct", "fields": [_spark_field(field) for field in fields]}, separators=(",", ":"))
    for kind in ("array", "map"):  # as Hudi writes it: the parts end at the same characters
        text = text.replace(f'{{"type":"{kind}",', f'{{"type":"{kind}", ')
    parts = [text[start : start + options.schema_part] for start in range(0, len(text), options.schema_part)]
    yield PROVIDER, "hudi"
    yield f"{_SCHEMA}numParts", str(len(parts))
    for number, part in enumerate(parts):
        yield f"{_SCHEMA}part.{number}", part
    if partition:
        yield f"{_SCHEMA}numPartCols", str(len(partition))
    for number, name in enumerate(partition):
        yield f"{_SCHEMA}partCol.{number}", name


def _spark_field(field: Mapping[str, Any]) -> dict[str, Any]:
    kind, nullable = _spark_type(field["type"])
    return {"name": field["name"], "type": kind, "nullable": nullable, "metadata": {}}


def _spark_type(node: Any) -> tuple[Any, bool]:
    """Spark's type as JSON, and whether a value may be null."""
    inner, nullable = without_null(node)
    kind, logical = (inner, None) if isinstance(inner, str) else (inner["type"], inner.get("logicalType"))
    if logical == "decimal":
        return f"decimal({inner['precision']},{inner.get('scale', 0)})", nullable
    if logical == "date":
        return "date", nullable
    if logical in _SPARK_MOMENTS:
        return "timestamp", nullable
    if logical in _LOCAL:
        return "timestamp_ntz", nullable
    if kind == "array":
        of, contains = _spark_type(inner["items"])
        return {"type": "array", "elementType": of, "containsNull": contains}, nullable
    if kind == "map":
        of, contains = _spark_type(inner["values"])
        return {"type": "map", "keyType": "string", "valueType": of, "valueContainsNull": contains}, nullable
    if kind == "record":
        return {"type": "struct", "fields": [_spark_field(field) for field in inner["fields"]]}, nullable
    return _SPARK.get(kind, kind), nullable


def partition_values(path: str, config: TableConfig, *, slashed_days: bool) -> tuple[str, ...] | None:
    """The values of a partition in the catalog, from the names of its folders; None: they are not one per column."""
    fields = config.partition_fields
    if slashed_days:
        day = _DAY.fullmatch(path)
        return None if day is None or len(fields) != 1 else ("-".join(day.groups()),)
    folders = path.split("/") if len(fields) > 1 else [path]
    values = tuple(_value(folder, field, config) for field, folder in zip(fields, folders, strict=False))
    return values if len(folders) == len(fields) and all(values) else None


_DAY = re.compile(r"(?:[^/=]+=)?(\d{4})/(?:[^/=]+=)?(\d{2})/(?:[^/=]+=)?(\d{2})", re.ASCII)


def _value(folder: str, field: str, config: TableConfig) -> str:
    name, equals, value = folder.partition("=")
    return value if equals and (config.hive_style or name == field) else folder


_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "string")


def widens(old: str, new: str) -> bool:
    """Whether every value of a column of the type `old` is one of the type `new`."""
    if old == new:
        return True
    if old.startswith("decimal(") and new.startswith("decimal("):
        (precision, scale), (wider, more) = ([int(n) for n in one[8:-1].split(",")] for one in (old, new))
        return more >= scale and wider - more >= precision - scale
    if "<" in old and "<" in new:
        return _parts_widen(old, new)
    if old in _NUMBERS and new in _NUMBERS:
        return _NUMBERS.index(old) < _NUMBERS.index(new)
    return (old, new) in (("date", "string"), ("binary", "string"), ("bigint", "timestamp"))


def _parts_widen(old: str, new: str) -> bool:
    """Of arrays, maps and structs: of each part of the old one, by its name in a struct."""
    if (kind := old.partition("<")[0]) != new.partition("<")[0]:
        return False
    if kind != "struct":
        mine, others = _split(old), _split(new)
        return len(mine) == len(others) and all(map(widens, mine, others))
    named = [dict(part.split(":", 1) for part in _split(one)) for one in (old, new)]
    return all(name in named[1] and widens(type_, named[1][name]) for name, type_ in named[0].items())


def _split(kind: str) -> list[str]:
    """The parts between the outer brackets."""
    parts, depth = [""], 0
    for char in kind.partition("<")[2][:-1]:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


_EMPTIES = ("DELETE_PARTITION", "INSERT_OVERWRITE_TABLE")
"""Operations that replace all file groups of partitions; those that they write nothing to are gone."""
_MANY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The newest write that a sync has seen. `completed`: its completion time; on version 6 that of its request: Hudi
    0.15.0 takes the later writes from there, and again those that completed after it."""

    time: str
    completed: str | None

    @property
    def parameters(self) -> dict[str, str]:
        return {MARK: self.time, COMPLETED_MARK: self.completed or self.time}

    @staticmethod
    def of(parameters: Mapping[str, str]) -> Mark | None:
        """That of a table in the catalog."""
        time = parameters.get(MARK)
        return Mark(time=time, completed=parameters.get(COMPLETED_MARK)) if time else None

    @staticmethod
    def at(timeline: Timeline) -> Mark | None:
        """The newest completed write below every pending one, which may complete later; None: there is none."""
        pending = min((i.requested_time for i in timeline.inflight_writers), default="~")
        below = [i for i in timeline.completed if i.requested_time < pending]
        newest = max(below, key=timeline.moment_of, default=None)
        return None if newest is None else Mark(time=newest.requested_time, completed=timeline.moment_of(newest))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanges:
    """`written`: partitions that the catalog may lack. `gone`: that it must not have. `all`: `written` are all."""

    written: frozenset[str]
    gone: frozenset[str]
    all: bool


def changes_since(table: Snapshot, mark: Mark | None) -> PartitionChanges:
    """The changes since a mark; None: there is none. Errors: see `Table.partitions`, `Table.commit_metadata`,
    `load_history`."""
    timeline = table.timeline
    since = _writes_since(timeline, mark)
    if since is not None:
        return _changes(_last_of_each(timeline, {i: table.commit_metadata(i) for i in _writing(timeline, since)}))
    whole = table.with_archive(timeline)
    active = {i: table.commit_metadata(i) for i in _writing(timeline, timeline.completed)}
    archived = _archived_since(whole, mark)
    if archived is not None:
        found = table.archived_commits(_writing(timeline, archived))
        if found.keys() == set(_writing(timeline, archived)):
            return _changes(_last_of_each(timeline, {**found, **active}))
    last = _last_of_each(timeline, active)
    gone = {partition for partition, what in last.items() if what is _What.DELETED}
    there = set(table.partitions())
    replacing = [i for i in whole.archived if i.family == "replacecommit"]
    known = table.archived_commits(replacing)
    emptied = {p for one in known.values() if one.operation_type in _EMPTIES for p in _replaced(one)}
    asked = there if known.keys() != set(replacing) else there & emptied
    gone |= {partition for partition in asked - last.keys() if not _has_files(table, partition)}
    return PartitionChanges(written=frozenset(there - gone), gone=frozenset(gone), all=True)


def _changes(last: Mapping[str, _What]) -> PartitionChanges:
    new, gone = (frozenset(p for p, what in last.items() if what is one) for one in (_What.WRITTEN, _What.DELETED))
    return PartitionChanges(written=new, gone=gone, all=False)


def _replaced(metadata: CommitMetadata) -> Collection[str]:
    return metadata.partition_to_replace_file_ids or ()


def _has_files(table: Table, partition: str) -> bool:
    """Whether a partition has a file of a file group; those of the partition itself are none."""
    try:
        return any(parse_data_file(e.name) is not None for e in table.storage.list(partition) if not e.is_folder)
    except MissingFileError:
        return False


def is_behind(timeline: Timeline, mark: Mark | None) -> bool:
    """Whether a mark should be moved though nothing has changed: the write that it names may be archived soon."""
    since = _writes_since(timeline, mark)
    return since is None or len(since) >= max(_MANY, len(timeline.completed) // 2)


def _writes_since(timeline: Timeline, mark: Mark | None) -> Sequence[Instant] | None:
    """The writes that completed after a mark; None: they are not all on the active timeline."""
    if mark is None or timeline.may_be_archived_later:
        return None
    marked = timeline.completed_writes.get(mark.time)
    if marked is None or (timeline.layout.has_completion_times and mark.completed != timeline.moment_of(marked)):
        return None
    return [i for i in timeline.completed if timeline.moment_of(i) > timeline.moment_of(marked)]


def _archived_since(whole: Timeline, mark: Mark | None) -> Sequence[Instant] | None:
    """The archived writes that completed after a mark; None: the archive does not have that of the mark, or not as it
    was then. `whole`: with its archive."""
    if mark is None or not whole.layout.has_completion_times:
        return None
    writes = [i for i in whole.archived if i.is_write]
    marked = next((i for i in writes if i.requested_time == mark.time), None)
    if marked is None or whole.moment_of(marked) != mark.completed:
        return None
    return [i for i in writes if whole.moment_of(i) > whole.moment_of(marked)]


def _writing(timeline: Timeline, writes: Iterable[Instant]) -> list[Instant]:
    return [i for i in writes if not timeline.is_compaction(i)]


class _What(Enum):
    """What became of a partition. KEPT: a write has changed file groups that were there before it, so the partition is
    older than that write: an earlier sync, or an earlier one of these writes, has shown it."""

    WRITTEN = "written"
    KEPT = "kept"
    DELETED = "deleted"


def _last_of_each(timeline: Timeline, writes: Mapping[Instant, CommitMetadata]) -> dict[str, _What]:
    found: dict[str, _What] = {}
    for write in sorted(writes, key=timeline.moment_of):
        metadata = writes[write]
        if metadata.operation_type in _EMPTIES:
            found |= dict.fromkeys(_replaced(metadata), _What.DELETED)
        for partition, stats in metadata.partition_to_write_stats.items():
            if stats and found.get(partition) is not _What.WRITTEN:
                older = any(_is_older_group(stat, write.requested_time) for stat in stats)
                found[partition] = _What.KEPT if older else _What.WRITTEN
    return found


def _is_older_group(stat: WriteStat, instant: str) -> bool:
    """Whether a write has changed a file group that was there before it, as far as its commit shows that."""
    before = stat.prev_commit or ""
    return bool(stat.base_file) or (before.isdecimal() and before < instant)
