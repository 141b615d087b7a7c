"""Tables with writes, compactions and cleans, to be restored."""

from __future__ import annotations

from pathlib import Path

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.restoring.restore import Restored, restore_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import archive, compact, one_row, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.tables import LOCK
from tests.support.written_tables import Rows, read_rows

WRITES = WriteOptions(slots=1, small_file_bytes=0)
REWRITES = WriteOptions(slots=1)
"""Small base files are written anew."""
CLEAN = CleanOptions(retain=1, floor_s=0)


def restore(path: Path, target: str | None, storage: Storage | None = None, *, dry_run: bool = False) -> Restored:
    return restore_table(open_table(path, storage), LOCK, target, dry_run=dry_run)


def check_usable(path: Path, rows: Rows) -> None:
    """The rows are those, also behind a write, a compaction, a clean and the archiver."""
    assert read_rows(path) == rows
    upsert(path, one_row("new", 99))
    expected = rows | {"new": (99, 99.0)}
    assert read_rows(path) == expected
    compact(path)
    run_all(open_table(path))
    assert read_rows(path) == expected
    clean_table(open_table(path), CLEAN, LOCK)
    for number in (100, 101, 102):
        upsert(path, one_row("new", number))
    archive(path)
    assert read_rows(path) == rows | {"new": (102, 102.0)}


def capture_changes(path: Path) -> None:
    """The setting of the table."""
    with (path / HOODIE / "hoodie.properties").open("a") as file:
        file.write("hoodie.table.cdc.enabled=true\n")
