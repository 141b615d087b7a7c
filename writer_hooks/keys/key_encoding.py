"""The two encodings of a COMPLEX key of one field, `v` and `f:v`.

Hudi changed it twice: releases 0.14.1 to 1.0.2 write `v`, those before and after write `f:v`. Release 1.2.0 refuses to
write such a table of version 6 or 8, unless its check is switched off. So the table's rows decide. A table without rows
gets the encoding of the Hudi release that is the reference for its version: 0.15.0 writes `v` in version 6, 1.2.0
writes `f:v` in versions 8 and 9.

With virtual keys no row has its key, so readers take `v`. Versions 8 and 9 are refused then: see `schema/virtual_keys`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.arrow.columns import flat
from phantombase.timeline.avro.schema import RECORD_KEY
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.record_key import value_text
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.read.table_read import ReadOptions, plan_read
from phantombase.timeline.table.table import Table, consistent

from .key_generator import field_values, has_one_field_complex_key


def one_field_prefixed(table: Table) -> bool | None:
    """Whether the keys of this table are `f:v`; None if it has no one-field COMPLEX key.

    Reads rows of one file slice. MalformedError as `is_prefixed`; other errors as those of a read of the table.
    """
    if not has_one_field_complex_key(table.config):
        return None
    if not table.config.populate_meta_fields:
        return False
    return is_prefixed(table.config, consistent(lambda: _some_rows(table.reload())))


def _some_rows(table: Table) -> pa.Table | None:
    if not table.load_timeline().has_rows:
        return None
    column = table.config.record_key_fields[0].partition(".")[0]
    for batch in plan_read(table, ReadOptions(columns=(RECORD_KEY, column))).batches():
        if batch.num_rows:
            return pa.Table.from_batches([batch])
    return None


def is_prefixed(config: TableConfig, stored: pa.Table | None) -> bool:
    """Whether the keys of a one-field COMPLEX table are `f:v` (True) or `v` (False).

    `stored`: rows of the table with the key's meta column and the key field; None if the table has no rows.
    MalformedError: the rows have keys of neither form or of both, or `stored` has no rows.
    """
    if stored is None:
        return config.layout.has_completion_times
    name = config.record_key_fields[0]
    keys = flat(stored.column(RECORD_KEY))
    text = value_text(field_values(stored, name), name)
    prefixed, plain = (
        pc.all(pc.equal(keys, form), skip_nulls=False).as_py()
        for form in (pc.binary_join_element_wise(f"{name}:", text, ""), text)
    )
    if not len(keys) or prefixed is plain or None in (prefixed, plain):
        raise MalformedError(
            "the encoding of the table's keys cannot be determined",
            expected=f"{name}:value, or value, in every row",
            found=", ".join(str(key) for key in keys.slice(0, 3)) or "no rows",
        )
    return bool(prefixed)
