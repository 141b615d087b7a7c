"""The schema of a table after a write; refuses rows and writes that do not fit (pure except for reading the schema).

**Virtual keys**: only the key columns of a stored row give its key. Hudi's writers and readers make its text in
different ways, which agree for some columns only. Where they differ, Hudi does not find what it deletes, or doubles
rows. Seen:

    0.15.0   one column of text. With numbers and times it cannot read logs; with dates and decimals it doubles rows;
             with several columns it can read no logs and compact none
    1.2.0    one column of text, integers, booleans, timestamps in microseconds. It does not apply deletes of dates
             from logs without record positions, as phantombase writes them; with decimals it doubles rows after a
             compaction. If a key column is also a partition column, it cannot read such logs at all

**Change data capture**: Hudi's CDC query must stay exact. Where there is no `.cdc` file the query infers the changes of
a write: each row of a new base file is inserted; each row of a log file is merged with the rows before it, which are in
the files that its statistics name; the rows of replaced file groups are deleted. phantombase makes no `.cdc` files. So
it rewrites no base file: rows of new keys go into new base files, not into small ones (`KeyIndex`)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import arrow_schema, project
from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.merge_settings import USE_HUDI
from phantombase.timeline.format.table_config import PROPERTIES, MergeMode, TableConfig
from phantombase.timeline.merge.rule import IS_DELETED
from phantombase.timeline.table.table import Snapshot, Table, TableSchema

from ..merge_into import MergeInto
from ..options import Operation, Write
from .column_types import data_fields
from .key_generator import KeyGenerator
from .table_schema import evolve, merged_fields, new_schema

_BY_EVENT_TIME = (MergeMode.EVENT_TIME, MergeMode.EVENT_TIME_0X, MergeMode.EVENT_TIME_AVRO_0X)


def refuse_inexact_changes(table: Table, schema: TableSchema, write: Write) -> None:
    """UnsupportedError: of this write Hudi's CDC query may show other changes than it makes. Seen with 0.15.0 and
    1.2.0, except partial updates, which were not tried. Tables without change data capture allow such writes."""
    if not table.config.captures_changes:
        return
    settings = table.config.merge_settings
    if write.operation.replaces and not table.layout.has_completion_times:
        # The query shows one row of a replaced file group several times, and others not at all.
        raise _refusal(table, "replacing partitions of a version 6 table", "Delete the rows of the partitions by key.")
    if write.into is not None:
        raise _refusal(table, "setting some columns of a table", "Write whole rows with upsert.")
    if settings.not_given is not None or settings.marker is not None:
        raise _refusal(table, "writing, by this payload class, a table")
    merges = write.looks_keys_up or (write.options.buckets is not None and not write.operation.replaces)
    if write.deletes or not merges:
        return  # nothing is merged by ordering values: deletes by key win, and new base files hold new rows
    if settings.mode in _BY_EVENT_TIME and IS_DELETED in schema.arrow.names:
        # A stale row that is marked deleted loses; the query shows the row deleted.
        todo = "Give the keys to delete to delete(), and leave the column out of the table."
        raise _refusal(table, f"merging rows with the column {IS_DELETED} by event time into a table", todo)
    if settings.mode is MergeMode.OVERWRITE_WITH_LATEST_0X and table.config.ordering_fields:
        # Between log files a stale row loses; the query shows it as an update.
        raise _refusal(table, "upserts by this payload class into a table")


def _refusal(table: Table, what: str, todo: str = "Use Hudi for that.") -> UnsupportedError:
    return UnsupportedError(
        f"{what} with change data capture is not supported",
        path=f"{table.storage.base_path}/{PROPERTIES}",
        expected="a write of which Hudi's CDC query shows what it changes",
        found="hoodie.table.cdc.enabled=true",
        todo=todo,
    )


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
    there = frozenset(columns.names)
    nested = [name for name in config.record_key_fields if name not in there]
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


def schema_after(table: Snapshot, incoming: pa.Schema, write: Write) -> TableSchema:
    """The table's schema after this write. UsageError: the input does not fit it. UnsupportedError: see `_evolved`."""
    config = table.config
    is_new = not table.timeline.has_rows and not config.create_schema
    own = None if is_new else table.newest_schema()
    text = checked_schema(config, None if own is None else own.commit_text, incoming, write)
    return table.schema(text) if own is None or own.evolved is None else _evolved(table, own, text, write)


def _evolved(table: Table, own: TableSchema, text: str, write: Write) -> TableSchema:
    """The schema of a table whose columns evolve on read, which no write changes. UnsupportedError: such a write."""
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
    this table does not allow."""
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
    there = frozenset(incoming.names)
    missing = sorted(name for name in needed if name.partition(".")[0] not in there)
    if missing:
        raise UsageError(
            "the rows lack columns that the table needs",
            expected=", ".join(missing),
            found=", ".join(incoming.names) or "no columns",
            todo=_renamed(missing, incoming.names),
        )
    if own is not None and not write.deletes and not write.options.null_for_missing:
        _refuse_missing(own, incoming)
    text = own if own is not None and write.deletes else None
    if text is None:
        text = new_schema(config.name, incoming) if own is None else evolve(own, incoming)
    if own is not None and config.merge_mode is not MergeMode.COMMIT_TIME:
        _check_ordering(config, arrow_schema(own), arrow_schema(text))
    if config.merge_mode is MergeMode.EVENT_TIME and not write.deletes:
        _refuse_unordered(config, arrow_schema(text))
    whole = arrow_schema(text)
    empty = project(whole, [n for n in whole.names if n in there]).empty_table()
    check_virtual_keys(config, whole)
    keys = KeyGenerator.of(config, one_field_prefixed=False, writer=dict(write.options.times))
    keys.keys(empty)
    keys.partition_paths(empty)
    return text


def _refuse_missing(own: str, incoming: pa.Schema) -> None:
    """UsageError: the rows lack columns of the table, which the write is not to fill with nulls."""
    there = frozenset((*META_COLUMNS, *incoming.names))
    lacking = [n for n in arrow_schema(own).names if n not in there]
    if lacking:
        raise UsageError(
            "the rows lack columns of the table",
            expected=", ".join(lacking),
            found=", ".join(incoming.names),
            todo="Add them, or set hoodie.write.set.null.for.missing.columns=true: they become null.",
        )


def _check_ordering(config: TableConfig, before: pa.Schema, after: pa.Schema) -> None:
    """UsageError: an ordering column would get another type. A delete in a log keeps its ordering value in the type of
    that time. A value of another type than the column's wins over every row before it: rows that had won would be
    lost."""
    there = frozenset(before.names)
    for name in config.ordering_fields:
        if name in there and before.field(name).type != after.field(name).type:
            raise UsageError(
                "the rows would change the type of an ordering column, and with it what late deletes have deleted",
                expected=f"{name}: {before.field(name).type}",
                found=str(after.field(name).type),
                todo="Cast the column.",
            )


def _renamed(missing: Sequence[str], given: Sequence[str]) -> str | None:
    """What to do if columns are there under another name."""
    near = {name: get_close_matches(name.lower(), map(str.lower, given), n=1) for name in missing}
    found = [f"{one} to {name}" for name, like in near.items() for one in given if one.lower() in like]
    return f"Perhaps rename {', '.join(found)}." if found else None


def _refuse_unordered(config: TableConfig, schema: pa.Schema) -> None:
    """UnsupportedError: an ordering column of bytes: Hudi 1.2.0 fails to compare two rows, also its own ones (seen); or
    of a type without an order; or a field inside a record."""
    there = frozenset(schema.names)
    for name in config.ordering_fields:
        if name not in there:
            raise UnsupportedError(
                "an ordering field inside a record is not supported",
                expected="a column of the table",
                found=name,
                todo="Write its value as a column of its own, too.",
            )
        field = schema.field(name)
        if pa.types.is_binary(field.type):
            raise UnsupportedError(
                "Hudi cannot read a table that orders rows by bytes",
                expected="an ordering column of another type",
                found=f"{name}: {field.type}",
                todo="Write the column as text, for instance in hexadecimal digits.",
            )
        if pa.types.is_nested(field.type):
            raise UnsupportedError(
                "values of this type have no order",
                expected="an ordering column of another type",
                found=f"{name}: {field.type}",
                todo="Order the rows by another column.",
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
    """The schema of a table some of whose columns are set: it is unchanged. UsageError: a column does not fit."""
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
