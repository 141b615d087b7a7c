"""Cleans of real Hudi and of phantombase on one table: what each removes, and that the other goes on."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase import OutputOptions, PartitionTtlOptions, compact, erase, partition_ttl, read, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cleaning.orphan_choice import OrphanOptions
from phantombase.compactor_daemon.cleaning.orphans import remove_orphans
from phantombase.compactor_daemon.cleaning.plan import CleanResult
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint
from phantombase.timeline.audit.audit import Verdict, audit
from phantombase.timeline.format.instant import State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.pins import HeldPin, PinOptions
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.hudi.judge.java_client import run_java
from tests.support.archived_tables import (
    ONE,
    SMALL_OF_HUDI,
    VERSIONS_OF_HUDI,
    data_files,
    old_table,
    one_row,
    overwrite,
    row,
    unzip,
    upsert,
)
from tests.support.archived_tables import clean as cleans_clean
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage, died_copies
from tests.support.faults import make_old
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.selection import deep
from tests.support.written_tables import read_rows, written_table

pytestmark = pytest.mark.interop
FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


def clean(table: SharedTable) -> CleanResult:
    return clean_table(table.open(), CleanOptions(retain=1, floor_s=0), ProcessLock("cleaning"))


def files(path: Path) -> set[str]:
    found = (p for p in path.rglob("*") if p.is_file() and ".hoodie" not in p.parts)
    return {str(p.relative_to(path)) for p in found if not p.name.endswith(".crc") and "partition_meta" not in p.name}


@pytest.mark.parametrize("version", [deep(6), deep(8), 9], indirect=True)
def test_hudi_goes_on_behind_a_clean(version: int, judge: Judge, tmp_path: Path) -> None:
    options = {**EVENT_TIME, **METADATA_TABLE}
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    rows = Rows(seed=11)
    table.create(rows(range(20), 1))
    for ts in (2, 3):
        table.upsert(rows(range(15), ts))
        table.we_compact(table.we_schedule())
    table.upsert(rows(range(5), 4))
    before = table.agree()
    done = clean(table)
    assert done.files > 0
    assert set(judge.listed_files(table.path)) == files(table.path)
    assert validate(table.open()).differences == ()
    assert table.agree().num_rows == before.num_rows
    table.upsert(rows(range(10, 30), 5))
    assert table.agree().num_rows == 30
    table.we_compact(table.we_schedule())
    table.upsert(rows(range(3), 6))
    judge.clean(table.path, options=METADATA_TABLE)
    assert clean(table).instant is None
    assert validate(table.open()).differences == ()
    assert table.agree().num_rows == 30


@pytest.mark.deep
@pytest.mark.parametrize("version", [6, 9], indirect=True)
def test_hudi_reads_the_same_rows_behind_the_removal_of_orphan_files(
    version: int, judge: Judge, tmp_path: Path
) -> None:
    """Hudi rolled a write back, and a task of its dead writer put its files again: archiving goes on without them."""
    options = EVENT_TIME
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    rows = Rows(seed=12)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(15), 2))
    before = files(table.path)
    table.upsert(rows(range(10, 40), 3))
    undone = table.open().load_timeline().latest_completed
    left = {file: (table.path / file).read_bytes() for file in files(table.path) - before if undone in file}
    assert left
    judge.rollback(table.path, undone)
    for ts in range(4, 10):
        table.upsert(rows(range(5), ts))
    assert not files(table.path) & left.keys()
    for file, data in left.items():
        (table.path / file).write_bytes(data)
    make_old({table.path / file for file in left}, 4 * 86_400)
    expected = table.agree()
    stopped = archive_table(table.open(), FEW, ProcessLock("cleaning"))
    assert f"instant {undone} is gone and has files" in stopped.why
    done = remove_orphans(table.open(), OrphanOptions(), ProcessLock("cleaning"))
    assert {one.path for one in done.orphans if one.kind in ("base file", "log file")} == left.keys()
    assert_same_rows(table.agree(), expected)
    assert archive_table(table.open(), FEW, ProcessLock("cleaning")).archived
    assert_same_rows(table.agree(), expected)


# Real Hudi behind a clean of phantombase, without Spark: the same slices, nothing to clean, and it finishes ours.


OPTIONS = ("hoodie.clean.policy=KEEP_LATEST_COMMITS", "hoodie.cleaner.policy=KEEP_LATEST_COMMITS",
           "hoodie.clean.commits.retained=1", "hoodie.cleaner.commits.retained=1")  # fmt: skip
WHOLE = ("hoodie.clean.incremental.enabled=false", "hoodie.cleaner.incremental.mode=false")


def slices(version: int, path: Path) -> list[str]:
    """In any order: Hudi's goes by its hash of a file id."""
    return sorted(run_java(HUDI[version], "slices", path, "a"))


@pytest.mark.parametrize("version", [6, deep(9)])
def test_hudi_finds_nothing_left(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, version)
    of_hudi = shutil.copytree(path, tmp_path / "hudi")
    before = slices(version, path)
    cleans_clean(path)
    run_java(HUDI[version], "clean", of_hudi, *OPTIONS, *WHOLE)
    assert data_files(path) == data_files(of_hudi)
    assert slices(version, path) == before
    assert "nothing" in run_java(HUDI[version], "clean", path, *OPTIONS, *WHOLE)[-1]
    upsert(path, one_row("k1", 200))
    assert read_rows(path)["k1"] == (200, 200.0)


@pytest.mark.deep
@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("policy", [Policy.COMMITS, Policy.VERSIONS])
@pytest.mark.parametrize("version", [6, 9])
def test_hudi_archives_no_replace_commit_whose_files_a_savepoint_keeps(
    version: int, policy: Policy, beyond: bool, tmp_path: Path
) -> None:
    """Their rows would be back. `beyond`: Hudi archives beyond savepoints; else the savepoint is deleted."""
    path, options = tmp_path / "t", WriteOptions(slots=1)
    written_table(path, version, row("old", "a", 0), options)
    for number in range(3):
        upsert(path, row(f"b{number}", "b", number), options)
    saved = open_table(path).load_timeline().latest_completed
    create_savepoint(open_table(path), LOCK, saved, user="", comment="")
    overwrite(path, row("new", "a", 1))
    for number in range(3):
        upsert(path, row(f"b{number}", "b", number + 10), options)
    assert cleans_clean(path, policy).files
    if not beyond:
        delete_savepoint(open_table(path), LOCK, saved)
    for number in range(8):
        upsert(path, row(f"b{number % 2}", "b", number + 100))
    run_java(HUDI[version], "archive", path, *SMALL_OF_HUDI, f"hoodie.archive.beyond.savepoint={beyond}".lower())
    assert set(read_rows(path)) == {"b0", "b1", "b2", "new"}


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_a_cutoff_of_hudis_is_not_carried_past_a_pending_write(version: int, tmp_path: Path) -> None:
    """Hudi's clean by file versions sets its own time, which may be later than a replace commit that pends."""
    path, options = tmp_path / "t", WriteOptions(slots=1)
    written_table(path, version, row("old", "a", 0), options)
    for number in range(6):
        upsert(path, row(f"b{number}", "b", number), options)

    def hook(call: Call) -> Any:
        name = open_table(path).layout.parse(call.path.rpartition("/")[2]) if call.name == "put_if_absent" else None
        if name is not None and name.action == "replacecommit" and name.state is State.COMPLETED:
            run_java(HUDI[version], "clean", path, *VERSIONS_OF_HUDI)
            assert cleans_clean(path).files
        return call.do()

    overwrite(path, row("new", "a", 1), HookedStorage(open_table(path).storage, hook))
    for number in range(8):
        upsert(path, row(f"b{number % 2}", "b", number + 100))
    run_java(HUDI[version], "archive", path, *SMALL_OF_HUDI)
    assert "old" not in read_rows(path)


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_hudi_finishes_a_clean_of_a_dead_process(version: int, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    rows = old_table(origin, version)
    ended = shutil.copytree(origin, tmp_path / "ended")
    cleans_clean(ended)
    for _, path in died_copies(origin, lambda s: clean_table(Table.on(s), ONE, LOCK), 5):
        run_java(HUDI[version], "clean", path, *OPTIONS, *WHOLE)
        assert not open_table(path).load_timeline().pending("clean")
        assert data_files(path) == data_files(ended)
        assert read_rows(path) == rows


@pytest.mark.deep
def test_hudi_archives_no_replace_commit_whose_files_a_pin_keeps(tmp_path: Path) -> None:
    """It goes by the cutoff that a clean of file versions names; without one the replaced rows were back."""
    path = unzip("v6_0.15.0_replaced.before", tmp_path)
    rows = read_table(open_table(path))
    commits = open_table(path).load_timeline().completed
    second = max(i.requested_time for i in commits if i.action == "replacecommit")
    moment = max(i.requested_time for i in commits if i.requested_time < second)
    HeldPin(LocalStorage(str(path)), PinOptions(name="reader", for_s=600), moment)
    assert cleans_clean(path, Policy.VERSIONS).files > 0
    south = rows.filter(pc.equal(rows["_hoodie_partition_path"], "south"))
    for _ in range(6):
        upsert(path, south.select([name for name in rows.column_names if not name.startswith("_hoodie")]))
    run_java("0.15.0", "archive", path, "hoodie.keep.min.commits=2", "hoodie.keep.max.commits=3", *OPTIONS)
    assert len(open_table(path).load_timeline().completed) < len(commits) + 6
    assert read_table(open_table(path)).num_rows == rows.num_rows


@pytest.mark.parametrize("version", [deep(6), deep(8), 9], indirect=True)
def test_hudi_goes_on_behind_an_erasure(version: int, judge: Judge, tmp_path: Path) -> None:
    """It reads all other rows, by its metadata table too, and may write an erased key again."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options={**EVENT_TIME, **METADATA_TABLE})
    rows = Rows(seed=12)
    first = rows(range(20), 1)
    table.create(first)
    table.upsert(rows(range(15), 2))
    table.we_compact(table.we_schedule())
    table.upsert(rows(range(5), 3))
    before = table.agree()
    gone = first.slice(0, 3).select(["id"])
    done = erase(str(table.path), gone, sole_writer=True)
    assert done.left == ()
    assert done.rows == 3
    after = table.agree()
    assert_same_rows(after, before.filter(pc.invert(pc.is_in(before["id"], gone["id"].combine_chunks()))))
    assert not validate(table.open()).differences
    table.upsert(rows(range(8), 4))
    assert table.agree().num_rows == before.num_rows


# Partitions past their time.


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)
def test_partitions_past_their_time(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi deletes the same ones, but for one that has younger log files: its rows stay here. Hudi reads the rest."""
    path = unzip_golden(f"v{version}_plain", tmp_path)
    old = judge.read(path)
    columns = [name for name in old.schema.names if not name.startswith("_hoodie_")]
    row = old.select(columns).slice(0, 1).to_pylist()[0]
    new = pa.Table.from_pylist([{**row, "p": "west", "id": "west-x"}], old.select(columns).schema)
    theirs = Path(shutil.copytree(path, tmp_path / "theirs"))
    writer(new).upsert(str(path))
    done = partition_ttl(str(path), PartitionTtlOptions(days_retain=1), sole_writer=True)
    assert set(done.partitions) == {"north", "south"}
    assert judge.read(path)["id"].to_pylist() == read(str(path)).to_arrow()["id"].to_pylist() == ["west-x"]
    judge.upsert(path, new)
    assert judge.count(path) == 1
    if version == 6:
        return
    judge.upsert(theirs, new)
    judge.expire(theirs, days=1)
    assert judge.read(theirs)["id"].to_pylist() == ["west-x"]
    kept, gone = unzip_golden("v9_plain", tmp_path / "kept"), unzip_golden("v9_plain", tmp_path / "gone")
    again = pa.Table.from_pylist([row], old.select(columns).schema)
    writer(again).upsert(str(kept))
    partition_ttl(str(kept), PartitionTtlOptions(days_retain=1), sole_writer=True)
    assert set(judge.read(kept)["p"].to_pylist()) == {row["p"]}
    judge.upsert(gone, again)
    judge.expire(gone, days=1)
    assert judge.count(gone) == 0, "Hudi looks at base files only"


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)
def test_rows_past_their_time(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi plans; what the compaction leaves out Hudi does not read, inserts again by an old update, and compacts."""
    now = datetime.now(UTC)

    def some(**ages: int) -> pa.Table:
        made = [
            {"id": key, "p": "x", "ts": 1, "day": (now - timedelta(days=d)).date(), "seen": now - timedelta(days=d)}
            for key, d in ages.items()
        ]
        kinds = [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("day", pa.date32())]
        return pa.Table.from_pylist(made, pa.schema([*kinds, ("seen", pa.timestamp("us", "UTC"))]))

    def keys() -> list[str]:
        found = judge.read(path)
        assert sorted(found["id"].to_pylist()) == sorted(read(str(path)).to_arrow()["id"].to_pylist())
        return sorted(found["id"].to_pylist())

    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 2}
    for column in ("day", "seen"):
        path = tmp_path / column
        judge.create(path, "t", some(a=1, b=100, c=100, d=1), version=version, partition_field="p", options=buckets)
        judge.upsert(path, some(c=1, d=100, e=100, f=1))
        assert judge.schedule_compaction(path) is not None
        judge.upsert(path, some(g=100))
        (done,) = compact(str(path), output=OutputOptions(record_ttl=f"{column}=30d")).done
        assert done.rows == 3
        assert keys() == ["a", "c", "f", "g"]
        judge.upsert(path, some(b=100, c=2))
        assert keys() == ["a", "b", "c", "f", "g"]
        judge.schedule_compaction(path)
        judge.run_compaction(path)
        assert keys() == ["a", "b", "c", "f", "g"]
        assert [one.verdict for one in audit(Table.open(str(path)), done.instant).groups] == [Verdict.PROVED] * 2
