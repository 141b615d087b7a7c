"""Keys that a base file has twice, as after a bulk insert, updated and deleted by Hudi 1.x.

With its SIMPLE and BLOOM indexes a write finds each row of a key, and its log blocks name the rows by position. So Hudi
1.2.0, when it reads and when it compacts, changes all of them. With one block without positions of the base file it
goes by keys, in all blocks of the file slice: they change only the first row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import ExecuteOptions, Executor, compact, schedule, writer
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.format import log_encode
from phantombase.timeline.format.log_block import HeaderKey
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.change_feeds import request


@contextmanager
def positions_in(base: str) -> Iterator[None]:
    """Log blocks name rows of the base file of this instant."""
    own = log_encode._headers
    named = {
        HeaderKey.RECORD_POSITIONS: "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAAAEAAAAAAA",
        HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: base,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_encode, "_headers", lambda *args: own(*args) | named)
        yield


@pytest.mark.parametrize(("every", "spills"), [(True, False), (True, True), (False, False)])
def test_positions_show_that_every_row_was_found(
    every: bool, spills: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do where every block has them, of this base file; else Hudi goes by keys. A log compaction keeps them."""
    path = str(tmp_path)
    if spills:
        monkeypatch.setattr(SliceRules, "fold_bytes", 300)

    def rows(keys: str, ts: int) -> pa.Table:
        return pa.table({"id": list(keys), "ts": [ts] * len(keys)})

    made = writer(rows("aabbccdd", 2)).table("t", version=9).key("id").ordering("ts").bulk_insert(path)
    with positions_in(made.instant):
        writer(rows("a", 3)).upsert(path)
        writer(rows("b", 0)).delete(path)
    with positions_in(made.instant if every else "20200101000000000"):
        writer(rows("d", 1)).upsert(path)
    keys = "aaccdd" if every else "aabccdd"
    times = [3, 3, 2, 2, 2, 2] if every else [3, 2, 2, 2, 2, 2, 2]
    for step in ("log compaction", "compaction", None):
        found = read_table(Table.open(path))
        assert ("".join(found["id"].to_pylist()), found["ts"].to_pylist()) == (keys, times)
        if step == "log compaction":
            request(Table.open(path), lambda found: found[0].pieces)
        elif step == "compaction":
            schedule(path, sole_writer=True)
        compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    table = Table.open(path)
    assert all(audit(table, instant).good for instant in audited_instants(table))
