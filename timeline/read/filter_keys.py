"""What a filter says about record keys and partition paths, by the rules of Hudi's key generators (pure).

    key fields with given values   -> the record keys that a matching row may have
    partition path                 -> the values of the partition fields in its rows

Only fields of texts and integers count, in tables of the generators that take values as they are: their text is the
same in all writers. Everything else tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from urllib.parse import unquote

import pyarrow as pa

from ..avro.schema import PARTITION_PATH, RECORD_KEY
from ..filter.possible import UNKNOWN, Bounds, BoundsOf
from ..filter.tree import Filter, only_values
from ..format.table_config import TableConfig

_PLAIN_GENERATORS = frozenset({"SIMPLE", "COMPLEX", "NON_PARTITION", "TIMESTAMP", "CUSTOM", None})
_KEYS_MAX = 10_000
_SLASHED_DATES = "hoodie.datasource.write.slash.separated.date.partitioning"
_NO_VALUE = frozenset({"__HIVE_DEFAULT_PARTITION__", "default"})
"""Folders of rows without a value."""


def wanted_keys(node: Filter, config: TableConfig, schema: pa.Schema) -> tuple[str, ...] | None:
    """The record keys that a row must have to match, None if the bound filter does not tell."""
    if config.populate_meta_fields and (given := only_values(node, RECORD_KEY)) is not None:
        return tuple(sorted(value.as_py() for value in given))
    fields = config.record_key_fields
    if config.key_generator not in _PLAIN_GENERATORS or not fields:
        return None
    texts: list[list[str]] = []
    count = 1
    for field in fields:
        values = only_values(node, field) if field in schema.names and _is_plain(schema.field(field).type) else None
        if values is None:
            return None
        texts.append(sorted(str(value.as_py()) for value in values))
        count *= len(values)
    return tuple(_keys(fields, texts)) if count <= _KEYS_MAX else None


def _keys(fields: tuple[str, ...], texts: list[list[str]]) -> Iterator[str]:
    """Of one field both forms, whatever the generator: a client that makes the keys itself may store either."""
    for values in product(*texts):
        if len(fields) == 1:
            yield values[0]
        yield ",".join(f"{field}:{value or '__empty__'}" for field, value in zip(fields, values, strict=True))


def partition_bounds(path: str, config: TableConfig, schema: pa.Schema) -> BoundsOf:
    """The bounds of the columns in the rows of a partition, from the names of its folders.

    Where a name contradicts the settings of the folders (`p=north` without hive style, `%2F` without URL encoding) they
    hold for both ways to read it. Rows may still say something else: see `pruning`.
    """
    values = {
        name: [pa.scalar(v, schema.field(name).type).as_py() for v in of] for name, of in _values(path, config, schema)
    }

    def bounds(column: str) -> Bounds:
        found = values.get(column)
        return UNKNOWN if not found else Bounds(low=min(found), high=max(found), nulls=False)

    return bounds


def _values(path: str, config: TableConfig, schema: pa.Schema) -> Iterator[tuple[str, list[str] | list[int]]]:
    """The values that each column may have. A column of which nothing is known is left out."""
    if config.populate_meta_fields and not config.url_encode:
        yield PARTITION_PATH, [path]
    fields, folders = config.partition_fields, path.split("/")
    if not _is_named_by_values(config) or len(fields) != len(folders):
        return
    for field, folder in zip(fields, folders, strict=True):
        texts = sorted(_texts(field, folder, config))
        if not texts or not _NO_VALUE.isdisjoint(texts) or field not in schema.names:
            continue
        kind = schema.field(field).type
        if pa.types.is_string(kind):
            yield field, texts
        elif pa.types.is_integer(kind):
            numbers = [int(text) for text in texts if text.removeprefix("-").isdecimal() and str(int(text)) == text]
            if numbers:
                yield field, numbers


def _texts(field: str, folder: str, config: TableConfig) -> set[str]:
    """The values that a folder may stand for; none: it cannot be told."""
    name, has_name, value = folder.partition("=")
    named = bool(has_name) and name == field
    forms = {value} if named else set[str]()
    if not config.hive_style:
        forms.add(folder)
    plain = {unquote(form) for form in forms}
    return plain if config.url_encode else forms | plain


def _is_named_by_values(config: TableConfig) -> bool:
    """Whether the folders of partitions are the values of the partition fields."""
    typed = config.properties.get("hoodie.table.partition.fields", "").split(",")
    return (
        config.key_generator in _PLAIN_GENERATORS - {"TIMESTAMP"}
        and config.properties.get(_SLASHED_DATES, "false").lower() == "false"
        and all(field.strip().partition(":")[2].upper() in ("", "SIMPLE") for field in typed)
        and (config.key_generator != "CUSTOM" or all(":" in field for field in typed))
    )


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))
