"""`bench.day`: what its figures count, and that the docs show what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.day import Day, lags, save_stream, table_of
from bench.day_page import MARK, PAGE, PICTURE, RECORD, picture, table
from bench.report import with_part


def test_a_batch_waits_for_a_compaction_that_was_requested_after_it() -> None:
    """The second commit is later than the plan that would hold it."""
    day = Day(start_cpu_s=0.0)
    day.commits = {("20260101000000000", "20260101000001000"), ("20260101000001500", "20260101000003000")}
    day.compactions = {
        ("20251231000000000", "20251231000000001"),
        ("20260101000002000", "20260101000005500"),
        ("20260101000006000", "20260101000007000"),
    }
    assert lags(day) == [(4.5, 1), (4.0, 0)]


def test_the_batches_leave_what_they_say(tmp_path: Path) -> None:
    """The same ones each time; no key comes after its delete; late rows carry the value of no other batch."""
    spec = table_of(1_000)
    stream, left = save_stream(spec, tmp_path / "one", 5, 100)
    again, _ = save_stream(spec, tmp_path / "two", 5, 100)
    batches = [pq.read_table(path) for _, path in stream]
    assert batches == [pq.read_table(path) for _, path in again]
    assert [operation for operation, _ in stream] == ["upsert", "upsert", "delete", "upsert", "upsert"]
    assert left == 1_000 + 4 * 10 - 10
    gone = batches[2].column("id")
    assert not any(
        pc.any(pc.is_in(later.column("id"), value_set=gone.combine_chunks())).as_py() for later in batches[3:]
    )
    late = [
        set(pc.unique(batch.column("ts")).to_pylist()) - {1_000_000 + 1_000 * n} for n, batch in enumerate(batches, 1)
    ]
    assert all(late[number] for number in (0, 1, 3, 4))
    assert len(set().union(*late)) == sum(map(len, late))


def test_the_page_shows_the_record() -> None:
    """`python -m bench.day --record` writes all three."""
    document = json.loads(RECORD.read_text())
    assert with_part(PAGE.read_text(), MARK, table(document)) == PAGE.read_text()
    assert picture(document) == PICTURE.read_text()
