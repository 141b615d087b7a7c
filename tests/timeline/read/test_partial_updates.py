"""A table of Spark SQL's MERGE INTO that sets some columns (1.2.0, version 9): read and compacted as Hudi reads it.

`tests/golden/more/v9_partial_updates.zip`: partial updates late and in time, of one column and of several, a null, a
delete and an UPDATE between them; Hudi's metadata table with column statistics."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.filter.possible import bound, matching
from phantombase.timeline.filter.tree import parse_filter
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read import table_read
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.incremental import groups_written
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.change_feeds import State, check_window, feed, key, moments_of, plain, services_of, state
from tests.support.compare_rows import assert_same_rows
from tests.support.drawn_partitions import random_filter
from tests.support.evolved_tables import schedule
from tests.support.golden_tables import unzip_golden
from tests.support.places import SEED

NAME = "more/v9_partial_updates"


def unpacked(into: Path) -> tuple[Table, Path]:
    """The table, and the folder of what Hudi read."""
    path = unzip_golden(NAME, into)
    return Table.open(str(path)), path.with_name(f"{path.name}.expected")


@pytest.fixture(params=["in_memory", "spilled"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log entries stay in memory, or each block of them is spilled."""
    if request.param == "spilled":
        monkeypatch.setattr(SliceRules, "fold_bytes", 1000.0)


@pytest.mark.usefixtures("memory")
def test_read_as_hudi_reads(tmp_path: Path) -> None:
    """Every column, meta columns included."""
    table, hudis = unpacked(tmp_path)
    for query, file in ((Query.SNAPSHOT, "snapshot"), (Query.READ_OPTIMIZED, "read_optimized")):
        rows = read_table(table, ReadOptions(query=query))
        assert_same_rows(rows, pq.read_table(hudis / f"{file}.parquet"))


@pytest.mark.usefixtures("memory")
def test_compacted_as_hudi_reads(tmp_path: Path) -> None:
    """And the ledgers balance."""
    table, hudis = unpacked(tmp_path)
    path = table.storage.base_path
    for command in (["schedule", path, "--sole-writer"], ["compact", path, "--executor", "local"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    for query in (Query.SNAPSHOT, Query.READ_OPTIMIZED):
        assert_same_rows(read_table(table, ReadOptions(query=query)), pq.read_table(hudis / "snapshot.parquet"))


@pytest.mark.usefixtures("memory")
def test_a_filter_sees_rows_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may match although none of its files holds such a row: nothing is left out before the merge."""
    monkeypatch.setattr(table_read, "LEAST_FILES", 1)
    table, _ = unpacked(tmp_path)
    rows = read_table(table)
    random = Random(SEED)
    plain = rows.drop_columns([name for name in rows.column_names if name.startswith("_hoodie")])
    texts = ["city = 'A' and n = 4", "city = 'A' and fare = 7.0 and n = 99", "fare = 100.0 and city = 'B'", "n = 7"]
    for text in [*texts, *(random_filter(random, plain) for _ in range(20))]:
        wanted = matching(bound(parse_filter(text), rows.schema), rows)
        assert_same_rows(read_table(table, ReadOptions(filter=text)), wanted)


def test_ranges_of_log_files_are_those_that_hudi_recorded(tmp_path: Path) -> None:
    """Of updates of some columns: of these columns only."""
    table, _ = unpacked(tmp_path)
    timeline = table.load_timeline()
    measure = Measure.of(table, table.with_timeline(timeline).newest_schema())
    assert measure is not None
    hudis, ours = set(), set()
    for _, record in read_entries(table, "column_stats"):
        stats = record["ColumnStatsMetadata"]
        if ".log." in stats["fileName"]:
            hudis.add((stats["fileName"], stats["columnName"], stats["valueCount"], stats["nullCount"]))
    for slice_ in (one for group in table.load_view().groups for one in group.slices):
        for log in slice_.logs:
            name = log.path.rpartition("/")[2]
            ours |= {(name, r.column, r.values, r.nulls) for r in measure.file(table.storage, log.path, name)}
    assert ours == hudis


def test_a_log_compaction_keeps_them(tmp_path: Path) -> None:
    """It copies the blocks, which stay partial: readers put together the same rows."""
    table, hudis = unpacked(tmp_path)
    path = table.storage.base_path
    options = ScheduleOptions(picking=Picking.UNIVERSAL, compaction_trigger=2, max_size_amplification=10_000)
    done = schedule(Path(path), options)
    assert {one.plan.action for one in done.requested} == {"logcompaction"}
    ran = CliRunner().invoke(app, ["compact", path, "--executor", "local"])
    assert ran.exit_code == 0, ran.output
    assert_same_rows(read_table(table), pq.read_table(hudis / "snapshot.parquet"))
    for command in (["schedule", path, "--sole-writer"], ["compact", path, "--executor", "local"]):
        done_ = CliRunner().invoke(app, command)
        assert done_.exit_code == 0, done_.output
    assert_same_rows(read_table(table), pq.read_table(hudis / "snapshot.parquet"))


@pytest.mark.usefixtures("memory")
def test_a_feed_replays_late_updates(tmp_path: Path) -> None:
    """A late update of a column may count although the row keeps its commit time."""
    table, _ = unpacked(tmp_path)
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    for begin, end in [*pairwise(moments), (moments[0], moments[-1])]:
        check_window(table, begin, end, states)
    (late,) = (c for c in feed(table, moments[2], moments[3]) if c["after"]["_hoodie_commit_time"] != c["instant"])
    assert late["op"] == "u"
    assert late["after"]["_hoodie_commit_time"] == late["before"]["_hoodie_commit_time"]
    of = ReadOptions(query=Query.CHANGES, begin=moments[2], end=moments[3], columns=("id", "city"))
    assert late["after"]["id"] not in {c["after"]["id"] for c in plan(table, of).to_table().to_pylist()}


def test_a_compaction_of_late_updates_is_no_change(tmp_path: Path) -> None:
    """Its rows have other file names, and equal values."""
    table, _ = unpacked(tmp_path)
    path, (*_, last) = table.storage.base_path, moments_of(table)
    for command in (["schedule", path, "--sole-writer"], ["compact", path, "--executor", "local"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    table = Table.open(path)
    assert moments_of(table)[-1] > last
    assert feed(table, last) == feed(table, last, net=True) == []


# A COPY_ON_WRITE table of Hudi 1.2.0 (version 9): snapshots and windows as Hudi reads them, and change feeds.
#
# `tests/golden/more/v9_copy_on_write.zip`: an upsert, a delete, a clustering and an upsert after it, each with what
# Hudi read then, and with its answers to incremental queries.


COPY_ON_WRITE_NAME = "more/v9_copy_on_write"


def opened(into: Path) -> tuple[Table, Path]:
    """The table, and the folder of what Hudi read."""
    path = unzip_golden(COPY_ON_WRITE_NAME, into)
    return Table.open(str(path), reading=True), path.with_name(f"{path.name}.expected")


def test_windows_as_hudi_reads_them(tmp_path: Path) -> None:
    """Every column, meta columns included."""
    table, hudis = opened(tmp_path)
    answers = sorted(hudis.glob("incremental_*"))
    assert len(answers) == 6
    for answer in answers:
        _, begin, end = answer.stem.split("_")
        rows = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
        assert_same_rows(rows, pq.read_table(answer))


def test_change_feeds_lead_from_state_to_state(tmp_path: Path) -> None:
    """The clustering changes nothing."""
    table, hudis = opened(tmp_path)
    states: dict[str, State] = {"": {}} | {
        moment: {key(row): plain(row) for row in pq.read_table(hudis / f"snapshot_{moment}.parquet").to_pylist()}
        for moment in moments_of(table)[1:]
    }
    assert list(states) == moments_of(table)
    for begin, end in [*pairwise(states), ("", max(states))]:
        check_window(table, begin, end, states)
    assert len(services_of(table)) == 1


def test_a_stream_counts_its_writes(tmp_path: Path) -> None:
    """By moment: the rows that the commits of the writes name."""
    table, _ = opened(tmp_path)
    moments = moments_of(table)
    written = [sum(one.rows for _, one in groups_written(table, b or "earliest", e)) for b, e in pairwise(moments)]
    assert written[0] == 20
    assert [rows > 0 for rows in written] == [True, True, True, False, True]
