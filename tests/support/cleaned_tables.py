"""Tables for cleans: what real Hudi's cleaner left, and tables of ours with old file slices."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cleaning.would_clean import CleanResult
from phantombase.compactor_daemon.restoring.restore import Restored, restore_table
from phantombase.timeline.cleaning.options import CleanOptions, Policy
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import archive, compact, one_row, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.places import ROOT
from tests.support.tables import LOCK
from tests.support.written_tables import Rows, read_rows, written_table

TABLES = ROOT / "tests/compactor_daemon/cleaning/tables"


def unzip(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(TABLES / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    [path] = (folder / name).iterdir()
    return path


def data_files(path: Path) -> set[str]:
    return {
        str(p.relative_to(path))
        for p in path.rglob("*")
        if p.is_file()
        and ".hoodie" not in p.parts
        and not p.name.endswith(".crc")
        and "partition_metadata" not in p.name
    }


def clean(path: Path, policy: Policy = Policy.COMMITS, retain: int = 1, **more: int) -> CleanResult:
    options = CleanOptions(policy=policy, retain=retain, floor_s=0, **more)
    return clean_table(open_table(path), options, LOCK)


ONE = CleanOptions(retain=1, floor_s=0)
WRITES = WriteOptions(slots=1, small_file_bytes=0)


def old_table(path: Path, version: int, rounds: int = 3) -> Rows:
    """Some slices of one file group, each of a base file and a log; its rows."""
    written_table(path, version, one_row("k0", 0), WRITES)
    for number in range(1, rounds + 1):
        upsert(path, one_row(f"k{number % 2}", number))
        compact(path)
    upsert(path, one_row("k0", 99))
    return read_rows(path)


def row(key: str, day: str, number: int) -> pa.Table:
    return one_row(key, number).set_column(1, "day", pa.array([day]))


def change_clean(path: Path, **values: Any) -> None:
    """Rewrites the last clean of a table with other values in its metadata."""
    file = sorted((path / ".hoodie").rglob("*.clean"))[-1]
    reader: Any = fastavro.reader(io.BytesIO(file.read_bytes()))
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, [{**next(reader), **values}])
    file.write_bytes(out.getvalue())


def unreadable_plan(path: Path, content: bytes, age_s: float) -> Path:
    """The plan of a process of Hudi that was killed while it wrote it."""
    table = open_table(path)
    time = table.next_time(table.load_timeline())
    file = path / table.config.timeline_folder / f"{time}.clean.requested"
    file.write_bytes(content)
    os.utime(file, (file.stat().st_mtime - age_s,) * 2)
    return file


# Tables with writes, compactions and cleans, to be restored.


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


SMALL_OF_HUDI = ("hoodie.keep.min.commits=2", "hoodie.keep.max.commits=3", "hoodie.cleaner.commits.retained=1",
                 "hoodie.clean.commits.retained=1", "hoodie.compact.inline.max.delta.commits=1")  # fmt: skip
VERSIONS_OF_HUDI = ("hoodie.cleaner.policy=KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.policy=KEEP_LATEST_FILE_VERSIONS",
                    "hoodie.cleaner.fileversions.retained=3", "hoodie.clean.fileversions.retained=3",
                    "hoodie.cleaner.policy.failed.writes=LAZY", "hoodie.clean.failed.writes.policy=LAZY")  # fmt: skip
