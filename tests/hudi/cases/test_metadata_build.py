"""Metadata tables that phantombase builds: real Hudi reads them, skips files by them, and writes after them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.metadata_services.build import MetadataBuilt, build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import open_metadata_table
from tests.hudi.cases.indexed_table import ALL_INDEXES, IndexedTable, compact
from tests.hudi.cases.rows import Rows, partition
from tests.hudi.cases.shared_table import check_rows
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.record_indexes import check_index, hudi_places
from tests.support.selection import versions

pytestmark = pytest.mark.interop
ROWS = Rows(seed=23)
OFF: Mapping[str, object] = {"hoodie.metadata.enable": "false"}
RECORD_INDEX = {
    **METADATA_TABLE,
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 2,
    "hoodie.metadata.record.index.max.filegroup.count": 2,
    "hoodie.index.type": "RECORD_INDEX",
    "hoodie.metadata.index.column.stats.enable": "false",
}
INDEXES = {
    6: ("files", "column_stats", "bloom_filters"),
    8: ("files", "column_stats", "partition_stats", "bloom_filters"),
    9: ("files", "column_stats", "partition_stats", "bloom_filters"),
}


def keyed(numbers: Sequence[int], ts: int) -> pa.Table:
    """Keys in ASCII: over others Hudi 0.15 cannot build the index."""
    return pa.table(
        {"id": [f"{n:05d}" for n in numbers], "p": [partition(n) for n in numbers], "ts": [ts] * len(numbers)}
    )


def without(judge: Judge, version: int, path: Path) -> IndexedTable:
    """A table of Hudi's without a metadata table, with base files and log files."""
    table = IndexedTable(judge=judge, path=path, version=version, options=ALL_INDEXES)
    off = IndexedTable(judge=judge, path=path, version=version, options={**ALL_INDEXES, **OFF})
    off.create(ROWS(range(40), 1))
    off.upsert(ROWS(range(0, 40, 2), 2))
    assert not table.open().config.metadata_partitions
    return table


def build(table: IndexedTable, *, again: bool = False) -> MetadataBuilt:
    options = BuildOptions(indexes=() if again else INDEXES[table.version], pending_wait_s=0)
    return build_metadata(table.open(), options, ProcessLock("x"), again=again)


def fills(table: IndexedTable) -> list[str]:
    """The delta commits that filled partitions: Hudi's would be new ones."""
    timeline = open_metadata_table(table.open()).load_timeline(archived=True)
    return sorted(i.requested_time for i in timeline.completed if i.requested_time.startswith(ARTIFICIAL))


@versions(deep=[9, 8, 6])
def test_hudi_uses_what_was_built(judge: Judge, version: int, tmp_path: Path) -> None:
    table = without(judge, version, tmp_path / "table")
    assert build(table).built == INDEXES[version]
    ours = fills(table)
    table.agree()
    second, third = ROWS(range(20, 60), 3), ROWS(range(0, 60, 3), 4)
    table.upsert(second)
    check_rows(table.agree(), second)
    table.writer(third).upsert(str(table.path))
    check_rows(table.agree(), third)
    compact(table)
    table.agree()
    table.we_schedule()
    table.we_compact()
    table.upsert(ROWS(range(10, 70), 5))
    table.agree()
    assert set(table.open().config.built_metadata_partitions) >= set(INDEXES[version])
    assert fills(table) == ours, "Hudi has built it again"
    assert validate(table.open()).differences == ()


@versions(deep=[9, 6])
def test_writers_in_flight_are_waited_for(judge: Judge, version: int, tmp_path: Path) -> None:
    """Two of Hudi began without the metadata table: the build becomes visible when they have ended, with their files.
    So it needs no indexing instant, by which Hudi's indexer finds what to add."""
    table = without(judge, version, tmp_path / "table")
    options = BuildOptions(indexes=INDEXES[version], pending_wait_s=300)

    def build_meanwhile() -> MetadataBuilt:
        while not table.open().load_timeline().inflight_writers:
            time.sleep(0.05)
        return build_metadata(table.open(), options, ProcessLock("x"))

    first, second = ROWS(range(20, 50), 3), ROWS(range(60, 80), 4)
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(build_meanwhile)
        judge.overlap(table.path, first, second, {**ALL_INDEXES, **OFF})
    assert (built.result().built, built.result().rounds > 0) == (INDEXES[version], True)
    table.agree()
    assert validate(table.open()).differences == ()
    table.upsert(ROWS(range(10, 70), 5))
    table.agree()


@versions(deep=[9, 8, 6])
def test_hudi_uses_what_was_built_again(judge: Judge, version: int, tmp_path: Path) -> None:
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    table.create(ROWS(range(40), 1))
    table.upsert(ROWS(range(0, 40, 2), 2))
    compact(table)
    table.upsert(ROWS(range(30, 50), 3))
    for name in ("column_stats", "files"):
        for file in (table.path / METADATA_FOLDER / name).glob("*.hfile"):
            file.write_bytes(file.read_bytes()[:100])
        options = BuildOptions(indexes=(name,), pending_wait_s=0)
        assert name in build_metadata(table.open(), options, ProcessLock("x"), again=True).built
        table.agree()
        rows = ROWS(range(10, 55), 7)
        table.upsert(rows)
        check_rows(table.agree(), rows)
        assert validate(table.open()).differences == ()


@versions(deep=[9, 8, 6])
def test_hudi_builds_it_after_a_death_in_the_switch(judge: Judge, version: int, tmp_path: Path) -> None:
    """At each kind of file that the switch puts; the process that Hudi is may know nothing of the remains."""
    made = without(judge, version, tmp_path / "table")
    for ending in ("/hoodie.properties", "deltacommit.requested", "deltacommit.inflight", ".hfile", "deltacommit"):
        table = made.copy()

        def hook(call: Call, ending: str = ending) -> object:
            died = call.name == "put_if_absent" and METADATA_FOLDER in call.path and call.path.endswith(ending)
            done = call.do()
            if died:
                raise ProcessDied(call.path)
            return done

        storage = HookedStorage(LocalStorage(str(table.path)), hook)
        with pytest.raises(ProcessDied):
            build_metadata(open_table(table.path, storage), BuildOptions(pending_wait_s=0), ProcessLock("x"))
        table.agree()
        rows = ROWS(range(10, 50), 7)
        table.upsert(rows)
        check_rows(table.agree(), rows)
        assert "files" in table.open().config.built_metadata_partitions
        assert validate(table.open()).differences == ()
        shutil.rmtree(table.path)


@versions(deep=[9, 6])
def test_hudi_finds_keys_by_the_record_index(judge: Judge, version: int, tmp_path: Path) -> None:
    """It upserts by it, and builds it not again; no row is doubled."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=RECORD_INDEX)
    off = IndexedTable(judge=judge, path=table.path, version=version, options=OFF)
    off.create(keyed(range(40), 1))
    off.upsert(keyed(range(0, 40, 2), 2))
    options = BuildOptions(indexes=("files,record_index",), record_index_groups=2, pending_wait_s=0)
    build_metadata(table.open(), options, ProcessLock("x"))
    ours = fills(table)
    assert hudi_places(judge, table.path) == check_index(table.path)
    table.upsert(keyed(range(30, 50), 3))
    check_index(table.path)
    table.writer(keyed(range(45, 55), 4)).upsert(str(table.path))
    table.delete(keyed(range(0, 60, 7), 5))
    table.upsert(keyed(range(20, 60), 6))
    assert hudi_places(judge, table.path) == check_index(table.path)
    table.agree()
    assert fills(table) == ours, "Hudi has built it again"
