"""Reads Parquet files as Arrow batches of bounded size, whatever the footer claims.

A few bytes of Parquet can stand for any number of long values: a dictionary holds one of them, and run lengths repeat
it. So text columns whose dictionaries could make a batch too large are read as dictionaries, and decoded in chunks of
about `_BATCH_BYTES`. This bounds streamed data. Data that is decoded at once (`read_parquet`) is refused if it becomes
a thousand times larger: no writer's constant columns explain that.

Flat columns of many rows are decoded by `phantombase-native`, where it is installed: it gives the same rows as pyarrow,
in less time, or refuses. pyarrow then reads what it did not give.

`column_spans` gives the byte ranges of a file that a reader needs. A `Share` is the row groups of a base file that one
of several readers reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import MalformedError, UnsupportedError, decoding, reason_of
from ..event_log import get_logger
from ..ranges import RangedFile, Span
from .avro_decode import REFUSALS, NativeArray, native
from .avro_schema import FIXED_BYTES_MAX
from .calendar import old_calendar

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Share:
    """Share number `part`, from 0 on, of `of` shares. Each row group is in exactly one of them."""

    part: int
    of: int

    def of_groups(self, count: int, chosen: Sequence[int] | None = None) -> list[int]:
        """The row groups of this share of a file with `count` row groups, restricted to the `chosen` ones."""
        own = range(count * self.part // self.of, count * (self.part + 1) // self.of)
        return list(own) if chosen is None else [group for group in chosen if group in own]


_WHOLE_BYTES_MAX = 32 << 20
"""The most that a storage fetches at once when a file is opened."""
_REQUESTS_BYTES = 8 << 20
"""Bytes transferred in the time of two more requests, at some hundred megabytes a second."""
_AHEAD_BYTES_MAX = 64 << 20
"""Row groups whose columns take more are read column by column: what is fetched ahead is held in memory."""


def fetched_at_once(size: int, wanted: int, columns: int) -> bool:
    """Whether one request is the fastest way to read `wanted` of a file's `columns` columns; `size`: the file's.
    The other way needs two more requests: the end with the footer first, then the columns. `size` 0: not known."""
    return size <= _WHOLE_BYTES_MAX and size * (columns - min(wanted, columns)) <= _REQUESTS_BYTES * columns


def chunk_span(chunk: pq.ColumnChunkMetaData) -> Span:
    """Where the pages of a column chunk are."""
    first = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        first = min(first, chunk.dictionary_page_offset)
    return first, chunk.total_compressed_size


def column_spans(metadata: pq.FileMetaData, group: int, names: Collection[str]) -> list[Span]:
    """Where the named columns of a row group are; none if they take too much memory to be fetched ahead."""
    row_group, wanted = metadata.row_group(group), set(names)
    spans = []
    for at in range(row_group.num_columns):
        chunk = row_group.column(at)
        if chunk.path_in_schema.partition(".")[0] in wanted:
            spans.append(chunk_span(chunk))
    return spans if sum(count for _, count in spans) <= _AHEAD_BYTES_MAX else []


_BATCH_BYTES = 32 << 20
_EXPANSION_MAX = 1000
_EXPANSION_FREE_BYTES = 64 << 20
_CODE_BYTES_MAX, _LONG_BYTES_MIN, _SMALL_CHUNK_BYTES = 8, 4096, 4 << 20

_FEW_ROWS, _READ_ROWS = 10_000, 65_536
_DIFFERING_ROWS = 1024
"""Rows of a batch with a dictionary that must be decoded: writers limit one, so each of its values, to about 1 MB."""

_THRIFT_STRING_BYTES_MAX = 100_000_000
_THRIFT_ITEMS_MAX = 100_000
"""pyarrow's own limit is 1 M items: a schema with that many nested groups would exhaust the stack."""


def open_parquet(source: pa.NativeFile, *, dictionaries: Sequence[str] = (), checksums: bool = False) -> pq.ParquetFile:
    """The file, with its footer read. `dictionaries`: columns to return as dictionaries. `checksums`: those of pages,
    where a writer made them, are compared."""
    file = pq.ParquetFile(
        source,
        read_dictionary=list(dictionaries),
        # For old timestamps of 96 bits: in nanoseconds, pyarrow's default, 9999-12-31 overflows into another day.
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=checksums,
        thrift_string_size_limit=_THRIFT_STRING_BYTES_MAX,
        thrift_container_size_limit=_THRIFT_ITEMS_MAX,
    )
    groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != file.metadata.num_rows:
        expected, found = f"{file.metadata.num_rows} rows", str(groups[:20])
        raise MalformedError("the row groups of a Parquet file do not add up", expected=expected, found=found)
    columns = file.metadata.schema
    width = max((columns.column(i).length or 0 for i in range(file.metadata.num_columns)), default=0)
    if width > FIXED_BYTES_MAX:
        raise UnsupportedError(
            "Parquet column of wide fixed values", expected=f"at most {FIXED_BYTES_MAX} bytes", found=f"{width} bytes"
        )
    return file


def parquet_batches(
    source: pa.NativeFile,
    file: pq.ParquetFile,
    names: Sequence[str],
    batch_rows: int,
    groups: Sequence[int] | None = None,
    *,
    checksums: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The named columns of a file opened from `source`: at most `batch_rows` rows and about 32 MiB per batch.
    Dates and times of the old calendar are converted to the new one.
    `groups`: the row groups to read, None for all. `checksums`: as `file` was opened.
    MalformedError, after the last batch: rows are missing."""
    metadata, schema = file.metadata, file.schema_arrow
    at = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    coded = [n for n in names if _is_text(schema.field(n).type) and _is_coded(metadata, at.get(n), batch_rows)]
    if differing := {name for name in coded if _has_differences(metadata, at[name])}:
        batch_rows = min(batch_rows, _DIFFERING_ROWS)
    rows = max(1, min([batch_rows, *_fitting_rows(metadata)]))
    chosen = None if groups is None else list(groups)

    def stored() -> Iterator[pa.RecordBatch]:
        dictionaries = [name for name in coded if name not in differing]
        opened = open_parquet(source, dictionaries=dictionaries, checksums=checksums) if dictionaries else file
        return _stored_batches(source, opened, names, rows, chosen)

    large = _rows_of(metadata, chosen) >= _FEW_ROWS * max(1, metadata.num_row_groups if chosen is None else len(chosen))
    is_native = hasattr(native, "RowGroup") and large and not checksums
    batches = _first_by(_native_batches(source, file, names, rows, chosen), stored) if is_native else stored()
    calendar = old_calendar(file)
    yield from batches if calendar is None else map(calendar.moved, batches)


def _first_by(
    one: Iterator[pa.RecordBatch], others: Callable[[], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The batches of one; where it refuses, the others' rows after those that it gave."""
    given = 0
    try:
        for batch in one:
            given += batch.num_rows
            yield batch
        _log.debug("parquet_decoder", decoder=f"phantombase-native {native.__version__}", rows=given)
        return
    except REFUSALS as error:
        _log.debug("parquet_decoder", decoder="pyarrow", after_rows=given, reason=reason_of(error))
    for batch in others():
        passed = min(given, batch.num_rows)
        given -= passed
        if passed < batch.num_rows:
            yield batch.slice(passed)


_FOOTER_END = 8
"""Bytes behind a footer: its length, and the file's mark."""
_CODECS = {0: 0, 2: 1, 6: 2}
"""Those of `Codec` in `native/src/pages.rs`, by the numbers of Parquet: none, gzip, zstd."""
_PHYSICAL = ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"]
_ENCODINGS = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8
"""As bits: plain, plain dictionary, run lengths, packed bits (of levels), dictionary."""
_KINDS: dict[tuple[str, str], tuple[int, Callable[[pa.DataType], bool]]] = {
    ("BOOLEAN", "NONE"): (0, pa.types.is_boolean),
    ("INT32", "NONE"): (1, pa.types.is_int32),
    ("INT32", "INT"): (1, pa.types.is_int32),
    ("INT32", "DATE"): (1, pa.types.is_date32),
    ("FLOAT", "NONE"): (1, pa.types.is_float32),
    ("INT64", "NONE"): (2, pa.types.is_int64),
    ("INT64", "INT"): (2, pa.types.is_int64),
    ("INT64", "TIMESTAMP"): (2, pa.types.is_timestamp),
    ("DOUBLE", "NONE"): (2, pa.types.is_float64),
    ("BYTE_ARRAY", "NONE"): (3, pa.types.is_binary),
    ("BYTE_ARRAY", "STRING"): (3, pa.types.is_string),
    ("INT32", "DECIMAL"): (4, pa.types.is_decimal128),
    ("INT64", "DECIMAL"): (5, pa.types.is_decimal128),
    ("FIXED_LEN_BYTE_ARRAY", "DECIMAL"): (6, pa.types.is_decimal128),
}
"""The numbers of `Kind` in `native/src/parquet.rs`, by physical and logical type, and the type that Arrow must have."""


def _native_batches(
    source: pa.NativeFile, file: pq.ParquetFile, names: Sequence[str], rows: int, chosen: Sequence[int] | None
) -> Iterator[pa.RecordBatch]:
    """The batches by `phantombase-native`, none of which spans row groups. One of `REFUSALS`: pyarrow must be asked for
    the others."""
    metadata, arrow = file.metadata, file.schema_arrow
    at = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    groups = range(metadata.num_row_groups) if chosen is None else chosen
    is_flat = len(at) == metadata.num_columns and 0 < len(names) == len(at.keys() & set(names))
    if not is_flat:
        raise ValueError("columns that pyarrow reads")
    schema = pa.schema([arrow.field(name) for name in names], arrow.metadata)
    kinds = [_kind(metadata.schema.column(at[field.name]), field.type) for field in schema]
    places, size = [at[name] for name in names], source.size()
    source.seek(max(0, size - metadata.serialized_size - _FOOTER_END))
    stored = native.column_chunks(source.read(metadata.serialized_size))
    if any(len(chunks) != metadata.num_columns for chunks in stored):
        raise ValueError("row groups of other columns")
    for group in groups:
        count, chunks = metadata.row_group(group).num_rows, stored[group]
        spans = {place: _span(chunks[place], metadata.schema.column(place), count) for place in places}
        # Chunks that overlap would take any number of times the file's memory.
        total = sum(bytes_ for _, bytes_ in spans.values())
        if max(map(sum, spans.values())) > size or total > size:
            raise ValueError("column chunks beyond the end, or that overlap")
        if isinstance(source, RangedFile):
            if total > _AHEAD_BYTES_MAX:
                raise ValueError("a row group whose columns pyarrow reads one by one")
            source.keep([spans[place] for place in sorted(places)])
        codecs = [_CODECS[chunks[place][2]] for place in places]
        found = [(_read(source, spans[p]), codec, *kind) for p, codec, kind in zip(places, codecs, kinds, strict=True)]
        reader = native.RowGroup(found, count)
        for _ in range(0, count, rows):
            yield pa.record_batch(NativeArray(schema, reader.read(rows)))


def _kind(column: pq.ColumnSchema, type_: pa.DataType) -> tuple[int, int, bool]:
    """The number of a column's kind, the bytes of a value of the last one, and whether it may be null."""
    number, is_known = _KINDS.get((column.physical_type, column.logical_type.type), (-1, pa.types.is_null))
    if number < 0 or not is_known(type_) or column.max_repetition_level or column.max_definition_level > 1:
        raise ValueError("a column that pyarrow reads")
    return number, column.length if number == 6 else 0, column.max_definition_level == 1


def _span(chunk: Sequence[int], column: pq.ColumnSchema, rows: int) -> Span:
    """Where the pages of a column chunk of `rows` rows are; see `Chunk` in `native/src/pages.rs`. ValueError: the
    module does not know it, or it is not what the schema says, which pyarrow refuses."""
    kind, encodings, codec, values, size, data, dictionary, levels = chunk
    if encodings & ~_ENCODINGS or codec not in _CODECS:
        raise ValueError("encodings or a codec that pyarrow reads")
    if _PHYSICAL[kind : kind + 1] != [column.physical_type] or levels not in (-1, column.max_definition_level + 1):
        raise ValueError("a column chunk of another type")
    if values != rows:
        raise ValueError("a column chunk of other rows")
    return min(data, dictionary) if dictionary > 0 else data, size


def _read(source: pa.NativeFile, span: Span) -> pa.Buffer:
    start, count = span
    source.seek(start)
    return source.read_buffer(count)


def _stored_batches(
    source: pa.NativeFile, file: pq.ParquetFile, names: Sequence[str], rows: int, chosen: Sequence[int] | None
) -> Iterator[pa.RecordBatch]:
    metadata = file.metadata
    if not isinstance(source, RangedFile):
        threads = metadata.num_rows > _FEW_ROWS  # handing few rows to other threads costs more than decoding them
        yield from _all_rows(
            file.iter_batches(batch_size=rows, row_groups=chosen, columns=list(names), use_threads=threads),
            _rows_of(metadata, chosen),
        )
        return
    for group in range(metadata.num_row_groups) if chosen is None else chosen:
        source.keep(column_spans(metadata, group, names))
        yield from _all_rows(
            file.iter_batches(batch_size=rows, row_groups=[group], columns=list(names)), _rows_of(metadata, [group])
        )


def _rows_of(metadata: pq.FileMetaData, groups: Sequence[int] | None) -> int:
    return metadata.num_rows if groups is None else sum(metadata.row_group(group).num_rows for group in groups)


def _all_rows(batches: Iterable[pa.RecordBatch], expected: int) -> Iterator[pa.RecordBatch]:
    """Counts the rows: where a column's pages hold too few values, pyarrow ends all columns without an error."""
    found = 0
    for batch in batches:
        found += batch.num_rows
        yield from _pieces(batch)
    if found != expected:
        what = "a Parquet file in which rows are missing"
        raise MalformedError(what, expected=f"{expected} rows, by its footer", found=f"{found} rows")


def read_parquet(source: pa.NativeFile, names: Sequence[str]) -> pa.Table:
    """All rows of those named columns that the file has. UnsupportedError: it decodes to far more than its bytes."""
    file = open_parquet(source)
    schema = file.schema_arrow
    there = frozenset(schema.names)
    wanted = [name for name in names if name in there]
    limit = _EXPANSION_FREE_BYTES + _EXPANSION_MAX * source.size()
    batches, decoded = [], 0
    for batch in parquet_batches(source, file, wanted, _READ_ROWS):
        decoded += batch.nbytes
        if decoded > limit:
            what = "Parquet data that decodes to far more than its bytes"
            expected = f"at most {_EXPANSION_MAX} times its {source.size()} bytes, and {_EXPANSION_FREE_BYTES} more"
            raise UnsupportedError(what, expected=expected, found=f"{decoded} bytes and more to come")
        batches.append(batch)
    kept = pa.schema([schema.field(name) for name in wanted])
    return pa.Table.from_batches(batches) if batches else kept.empty_table()


_BROKEN = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def readable(what: str, path: str) -> AbstractContextManager[None]:
    """Turns the errors that pyarrow raises for damaged bytes into an error of the tree that names the file."""
    return decoding(f"not a readable Parquet {what}", path, *_BROKEN)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_coded(metadata: pq.FileMetaData, at: int | None, batch_rows: int) -> bool:
    """Whether a text column has a dictionary that could make a batch too large. `at`: its position, None: not a leaf.
    A column whose dictionary overflowed does not count: it stores plain values, and reading it as a dictionary would be
    five times slower. The footer does not distinguish the two, but the bytes per value do."""
    rows = metadata.num_rows
    for group in range(metadata.num_row_groups if at is not None else 0):
        chunk = metadata.row_group(group).column(at)
        count, size = chunk.num_values, chunk.total_uncompressed_size
        overflowed = size > _SMALL_CHUNK_BYTES and _CODE_BYTES_MAX * count <= size < _LONG_BYTES_MIN * count
        # A batch may span row groups: each adds a few long values.
        if chunk.has_dictionary_page and not overflowed and min(rows, batch_rows) * size > _BATCH_BYTES:
            return True
    return False


def _has_differences(metadata: pq.FileMetaData, at: int) -> bool:
    """Whether pages of a text column hold differences, which pyarrow does not read as a dictionary. parquet-mr writes
    them as version 2 where a dictionary overflows, DuckDB where none pays."""
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    return any("DELTA" in encoding for group in groups for encoding in group.column(at).encodings)


def _fitting_rows(metadata: pq.FileMetaData) -> Iterator[int]:
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        if group.num_rows and group.total_byte_size > 0:
            yield _BATCH_BYTES * group.num_rows // group.total_byte_size


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch with dictionaries decoded, in several chunks if it would become too large."""
    coded = [i for i, column in enumerate(batch.columns) if pa.types.is_dictionary(column.type)]
    if not coded:
        yield batch
        return
    sizes = sum((_decoded_bytes(batch.column(i)) for i in coded), np.zeros(batch.num_rows, np.int64))
    piece = np.cumsum(sizes) // _BATCH_BYTES
    starts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(starts):
        part = batch.slice(start, end - start)
        columns = [column.dictionary_decode() if i in coded else column for i, column in enumerate(part.columns)]
        fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def _decoded_bytes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return np.asarray(pc.fill_null(lengths.take(column.indices), 0))
