"""The clustering states of real Hudi, 0.15.0 on version 6, 1.2.0 on 8 and 9: read as Hudi reads them, and finished.

    state              v6 v8 v9   the table
    pending            x  x  x    a plan that nobody has begun, sorted by a column
    pending_with_logs  x  x  x    the same; some of the planned slices have log files
    half_done          x  x  x    Hudi's process failed with all files made: its inflight file, markers, no commit
    replaced           x  x  x    completed; then an overwrite replaced what it had made in one partition
    rolled_back        x     x    completed, then rolled back; Hudi 1.2.0 cannot on version 8, and leaves the plan on 9
    archived           x     x    completed, updated, compacted, cleaned, moved into the archive

Made by `tests.hudi.cases.clustering_states`. Further states are in older tables:

    completed          x  x  x    `v*_clustered`: then updates, a plan of a compaction; each test of all golden tables
    beside a clean     x          `v6_0.15.0_pending_clustering.after`: `cleaning/test_golden.py`
    cleaned            x          `v6_0.15.0_cluster.cleaned`: `cleaning/test_golden.py`
    what it joins      x          `v6_0.15.0_cluster.before`, `.scheduled`, `.after`: `test_commands.py`"""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.attempt.pending_clusterings import planned_by_hudi
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.audit.clusterings import audit_clustering
from phantombase.timeline.errors import ClusteringConflictError
from phantombase.timeline.read.table_read import read_table
from tests.support.archived_tables import ONE, SMALL, cluster, compact
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import LOCK
from tests.support.places import ROOT
from tests.support.selection import deep

_BEGUN = {"v6_half_done", "v8_half_done", "v9_half_done", "v9_rolled_back"}
"""Hudi has begun: its next clustering rolls that back, and executes the plan."""
_TABLES = ROOT / "tests/compactor_daemon/clustering/tables"
_ALL = sorted(file.stem for file in _TABLES.glob("*.zip"))
_USUAL = {"v6_replaced", "v6_rolled_back", "v9_archived", "v9_half_done", "v9_pending_with_logs"}
STATES = [name if name in _USUAL else deep(name) for name in _ALL]


def unzipped(name: str, into: Path) -> tuple[Path, pa.Table]:
    """The table, and what Hudi reads from it."""
    with ZipFile(_TABLES / f"{name}.zip") as archive:
        archive.extractall(into)
    return into / name.partition("_")[2], pq.read_table(into / "snapshot.parquet")


def values(path: Path) -> pa.Table:
    """The rows by key, without the columns that tell where and when each was written."""
    found = read_table(open_table(path)).sort_by("id")
    return found.select([name for name in found.schema.names if not name.startswith("_hoodie")])


def upsert(path: Path, rows: pa.Table) -> None:
    writer(rows).option(clustering_wait_s=0).upsert(str(path))


def test_there_are_sixteen() -> None:
    assert len(_ALL) == 16


@pytest.mark.parametrize("name", STATES)
def test_it_is_read_and_finished(name: str, tmp_path: Path) -> None:
    """What is pending is executed, unless Hudi has begun: then it is left to Hudi. Writes and services go on."""
    path, expected = unzipped(name, tmp_path)
    assert_same_rows(read_table(open_table(path)), expected)
    before = values(path)
    table = open_table(path)
    planned = planned_by_hudi(table.snapshot())
    assert len(planned) == ("_pending" in name)
    result = cluster(path)
    assert [one.instant for one in result.finished] == [one.time for one in planned]
    assert values(path).equals(before)
    for one in planned:
        assert audit_clustering(open_table(path), one.time).good
    new = before.slice(0, 2).set_column(before.schema.get_field_index("id"), "id", pa.array(["new1", "new2"]))
    upsert(path, new)
    changed = before.set_column(before.schema.get_field_index("ts"), "ts", pc.add(before["ts"], 100))
    if name in _BEGUN:
        (row,) = json.loads(CliRunner().invoke(app, ["status", str(path), "--json"]).stdout)["clusterings"]
        assert (row["state"], result.done) == ("foreign", None)
        with pytest.raises(ClusteringConflictError):
            upsert(path, changed)
        changed = before
    else:
        upsert(path, changed)
    after = pa.concat_tables([changed, new.cast(changed.schema)]).sort_by("id")
    assert values(path).equals(after)
    compact(path)
    clean_table(open_table(path), ONE, LOCK)
    archive_table(open_table(path), SMALL, LOCK)
    assert values(path).equals(after)
    cluster(path)
    assert values(path).equals(after)
