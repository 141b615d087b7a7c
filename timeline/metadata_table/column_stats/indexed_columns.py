"""Which columns of a table have statistics in its metadata table (pure).

Hudi 1.x records the columns in `.hoodie/.index_defs/index.json`. At table version 6 there is no such file, and the
schema may have grown since it was written. So the columns are those in the file, plus those that Hudi would choose from
the schema by its defaults (Hudi HoodieTableMetadataUtil.getColumnsToIndex, isColumnTypeSupported):

    0.15        every column
    1.x         _hoodie_commit_time, _hoodie_partition_path, _hoodie_record_key, and the first 32 columns that can have
                statistics; all of them if the file records more than 32, since its writers then use a greater limit

A reader asks for the recorded columns, or for all columns of its schema. Extra statistics do no harm. Missing
statistics of one column beside those of other columns of the same file do: Hudi treats such a column as one without any
value in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ...avro.arrow_schema import arrow_type
from ...avro.schema import COMMIT_TIME, META_COLUMNS, OPERATION, PARTITION_PATH, RECORD_KEY, parse_avro, without_null
from ...errors import MalformedError
from .index_definitions import INDEX_DEFINITIONS, definitions_in
from .value_type import IndexVersion, ValueType

_FIRST_COLUMNS = 32
_ALWAYS = (COMMIT_TIME, PARTITION_PATH, RECORD_KEY)


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A column with statistics: names joined by dots, as a path through structs."""

    name: str
    type: ValueType


def columns_to_index(schema_text: str, index_defs: bytes | None, table_version: int) -> tuple[IndexedColumn, ...]:
    """The columns of an Avro schema (with the meta columns, if the table has them) that get statistics.

    `index_defs`: content of INDEX_DEFINITIONS, None if there is no such file. MalformedError: damaged definitions.
    """
    definitions = definitions_in(index_defs)
    version = _index_version(definitions, table_version)
    record = parse_avro(schema_text)
    written = _source_fields(definitions)
    names = [*written, *_default_names(record, written, version, table_version)]
    columns = {name: _value_type(record, name) for name in names}
    return tuple(IndexedColumn(name, kind) for name, kind in columns.items() if kind is not None)


def index_version(index_defs: bytes | None, table_version: int) -> IndexVersion:
    """How values are stored in `column_stats` and `partition_stats`. MalformedError: damaged definitions."""
    return _index_version(definitions_in(index_defs), table_version)


def _index_version(definitions: dict[str, Any], table_version: int) -> IndexVersion:
    for name in ("column_stats", "partition_stats"):
        written = definitions.get(name, {}).get("version")
        if written is not None:
            if written not in IndexVersion.__members__:
                raise MalformedError("unknown version of an index", path=INDEX_DEFINITIONS, found=f"{name}: {written}")
            return IndexVersion[written]
    return IndexVersion.V2 if table_version >= 9 else IndexVersion.V1


def _source_fields(definitions: dict[str, Any]) -> list[str]:
    fields = definitions.get("column_stats", {}).get("sourceFields", [])
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise MalformedError("damaged index definitions", path=INDEX_DEFINITIONS, found=f"sourceFields {fields!r}")
    return fields


def _default_names(
    record: dict[str, Any], written: Collection[str], version: IndexVersion, table_version: int
) -> Iterator[str]:
    names = [f["name"] for f in record["fields"]]
    if table_version < 8:
        yield from names
        return
    yield from (name for name in _ALWAYS if name in names)
    own = [name for name in names if name not in (*META_COLUMNS, OPERATION)]
    taken = [name for name in own if _is_taken(_value_type(record, name), version)]
    yield from taken if len(set(written).intersection(own)) > _FIRST_COLUMNS else taken[:_FIRST_COLUMNS]


def _is_taken(kind: ValueType | None, version: IndexVersion) -> bool:
    return kind is not None and (version is IndexVersion.V2 or kind.fits_version_1)


def _value_type(record: dict[str, Any], path: str) -> ValueType | None:
    """The type at a path; None if there is no such column, or if its type has no statistics."""
    node: Any = record
    for name in path.split("."):
        fields = node.get("fields", []) if isinstance(node, dict) else []
        found = next((f["type"] for f in fields if f["name"] == name), None)
        if found is None:
            return None
        node, _ = without_null(found)
    if isinstance(node, dict) and node["type"] == "enum":
        return None
    return ValueType.of(arrow_type(node))
