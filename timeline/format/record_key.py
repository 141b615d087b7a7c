"""Record keys of rows: read from the meta column, or computed if the table has none (virtual keys) (pure).

    one key field              the value as text
    two and more fields        f1:v1,f2:v2 in declared order; null -> f:__null__, empty -> f:__empty__

Values are formatted as Java prints them: integers plain, true/false, dates as ISO days, timestamps as the stored number
(micro- or milliseconds since the epoch), decimals with their scale (0.000000001 as 1E-9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.columns import flat
from ..avro.schema import RECORD_KEY
from ..errors import MalformedError, UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """`fields`: the record key fields of a table without meta columns, or only the meta column's name.

    `other_in_deletes`: log blocks that delete may name a key in another way than its row does.
    """

    fields: tuple[str, ...]
    other_in_deletes: bool = False

    @property
    def are_stored(self) -> bool:
        """Whether base files hold the keys, so that what their footers say is about these."""
        return self.fields == (RECORD_KEY,)

    @staticmethod
    def of(populate_meta_fields: bool, record_key_fields: tuple[str, ...]) -> KeySource:
        """The key source of a table."""
        return KeySource(fields=(RECORD_KEY,) if populate_meta_fields else record_key_fields)

    def keys(self, rows: pa.Table, where: str) -> pa.Array:
        """The record key of each row as text; MalformedError if a row has none."""
        parts = [value_text(flat(rows.column(name)), name) for name in self.fields]
        keys = parts[0] if len(parts) == 1 else labelled_keys(self.fields, parts)
        if keys.null_count:
            raise MalformedError("rows without a record key", path=where, found=f"{keys.null_count} of {len(keys)}")
        return keys


def labelled_keys(names: Sequence[str], parts: Sequence[pa.Array]) -> pa.Array:
    """`f1:v1,f2:v2` of each row, from the text of its values; nothing is escaped."""
    labelled = [
        pc.binary_join_element_wise(name, pc.if_else(pc.equal(filled, ""), "__empty__", filled), ":")
        for name, filled in ((name, pc.fill_null(part, "__null__")) for name, part in zip(names, parts, strict=True))
    ]
    return pc.binary_join_element_wise(*labelled, ",")


def has_text(kind: pa.DataType) -> bool:
    """Whether values of a type have one text form in keys, the same in all writers."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def value_text(column: pa.Array, name: str) -> pa.Array:
    """The values as they appear in keys and partition paths; nulls stay null.

    UnsupportedError: a type without a text form, see `has_text`; `name` is the column's, for the message.
    """
    kind = column.type
    if not has_text(kind):
        raise UnsupportedError(
            "record key field of a type whose text form is not defined",
            expected="text, integer, boolean, date, timestamp or decimal",
            found=f"{name}: {kind}",
        )
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return column.cast(pa.string())
