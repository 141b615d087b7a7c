"""Which bytes of a Parquet file travel."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.parquet import travel
from phantombase.timeline.parquet.read import open_parquet, parquet_batches
from phantombase.timeline.parquet.travel import column_spans, travels_whole
from phantombase.timeline.ranges import Span, open_ranges

_MIB = 1 << 20
_END = 70_000


@pytest.mark.parametrize(
    ("size", "wanted", "columns", "whole"),
    [
        (0, 1, 20, True),  # its size is not known
        (8 * _MIB, 1, 20, True),
        (20 * _MIB, 1, 20, False),
        (20 * _MIB, 12, 20, True),  # what is not wanted is 8 MiB
        (32 * _MIB, 20, 20, True),
        (32 * _MIB, 25, 20, True),  # more than the file has
        (33 * _MIB, 20, 20, False),
    ],
)
def test_a_file_travels_whole_if_little_of_it_is_not_wanted(size: int, wanted: int, columns: int, whole: bool) -> None:
    assert travels_whole(size, wanted, columns) is whole


def _file(rows: int = 30_000) -> tuple[pa.Table, bytes]:
    """Three row groups; a dictionary, plain numbers, and a column of records."""
    random = np.random.default_rng(1)
    table = pa.table(
        {
            "word": pa.array(["one", "two", "three"]).take(pa.array(random.integers(0, 3, rows))),
            "n": random.integers(0, 1 << 60, rows),
            "point": pa.array([{"x": x, "y": -x} for x in range(rows)]),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=10_000)
    return table, sink.getvalue()


class Asked:
    """A file that is read by ranges, and what was asked for."""

    def __init__(self, data: bytes, end: int) -> None:
        self.data, self.spans = data, list[list[Span]]()
        self.file = open_ranges(self._fetch, len(data), data[-end:] if end else b"")

    def _fetch(self, spans: object) -> list[bytes]:
        assert isinstance(spans, list)
        self.spans.append(spans)
        return [self.data[at : at + count] for at, count in spans]


@pytest.mark.parametrize("names", [["n"], ["word", "point"], ["word", "n", "point"]])
@pytest.mark.parametrize("groups", [None, [], [1], [0, 2]])
def test_columns_are_fetched_row_group_by_row_group(names: list[str], groups: list[int] | None) -> None:
    """Each group's at the same time, and nothing else; the rows are those of the file."""
    table, data = _file()
    asked = Asked(data, _END)
    file = open_parquet(asked.file)
    read = pa.Table.from_batches(parquet_batches(asked.file, file, names, 700, groups), table.select(names).schema)
    chosen = range(3) if groups is None else groups
    assert read.equals(
        pa.concat_tables([table.slice(0, 0), *(table.slice(10_000 * g, 10_000) for g in chosen)]).select(names)
    )
    assert asked.spans == [
        [s for s in column_spans(file.metadata, g, names) if s[0] < len(data) - _END] for g in chosen
    ]


def test_what_takes_too_much_memory_is_not_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    table, data = _file()
    monkeypatch.setattr(travel, "_AHEAD_BYTES_MAX", 1000)
    asked = Asked(data, 0)
    file = open_parquet(asked.file)
    assert column_spans(file.metadata, 0, ["n"]) == []
    assert pa.Table.from_batches(parquet_batches(asked.file, file, ["n"], 700)).equals(table.select(["n"]))
