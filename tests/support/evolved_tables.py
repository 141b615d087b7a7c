"""Golden tables whose columns are changed as Hudi's `ALTER TABLE` changes them with schema evolution on read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.avro.schema import META_COLUMNS
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.evolved_schema import LATEST_SCHEMA
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows

_TYPES = {"bytes": "binary", "int": "int", "long": "long", "float": "float", "double": "double", "string": "string"}
Column = dict[str, Any]
"""`id`, `name`, and the column's Avro type as `avro`."""


def columns_of(table: Table) -> list[Column]:
    """The table's columns, numbered as Hudi does before the first change."""
    schema = json.loads(table.newest_schema(table.load_timeline()).commit_text)
    own = [(name, ["null", "string"]) for name in META_COLUMNS]
    named = [*own, *((field["name"], field["type"]) for field in schema["fields"])]
    return [{"id": number, "name": name, "avro": kind} for number, (name, kind) in enumerate(named)]


def renamed(columns: list[Column], **names: str) -> list[Column]:
    """With other names."""
    return [{**one, "name": names.get(one["name"], one["name"])} for one in columns]


def alter(table: Table, columns: list[Column], *, history: Callable[[list[Any]], list[Any]] = lambda all_: all_) -> str:
    """Completes a change of the columns; its instant. `history`: what of the earlier times is kept."""
    timeline = table.load_timeline()
    time = table.next_time(timeline)
    fields = [{"name": c["name"], "type": c["avro"], "default": None} for c in columns if c["id"] >= len(META_COLUMNS)]
    schema = {"type": "record", "name": "evolved_record", "namespace": "hoodie.evolved", "fields": fields}
    parts = [{"id": c["id"], "name": c["name"], "optional": True, "type": _kind(c["avro"])} for c in columns]
    evolved = {"max_column_id": 99, "version_id": int(time), "type": "record", "fields": parts}
    extra = {"schema": json.dumps(schema, separators=(",", ":")), LATEST_SCHEMA: json.dumps(evolved)}
    metadata = CommitMetadata(operation_type="ALTER_SCHEMA", extra_metadata=extra)
    completion = table.completion_time(timeline, [time])
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
    schedule_compaction(table.reload(), ProcessLock(str(path)))
    done = CliRunner().invoke(app, ["compact", str(path), "--executor", "local"])
    assert done.exit_code == 0, done.output
    table = table.reload()
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
