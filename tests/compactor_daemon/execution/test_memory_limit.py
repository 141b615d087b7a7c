"""The memory limit: log data beyond it is split by key and spilled, and nobody can tell from the result."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from phantombase.timeline.arrow.spill_file import POSITION, SortedRun, SpillFile
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.merge.identity import identity_columns, identity_sum
from phantombase.timeline.merge.ledger import Ledger
from phantombase.timeline.merge.slice_rules import SliceRules
from phantombase.timeline.parquet.output_options import OutputOptions, parse_bytes
from phantombase.timeline.read.slice_stream import SliceStream
from phantombase.timeline.read.table_read import ReadOptions, Scan, plan_read
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice
from tests.support.golden_tables import ONE_A_CASE, unzip_golden

TINY_BYTES = 2000
"""Every few entries are spilled, every block is decoded in parts, there are as many partitions as may be."""


def stream(scan: Scan, slice_: FileSlice, rules: SliceRules) -> tuple[pa.Table, Ledger]:
    """The merged rows and the books, whose hash is taken of these rows."""
    merged = SliceStream(scan.table.storage, slice_, rules)
    rows = pa.Table.from_batches(list(merged.batches()), merged.schema)
    identity = identity_sum([rows.select(identity_columns(rows.schema))])
    return rows, merged.ledger(rows.num_rows, identity)


@pytest.mark.parametrize("name", ONE_A_CASE)
def test_the_same_rows_in_the_same_order_and_the_same_books(name: str, tmp_path: Path) -> None:
    """Every slice of every golden table, far below and far above the limit."""
    scan = plan_read(Table.open(str(unzip_golden(name, tmp_path))), ReadOptions())
    in_memory = replace(scan.rules, identity=True, batch_rows=7)
    spilled = replace(in_memory, memory_bytes=TINY_BYTES, spill_folder=str(tmp_path))
    for slice_ in scan.slices:
        rows, books = stream(scan, slice_, in_memory)
        again, other_books = stream(scan, slice_, spilled)
        assert again.equals(rows)
        assert other_books == books
        assert books.identity is not None
        books.check(
            footer_rows_in=books.base_rows, header_entries=books.log_entries, footer_rows_out=rows.num_rows, where=name
        )
    assert not list(tmp_path.glob("phantombase-*"))  # nothing stays behind


def test_it_does_spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above rests on: with the tiny limit there is something on disk."""
    made: list[str] = []
    monkeypatch.setattr(SpillFile, "append", lambda self, table: made.append(self._path))
    scan = plan_read(Table.open(str(unzip_golden("v9_event_time", tmp_path))), ReadOptions())
    (slice_, *_) = [s for s in scan.slices if s.logs]
    merged = SliceStream(scan.table.storage, slice_, replace(scan.rules, memory_bytes=TINY_BYTES))
    list(merged.batches())
    assert {os.path.basename(p).partition(".")[2] for p in made} >= {"entries", "rows"}


def test_a_full_disk_is_an_error_of_ours(tmp_path: Path) -> None:
    """Named, with the ways out; the temporary folder is gone afterwards."""
    scan = plan_read(Table.open(str(unzip_golden("v9_event_time", tmp_path))), ReadOptions())
    slice_ = next(s for s in scan.slices if s.logs)
    missing = str(tmp_path / "gone")
    rules = replace(scan.rules, memory_bytes=TINY_BYTES, spill_folder=missing)
    with pytest.raises(StorageError, match="cannot spill log data") as failure:
        list(SliceStream(scan.table.storage, slice_, rules).batches())
    assert "--spill-dir" in str(failure.value)


def test_a_run_is_read_window_by_window(tmp_path: Path) -> None:
    """Each row once, whatever the windows and the batches."""
    schema = pa.schema([(POSITION, pa.int64()), ("v", pa.string())])
    file = SpillFile(str(tmp_path / "run"), schema)
    positions = np.array([0, 3, 4, 9, 10, 11, 40])
    for part in np.split(positions, [2, 3]):
        file.append(pa.table({POSITION: part, "v": [str(p) for p in part]}, schema=schema))
    run = SortedRun(file)
    found = [[p for t in run.upto(bound) for p in t.column(POSITION).to_pylist()] for bound in (0, 4, 10, 30, 41, 99)]
    assert found == [[], [0, 3], [4, 9], [10, 11], [40], []]


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 << 20), ("1g", 1 << 30), ("1.5 GB", 3 << 29), ("40000000", 40_000_000), ("64MiB", 1 << 26)],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    """Units are powers of 1024."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "m", "-1g", "1x", "1gg", "one"])
def test_what_is_no_size(text: str) -> None:
    """Refused by name."""
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("options", [{"memory_limit": 1 << 20}, {"spill_dir": "/no/such/folder"}])
def test_limits_that_make_no_sense(options: dict[str, Any]) -> None:
    """Too little to work with, or no folder."""
    with pytest.raises(UsageError):
        OutputOptions(**options)
    assert OutputOptions(memory_limit=1 << 26, spill_dir=tempfile.gettempdir()).memory_limit == 1 << 26
