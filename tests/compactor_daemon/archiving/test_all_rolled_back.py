"""All writes of the active timeline are rolled back, and the earlier ones are archived: these still count."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.recovery.rollback import roll_back
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import LOCK, archive, compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.dead_writer import kill_newest
from tests.support.tables import one_of
from tests.support.written_tables import Rows, read_rows

_COLUMNS = ["id", "day", "ts", "fare"]
_WRITES = WriteOptions(slots=1, small_file_bytes=0)


def rolled_back(path: Path, version: int) -> Rows:
    """The rows of the archived writes."""
    rows = long_table(path, version, 4, compact_at=None)
    for number in (4, 5):
        upsert(path, one_row("k9", number))
    assert len(archive(path).archived) == 4
    for _ in range(2):
        roll_back(open_table(path), kill_newest(open_table(path)), LOCK)
    assert not open_table(path).load_timeline().completed
    return rows


@one_of("version", 9, 8, 6)
def test_the_last_active_write_is_not_taken_back(version: int, tmp_path: Path) -> None:
    """Hudi 0.15.0 and 1.2.0 read no row then, and their next upsert doubles rows (seen)."""
    path = tmp_path / "trips"
    long_table(path, version, 6, compact_at=None)
    archive(path)
    for number in (2, 1):
        rows, newest = read_rows(path), max(open_table(path).load_timeline().completed_writes)
        if number == 2:
            roll_back_newest(open_table(path), LOCK, newest)
            continue
        for dry_run in (True, False):
            with pytest.raises(UsageError, match="no completed write would be left"):
                roll_back_newest(open_table(path), LOCK, newest, dry_run=dry_run)
        assert read_rows(path) == rows


def columns(path: Path) -> list[str]:
    return [name for name in read_table(open_table(path)).column_names if not name.startswith("_hoodie")]


@one_of("version", 6, 9, 8)
def test_the_archived_rows_are_read(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    assert rolled_back(path, version) == read_rows(path)
    assert columns(path) == _COLUMNS


@one_of("version", 9, 8, 6)
def test_a_delete_does_not_make_a_new_schema(version: int, tmp_path: Path) -> None:
    """Its rows have the key alone: the other columns of all rows would be gone, for ever with the next compaction."""
    path = tmp_path / "trips"
    rows = rolled_back(path, version)
    keys = pa.table({"id": ["k0"], "day": ["a"], "ts": [100]})
    write(open_table(path), LocalEngine(keys, slots=1), Write(operation=Operation.DELETE, options=_WRITES))
    compact(path)
    assert columns(path) == _COLUMNS
    assert read_rows(path) == {key: row for key, row in rows.items() if key != "k0"}


@one_of("version", 9, 6)
def test_an_older_schema_of_create_table_does_not_count(version: int, tmp_path: Path) -> None:
    """As SQL's CREATE TABLE leaves it in the settings. Rows were missing without a word."""
    path = tmp_path / "trips"
    rows = rolled_back(path, version)
    fields = ",".join(f'{{"name":"{name}","type":["null","string"]}}' for name in ("id", "day"))
    text = f'{{"type":"record","name":"trips","fields":[{fields}]}}'.replace(":", "\\:")
    with (path / ".hoodie/hoodie.properties").open("a") as file:
        file.write(f"hoodie.table.create.schema={text}\n")
    assert open_table(path).config.create_schema
    assert columns(path) == _COLUMNS
    assert read_rows(path) == rows
