"""Writes Parquet files, and base files as Hudi's readers and writers need them: columns, footer, key filter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .avro_schema import COMMIT_SEQNO, COMMIT_TIME, FILE_NAME, PARTITION_PATH, RECORD_KEY
from .bloom import ALWAYS_TRUE, BloomBuilder
from .calendar import NEW_CALENDAR
from .gzip_pages import AVAILABLE, GzipWriter
from .output_options import Bloom, OutputOptions

LEVELS = {"gzip": 4}
"""zlib's level, used without ISA-L. Hudi writes with zlib's default level 6, pyarrow with 9. On the small bench table 4
takes half the time of 6, for files 1.4 % larger (level 1: 44 % of the time, 3.3 % larger)."""

_SAMPLE_ROWS = 10_000
_DISTINCT_MAX = 0.5
"""A column gets a dictionary if at most this fraction of a sample's values is distinct."""
_EACH_ROW = frozenset({RECORD_KEY, COMMIT_SEQNO})
"""Meta columns with a different value in each row."""
_EACH_WRITE = frozenset({COMMIT_TIME, PARTITION_PATH})
"""Meta columns with one value for all rows of a write, in a file of one partition."""


def open_parquet_writer(
    file: IO[bytes] | pa.NativeFile, schema: pa.Schema, codec: str, sample: pa.Table
) -> pq.ParquetWriter | GzipWriter:
    """A writer of rows like those of `sample`. `codec`: zstd, snappy, gzip, lz4 or none."""
    how: dict[str, Any] = {
        "use_dictionary": _dictionary_columns(sample.slice(0, _SAMPLE_ROWS)),
        "write_statistics": statistics_columns(schema),
        # True would embed a second copy of all key/values, the bloom filter among them.
        "store_schema": False,
    }
    if codec == "gzip" and AVAILABLE:
        return GzipWriter(file, schema, **how)
    return pq.ParquetWriter(file, schema, compression=codec.upper(), compression_level=LEVELS.get(codec), **how)


def _dictionary_columns(sample: pa.Table) -> list[str]:
    """Leaf columns for which a dictionary is useful.
    Parquet would try one for every column and abandon it at 1 MB. For keys, times and measures that costs half of the
    encoding time, and enlarges the file. Nested columns always get one."""
    worth: list[str] = []
    for field, column in zip(sample.schema, sample.columns, strict=True):
        leaves = [path for path, _ in _leaf_types(field)]
        flat = leaves == [field.name] and not pa.types.is_dictionary(field.type)
        if not flat or _repeats(field.name, column):
            worth += leaves
    return worth


def _repeats(name: str, column: pa.ChunkedArray) -> bool:
    """Whether values repeat. For most meta columns that is known: counting their texts would take longest."""
    if name in _EACH_ROW:
        return False
    return name in _EACH_WRITE or pc.count_distinct(column).as_py() <= _DISTINCT_MAX * len(column)


def statistics_columns(schema: pa.Schema) -> list[str]:
    """Leaf columns that get statistics: all except floats.
    Arrow omits NaN from the bounds, but Spark treats NaN as greater than all numbers: a row group with bounds 1 to 2
    and a NaN would be skipped for `x > 5`. Parquet's own Java writer omits the bounds in that case; Arrow's writer
    needs the list of columns before the first row."""
    return [path for field in schema for path, kind in _leaf_types(field) if not pa.types.is_floating(kind)]


def _leaf_types(field: pa.Field, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Parquet paths of a field's leaf columns, in pyarrow's notation, and their types."""
    here, kind = f"{path}{field.name}", field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaf_types(child, f"{here}.")
    elif pa.types.is_map(kind):
        yield from _leaf_types(kind.key_field.with_name("key"), f"{here}.key_value.")
        yield from _leaf_types(kind.item_field.with_name("value"), f"{here}.key_value.")
    elif pa.types.is_list(kind):
        yield from _leaf_types(kind.value_field.with_name("element"), f"{here}.list.")
    else:
        yield here, kind


def write_base_file(
    file: IO[bytes],
    batches: Iterable[pa.RecordBatch],
    *,
    name: str,
    schema: pa.Schema,
    schema_text: str,
    key_column: str | None,
    output: OutputOptions,
) -> int:
    """Writes merged rows and Hudi's footer; returns the number of rows. Memory: one row group.
    `name`: the file's final name, stored in every row if the table has meta columns; batches may lack that column.
    `schema_text`: the Avro schema for the footer. `key_column`: the record key's meta column, None for virtual keys."""
    footer = HudiFooter(schema_text, output.bloom, has_keys=key_column is not None)
    schema = _written_schema(schema)
    opened = partial(open_parquet_writer, file, schema, output.codec.value)
    writer: pq.ParquetWriter | GzipWriter | None = None
    rows = 0
    for table in _in_row_groups(batches, schema, name, output):
        rows += table.num_rows
        if key_column is not None:
            footer.add(table.column(key_column))
        writer = writer or opened(table)
        writer.write(table, row_group_size=output.row_group_rows)
    writer = writer or opened(schema.empty_table())
    writer.add_key_value_metadata(footer.key_values())
    writer.close()
    return rows


def _written_schema(schema: pa.Schema) -> pa.Schema:
    """The schema to write: the file name column repeats one value, so it is a dictionary; Parquet stores plain text."""
    index = schema.get_field_index(FILE_NAME)
    if index < 0:
        return schema
    return schema.set(index, pa.field(FILE_NAME, pa.dictionary(pa.int32(), pa.string())))


def _in_row_groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str, output: OutputOptions
) -> Iterator[pa.Table]:
    """Collects small batches into tables of one row group each, with the name of the new file."""
    rows, bytes_ = output.row_group_rows, output.memory_limit // 4
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        while count + batch.num_rows >= rows or (held and size + batch.nbytes > bytes_):
            head = batch.slice(0, rows - count if count + batch.num_rows >= rows else 0)
            yield _renamed(pa.Table.from_batches([*held, head]), schema, name)
            batch, held, count, size = batch.slice(head.num_rows), [], 0, 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
            size += batch.nbytes
    if held:
        yield _renamed(pa.Table.from_batches(held), schema, name)


def _renamed(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    index = schema.get_field_index(FILE_NAME)
    if index < 0:
        return table
    names = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), table.num_rows), pa.array([name]))
    put = table.set_column if FILE_NAME in table.column_names else table.add_column
    return put(index, schema.field(index), names)


_LAST = "\U0010ffff"
_HIGH = r"([\x{E000}-\x{FFFF}])"


def java_ends(keys: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """The least and the greatest key in the order of Java strings, by UTF-16 code units.
    Hudi's BLOOM index looks up keys by that order: with another order it would treat keys as absent and insert them
    again. It differs from the order of UTF-8 bytes only if characters above U+FFFF, which UTF-16 writes as surrogates,
    meet characters from U+E000 on: to compare them, the greatest character is put in front of the latter."""
    has_high = any(_greatest_byte(chunk) >= 0xEE for chunk in keys.chunks)
    compared = pc.replace_substring_regex(keys, _HIGH, rf"{_LAST}\1") if has_high else keys
    ends = pc.min_max(compared).as_py()
    least, greatest = (None if e is None else e.replace(_LAST, "") for e in (ends["min"], ends["max"]))
    return least, greatest


def _greatest_byte(chunk: pa.StringArray) -> int:
    data = chunk.buffers()[2]
    return int(np.frombuffer(data, np.uint8).max(initial=0)) if data is not None else 0


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


class HudiFooter:
    """The key/values that Hudi writes into a base file's footer: `add` all keys, then `key_values`."""

    def __init__(self, schema_text: str, bloom: Bloom, *, has_keys: bool) -> None:
        """`schema_text`: the Avro schema. `has_keys`: False for virtual keys."""
        self._schema_text = schema_text
        self._has_keys = has_keys
        self._builder = BloomBuilder() if bloom is Bloom.ON else None
        self._least: str | None = None
        self._greatest: str | None = None

    def add(self, keys: pa.ChunkedArray) -> None:
        """The next record keys of the file, in their order. MalformedError: a null or an empty one."""
        if self._builder is not None:
            self._builder.add(keys)
        known = [k for k in (self._least, self._greatest, *java_ends(keys)) if k is not None]
        if known:
            self._least, self._greatest = min(known, key=_utf16), max(known, key=_utf16)

    def key_values(self) -> dict[str, str]:
        """The pairs, after all keys."""
        pairs = {"parquet.avro.schema": self._schema_text, "writer.model.name": "avro", **NEW_CALENDAR}
        if not self._has_keys:
            return pairs  # virtual keys: Hudi writes neither filter nor key range
        filter_ = self._builder.finish() if self._builder is not None else ALWAYS_TRUE
        pairs["org.apache.hudi.bloomfilter"] = filter_.text
        pairs["hoodie_bloom_filter_type_code"] = filter_.type_code
        if self._least is not None and self._greatest is not None:
            pairs["hoodie_min_record_key"] = self._least
            pairs["hoodie_max_record_key"] = self._greatest
        return pairs
