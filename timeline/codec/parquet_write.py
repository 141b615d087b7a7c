"""Writes Parquet files, and base files as Hudi's readers and writers need them: columns, footer, key filter.

Pages are compressed with gzip by ISA-L, in a tenth of zlib's time and with the same size as zlib's level 4. pyarrow
accepts no compressor. So its writer encodes without compression into `GzipPages`, which writes the file page by page:
each body compressed, each page header with the new size, and at the end the footer with the codec and the new offsets
and sizes of all column chunks. Encodings, statistics, schema and key/values are pyarrow's, unchanged.

    "PAR1" | page header, body | page header, body | ... | footer | its length int32 | "PAR1"

Only what pyarrow writes by default is supported, else ValueError: data pages of version 1, no page index, no
encryption. Source of the numbers of fields: parquet.thrift of the Parquet format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import parquet_footer as pf
from .avro_schema import COMMIT_SEQNO, COMMIT_TIME, FILE_NAME, PARTITION_PATH, RECORD_KEY
from .bloom import ALWAYS_TRUE, BloomBuilder
from .calendar import NEW_CALENDAR
from .columns import leaf_types
from .output_options import Bloom, OutputOptions
from .parquet_footer import Struct, field_of, read_struct, value_of, write_struct

try:
    from isal import isal_zlib
except ImportError:  # there is no wheel for this machine
    AVAILABLE = False
else:
    AVAILABLE = True


_LEVEL = 1
_GZIP_FRAME = 31
_CODEC_GZIP = 2

_PAGE_TYPE, _PAGE_BYTES, _PAGE_STORED, _PAGE_CRC, _DATA_V2 = 1, 2, 3, 4, 3
"""Fields of PageHeader, and a value of the first."""


class GzipWriter:
    """A `pq.ParquetWriter` of gzip files, as far as base files need one."""

    def __init__(self, file: IO[bytes] | pa.NativeFile, schema: pa.Schema, **how: Any) -> None:
        """`how`: as for `pq.ParquetWriter`, without compression."""
        self._pages = GzipPages(file)
        self._writer = pq.ParquetWriter(self._pages, schema, compression="none", **how)

    def __enter__(self) -> GzipWriter:
        """The writer; the end of the block ends the file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def write(self, table: pa.Table, row_group_size: int | None = None) -> None:
        self._writer.write(table, row_group_size=row_group_size)

    def add_key_value_metadata(self, pairs: dict[str, str]) -> None:
        self._writer.add_key_value_metadata(pairs)

    def close(self) -> None:
        """Ends the file, and does not close it."""
        self._pages.begin_footer()
        self._writer.close()
        self._pages.finish()


class GzipPages:
    """The sink of a Parquet writer that does not compress; `begin_footer` before it writes its footer, then `finish`.
    Memory: one page, and two numbers of each."""

    closed = False

    def __init__(self, file: IO[bytes] | pa.NativeFile) -> None:
        self._file = file
        self._held = bytearray()
        self._is_footer = False
        self._old = self._new = 0
        self._places: dict[int, int] = {}
        """Where each page begins, and the last one ends: offset in the writer's file -> offset in this one."""
        self._shorter: dict[int, int] = {}
        """By the same offsets in the writer's file: bytes by which all headers before are shorter in this one."""
        self._saved = 0

    def write(self, data: Any) -> int:
        """Takes the next bytes of the writer's file, split anywhere."""
        self._held += data
        if not self._is_footer:
            self._take_pages()
        return len(data)

    def flush(self) -> None:
        """Does nothing: complete pages were written already."""

    def begin_footer(self) -> None:
        """The writer has written all pages: what follows is its footer."""
        if self._held:
            raise ValueError(f"{len(self._held)} bytes of a page that does not end")
        self._is_footer = True

    def finish(self) -> None:
        size, magic = pf.TAIL.unpack(self._held[-pf.TAIL.size :])
        if magic != pf.MAGIC or size + pf.TAIL.size != len(self._held):
            raise ValueError("no footer right after the pages: a page index, or key filters")
        footer, _ = read_struct(self._held)
        if field_of(footer, pf.ENCRYPTION) is not None:
            raise ValueError("an encrypted file")
        for group in value_of(footer, pf.ROW_GROUPS).items:
            self._moved_group(group)
        text = write_struct(footer)
        self._file.write(text + pf.TAIL.pack(len(text), pf.MAGIC))

    def _take_pages(self) -> None:
        if self._old == 0:
            if len(self._held) < len(pf.MAGIC):
                return
            self._pass(len(pf.MAGIC), bytes(self._held[: len(pf.MAGIC)]))
        while self._held:
            try:
                header, start = read_struct(self._held)
            except IndexError:
                return
            stored = value_of(header, _PAGE_STORED)
            if len(self._held) < start + stored:
                return
            with memoryview(self._held) as held:
                body = isal_zlib.compress(held[start : start + stored], _LEVEL, _GZIP_FRAME)
            if value_of(header, _PAGE_TYPE) == _DATA_V2 or value_of(header, _PAGE_BYTES) != stored:
                raise ValueError("a page of another version, or compressed already")
            _set(header, _PAGE_STORED, len(body))
            text = write_struct([field for field in header if field.number != _PAGE_CRC])
            self._saved += start - len(text)
            self._pass(start + stored, text + body)

    def _pass(self, taken: int, written: bytes) -> None:
        self._file.write(written)
        del self._held[:taken]
        self._old += taken
        self._new += len(written)
        self._places[self._old] = self._new
        self._shorter[self._old] = self._saved

    def _moved_group(self, group: Struct) -> None:
        stored = 0
        for chunk in value_of(group, pf.COLUMNS).items:
            stored += self._moved_chunk(chunk)
        _set(group, pf.GROUP_STORED, stored)
        offset = field_of(group, pf.GROUP_OFFSET)
        if offset is not None and offset.value:  # a group without rows has no pages, and 0 here
            offset.value = self._places[offset.value]

    def _moved_chunk(self, chunk: Struct) -> int:
        """Gives a column chunk its codec, its new offsets and sizes; returns its size in bytes."""
        meta: Struct = value_of(chunk, pf.CHUNK_META)
        # An offset of 0 stands for no page.
        places = (field_of(meta, number) for number in (pf.DICTIONARY_OFFSET, pf.DATA_OFFSET))
        offsets = [field for field in places if field is not None and field.value]
        if not offsets:  # no rows
            _set(meta, pf.CODEC, _CODEC_GZIP)
            return 0
        first = min(field.value for field in offsets)
        last = first + value_of(meta, pf.CHUNK_STORED)
        stored = self._places[last] - self._places[first]
        shorter = self._shorter[last] - self._shorter[first]
        _set(meta, pf.CODEC, _CODEC_GZIP)
        _set(meta, pf.CHUNK_STORED, stored)
        _set(meta, pf.CHUNK_BYTES, value_of(meta, pf.CHUNK_BYTES) - shorter)
        for field in offsets:
            field.value = self._places[field.value]
        if value_of(chunk, pf.CHUNK_OFFSET):
            _set(chunk, pf.CHUNK_OFFSET, self._places[value_of(chunk, pf.CHUNK_OFFSET)])
        return stored


def _set(struct: Struct, number: int, value: int) -> None:
    found = field_of(struct, number)
    if found is not None:
        found.value = value


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
    """Leaf columns that get statistics: all except floats. Arrow omits NaN from the bounds, but Spark treats NaN as
    greater than all numbers: a row group with bounds 1 to 2 and a NaN would be skipped for `x > 5`. Parquet's own Java
    writer omits the bounds in that case; Arrow's writer needs the list of columns before the first row."""
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
    writer: pq.ParquetWriter | GzipWriter | None = None
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
