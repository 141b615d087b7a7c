"""Keys that a base file has twice, as after a bulk insert, updated and deleted by Hudi 1.x.

With its SIMPLE and BLOOM indexes a write finds each row of a key, and its log blocks name the rows by position. So Hudi
1.2.0, when it reads and when it compacts, changes all of them. With one block without positions of the base file it
goes by keys, in all blocks of the file slice: they change only the first row."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from phantombase import ExecuteOptions, Executor, compact, schedule, writer
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format import log_encode
from phantombase.timeline.format.log_block import HeaderKey, scan_blocks
from phantombase.timeline.format.log_encode import BaseRows
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.files import stored_keys, target_files
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
        patch.setattr(target_files, "naming_rows", lambda _group, _work, parts, _twice, _blocks: parts)
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


def rows(keys: str, ts: int) -> pa.Table:
    return pa.table({"id": list(keys), "ts": [ts] * len(keys)})


def keys_of(path: str) -> str:
    return "".join(read_table(Table.open(path))["id"].to_pylist())


def test_a_write_names_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As real Hudi 1.2.0 wrote these bitmaps: of the first delete, then of the rows that follow it in the slice."""
    path = str(tmp_path)
    monkeypatch.setattr(stored_keys, "base_keys", partial(stored_keys.base_keys, batch_rows=3))
    made = writer(rows("aabbccdd", 2)).table("t", version=9).key("id").ordering("ts").bulk_insert(path)
    writer(rows("b", 0)).delete(path)
    writer(rows("a", 3)).upsert(path)
    logs = sorted(tmp_path.glob(".*.log.*"), key=lambda log: log.name)
    bitmaps = "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAEAEAAAAAIAAwA=", "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAEAEAAAAAAAAQA="
    for log, bitmap in zip(logs, bitmaps, strict=True):
        with log.open("rb") as file:
            (block,) = scan_blocks(pa.PythonFile(file), log.name)
        assert block.headers[HeaderKey.RECORD_POSITIONS] == bitmap
        assert block.names_rows_of(made.instant)
    found = read_table(Table.open(path))
    assert ("".join(found["id"].to_pylist()), found["ts"].to_pylist()) == ("aaccdd", [3, 3, 2, 2, 2, 2])


def test_a_delete_that_would_take_the_first_row_only_is_refused(tmp_path: Path) -> None:
    """A block below it names no rows. Behind a compaction it takes both."""
    path = str(tmp_path)
    writer(rows("aabc", 2)).table("t", version=9).key("id").ordering("ts").bulk_insert(path)
    writer(rows("c", 3)).upsert(path)
    with pytest.raises(UnsupportedError, match="several rows of a key"):
        writer(rows("a", 0)).delete(path)
    assert keys_of(path) == "aabc"
    schedule(path, sole_writer=True)
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    writer(rows("a", 0)).delete(path)
    assert keys_of(path) == "bc"


@pytest.mark.parametrize(("version", "times"), [(6, [3, 3, 2, 3]), (9, [3, 2, 2, 3])])
def test_a_small_file_is_rewritten_as_by_hudi(version: int, times: list[int], tmp_path: Path) -> None:
    """0.15.0 changes every row there, 1.2.0 the first."""
    path = str(tmp_path)
    writer(rows("aab", 2)).table("t", version=version).key("id").ordering("ts").bulk_insert(path)
    writer(rows("az", 3)).upsert(path)
    assert not list(tmp_path.glob(".*.log.*"))
    assert read_table(Table.open(path))["ts"].to_pylist() == times


def test_the_bitmap_has_all_numbers() -> None:
    """In one container as numbers, in others as bits."""
    numbers = np.array([0, 5, *range(65_536, 75_536), 3 * 65_536 + 9])
    data = base64.b64decode(BaseRows(base="1", numbers=numbers).headers[HeaderKey.RECORD_POSITIONS])
    found: list[int] = []
    for at in range(struct.unpack_from("<I", data, 16)[0]):
        high, most = struct.unpack_from("<HH", data, 20 + 4 * at)
        (start,) = struct.unpack_from("<I", data, 20 + 4 * 3 + 4 * at)
        if most < 4096:
            low = np.frombuffer(data, "<u2", most + 1, 12 + start)
        else:
            bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, 12 + start), bitorder="little")
            low = np.flatnonzero(bits)
            assert len(low) == most + 1
        found += (low.astype(np.int64) + (high << 16)).tolist()
    assert found == numbers.tolist()
