"""Tables with Hudi's metadata table, its default: whoever writes, readers with and without it see the same rows.

`PHANTOMBASE_METADATA_HISTORIES=20` and `PHANTOMBASE_METADATA_STEPS=12` tell more and longer random histories,
`-k "v6 and seed7"` one of them again."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.dashboard.overview import commits_to_compact
from phantombase.timeline.metadata_table.create import make_metadata_table
from phantombase.timeline.metadata_table.read import MetadataListing, read_entries, read_files
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table, open_metadata_table
from phantombase.timeline.view.view import latest_base
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.hudi.cases.indexed_table import ALL_INDEXES, SKIPPING, IndexedTable
from tests.hudi.cases.random_history import History, tell
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable, check_rows, hudi_rs_reads
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.compaction_steps import open_table, run_one
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import kill_newest
from tests.support.metadata_tables import AT_ONCE, serve, spec
from tests.support.selection import ALL, deep, versions
from tests.support.written_tables import impatient

pytestmark = pytest.mark.interop
SEEDS = range(int(os.environ.get("PHANTOMBASE_METADATA_HISTORIES", "1")))
STEPS = int(os.environ.get("PHANTOMBASE_METADATA_STEPS", "5" if ALL else "3"))


@versions(9, deep=[8, 6])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_all_readers_agree_after_every_step(judge: Judge, version: int, seed: int, tmp_path: Path) -> None:
    """Random histories: rows, listing and skipping queries; indexes as Hudi has them by default, or all we keep."""
    indexes = random.Random(seed).choice((METADATA_TABLE, ALL_INDEXES))
    merges = version > 6 and seed % 2 == 1
    tell(History(judge, version, seed, tmp_path / "table", merges=merges, indexes=indexes), seed, STEPS)


# --- data skipping -------------------------------------------------------------------------------------------------


def numbered(first: int, ts: int) -> pa.Table:
    """Nine rows, three a partition, whose numbers lie close together."""
    names = ("north", "south", "west")
    return pa.table(
        {
            "id": [f"{first + n:05d}" for n in range(9)],
            "p": [names[n // 3] for n in range(9)],
            "ts": pa.array([ts] * 9, pa.int64()),
            "number": pa.array([first * 1000 + n for n in range(9)], pa.int32()),
        }
    )


def opened(table: IndexedTable, where: str) -> int:
    """File slices Hudi opens for a condition that a row fulfils. Hudi 0.15 tells how many only where it reads base
    files alone."""
    table.check_skipping([where])
    query = {"hoodie.datasource.query.type": "read_optimized" if table.version == 6 else "snapshot"}
    found = table.judge.select(table.path, ["id"], where=where, options={**SKIPPING, **query})
    assert found.rows
    return found.files


@pytest.mark.deep
@versions(9, deep=[8, 6])
def test_queries_skip_files_of_ours_as_those_of_hudi(judge: Judge, version: int, tmp_path: Path) -> None:
    """One file slice of three holds a number: before and after our upsert, our compaction, our insert."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    table.create(numbered(0, 1))
    everything = "number is not null"
    assert (opened(table, everything), opened(table, "number = 4")) == (3, 1)

    table.writer(numbered(0, 2).set_column(3, "number", pa.array(range(900, 909), pa.int32()))).upsert(str(table.path))
    if version > 6:
        assert opened(table, everything) == 3
        assert opened(table, "number = 904") == 1, "log files of ours have no ranges"
    table.we_schedule()
    table.we_compact()
    assert opened(table, everything) == 3
    assert opened(table, "number = 904") == 1, "base files of our compaction have no ranges"
    table.writer(numbered(5, 3), small_file_bytes=0).insert(str(table.path))
    assert opened(table, everything) == 6
    assert opened(table, "number between 5003 and 5005") == 1, "base files of our insert have no ranges"
    table.agree()

    table.upsert(numbered(5, 4))
    table.hudi_schedules()
    table.hudi_compacts()
    assert opened(table, "number = 904") == 1
    table.agree()


@pytest.mark.deep
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_a_column_that_becomes_wider(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi cannot merge bounds of an int with those of a long; without ours it builds them anew, and goes on."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=METADATA_TABLE)
    table.create(numbered(0, 1))
    wide = numbered(0, 2)
    wide = wide.set_column(3, "number", wide["number"].cast(pa.int64()))
    table.writer(wide).upsert(str(table.path))
    assert opened(table, "number = 4") >= 1
    for ts in (3, 4):
        later = wide.set_column(2, "ts", pa.array([ts] * 9, pa.int64()))
        table.upsert(later)
        table.writer(later).upsert(str(table.path))
        table.check_skipping(["number > 4", "number is null"])
    table.agree()


# --- what a crash between the two timelines leaves -----------------------------------------------------------------

ROWS = Rows(seed=11)
BATCH, NEXT = ROWS(range(10, 60, 3), 5), ROWS(range(0, 60, 5), 9)


@dataclass(frozen=True)
class Death:
    """The first storage call that is not made any more: of a file with that ending, of the metadata table or not."""

    ending: str
    of_metadata: bool

    def __call__(self, call: Call) -> Any:
        of_metadata = call.path.startswith(METADATA_FOLDER)
        if call.name == "put_if_absent" and call.path.endswith(self.ending) and of_metadata is self.of_metadata:
            raise ProcessDied(call.path)
        return call.do()


TELLING = Death(".deltacommit", of_metadata=True)
TOLD = Death(".deltacommit", of_metadata=False)
COMPACTION_TOLD = Death(".commit", of_metadata=False)


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> IndexedTable:
    """A table of Hudi's with the metadata table, logs on its base files, and a compaction that pends."""
    made = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=METADATA_TABLE)
    made.create(ROWS(range(40), 1))
    made.upsert(ROWS(range(0, 40, 2), 2))
    return made


def die_writing(table: IndexedTable, death: Death) -> None:
    """An upsert of ours that dies."""
    with pytest.raises(ProcessDied):
        we_write(table, BATCH, HookedStorage(LocalStorage(str(table.path)), death))
    same(table.judge.read(table.path, options=SKIPPING), table.hudi_reads())


def we_write(table: IndexedTable, rows: pa.Table, storage: Storage | None = None) -> None:
    """An upsert of ours, which takes every other writer for dead: all of this process are one process."""
    options = impatient(WriteOptions(slots=1, lazy_rollback=False))
    write(
        open_table(table.path, storage), LocalEngine(rows, slots=1), Write(operation=Operation.UPSERT, options=options)
    )


def die_compacting(table: IndexedTable) -> str:
    """A compaction of ours that dies after it has told the metadata table; its instant."""
    instant = table.we_schedule()
    with pytest.raises(ProcessDied):
        run_one(open_table(table.path, HookedStorage(LocalStorage(str(table.path)), COMPACTION_TOLD)), instant)
    same(table.judge.read(table.path, options=SKIPPING), table.hudi_reads())
    return instant


def check_went_on(table: IndexedTable, before: pa.Table) -> None:
    """`NEXT` was written since; nothing of the dead write is there, and nothing else is gone."""
    after = table.agree()
    check_rows(after, NEXT)
    assert set(after["id"].to_pylist()) == set(before["id"].to_pylist()) | set(NEXT["id"].to_pylist())
    assert not [i for i in table.open().load_timeline().inflight_writers if i.action == "deltacommit"]


def hudi_goes_on_where_we_died_telling(table: IndexedTable, before: pa.Table) -> None:
    die_writing(table, TELLING)
    table.upsert(NEXT)
    table.upsert(NEXT)
    check_went_on(table, before)


def hudi_goes_on_where_we_had_told(table: IndexedTable, before: pa.Table) -> None:
    die_writing(table, TOLD)
    table.upsert(NEXT)
    table.upsert(NEXT)  # until then Hudi 0.15 hides what its own writer wrote behind its rollback
    check_went_on(table, before)


def we_go_on_where_we_had_told(table: IndexedTable, before: pa.Table) -> None:
    die_writing(table, TOLD)
    we_write(table, NEXT)
    check_went_on(table, before)


def we_go_on_where_hudi_had_told(table: IndexedTable, before: pa.Table) -> None:
    table.upsert(BATCH)
    kill_newest(table.open())
    same(table.judge.read(table.path, options=SKIPPING), table.hudi_reads())
    we_write(table, NEXT)
    check_went_on(table, before)


def hudi_compacts_where_we_had_told(table: IndexedTable, before: pa.Table) -> None:
    table.hudi_compacts(die_compacting(table))
    assert table.we_compact() == []  # takes away what the dead attempt had placed, which Hudi leaves
    same(table.agree(), before)


def we_compact_where_we_had_told(table: IndexedTable, before: pa.Table) -> None:
    instant = die_compacting(table)
    assert table.we_compact(instant) == [instant]
    same(table.agree(), before)


USUAL = (hudi_goes_on_where_we_had_told, we_go_on_where_hudi_had_told, hudi_compacts_where_we_had_told)
"""One of each: Hudi and phantombase go on where the other one died, a write and a compaction of phantombase."""
DEATHS = (*USUAL, hudi_goes_on_where_we_died_telling, we_go_on_where_we_had_told, we_compact_where_we_had_told)


@versions(9, deep=(6,))
def test_a_death_between_the_two_timelines(table: IndexedTable) -> None:
    """Whoever goes on: nothing is lost, and nothing is invisible with the metadata table."""
    before = table.agree()
    for case in DEATHS if ALL else USUAL:
        copied = table.copy()
        try:
            case(copied, before)
        except BaseException as error:
            error.add_note(case.__name__)
            raise
        shutil.rmtree(copied.path)


# Real Hudi on tables whose metadata table we made: it reads, lists and skips by it, and goes on with it.


METADATA_CREATED_ROWS = Rows(seed=37)


@versions(9, deep=[8, 6])
def test_hudi_goes_on_with_it(judge: Judge, version: int, tmp_path: Path) -> None:
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=METADATA_TABLE)
    table.creator(METADATA_CREATED_ROWS(range(40), 1)).table("shared", metadata_table=True).upsert(str(table.path))
    assert table.open().config.built_metadata_partitions == ("files",)
    table.agree()
    if version > 6:
        assert_same_rows(hudi_rs_reads(table.path), table.we_read())
    table.upsert(METADATA_CREATED_ROWS(range(20, 50), 2))
    table.agree()
    for step in range(3):
        table.writer(METADATA_CREATED_ROWS(range(0, 60, 2), 10 + step)).upsert(str(table.path))
    assert serve(table.open(), AT_ONCE).compactions
    table.agree()
    last = METADATA_CREATED_ROWS(range(10, 70), 100)
    table.upsert(last)
    check_rows(table.agree(), last)
    assert validate(table.open()).differences == ()


@pytest.mark.parametrize("version", [deep(6), deep(8), deep(9)])
def test_hudi_builds_it_anew_where_its_maker_died(judge: Judge, version: int, tmp_path: Path) -> None:
    """Another process of ours then made the table without it; Hudi's writer finds the remains."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=METADATA_TABLE)
    make_metadata_table(LocalStorage(str(table.path)), spec(version).config())
    table.creator(METADATA_CREATED_ROWS(range(40), 1)).upsert(str(table.path))
    assert table.open().config.metadata_partitions == ()
    table.upsert(METADATA_CREATED_ROWS(range(20, 50), 2))
    assert "files" in table.open().config.built_metadata_partitions
    table.agree()
    table.writer(METADATA_CREATED_ROWS(range(20, 50), 3)).upsert(str(table.path))
    table.agree()
    assert validate(table.open()).differences == ()


# The metadata table that real Hudi has written, filled and compacted, as we read it.


KEYS = 10_000
OPTIONS: Mapping[str, object] = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": 2,
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 1,
    "hoodie.metadata.record.index.max.filegroup.count": 1,
    "hoodie.index.bloom.num_entries": 1000,
}


def rows_of(numbers: Iterable[int], when: int) -> pa.Table:
    """Rows with keys in ASCII: Hudi 0.15 sorts others for its record index otherwise than HFiles must be sorted."""
    listed = list(numbers)
    return Rows(seed=when)(listed, when).set_column(0, "id", pa.array([f"{n:05d}" for n in listed]))


def base_instant(table: Table, partition: str) -> str:
    """The instant of the newest base file of a partition of the metadata table."""
    groups = open_metadata_table(table).load_view(exactly={partition}).groups
    return max(base.name.instant for group in groups if (base := latest_base(group)) is not None)


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.deep)], indirect=True, ids="v{}".format)
def test_reading_what_hudi_writes(judge: Judge, version: int, tmp_path: Path) -> None:
    """Base files of one entry and of many blocks, log blocks on them, and what compactions make of both."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=OPTIONS)
    table.create(rows_of(range(KEYS), 1))
    for number in range(2, 4):
        written = rows_of(range(0, 200 * number, number), number)
        table.upsert(written)
        opened = table.open()
        found = validate(opened)
        assert not found.differences
        assert found.files >= 2
        assert commits_to_compact(opened) <= 3
        index = [key for key, _ in read_entries(opened, "record_index")]
        assert len(index) == len(set(index)) == KEYS
        rows = read_table(Table(opened.storage, opened.config, MetadataListing()))
        check_rows(rows, written)
        same(rows, table.agree())
    for partition in ("files", "record_index"):
        assert not base_instant(opened, partition).startswith(ARTIFICIAL), "the metadata table was not compacted"
    judge.clean(table.path)
    assert not validate(table.open()).differences
    assert set(read_files(table.open()).partitions) == set(table.open().partitions())
