"""The schema of a table after a write; refuses rows that do not fit (pure except for reading the schema)."""

from __future__ import annotations

import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import arrow_schema, project
from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.merge_settings import USE_HUDI
from phantombase.timeline.format.table_config import MergeMode, TableConfig
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.table import Table, TableSchema

from ..keys.key_generator import KeyGenerator
from ..merge_into import MergeInto
from ..options import Operation, Write
from .column_types import data_fields
from .table_schema import evolve, merged_fields, new_schema
from .virtual_keys import check_virtual_keys, refuse_virtual, virtual_refusal


def schema_after(table: Table, timeline: Timeline, incoming: pa.Schema, write: Write) -> TableSchema:
    """The table's schema after this write. UsageError: the input does not fit it. UnsupportedError: see `_evolved`."""
    config = table.config
    is_new = not timeline.has_rows and not config.create_schema
    own = None if is_new else table.newest_schema(timeline)
    text = checked_schema(config, None if own is None else own.commit_text, incoming, write)
    return table.schema(text) if own is None or own.evolved is None else _evolved(table, own, text, write)


def _evolved(table: Table, own: TableSchema, text: str, write: Write) -> TableSchema:
    """The schema of a table whose columns evolve on read: a write leaves it as it is.

    UnsupportedError: the rows would change it, or Hudi does not write such a table in this way.
    """
    if text != own.commit_text:
        raise UnsupportedError(
            "rows that change the columns of a table with schema evolution on read are not supported",
            path=table.storage.base_path,
            expected=", ".join(str(f) for f in arrow_schema(own.commit_text)),
            found=", ".join(str(f) for f in arrow_schema(text) if f not in arrow_schema(own.commit_text)),
            todo="Change the columns by Hudi's ALTER TABLE, then write; or leave out or cast these columns.",
        )
    if not table.config.populate_meta_fields:
        raise virtual_refusal("schema evolution on read", "hoodie.schema.on.read.enable")
    if write.into is not None or table.config.captures_changes:
        raise UnsupportedError(
            "this write of a table with schema evolution on read is not supported",
            path=table.storage.base_path,
            expected="whole rows, and no change data capture",
            found="merge_into" if write.into is not None else "hoodie.table.cdc.enabled=true",
            todo="Write whole rows with upsert." if write.into is not None else USE_HUDI,
        )
    return own


def checked_schema(config: TableConfig, own: str | None, incoming: pa.Schema, write: Write) -> str:
    """The table's Avro schema after a write of `incoming`. `own`: the schema before, None for a table without rows.

    UsageError: a column does not fit, is missing, or cannot be part of a key or path. UnsupportedError: a write that
    this table cannot have.
    """
    refuse_virtual(config, write)
    if config.is_keyless:
        _check_keyless(write)
    if write.into is not None:
        if write.moved_keys is not None:
            raise UnsupportedError(
                "merge_into of keys that are unique over all partitions is not supported",
                expected="a write without global_keys()",
                found=write.moved_keys.value,
                todo="Write whole rows with upsert.",
            )
        return _merged_schema(config, own, incoming, write.into)
    needed = {*config.record_key_fields, *config.partition_fields}
    if write.deletes:
        incoming = pa.schema([f for f in incoming if f.name in needed])
    else:
        needed |= set(config.ordering_fields)
    missing = sorted(name for name in needed if name.partition(".")[0] not in incoming.names)
    if missing:
        raise UsageError(
            "the rows lack columns that the table needs",
            expected=", ".join(missing),
            found=", ".join(incoming.names) or "no columns",
        )
    if own is not None and not write.deletes and not write.options.null_for_missing:
        _refuse_missing(own, incoming)
    text = own if own is not None and write.deletes else None
    if text is None:
        text = new_schema(config.name, incoming) if own is None else evolve(own, incoming)
    if own is not None and config.merge_mode is not MergeMode.COMMIT_TIME:
        _check_ordering(config, arrow_schema(own), arrow_schema(text))
    if config.merge_mode is MergeMode.EVENT_TIME and not write.deletes:
        _refuse_bytes(config, arrow_schema(text))
    whole, given = arrow_schema(text), frozenset(incoming.names)
    empty = project(whole, [n for n in whole.names if n in given]).empty_table()
    check_virtual_keys(config, whole)
    keys = KeyGenerator.of(config, one_field_prefixed=False, writer=dict(write.options.times))
    keys.keys(empty)
    keys.partition_paths(empty)
    return text


def _refuse_missing(own: str, incoming: pa.Schema) -> None:
    """UsageError: the rows lack columns of the table, which the write is not to fill with nulls."""
    lacking = [n for n in arrow_schema(own).names if n not in META_COLUMNS and n not in incoming.names]
    if lacking:
        raise UsageError(
            "the rows lack columns of the table",
            expected=", ".join(lacking),
            found=", ".join(incoming.names),
            todo="Add them, or set hoodie.write.set.null.for.missing.columns=true: they become null.",
        )


def _check_ordering(config: TableConfig, before: pa.Schema, after: pa.Schema) -> None:
    """UsageError: an ordering column would get another type.

    Deletes in logs keep their ordering value in the type of then, and one of another type than the column wins over
    every row before it: rows that had won would be gone.
    """
    for name in config.ordering_fields:
        if name in before.names and before.field(name).type != after.field(name).type:
            raise UsageError(
                "the rows would change the type of an ordering column, and with it what late deletes have deleted",
                expected=str(before.field(name)),
                found=str(after.field(name)),
                todo="Cast the column.",
            )


def _refuse_bytes(config: TableConfig, schema: pa.Schema) -> None:
    """UnsupportedError: an ordering column of bytes: Hudi 1.2.0 fails to compare two rows, also its own ones (seen)."""
    for name in config.ordering_fields:
        if name in schema.names and pa.types.is_binary(schema.field(name).type):
            raise UnsupportedError(
                "Hudi cannot read a table that orders rows by bytes",
                expected="an ordering column of another type",
                found=str(schema.field(name)),
                todo="Write the column as text, for instance in hexadecimal digits.",
            )


def _check_keyless(write: Write) -> None:
    """UnsupportedError: the write needs keys of the rows, but the table has no key columns."""
    if write.into is not None or write.operation in (Operation.UPSERT, Operation.DELETE):
        what = "merge_into" if write.into is not None else write.operation.value.lower()
        todo = "Add rows with insert or bulk_insert; change rows with Hudi's SQL (UPDATE, DELETE)."
    elif write.operation is Operation.DELETE_PARTITION and write.partitions is None:
        what, todo = "delete_partition by the partitions of rows", "Name the partitions."
    elif write.options.buckets is not None:
        what, todo = "a bucket index", "Leave out the number of buckets."
    elif write.combines:
        what, todo = "combine: each row has a key of its own, and", "Leave it out; drop double rows before the write."
    else:
        return
    raise UnsupportedError(
        f"{what} needs key columns, which a keyless table does not have",
        expected="insert, bulk_insert, insert_overwrite, insert_overwrite_table or delete_partition",
        found="a table without hoodie.table.recordkey.fields",
        todo=todo,
    )


def _merged_schema(config: TableConfig, own: str | None, incoming: pa.Schema, into: MergeInto) -> str:
    """The schema of a table some of whose columns are set: it stays. UsageError: a column does not fit."""
    if own is None:
        raise UsageError("a table without rows has nothing to update", todo="Write its first rows with upsert.")
    table = pa.schema([f for f in arrow_schema(own) if f.name not in META_COLUMNS])
    into.check(config, table)
    target = list(into.row_schema(table, config))
    merged = merged_fields(target, list(data_fields(incoming, untyped=True)))
    if merged != target:
        raise UsageError(
            "the source's type of a column does not fit the table's",
            expected=", ".join(str(f) for f in target if f not in merged),
            found=", ".join(str(f) for f in merged if f not in target),
            todo="Cast the column: merge_into does not change the table's schema.",
        )
    return own
