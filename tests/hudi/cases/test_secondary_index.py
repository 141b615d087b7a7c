"""Secondary indexes that phantombase builds: Hudi 1.2.0 skips files by them, and writes after them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.metadata_services import content
from phantombase.compactor_daemon.metadata_services.build import build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.timeline.audit.validate import validated
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table import create
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.index_definitions import INDEX_DEFINITIONS
from phantombase.timeline.table.table import Table
from tests.hudi.cases.indexed_table import AT_ONCE
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.archived_tables import cluster
from tests.support.compaction_steps import open_table
from tests.support.record_indexes import secondary_entries, true_secondary
from tests.support.selection import versions

pytestmark = pytest.mark.interop
INDEXED = {
    **METADATA_TABLE,
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 2,
    "hoodie.metadata.record.index.max.filegroup.count": 2,
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.index.type": "RECORD_INDEX",
}
SKIPPING = {**INDEXED, "hoodie.enable.data.skipping": "true"}
NAMES = ("Rome", "Zürich", "a$b", "x\\y", "", "$", "\\", "Oslo")
CITY = "secondary_index_city"


def rows(numbers: Sequence[int], ts: int, city: str | None = None) -> pa.Table:
    """Five partitions; nulls, texts and keys with $, backslashes and more than one byte."""
    return pa.table(
        {
            "id": [f"k{n}$\\é" if n % 5 == 0 else f"k{n:03}" for n in numbers],
            "p": [f"p{n % 5}" for n in numbers],
            "ts": [ts] * len(numbers),
            "city": pa.array([None if n % 7 == 3 else city or NAMES[n % 8] for n in numbers], pa.string()),
        }
    )


def build(path: Path, *, again: bool = False) -> tuple[str, ...]:
    options = BuildOptions(indexes=(f"{CITY}:city",), record_index_groups=2, pending_wait_s=0)
    return build_metadata(Table.open(path, reading=True), options, ProcessLock("x"), again=again).built


def asked(judge: Judge, path: Path) -> tuple[int, int, int]:
    """How many rows queries by value find, how many they miss, how many file slices they leave out."""
    found, missed, left = 0, 0, 0
    for name in (*NAMES, "Newer", "nowhere"):
        where = "city = '" + name.replace("\\", "\\\\") + "'"
        full, some = (judge.select(path, ["id"], where=where, options=of) for of in (None, SKIPPING))
        found, missed = found + len(some.rows), missed + len(set(full.rows) - set(some.rows))
        left += full.files - some.files
    return found, missed, left


@versions(deep=[9, 8])
def test_hudi_looks_values_up_in_what_was_built(judge: Judge, version: int, tmp_path: Path) -> None:
    path = tmp_path / "table"
    judge.create(path, "t", rows(range(20), 1), version=version, partition_field="p", options=INDEXED)
    judge.upsert(path, rows(range(0, 20, 4), 2), INDEXED)
    with mock.patch.object(content, "entry_keys", lambda _, keys, values: pa.array(["x$y"] * len(keys)).unique()):
        build(path)
    found, missed, _ = asked(judge, path)
    assert (found, missed > 10) == (0, True), "wrong entries would not be noticed"

    assert build(path, again=True) == (CITY,)
    found, missed, left = asked(judge, path)
    assert (found, missed, left > 25) == (17, 0, True)
    assert secondary_entries(path, CITY) == true_secondary(path, "city")

    judge.upsert(path, rows(range(2, 30, 4), 3, "Newer"), INDEXED)
    judge.delete(path, rows(range(1, 24, 6), 4), INDEXED)
    assert CITY in open_table(path).config.built_metadata_partitions
    assert secondary_entries(path, CITY) == true_secondary(path, "city")
    assert asked(judge, path)[1] == 0
    assert validated(open_table(path)).good

    writer(rows(range(3, 40, 5), 5, "Oslo")).upsert(str(path))
    writer(rows(range(3, 9), 6)).delete(str(path))
    assert validated(open_table(path)).good
    found, missed, left = asked(judge, path)
    assert (found > 5, missed, left > 10) == (True, 0, True), "by the entries of a write of phantombase"
    judge.upsert(path, rows(range(2, 30, 4), 7, "Rome"), INDEXED)
    assert len(serve_metadata(open_table(path), AT_ONCE, ProcessLock("x")).compactions) == 1
    assert cluster(path).done
    judge.delete(path, rows(range(2, 30, 8), 8), INDEXED)
    assert CITY in open_table(path).config.built_metadata_partitions
    assert validated(open_table(path)).good
    assert asked(judge, path)[1] == 0

    writer(rows(range(3, 40, 5), 9, "\U0001f600")).upsert(str(path))
    assert CITY not in open_table(path).config.built_metadata_partitions
    assert asked(judge, path)[1] == 0, "a reader uses an index that is not kept"
    judge.upsert(path, rows(range(3, 40, 5), 10, "Rome"), INDEXED)
    assert CITY in build(path)
    _, missed, left = asked(judge, path)
    assert (missed, left > 5) == (0, True)
    judge.upsert(path, rows(range(2, 30, 4), 11), INDEXED)
    assert validated(open_table(path)).good
    assert asked(judge, path)[1] == 0


@versions(deep=[9])
def test_a_dropped_metadata_table_leaves_what_hudi_builds(judge: Judge, version: int, tmp_path: Path) -> None:
    """A write took the index out; the command that drops the metadata table dies, and is run again."""
    path = tmp_path / "table"
    judge.create(path, "t", rows(range(20), 1), version=version, partition_field="p", options=INDEXED)
    build(path)
    writer(rows(range(3, 40, 5), 9, "\U0001f600")).upsert(str(path))
    assert CITY not in open_table(path).config.built_metadata_partitions
    with mock.patch.object(create, "put_back_definitions", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        drop_metadata_table(open_table(path), ProcessLock("x"))
    drop_metadata_table(open_table(path), ProcessLock("x"))
    assert CITY in (path / INDEX_DEFINITIONS).read_text()
    assert asked(judge, path)[1] == 0
    judge.upsert(path, rows(range(3, 40, 5), 10, "Rome"), METADATA_TABLE)
    assert asked(judge, path)[1] == 0
    judge.upsert(path, rows(range(2, 30, 4), 11), INDEXED)
    assert asked(judge, path)[1] == 0
    if CITY not in open_table(path).config.built_metadata_partitions:
        assert CITY in build(path)
    assert secondary_entries(path, CITY) == true_secondary(path, "city")
    assert asked(judge, path)[1] == 0


@versions(deep=[9, 8])
def test_of_a_copy_on_write_table(judge: Judge, version: int, tmp_path: Path) -> None:
    path, options = tmp_path / "table", {**INDEXED, "hoodie.datasource.write.table.type": "COPY_ON_WRITE"}
    judge.create(path, "t", rows(range(20), 1), version=version, partition_field="p", options=options)
    assert CITY in build(path)

    def check(least: int) -> None:
        assert CITY in Table.open(path, reading=True).config.built_metadata_partitions
        assert secondary_entries(path, CITY) == true_secondary(path, "city")
        _, missed, left = asked(judge, path)
        assert (missed, left > least) == (0, True)
        assert validated(Table.open(path, reading=True)).good

    check(25)
    judge.upsert(path, rows(range(2, 30, 4), 2, "Newer"))
    judge.delete(path, rows(range(1, 24, 6), 3))
    check(10)
    assert len(serve_metadata(Table.open(path, reading=True), AT_ONCE, ProcessLock("x")).compactions) == 1
    assert CITY in build(path, again=True)
    judge.upsert(path, rows(range(3, 40, 5), 4, "Oslo"))
    check(10)
