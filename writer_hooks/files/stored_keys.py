"""The record keys of stored rows, from the meta column or, with virtual keys, from the key fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.conform import conform
from phantombase.timeline.codec.parquet_read import parquet_batches
from phantombase.timeline.codec.stored_names import SAME_NAMES, stored
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.read.slice_stream import SliceStream
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import FileSlice

KEY_FIELD = pa.field(RECORD_KEY, pa.string())
"""The column of keys in tables that go from step to step, also where the table has no such column."""


def base_keys(
    source: pa.NativeFile, file: pq.ParquetFile, path: str, rules: SliceRules, batch_rows: int | None = None
) -> Iterator[pa.Array]:
    """The keys of an opened base file, by batches. MalformedError: it lacks a column that they are made of."""
    names = rules.keys.fields
    there = stored(names, SAME_NAMES, file.schema_arrow.names)
    if len(there) < len(names):
        expected, found = ", ".join(names), ", ".join(there) or "none of them"
        raise MalformedError("base file without record keys", path=path, expected=expected, found=found)
    schema = project(rules.schema, names)
    for batch in parquet_batches(source, file, there, batch_rows or rules.batch_rows):
        yield rules.keys.keys(conform(pa.Table.from_batches([batch]), schema, path), path)


def slice_keys(
    storage: Storage, slice_: FileSlice, rules: SliceRules, columns: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """The keys that a snapshot reader finds in a slice, in a column `KEY_FIELD`, with more columns behind it."""
    for batch in SliceStream(storage, slice_, rules, (*rules.keys.fields, *columns)).batches():
        rows = pa.Table.from_batches([batch])
        keys = rules.keys.keys(rows, f"{slice_.partition}/{slice_.file_id}")
        yield rows.select(list(columns)).add_column(0, KEY_FIELD, keys)
