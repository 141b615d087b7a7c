"""The footer of a Parquet file, by pyarrow and as a tree of Thrift fields, of which parts go into another file."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import MalformedError
from ..ranges import Span
from .calendar import old_calendar
from .read import open_parquet, readable
from .thrift import Struct, read_struct

MAGIC = b"PAR1"
TAIL = struct.Struct("<I4s")
"""The length of the footer, and the magic number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """`metadata`, `arrow`: what pyarrow reads in it; `tree`: all its fields; `end`: the offset at which it begins.

    `is_old_calendar`: values are not what the file will be read as, see `calendar`.
    """

    path: str
    metadata: pq.FileMetaData
    arrow: pa.Schema
    tree: Struct
    end: int
    is_old_calendar: bool = False


def read_footer(source: pa.NativeFile, path: str) -> Footer:
    """The footer of an open file. MalformedError, UnsupportedError: as in any read of the file."""
    with readable("base file", path):
        file = open_parquet(source)
        size = source.size()
        (length, _) = TAIL.unpack(_read(source, size - TAIL.size, TAIL.size))
        end = size - TAIL.size - length
        text = _read(source, end, length)
        try:
            tree, _ = read_struct(text)
        except RecursionError as error:
            raise MalformedError("a Parquet footer with structures in one another without end", path=path) from error
        return Footer(
            path=path,
            metadata=file.metadata,
            arrow=file.schema_arrow,
            tree=tree,
            end=end,
            is_old_calendar=old_calendar(file) is not None,
        )


def chunk_span(chunk: pq.ColumnChunkMetaData) -> Span:
    """Where the pages of a column chunk are."""
    first = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        first = min(first, chunk.dictionary_page_offset)
    return first, chunk.total_compressed_size


def group_bytes(group: pq.RowGroupMetaData) -> int:
    """The bytes that a row group takes in its file."""
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


def _read(source: pa.NativeFile, at: int, count: int) -> bytes:
    if at < 0:
        raise ValueError(f"{count} bytes at {at}")
    source.seek(at)
    data: bytes = source.read(count)
    if len(data) != count:
        raise ValueError(f"{len(data)} bytes of {count} at {at}")
    return data
