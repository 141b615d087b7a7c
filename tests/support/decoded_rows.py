"""What each decoder makes of a Parquet file, and what is decoded of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.codec import parquet_read
from phantombase.timeline.codec.parquet_read import open_parquet


def native_rows(
    data: bytes, names: list[str], batch_rows: int, groups: list[int] | None = None
) -> list[pa.RecordBatch]:
    """What the module alone makes of a file."""
    source = pa.BufferReader(data)
    return list(parquet_read._native_batches(source, open_parquet(source), names, batch_rows, groups))


def pyarrow_rows(data: bytes, names: list[str], groups: list[int] | None = None) -> pa.Table:
    """What pyarrow makes of it."""
    source = pa.BufferReader(data)
    file = open_parquet(source)
    found = list(parquet_read._stored_batches(source, file, names, 1000, groups))
    return pa.Table.from_batches(
        found, found[0].schema if found else file.schema_arrow.empty_table().select(names).schema
    )


_BITS = {pa.string(): pa.binary(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def same(one: pa.Table, other: pa.Table) -> bool:
    """Whether tables are equal by their bits: NaN is itself, text may be no UTF-8."""
    bits = [
        [column.combine_chunks().view(_BITS.get(column.type, column.type)) for column in table.columns]
        for table in (one, other)
    ]
    return one.schema == other.schema and bits[0] == bits[1]


def see_decoded(monkeypatch: pytest.MonkeyPatch, seen: Callable[[Sequence[str], list[int] | None], None]) -> None:
    """Calls `seen` with the columns and row groups that are decoded of a Parquet file, by whichever decoder."""

    def watch(name: str) -> None:
        plain = getattr(parquet_read, name)

        def spy(source: Any, file: Any, names: Any, rows: int, chosen: Any) -> Iterator[pa.RecordBatch]:
            batches = plain(source, file, names, rows, chosen)
            first = list(islice(batches, 1))  # where the module refuses, pyarrow is seen
            seen(names, chosen)
            yield from chain(first, batches)

        monkeypatch.setattr(parquet_read, name, spy)

    watch("_native_batches")
    watch("_stored_batches")
