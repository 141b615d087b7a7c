"""Tables with a long timeline, old slices or small files: for archiving, cleans, restores and clusterings."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import ArchiveResult, archive_table
from phantombase.compactor_daemon.archiving.archived_files import archive_logs
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cleaning.plan import CleanResult
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Copy
from phantombase.compactor_daemon.clustering.result import ClusterResult
from phantombase.compactor_daemon.undo.restore import Restored, restore_table
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.instant import later
from phantombase.timeline.format.log_block import HeaderKey
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import CLUSTERINGS, HOODIE
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import is_replaced
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.builders import blocks_of
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.places import ROOT
from tests.support.written_tables import Rows, as_rows, read_rows, written_table

SMALL = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=20, compaction_commits=1)
"""Leaves two commits."""
_SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
_WRITES = WriteOptions(slots=1, small_file_bytes=0, clustering_wait_s=0)


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


def rename(path: Path, number: int, new: str) -> str:
    """Gives a delta commit another time, in names and contents. The answer: that time."""
    names = sorted(f.name.partition(".")[0] for f in path.rglob("*.deltacommit"))
    pairs = list(zip(names[number].split("_"), (new, f"{new[:-3]}900"), strict=False))
    for file in [f for f in path.rglob("*") if f.is_file()]:
        data, name = file.read_bytes(), file.name
        for old, now in pairs:
            data, name = data.replace(old.encode(), now.encode()), name.replace(old, now)
        if data != file.read_bytes():
            stamp = file.stat().st_mtime
            file.write_bytes(data)
            os.utime(file, (stamp, stamp))
        file.rename(file.with_name(name))
    return new


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


# Tables for cleans: what real Hudi's cleaner left, and tables of ours with old file slices.


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
    time = table.snapshot().next_time()
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
# Tables with small files, for clusterings.


TWO = ClusterOptions(min_files=2, wait_s=0)
COPIED = replace(TWO, copy=Copy.FORCE)
OUTPUT = OutputOptions(memory_limit=32 << 20)


def small_files(path: Path, version: int, files: int = 4) -> Rows:
    """As many file groups, each a base file of one row; the rows."""
    written_table(path, version, one_row("k0", 0), WRITES)
    for number in range(1, files):
        upsert(path, one_row(f"k{number}", number))
    return read_rows(path)


def cluster(path: Path, storage: Storage | None = None, options: ClusterOptions = TWO) -> ClusterResult:
    return cluster_table(open_table(path, storage), options, LOCK, output=OUTPUT)


def golden_small_files(name: str, tmp_path: Path) -> Path:
    """A compacted golden table, and three writes of its rows under new keys."""
    path = unzip_golden(name, tmp_path)
    batch = read_table(open_table(path))
    batch = batch.select([column for column in batch.column_names if not column.startswith("_hoodie")])
    compact(path)
    for number in range(3):
        keys = pc.binary_join_element_wise(batch["id"], str(number), "-")
        upsert(path, batch.set_column(0, "id", keys))
    return path


def living(path: Path) -> list[str]:
    """File ids that are not replaced."""
    view = open_table(path).load_view()
    return [g.file_id for g in view.groups if g.slices and not is_replaced(g, view.facts)]


def of_attempt(path: str) -> bool:
    """Whether a path is below the records and staged files of an instant's attempts."""
    return re.search(r"\.phantombase/\d", path) is not None


def of_clustering(path: str) -> bool:
    """Whether a path is of staged files of a clustering: of an attempt, or before its plan."""
    return of_attempt(path) or path.startswith(f"{CLUSTERINGS}/")


def opens_attempt(call: Call) -> bool:
    """Whether an attempt begins: its plan is visible."""
    return call.name == "put_if_absent" and of_attempt(call.path) and call.path.endswith("/open")


def request(path: Path, *, alive: bool = True, options: ClusterOptions = TWO) -> str:
    """Leaves a requested clustering, of a process that died behind the request, or seems to live; its instant."""

    dead: list[str] = []

    def hook(call: Call) -> object:
        if dead or opens_attempt(call):
            dead.append(call.path)
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook), options)
    if not alive:
        forget_heartbeats(path)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    return pending.time


def forget_heartbeats(path: Path) -> None:
    """A process that died in this test is this process, which is alive."""
    shutil.rmtree(path / ".hoodie" / ".heartbeat", ignore_errors=True)
    for alive in (path / CLUSTERINGS).glob("*/alive"):
        alive.unlink()


def hidden(path: Path, do: Callable[[], object]) -> None:
    """Does something that does not see the pending clustering, as a writer that loaded its plans before."""
    (pending,) = pending_clusterings(open_table(path).snapshot())
    aside = {p: p.read_bytes() for p in (path / ".hoodie").rglob(f"{pending.time}.*") if p.is_file()}
    for p in aside:
        p.unlink()
    do()
    for p, data in aside.items():
        p.write_bytes(data)


def begin(path: Path, action: str) -> None:
    """Begins a write, as one that does not ask for clusterings."""
    table = open_table(path)
    began = table.snapshot().next_time()
    for state in ("requested", "inflight"):
        (path / table.config.timeline_folder / f"{began}.{action}.{state}").write_bytes(b"")


def clustered(path: Path) -> str:
    done = cluster(path).done
    assert done is not None
    return done.instant


Do = Callable[[], object]


def around_the_commit(path: Path, before: Do, after: Do = lambda: None) -> Storage:
    """A storage of a clustering beside whose put of the completed file something is done."""

    def hook(call: Call) -> object:
        completes = call.name == "put_if_absent" and call.path.endswith(".replacecommit")
        if not completes:
            return call.do()
        hidden(path, before)
        done = call.do()
        after()
        return done

    return HookedStorage(open_table(path).storage, hook)


def built_upon(path: Path, before: Do, after: Do) -> str:
    """A clustering beside whose commit this is done, so that the commit stays; its error."""
    with pytest.raises(ConflictError, match="so the commit stays") as caught:
        cluster(path, around_the_commit(path, before, after))
    return str(caught.value)


def behind_archived(path: Path, version: int, between: bool) -> tuple[Rows, str]:
    """A table whose last write, of a new row, has a time before archived writes: its writer's clock was slow. Its rows,
    and that time. `between`: other archived writes are earlier."""
    long_table(path, version, 4, compact_at=1)
    compact(path)
    for number in (4, 5, 6):
        upsert(path, row("k9", "b", number))
    archive(path)
    gone = sorted(i.requested_time for i in open_table(path).load_timeline(archived=True).archived if i.is_write)
    upsert(path, row("slow", "c", 7))
    rows = read_rows(path)
    return rows, rename(path, -1, later(gone[len(gone) // 2], 1) if between else later(gone[0], -5))
