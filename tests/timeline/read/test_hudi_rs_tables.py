"""The public test tables of hudi-rs, made by real Hudi with other options than the golden tables: all columns.

`tests/golden/hudi_rs/answers.zip` has what Hudi 1.2.0 reads from each. MERGE_ON_READ tables are compacted too.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import UnsupportedError, read
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.run.pending import run_compactions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import same
from tests.support.places import GOLDEN_FOLDER

FOLDER = GOLDEN_FOLDER / "hudi_rs"
LANCE = "cow_v9_lance_nonpartitioned"
ALL = sorted(path.stem for path in FOLDER.glob("*_v*.zip") if path.stem != LANCE)
WITH_LOGS = [name for name in ALL if name.startswith("mor_")]


def unzipped(name: str, into: Path) -> str:
    """The table's path; its folder is the one that is not macOS' own."""
    with ZipFile(FOLDER / f"{name}.zip", metadata_encoding="utf-8") as archive:
        archive.extractall(into)
    (properties,) = (path for path in into.glob("*/.hoodie/hoodie.properties") if "__MACOSX" not in path.parts)
    return str(properties.parents[1])


def answer(name: str, query: str) -> pa.Table:
    """What Hudi reads."""
    with ZipFile(FOLDER / "answers.zip") as archive, archive.open(f"{name}.{query}.parquet") as file:
        return pq.read_table(pa.BufferReader(file.read()))


@pytest.mark.parametrize("name", ALL)
def test_reads_as_hudi_does(name: str, tmp_path: Path) -> None:
    """Snapshot and read-optimized."""
    path = unzipped(name, tmp_path)
    same(read(path).to_arrow(), answer(name, "snapshot"))
    same(read(path, query="read-optimized").to_arrow(), answer(name, "read_optimized"))


@pytest.mark.parametrize("name", WITH_LOGS)
def test_reads_the_same_behind_a_compaction(name: str, tmp_path: Path) -> None:
    """Every file slice that has logs is compacted; read-optimized shows the snapshot then."""
    path = unzipped(name, tmp_path)
    requested = schedule_compaction(Table.open(path), ProcessLock(path)).requested
    done = run_compactions(
        path,
        output=OutputOptions(),
        execute=ExecuteOptions(executor=Executor.LOCAL, threads=2),
        attempt=AttemptOptions(),
    ).done
    assert len(done) == len(requested)
    same(read(path).to_arrow(), answer(name, "snapshot"))
    if requested:
        same(read(path, query="read-optimized").to_arrow(), answer(name, "snapshot"))


def test_base_files_of_lance_are_refused(tmp_path: Path) -> None:
    """By name, with what to do."""
    with pytest.raises(UnsupportedError, match=r"expected PARQUET; found LANCE\. Use Hudi"):
        read(unzipped(LANCE, tmp_path))
