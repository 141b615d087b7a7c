"""Tables with a long timeline, and what must hold of a table that is archived or was about to be."""

from __future__ import annotations

import io
import json
import os
import struct
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import ArchiveResult, archive_table
from phantombase.timeline.archiving.archive import archive_logs
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.log.block import HeaderKey
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.builders import blocks_of
from tests.support.compaction_steps import open_table, run_all
from tests.support.places import ROOT
from tests.support.tables import LOCK
from tests.support.written_tables import Rows, as_rows, read_rows, written_table

SMALL = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=20, compaction_commits=1)
"""Leaves two commits."""
_SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
_WRITES = WriteOptions(slots=1, small_file_bytes=0)


def one_row(key: str, number: int) -> pa.Table:
    """A batch that writes one key; `number` is its ordering value."""
    return pa.table([[key], ["a"], [number], [float(number)]], schema=_SCHEMA)


def upsert(path: Path, batch: pa.Table, options: WriteOptions = _WRITES) -> None:
    """One commit."""
    write(open_table(path), LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=options))


def overwrite(path: Path, batch: pa.Table, storage: Storage | None = None) -> None:
    """One commit: the batch replaces its partitions."""
    how = Write(operation=Operation.INSERT_OVERWRITE, options=_WRITES)
    write(open_table(path, storage), LocalEngine(batch, slots=1), how)


def upsert_at(url: str, version: int, batch: pa.Table) -> None:
    """One commit of a table at a URL, which it makes if it is not there."""
    writer(batch).table("trips", version=version).key("id").partition("day").ordering("ts").upsert(url)


def rows_at(url: str) -> Rows:
    """The snapshot of a table at a URL."""
    return as_rows(read_table(Table.open(url)))


def long_table(path: Path, version: int, commits: int = 5, *, compact_at: int | None = 2) -> Rows:
    """A table of that many delta commits and one compaction, executed by phantombase; its rows."""
    written_table(path, version, one_row("k0", 0), _WRITES)
    for number in range(1, commits):
        upsert(path, one_row(f"k{number % 2}", number))
        if number == compact_at:
            compact(path)
    return read_rows(path)


def compact(path: Path) -> None:
    """Requests a compaction and executes it."""
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    run_all(open_table(path))


def archive(path: Path, options: ArchiveOptions = SMALL, storage: Storage | None = None) -> ArchiveResult:
    """Archives, on the table at a path or on a storage of it."""
    return archive_table(open_table(path, storage), options, LOCK)


def completed(path: Path) -> set[tuple[str, str]]:
    """(requested time, action) of all completed instants, active or archived."""
    timeline = open_table(path).load_timeline(archived=True)
    both = (*timeline.archived, *(i for i in timeline.instants if i.completed))
    return {(i.requested_time, i.action) for i in both}


def active(path: Path) -> list[str]:
    """Requested times of the active instants."""
    return [i.requested_time for i in open_table(path).load_timeline().instants]


def check_each_once(path: Path) -> None:
    """No instant is in two places, and none has a file of an earlier state only."""
    timeline = open_table(path).load_timeline(archived=True)
    count = Counter(i.identity for i in (*timeline.archived, *timeline.instants))
    assert max(count.values()) == 1
    assert all(i.completed for i in timeline.instants)
    assert not list((path / ".hoodie/.phantombase/tmp").glob("*"))


def unzipped(name: str, into: Path) -> Path:
    """A table with the modification times that it had."""
    with ZipFile(ROOT / "tests/compactor_daemon/archiving/tables" / f"{name}.zip") as archived:
        archived.extractall(into)
        for member in archived.infolist():
            moment = datetime(*member.date_time, tzinfo=UTC).timestamp()
            os.utime(into / member.filename, (moment, moment))
    return next(path.parent for path in into.rglob(".hoodie") if path.parent.name != "metadata")


def archive_of(path: Path) -> list[dict[str, Any]]:
    """The rows of the history with its names, or the records of the archive logs: of completed commits with content."""
    table = open_table(path)
    folder = path / table.config.history_folder
    if table.layout.has_completion_times:
        files = sorted(folder.glob("*.parquet"))
        return [{"file": file.name} | row for file in files for row in pq.read_table(file).to_pylist()]
    found = []
    for _, name in archive_logs(table.storage, table.config):
        data = (folder / name).read_bytes()
        for block in blocks_of(data, name):
            content = data[block.content_offset : block.content_offset + block.content_bytes]
            schema = fastavro.parse_schema(json.loads(block.headers[HeaderKey.SCHEMA]))
            at = 8
            while at < len(content):
                end = at + 4 + struct.unpack(">i", content[at : at + 4])[0]
                record: Any = fastavro.schemaless_reader(io.BytesIO(content[at + 4 : end]), schema)
                at = end
                # Whole seconds: the ZIP file has no finer times. Hudi gives states without content empty metadata,
                # and all of them an empty statistic.
                record["stateTransitionTime"] = record["stateTransitionTime"][:12]
                if record["actionState"] == "REQUESTED" and record["actionType"] == "deltacommit":
                    record["hoodieCommitMetadata"] = None
                elif record["hoodieCommitMetadata"]:
                    record["hoodieCommitMetadata"]["extraMetadata"].pop("ROLLING_STAT", None)
                found.append(record)
    return found


FOLDER = ".hoodie/timeline/history"


def held() -> None:
    """The lock is held."""
