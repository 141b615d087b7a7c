"""What may be written to a table with virtual keys, whose rows lack Hudi's meta columns (pure).

Nothing but the key columns of a stored row tells its key. Hudi's writers and readers make its text in different ways,
which agree for some columns only. Where they differ, Hudi does not find what it deletes, or doubles rows. Seen:

    0.15.0   one column of text. Of numbers and times it cannot read the logs; of dates and decimals it doubles rows;
             with several columns it can read no logs and compact none
    1.2.0    one column of text, whole numbers, booleans, timestamps in microseconds. It does not apply deletes of dates
             from logs without record positions, as phantombase writes them; of decimals it doubles rows after a
             compaction. Such logs it cannot read at all where a key column is a partition column, too
"""

from __future__ import annotations

import pyarrow as pa

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.table_config import TableConfig

from ..options import Write

_IN_MICROSECONDS = pa.timestamp("us", tz="UTC")
_KEEP = "Keep the meta columns (hoodie.populate.meta.fields=true)"


def refuse_virtual(config: TableConfig, write: Write) -> None:
    """UnsupportedError: Hudi does not make such a write of this table, or would double or keep rows after it."""
    if config.populate_meta_fields:
        return
    fields, is_1x = ", ".join(config.record_key_fields), config.layout.has_completion_times
    if len(config.record_key_fields) > 1:
        raise virtual_refusal("several key columns", fields, f"{_KEEP}, or use one key column.")
    if not {*config.record_key_fields}.isdisjoint(config.partition_fields):
        raise virtual_refusal("a key column that is a partition column", fields, f"{_KEEP}, or use another key.")
    if config.key_generator == "COMPLEX" and is_1x:
        todo = f"Use the SIMPLE key generator. {_KEEP} where there are several partition columns."
        raise virtual_refusal("a COMPLEX key of one field", fields, todo)
    if config.captures_changes:
        raise virtual_refusal("change data capture", "hoodie.table.cdc.enabled=true")
    if write.into is not None:
        raise virtual_refusal("setting some columns", "merge_into", "Write whole rows with upsert.")


def check_virtual_keys(config: TableConfig, columns: pa.Schema) -> None:
    """UnsupportedError: Hudi's writers and readers do not make the same keys of these columns."""
    if config.populate_meta_fields:
        return
    nested = [name for name in config.record_key_fields if name not in columns.names]
    if nested:
        raise virtual_refusal("key columns inside records", ", ".join(nested))
    kinds = {name: columns.field(name).type for name in config.record_key_fields}
    unlike = [f"{name}: {kind}" for name, kind in kinds.items() if not _is_alike(kind, config)]
    if unlike:
        what = "key columns of which Hudi does not always make the same key"
        raise virtual_refusal(what, ", ".join(unlike), f"Use key columns of text. Or: {_KEEP}.")


def _is_alike(kind: pa.DataType, config: TableConfig) -> bool:
    types = pa.types
    alike = types.is_integer(kind) or types.is_boolean(kind) or kind == _IN_MICROSECONDS
    return bool(types.is_string(kind) or (alike and config.layout.has_completion_times))


def virtual_refusal(what: str, found: str, todo: str = "Write this table with Hudi.") -> UnsupportedError:
    """The error for what a table with virtual keys cannot have."""
    return UnsupportedError(
        f"{what} in a table with virtual keys: not supported for writing",
        expected="hoodie.populate.meta.fields=true",
        found=found,
        todo=todo,
    )
