"""How phantombase writes Parquet files: codec and level, which columns get a dictionary, and which get statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..avro.schema import COMMIT_SEQNO, COMMIT_TIME, PARTITION_PATH, RECORD_KEY
from .gzip_pages import AVAILABLE, GzipWriter

LEVELS = {"gzip": 4}
"""Of zlib, where ISA-L is missing. Hudi writes with zlib's default level 6, pyarrow with 9. On the small bench table 4
takes half the time of 6, for files 1.4 % larger (level 1: 44 % of the time, 3.3 % larger)."""

_SAMPLE_ROWS = 10_000
_DISTINCT_MAX = 0.5
"""A column gets a dictionary if at most this fraction of a sample's values is distinct."""
_EACH_ROW = frozenset({RECORD_KEY, COMMIT_SEQNO})
"""Meta columns with a value of its own in each row."""
_EACH_WRITE = frozenset({COMMIT_TIME, PARTITION_PATH})
"""Meta columns with a value for all rows of a write, in a file of one partition."""


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

    Parquet would try one for every column and give up at 1 MB. For keys, times and measures that takes half of the
    encoding time, and leaves a larger file. Nested columns always get one.
    """
    worth: list[str] = []
    for field, column in zip(sample.schema, sample.columns, strict=True):
        leaves = list(_leaves(field))
        flat = leaves == [field.name] and not pa.types.is_dictionary(field.type)
        if not flat or _repeats(field.name, column):
            worth += leaves
    return worth


def _repeats(name: str, column: pa.ChunkedArray) -> bool:
    """Whether values come again. What a meta column holds says so: counting its texts takes longest."""
    if name in _EACH_ROW:
        return False
    return name in _EACH_WRITE or pc.count_distinct(column).as_py() <= _DISTINCT_MAX * len(column)


def statistics_columns(schema: pa.Schema) -> list[str]:
    """Leaf columns that get statistics: all except floats.

    Arrow leaves NaN out of the bounds, but Spark treats NaN as greater than all numbers: a row group with bounds 1 to 2
    and a NaN would be skipped for `x > 5`. Parquet's own Java writer leaves out the bounds in that case; Arrow's writer
    needs to know the columns before the first row.
    """
    return [path for field in schema for path, kind in _leaf_types(field) if not pa.types.is_floating(kind)]


def _leaves(field: pa.Field) -> Iterator[str]:
    """Parquet paths of a field's leaf columns, in pyarrow's notation."""
    return (path for path, _ in _leaf_types(field))


def _leaf_types(field: pa.Field, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
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
