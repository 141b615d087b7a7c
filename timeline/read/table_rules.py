"""The rules for merging a table's slices: its schema, keys, merge mode, and the instants that a reader sees."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..errors import MalformedError, UnsupportedError
from ..format.record_key import KeySource
from ..format.table_config import PROPERTIES, MergeMode
from ..instants.timeline import Timeline
from ..merge.rule import IS_DELETED, MergeRule
from ..merge.slice_rules import SliceRules
from ..table.table import Table, TableSchema
from ..view.log_blocks import visibility_of


def slice_rules(
    table: Table,
    timeline: Timeline,
    schema: TableSchema,
    *,
    as_of: str | None = None,
    every_duplicate: bool = False,
    batch_rows: int = 65_536,
) -> SliceRules:
    """The rules for merging this table's slices for one reader."""
    config = table.config
    fields = _ordering_fields(config.ordering_fields, schema.arrow)
    keys = KeySource.of(config.populate_meta_fields, config.record_key_fields)
    if not keys.fields or not set(keys.fields) <= set(schema.arrow.names):
        raise MalformedError(
            "the table's record key is not among its columns",
            path=PROPERTIES,
            expected=", ".join(schema.arrow.names),
            found=f"hoodie.table.recordkey.fields={','.join(keys.fields)}",
        )
    if IS_DELETED in schema.arrow.names and schema.arrow.field(IS_DELETED).type != pa.bool_():
        # Hudi 0.15 ignores such a column, 1.2 fails.
        raise UnsupportedError(
            f"a column {IS_DELETED} of another type than boolean is not supported",
            path=table.storage.base_path,
            found=str(schema.arrow.field(IS_DELETED).type),
        )
    mode = config.merge_mode
    return SliceRules(
        schema=schema.arrow,
        keys=keys,
        ordering_fields=fields if mode is not MergeMode.COMMIT_TIME else (),
        merge=MergeRule(
            mode=mode,
            ordering_types=tuple(schema.arrow.field(f).type for f in fields)
            if mode is not MergeMode.COMMIT_TIME
            else (),
            every_duplicate=every_duplicate,
        ),
        visibility=visibility_of(timeline, as_of=as_of),
        float_text_in_logs=table.layout.float_text_in_logs,
        batch_rows=batch_rows,
    )


def _ordering_fields(names: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Ordering fields that are columns. A field without a column has no values: Hudi then merges by commit time."""
    nested = [name for name in names if "." in name and name not in schema.names]
    if nested:
        raise UnsupportedError("ordering fields inside records are not supported", found=", ".join(nested))
    return tuple(name for name in names if name in schema.names)
