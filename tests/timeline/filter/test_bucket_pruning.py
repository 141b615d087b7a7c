"""A read by key in a table with a bucket index opens the bucket of the key, and loses no row where there is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase import writer
from phantombase.timeline.format.bucket import key_hashes
from phantombase.timeline.read import pruning
from phantombase.timeline.read.table_read import ReadOptions, plan_read, read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows

KEYS = [f"k{i}" for i in range(300)]


def written(path: Path, buckets: int | None, *key: str) -> Table:
    """Two writes of 300 rows: base files, and log files with the even ones."""
    rows = pa.table({"id": KEYS, "n": list(range(300)), "ts": [1] * 300})
    for part, time in ((rows, 1), (rows.take(pa.array(range(0, 300, 2))), 2)):
        made = writer(part.set_column(2, "ts", pa.array([time] * part.num_rows))).table("t").key(*key).ordering("ts")
        (made if buckets is None else made.buckets(buckets)).upsert(str(path))
    return Table.open(str(path))


@pytest.mark.parametrize("buckets", [7, None])
@pytest.mark.parametrize("key", [("id",), ("id", "n")])
def test_every_key_is_found(buckets: int | None, key: tuple[str, ...], tmp_path: Path) -> None:
    """With buckets and one key field in one file slice; else in all that there are."""
    table = written(tmp_path / "t", buckets, *key)
    everything = read_table(table)
    for number in range(0, 300, 29):
        text = f"id = 'k{number}' and n = {number}"
        scan = plan_read(table, ReadOptions(filter=text))
        assert_same_rows(scan.to_table(), everything.filter(pc.equal(everything["n"], number)))
        proved = buckets is not None and len(key) == 1
        assert (len(scan.slices) == 1) is (proved or len(plan_read(table, ReadOptions()).slices) == 1)
    many = plan_read(table, ReadOptions(filter=f"id in ({', '.join(map(repr, KEYS))}) and n in (1, 2)"))
    assert many.to_table().num_rows == 2


def test_few_keys_are_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A divisor that a handful of keys have in common may be chance."""
    table = written(tmp_path / "t", 7, "id")
    options = ReadOptions(filter="id = 'k1'")
    assert len(plan_read(table, options).slices) == 1
    monkeypatch.setattr(pruning, "_SAMPLE_KEYS_MIN", 10_000)
    assert len(plan_read(table, options).slices) == 7


def test_keys_that_are_not_in_their_bucket_prune_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashed by another rule, they have no divisor in common."""
    table = written(tmp_path / "t", 7, "id")
    monkeypatch.setattr(pruning, "key_hashes", lambda *args: key_hashes(*args) * 3 + 1)
    assert len(plan_read(table, ReadOptions(filter="id = 'k1'")).slices) == 7
