"""Golden tables whose columns are changed as Hudi's `ALTER TABLE` does, and tables that are refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.format.commit_metadata import LATEST_SCHEMA, CommitMetadata, encode
from phantombase.timeline.format.compaction_plan import decode_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.log_block import scan_blocks
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.folders import HOODIE, RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows

_TYPES = {"bytes": "binary", "int": "int", "long": "long", "float": "float", "double": "double", "string": "string"}
Column = dict[str, Any]
"""`id`, `name`, and the column's Avro type as `avro`."""


def columns_of(table: Table) -> list[Column]:
    """The table's columns, numbered as Hudi does before the first change."""
    schema = json.loads(table.snapshot().newest_schema().commit_text)
    own = [(name, ["null", "string"]) for name in META_COLUMNS]
    named = [*own, *((field["name"], field["type"]) for field in schema["fields"])]
    return [{"id": number, "name": name, "avro": kind} for number, (name, kind) in enumerate(named)]


def renamed(columns: list[Column], **names: str) -> list[Column]:
    """With other names."""
    return [{**one, "name": names.get(one["name"], one["name"])} for one in columns]


def alter(table: Table, columns: list[Column], *, history: Callable[[list[Any]], list[Any]] = lambda all_: all_) -> str:
    """Completes a change of the columns; its instant. `history`: what of the earlier times is kept."""
    timeline = table.load_timeline()
    time = table.with_timeline(timeline).next_time()
    fields = [{"name": c["name"], "type": c["avro"], "default": None} for c in columns if c["id"] >= len(META_COLUMNS)]
    schema = {"type": "record", "name": "evolved_record", "namespace": "hoodie.evolved", "fields": fields}
    parts = [{"id": c["id"], "name": c["name"], "optional": True, "type": _kind(c["avro"])} for c in columns]
    evolved = {"max_column_id": 99, "version_id": int(time), "type": "record", "fields": parts}
    extra = {"schema": json.dumps(schema, separators=(",", ":")), LATEST_SCHEMA: json.dumps(evolved)}
    metadata = CommitMetadata(operation_type="ALTER_SCHEMA", extra_metadata=extra)
    completion = table.with_timeline(timeline).completion_time([time])
    instant = Instant(requested_time=time, action="deltacommit", state=State.COMPLETED, completion_time=completion)
    folder = ".hoodie/.schema"
    earlier = [e.name for e in table.storage.list(folder)] if table.storage.find(folder) else []
    schemas = json.loads(table.storage.read(f"{folder}/{max(earlier)}"))["schemas"] if earlier else []
    text = json.dumps({"schemas": history([evolved, *schemas])})
    name = f"{time}_{completion}" if completion else time
    table.storage.overwrite(f"{folder}/{name}.schemacommit", text.encode())
    assert table.storage.put_if_absent(table.instant_path(instant), encode(metadata, table.layout.encoding))
    return time


def _kind(avro: Any) -> Any:
    """Hudi's text of a type; of a type with parts the parts too, numbered from far above."""
    kind: Any = next(one for one in avro if one != "null") if isinstance(avro, list) else avro
    if isinstance(kind, str):
        return _TYPES.get(kind, kind)
    if "logicalType" in kind:
        return kind["logicalType"]
    if kind["type"] == "record":
        parts = [
            {"id": 50 + n, "name": f["name"], "optional": True, "type": _kind(f["type"])}
            for n, f in enumerate(kind["fields"])
        ]
        return {"type": "record", "fields": parts}
    if kind["type"] == "array":
        return {"type": "array", "element_id": 60, "element": _kind(kind["items"]), "element_optional": True}
    value = _kind(kind["values"])
    return {"type": "map", "key_id": 70, "value_id": 71, "key": "string", "value": value, "value_optional": True}


def compacted(path: Path, table: Table) -> None:
    """Compacts all file groups; each compaction is proved by its audit."""
    schedule_compaction(table.snapshot(cached=False), ProcessLock(str(path)))
    done = CliRunner().invoke(app, ["compact", str(path), "--executor", "local"])
    assert done.exit_code == 0, done.output
    table = table.snapshot(cached=False)
    assert table.load_timeline().pending_merges == ()
    for instant in audited_instants(table):
        assert audit(table, instant).problems == ()
        assert {group.problems for group in audit(table, instant).groups} == {()}


# Tables whose data are not what their settings say.


HIVE = "hoodie.datasource.write.hive_style_partitioning"
URL = "hoodie.datasource.write.partitionpath.urlencode"
KIND = "hoodie.table.keygenerator.type"


def changed(table: Path, settings: Mapping[str, str | None]) -> None:
    """Gives hoodie.properties other settings; None: the setting is taken out."""
    file = table / ".hoodie" / "hoodie.properties"
    text = file.read_text()
    for name, value in settings.items():
        text = re.sub(rf"(?m)^{re.escape(name)}=.*\n", "", text) + (f"{name}={value}\n" if value is not None else "")
    file.write_text(text)


def check_filters(path: Path, columns: tuple[str, ...]) -> None:
    """Filters by each value of these columns."""
    table = Table.open(str(path), reading=True)
    everything = read_table(table)
    for column in columns:
        for value in everything[column].unique().to_pylist():
            same = pc.fill_null(pc.equal(everything[column], value), False)
            asked = {f"{column} = '{value}'": same, f"{column} like '{str(value)[:1]}%'": None}
            if value is None:
                asked = {f"{column} is null": pc.is_null(everything[column])}
            for text, mask in asked.items():
                if mask is None:
                    mask = pc.fill_null(pc.starts_with(everything[column], str(value)[:1]), False)
                assert_same_rows(read_table(table, ReadOptions(filter=text)), everything.filter(mask))


# Tables that are refused, and a digest of all their bytes.


def digest(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder: its modification time and bytes."""
    return {
        str(p.relative_to(path)): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file()
    }


def set_property(key: str, value: str) -> Callable[[Path], None]:
    """Adds a line to hoodie.properties; the last of a key counts."""

    def change(path: Path) -> None:
        properties = path / HOODIE / "hoodie.properties"
        properties.write_bytes(properties.read_bytes() + f"\n{key}={value}\n".encode())

    return change


def lose_planned_log(path: Path) -> None:
    """Removes a log file that the first pending plan names."""
    requested = sorted((path / HOODIE).rglob("*.compaction.requested"))[0]
    operation = decode_plan(requested.read_bytes(), str(requested)).operations[0]
    (path / operation.partition_path / operation.delta_file_paths[0]).unlink()


def written_instant(log: Path) -> str:
    """The instant of the last block of a log file."""
    with log.open("rb") as file:
        return [*scan_blocks(pa.PythonFile(file), log.name)][-1].instant


NO_COLUMNS = '{"type": "record", "name": "r", "fields": []}'


def evolves_on_read(path: Path) -> None:
    """Columns with ids in the newest commit, without those of older files: these may have other names."""
    table = Table.open(str(path))
    newest = max(table.load_timeline().completed_writes.values())
    metadata = table.commit_metadata(newest)
    columns = '{"version_id": 1, "fields": []}'
    said = replace(metadata, extra_metadata={**metadata.extra_metadata, "latest_schema": columns})
    (path / table.instant_path(newest)).write_bytes(encode(said, table.layout.encoding))


UNKNOWN_INDEX = set_property("hoodie.table.metadata.partitions", "files,vector_index")


def schedule(path: Path, options: ScheduleOptions = PLAN_NOW, storage: Any = None) -> Scheduled:
    """Without a word of a trigger."""
    table = Table.on(storage or LocalStorage(str(path)))
    return schedule_compaction(table, ProcessLock(str(path)), options)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time; our own lock file aside."""
    files = (Path(d) / name for d, _, names in os.walk(folder) for name in names)
    found = {str(f.relative_to(folder)): (f.stat().st_mtime_ns, f.read_bytes()) for f in files}
    return {name: held for name, held in found.items() if not name.startswith(f"{RECORDS}/table.lock")}
