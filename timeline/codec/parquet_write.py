"""Writes Parquet files, and base files as Hudi's readers and writers need them: columns, footer, key filter.

Bounds of floats: Arrow omits NaN from them, but Spark treats NaN as greater than all numbers: a row group with bounds 1
to 2 and a NaN would be skipped for `x > 5`. So they leave the footer where a file has a NaN, as in files of Parquet's
Java writer; the number of nulls stays. Hudi takes a column without any statistics for one of nulls only, when it makes
the column statistics of its metadata table, and its queries skip the file (seen: 1.2.0)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .avro_schema import COMMIT_SEQNO, COMMIT_TIME, FILE_NAME, PARTITION_PATH, RECORD_KEY
from .bloom import ALWAYS_TRUE, BloomBuilder
from .calendar import NEW_CALENDAR
from .columns import leaf_types
from .output_options import Bloom, OutputOptions
from .parquet_pages import AVAILABLE, GzipPages, Pages


class PagesWriter:
    """A `pq.ParquetWriter` as far as base files need one. `floats`: columns of numbers whose bounds leave the footer
    where one is NaN, with the fields of structs."""

    def __init__(
        self, pages: Pages, schema: pa.Schema, *, floats: Collection[str] = (), compression: str = "none", **how: Any
    ) -> None:
        """`how`: as for `pq.ParquetWriter`."""
        self._pages, self._floats, self._unbounded = pages, floats, set[str]()
        self._writer = pq.ParquetWriter(pages, schema, compression=compression, **how)

    def __enter__(self) -> PagesWriter:
        """The writer; the end of the block ends the file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def write(self, table: pa.Table, row_group_size: int | None = None) -> None:
        if left := [name for name in self._floats if name not in self._unbounded]:
            columns = _without_structs(table)
            self._unbounded |= {name for name in left if pc.any(pc.is_nan(columns.column(name))).as_py()}
        self._writer.write(table, row_group_size=row_group_size)

    def add_key_value_metadata(self, pairs: dict[str, str]) -> None:
        self._writer.add_key_value_metadata(pairs)

    def close(self) -> None:
        """Ends the file, and does not close it."""
        self._pages.begin_footer()
        self._writer.close()
        self._pages.finish(self._unbounded)


def _without_structs(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


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
) -> PagesWriter:
    """A writer of rows like those of `sample`. `codec`: zstd, snappy, gzip, lz4 or none."""
    kinds = {field.name: field.type for field in _without_structs(schema.empty_table()).schema}
    floats = [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
    how: dict[str, Any] = {
        "floats": floats,
        "use_dictionary": _dictionary_columns(sample.slice(0, _SAMPLE_ROWS)),
        "write_statistics": [*statistics_columns(schema), *floats],
        # True would embed a second copy of all key/values, the bloom filter among them.
        "store_schema": False,
    }
    if codec == "gzip" and AVAILABLE:
        return PagesWriter(GzipPages(file), schema, **how)
    level = LEVELS.get(codec)
    return PagesWriter(Pages(file), schema, compression=codec.upper(), compression_level=level, **how)


def _dictionary_columns(sample: pa.Table) -> list[str]:
    """Leaf columns for which a dictionary is useful.
    Parquet would try one for every column and abandon it at 1 MB. For keys, times and measures that costs half of the
    encoding time, and enlarges the file. Nested columns always get one."""
    worth: list[str] = []
    for field, column in zip(sample.schema, sample.columns, strict=True):
        leaves = [path for path, _ in leaf_types(field)]
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
    """Leaf columns whose statistics hold whatever their values are: all except floats (see the module)."""
    return [path for field in schema for path, kind in leaf_types(field) if not pa.types.is_floating(kind)]


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
    writer: PagesWriter | None = None
    rows, last, is_cut = 0, output.row_group_rows, False
    for table in _in_row_groups(batches, schema, name, output):
        is_cut |= last < output.row_group_rows
        last = table.num_rows
        rows += last
        if key_column is not None:
            footer.add(table.column(key_column))
        writer = writer or opened(table)
        writer.write(table, row_group_size=output.row_group_rows)
        del table  # else it is there until the next one is complete
    writer = writer or opened(schema.empty_table())
    writer.add_key_value_metadata(footer.key_values() | ({CUT_AT: str(cut_bytes(output))} if is_cut else {}))
    writer.close()
    return rows


CUT_AT = "phantombase.row_group_bytes"
"""In the footer of a file whose row groups have fewer rows than was requested: the bytes in memory of one, at most."""


def cut_bytes(output: OutputOptions) -> int:
    """The bytes in memory of a row group, at most."""
    return output.memory_limit // 4


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
    rows, bytes_ = output.row_group_rows, cut_bytes(output)
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        while count + batch.num_rows >= rows or (held and size + batch.nbytes > bytes_):
            head = batch.slice(0, rows - count if count + batch.num_rows >= rows else 0)
            table = _renamed(pa.Table.from_batches([*held, head]), schema, name)
            batch, held, count, size = batch.slice(head.num_rows), [], 0, 0
            yield table
            del table
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


BLOOM_FILTER = "org.apache.hudi.bloomfilter"


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
        pairs[BLOOM_FILTER] = filter_.text
        pairs["hoodie_bloom_filter_type_code"] = filter_.type_code
        if self._least is not None and self._greatest is not None:
            pairs["hoodie_min_record_key"] = self._least
            pairs["hoodie_max_record_key"] = self._greatest
        return pairs
