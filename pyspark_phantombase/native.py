"""Which file slices Spark's own Parquet reader reads exactly as phantombase does (pure)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.arrow.conform import NO_DEFAULTS, Defaults
from phantombase.timeline.arrow.stored_names import SAME_NAMES, Names
from phantombase.timeline.avro.schema import OPERATION
from phantombase.timeline.parquet.calendar import old_calendar
from phantombase.timeline.view.view import FileSlice

_SAME = frozenset(
    {pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()}
)
"""Types that are read alike if file and table have the same; besides them decimals and moments in UTC.

Moments in milliseconds are left out: Spark may round a filter's moment down to them.

Nested types are left out: readers differ in how they take the encodings of lists and maps.
"""
_GLOB = frozenset("{}[]*?\\")
"""Spark takes a path with one of these as a pattern."""
_HIDDEN = ("_", ".")
"""Spark passes files over whose name begins so."""
_OLD_MOMENT = "INT96"
"""Spark moves such moments between calendars and zones."""


def is_pattern(path: str) -> bool:
    """Spark would take the path as a pattern."""
    return bool(_GLOB & set(path))


def only_base(slice_: FileSlice) -> bool:
    """The slice is its base file, and Spark finds the file by its path."""
    if slice_.base is None or slice_.logs or is_pattern(slice_.base.path):
        return False
    return not any(part.startswith(_HIDDEN) for part in slice_.base.path.split("/"))


def read_alike(
    file: pq.ParquetFile, wanted: pa.Schema, names: Names = SAME_NAMES, defaults: Defaults = NO_DEFAULTS
) -> bool:
    """The columns of a base file need no change to become those of the table. `names`: of the columns in the file.

    They have the table's types and are required where the table's are. A column that the file lacks is null, if the
    table's may be and has no other default. Spark finds columns whatever the case of their letters, so no two may
    differ by case alone.
    """
    found: pa.Schema = file.schema_arrow
    by_case = {name.lower(): name for name in found.names}
    if names or old_calendar(file) is not None:  # Spark moves its dates by other tables, and knows names of now alone
        return False
    if OPERATION in found.names or len(by_case) < len(found.names) or len(_lower(wanted)) < len(wanted.names):
        return False
    physical = {leaf.path: leaf.physical_type for leaf in (file.schema.column(i) for i in range(len(file.schema)))}
    defaulted = {path[0] for path in defaults.values}
    if any(name in defaulted and name.lower() not in by_case for name in wanted.names):
        return False
    return all(_alike(field, found, by_case, physical) for field in wanted)


def _lower(schema: pa.Schema) -> set[str]:
    return {name.lower() for name in schema.names}


def _alike(wanted: pa.Field, found: pa.Schema, by_case: Mapping[str, str], physical: Mapping[str, str]) -> bool:
    name = by_case.get(wanted.name.lower())
    if name is None:
        return bool(wanted.nullable and _is_simple(wanted.type))
    field = found.field(name)
    required = wanted.nullable or not field.nullable
    same = name == wanted.name and field.type == wanted.type and _is_simple(wanted.type)
    return bool(required and same and physical[name] != _OLD_MOMENT)


def _is_simple(kind: pa.DataType) -> bool:
    moment = pa.types.is_timestamp(kind) and kind.tz == "UTC" and kind.unit == "us"
    return bool(kind in _SAME or pa.types.is_decimal128(kind) or moment)
