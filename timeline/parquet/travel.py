"""Which bytes of a Parquet file travel to a reader (pure)."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.parquet as pq

from ..ranges import Span

_WHOLE_BYTES_MAX = 32 << 20
"""What a storage fetches at once when a file is opened."""
_REQUESTS_BYTES = 8 << 20
"""What travels in the time of two more requests, at some hundred megabytes a second."""
_AHEAD_BYTES_MAX = 64 << 20
"""Row groups whose columns take more are read column by column: what is fetched ahead stays in memory."""


def travels_whole(size: int, wanted: int, columns: int) -> bool:
    """Whether a file of so many bytes and columns is best fetched by one request, for so many of its columns.

    The other way takes two requests more: the end with the footer first, then the columns. `size` 0: not known.
    """
    return size <= _WHOLE_BYTES_MAX and size * (columns - min(wanted, columns)) <= _REQUESTS_BYTES * columns


def column_spans(metadata: pq.FileMetaData, group: int, names: Collection[str]) -> list[Span]:
    """Where the named columns of a row group are; none if they take too much memory to be fetched ahead."""
    row_group, wanted = metadata.row_group(group), set(names)
    spans = []
    for at in range(row_group.num_columns):
        chunk = row_group.column(at)
        if chunk.path_in_schema.partition(".")[0] in wanted:
            start = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
            spans.append((min(start or chunk.data_page_offset, chunk.data_page_offset), chunk.total_compressed_size))
    return spans if sum(count for _, count in spans) <= _AHEAD_BYTES_MAX else []
