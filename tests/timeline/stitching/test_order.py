"""Sorted stitchings: the order of rows, and that they are the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.stitching.stitch import stitch_table
from phantombase.timeline.errors import UsageError
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.stitching.options import SortOrder, StitchOptions
from phantombase.timeline.stitching.order import _hilbert, _interleaved, sorted_rows
from tests.support.archived_tables import LOCK, upsert
from tests.support.clustered_tables import living, request, small_files, stitch
from tests.support.compaction_steps import open_table
from tests.support.written_tables import read_rows


@pytest.mark.parametrize(("axes", "bits"), [(2, 4), (3, 3), (4, 2), (5, 2)])
def test_a_hilbert_curve_goes_from_neighbour_to_neighbour(axes: int, bits: int) -> None:
    """Through all places, each once."""
    places = np.indices((1 << bits,) * axes).reshape(axes, -1).astype(np.uint64)
    found = _hilbert(list(places), bits)
    assert sorted(found.tolist()) == list(range(len(found)))
    way = places[:, np.argsort(found)].astype(int)
    assert (np.abs(np.diff(way, axis=1)).sum(axis=0) == 1).all()


def test_a_z_curve_takes_bits_in_turn() -> None:
    found = _interleaved([np.array([0b10], np.uint64), np.array([0b11], np.uint64)], 2)
    assert found.tolist() == [0b1101]


@given(st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.text("ab", max_size=2) | st.none()), max_size=30))
def test_the_rows_are_the_same(given_rows: list[tuple[int | None, str | None]]) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = pa.Table.from_pylist([{"a": a, "b": b} for a, b in given_rows], schema)
    for order in SortOrder:
        found = sorted_rows(rows, ["a", "b"], order)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))
    last = (float("inf"), "~")
    plain = [(last[0] if a is None else a, last[1] if b is None else b) for a, b in given_rows]
    linear = sorted_rows(rows, ["a", "b"], SortOrder.ORDER).to_pylist()
    assert [(last[0] if r["a"] is None else r["a"], last[1] if r["b"] is None else r["b"]) for r in linear] == sorted(
        plain
    )


def trips(ids: list[str], times: list[int], fares: list[float]) -> pa.Table:
    """A batch of one day."""
    return pa.table({"id": ids, "day": ["a"] * len(ids), "ts": times, "fare": fares})


@pytest.mark.parametrize("order", list(SortOrder))
@pytest.mark.parametrize("dead", [False, True])
def test_a_stitched_file_is_sorted(order: SortOrder, dead: bool, tmp_path: Path) -> None:
    """By the process that planned it, and by the one that finishes it."""
    path = tmp_path / "trips"
    rows = small_files(path, 9, 6)
    upsert(path, trips([f"x{n}" for n in range(9)], [9 - n for n in range(9)], [float(n % 3) for n in range(9)]))
    rows = read_rows(path)
    options = StitchOptions(min_files=2, wait_s=0, sort_by=("fare", "ts"), sort_order=order)
    if dead:
        request(path, alive=False, options=options)
        assert stitch(path).finished
    else:
        assert stitch(path, options=options).done is not None
    assert read_rows(path) == rows
    (file_id,) = living(path)
    (file,) = path.glob(f"*/{file_id}*")
    made = pq.read_table(file, partitioning=None)
    expected = sorted_rows(made, ["fare", "ts"], order)
    assert made.select(["fare", "ts"]) == expected.select(["fare", "ts"])
    assert made["ts"].to_pylist() != sorted(made["ts"].to_pylist())


def test_what_cannot_be_sorted(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    before = sorted(p.name for p in path.rglob("*"))
    for names in (("nothing",), ("fare", "fare")):
        with pytest.raises(UsageError, match="sort by"):
            stitch(path, options=StitchOptions(min_files=2, sort_by=names))
    assert sorted(p.name for p in path.rglob("*")) == before
    count = 300_000
    upsert(path, trips([f"x{n}" for n in range(count)], [1] * count, [0.5] * count))
    with pytest.raises(UsageError, match="memory"):
        stitch_table(open_table(path), StitchOptions(min_files=2, sort_by=("ts",)), LOCK,
                     output=OutputOptions(memory_limit=32 << 20), threads=1)  # fmt: skip
    assert not [i for i in open_table(path).load_timeline().instants if not i.completed]
    assert len(read_rows(path)) == len(rows) + count
