"""Keyless tables: each row gets a key of its own, once; what needs key columns is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine, LocalPieces
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table
from tests.support.faults import Faults
from tests.support.interleaving import serial_pools
from tests.support.tables import one_of
from tests.support.trips import rows
from tests.support.written_tables import check_nothing_left, impatient

BATCH = rows((0, 2, 2.0), (1, 2, 2.0), (1, 2, 2.0), (4, 2, 2.0))


def events(table: pa.Table, version: int = 9) -> Writer:
    """A write of a keyless table with partitions."""
    return writer(table).table("events", version=version).key().partition("day")


def held(path: Path) -> dict[str, tuple[str, float]]:
    """Key to number and fare; a key twice is an error, and so is one that does not begin with the row's commit."""
    table = read_table(Table.open(str(path)))
    keys, times = (table.column(f"_hoodie_{name}").to_pylist() for name in ("record_key", "commit_time"))
    assert len(set(keys)) == len(keys), "two rows have one key"
    assert all(key.startswith(f"{time}_") for key, time in zip(keys, times, strict=True))
    return dict(
        zip(keys, zip(table.column("id").to_pylist(), table.column("fare").to_pylist(), strict=True), strict=True)
    )


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_rows_get_keys_and_keep_them(version: int, operation: str, tmp_path: Path) -> None:
    """Equal rows are different rows; rows of a small file that is written anew keep their keys."""
    path = str(tmp_path / "events")
    seen = dict[str, tuple[str, float]]()
    for fare in (1.0, 2.0, 3.0):
        batch = rows(*((n, 1, fare) for n in (*range(200), 7, 7, 8)))
        done = getattr(events(batch, version).option(slots=3, batch_bytes=2000), operation)(path)
        assert done.inserts == batch.num_rows
        now = held(tmp_path / "events")
        assert seen.items() <= now.items()
        added = sorted(row for key, row in now.items() if key not in seen)
        assert added == sorted(zip(batch.column("id").to_pylist(), batch.column("fare").to_pylist(), strict=True))
        seen = now


@one_of("version", 6, 9, 8)
def test_partitions_are_replaced(version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    events(rows((0, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0)), version).insert(path)
    events(rows((0, 1, 2.0), (0, 1, 2.0)), version).insert_overwrite(path)
    assert sorted(held(tmp_path / "events").values()) == [
        ("k0000", 2.0), ("k0000", 2.0), ("k0001", 1.0), ("k0002", 1.0),
    ]  # fmt: skip
    events(rows(), version).delete_partition(path, ["mon", "tue"])
    assert list(held(tmp_path / "events").values()) == [("k0002", 1.0)]
    events(rows((3, 1, 3.0)), version).insert_overwrite_table(path)
    assert list(held(tmp_path / "events").values()) == [("k0003", 3.0)]


def test_a_table_without_partitions(tmp_path: Path) -> None:
    """The description of a new table says that it has no keys; without it that is not assumed."""
    path = str(tmp_path / "events")
    described = writer(BATCH).table("events").key()
    for _ in range(2):
        described.insert(path)
    assert len(held(tmp_path / "events")) == 2 * BATCH.num_rows
    assert Table.open(path).config.is_keyless
    assert "hoodie.table.recordkey.fields" not in Table.open(path).config.properties


@pytest.mark.parametrize(
    ("write_it", "what"),
    [
        (lambda asked, path: asked.upsert(path), "upsert needs key columns"),
        (lambda asked, path: asked.delete(path), "delete needs key columns"),
        (lambda asked, path: asked.merge_into(path, update=["fare"]), "merge_into needs key columns"),
        (lambda asked, path: asked.delete_partition(path), "delete_partition by the partitions of rows"),
        (lambda asked, path: asked.buckets(2).insert(path), "bucket index"),
        (lambda asked, path: asked.option(combine=True).insert(path), "combine"),
    ],
    ids=["upsert", "delete", "merge_into", "delete_partition", "buckets", "combine"],
)
def test_what_needs_key_columns_is_refused(write_it: Callable[[Writer, str], Any], what: str, tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    events(BATCH).insert(path)
    before = held(tmp_path / "events")
    with pytest.raises(UnsupportedError, match=what):
        write_it(writer(BATCH), path)
    assert held(tmp_path / "events") == before


@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_tasks_that_run_twice_give_each_row_one_key(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a retried or speculative task of Spark does: the files of one try count."""
    regroup = LocalPieces.regroup

    def twice(pieces: LocalPieces, step: Any) -> Any:
        regroup(pieces, step)
        return regroup(pieces, step)

    path = tmp_path / "events"
    events(BATCH).insert(str(path))
    monkeypatch.setattr(LocalPieces, "regroup", twice)
    getattr(events(BATCH), operation)(str(path))
    assert len(held(path)) == 2 * BATCH.num_rows


@one_of("version", 9, 6)
def test_a_death_at_every_storage_call(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are all there or none, and the next write adds its own: no row is doubled, none changes its key."""
    serial_pools(monkeypatch)
    origin, died = tmp_path / "origin", 0
    events(BATCH, version).option(slots=1).insert(str(origin))
    before = held(origin)
    what = Write(operation=Operation.INSERT, options=impatient(WriteOptions(slots=1, lazy_rollback=False)))

    def insert(storage: Storage) -> None:
        write(open_table(Path(storage.base_path), storage), LocalEngine(BATCH, slots=1), what)

    for _, path in Faults.of(origin, insert).deaths():
        seen = held(path)
        assert before.items() <= seen.items()
        assert len(seen) in (len(before), len(before) + BATCH.num_rows)
        insert(LocalStorage(str(path)))
        after = held(path)
        assert seen.items() <= after.items()
        assert len(after) == len(seen) + BATCH.num_rows
        check_nothing_left(path)
        died += 1
    assert died > 8
