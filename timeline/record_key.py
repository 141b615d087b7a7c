"""Record keys of rows: read from the meta column, or computed where a table has none (virtual keys).

    one key field              the value as text
    two and more fields        f1:v1,f2:v2 in declared order; null -> f:__null__, empty -> f:__empty__

Values are written as Java prints them: integers plain, true/false, dates as ISO days, timestamps as epoch
microseconds, decimals with their scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timeline.avro_schema import RECORD_KEY
from timeline.errors import MalformedError, UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """`fields`: the record key fields of a table without meta columns, or just the meta column's name."""

    fields: tuple[str, ...]

    @staticmethod
    def of(populate_meta_fields: bool, record_key_fields: tuple[str, ...]) -> KeySource:
        """The key source of a table."""
        return KeySource(fields=(RECORD_KEY,) if populate_meta_fields else record_key_fields)

    def keys(self, rows: pa.Table, where: str) -> pa.Array:
        """The record key of each row as text; MalformedError where a row has none."""
        parts = [_text(rows.column(name), name) for name in self.fields]
        if len(parts) == 1:
            keys = parts[0]
        else:
            labelled = [
                pc.binary_join_element_wise(name, pc.if_else(pc.equal(filled, ""), "__empty__", filled), ":")
                for name, filled in (
                    (name, pc.fill_null(part, "__null__")) for name, part in zip(self.fields, parts, strict=True)
                )
            ]
            keys = pc.binary_join_element_wise(*labelled, ",")
        if keys.null_count:
            raise MalformedError("rows without a record key", path=where, found=f"{keys.null_count} of {len(keys)}")
        return keys


def _text(column: Any, name: str) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_string(kind):
        return array
    if pa.types.is_timestamp(kind):
        return array.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string())
    raise UnsupportedError(
        "record key field of a type whose text form is not defined",
        expected="text, integer, boolean, date, timestamp or decimal",
        found=f"{name}: {kind}",
    )
