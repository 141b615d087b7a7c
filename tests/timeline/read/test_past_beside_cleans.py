"""Past states beside a clean: at whichever call of a read it runs, the rows are all there, or the read is refused."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import phantombase
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cli.main import app
from phantombase.timeline.errors import MissingFileError, UsageError
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.pins import HeldPin, PinOptions, held_moment, live_pins
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import from_one_snapshot
from tests.support.archived_tables import change_clean, clean, compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.faults import Faults
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.selection import deep

READS = ("as of", "as of, read optimized", "window", "net changes")
USUAL = {(9, "as of"), (9, "window"), (6, "net changes")}


def _options(path: Path, read: str) -> ReadOptions:
    """Reads of a state that the clean takes."""
    timeline = open_table(path).load_timeline()
    writes = [w for w in timeline.completed if w.action == "deltacommit"]
    begin, end = (timeline.moment_of(w) for w in writes[1:3])
    if read == "window":
        return ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end)
    if read == "net changes":
        return ReadOptions(query=Query.CHANGES, begin=begin, end=end, net=True)
    query = Query.READ_OPTIMIZED if "optimized" in read else Query.SNAPSHOT
    return ReadOptions(query=query, as_of=writes[3].requested_time)


def _rows(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    rows = from_one_snapshot(lambda: plan(open_table(path, storage), options).to_table())
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize(
    ("version", "read"), [one if one in USUAL else deep(*one) for one in product((9, 8, 6), READS)]
)
def test_all_rows_or_an_error(version: int, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serial_pools(monkeypatch)
    made = tmp_path / "trips"
    long_table(made, version, 4, compact_at=2)
    for number in range(4, 6):
        compact(made)
        upsert(made, one_row("k0", number))
    compact(made)
    options, found, looked = _options(made, read), list[list[str]](), 0
    if "as of" not in read:  # a view asks for no file of an archived write
        few = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
        phantombase.archive(made, options=few, sole_writer=True)
    whole = _rows(made, options)
    assert whole

    def clean(path: Path) -> None:
        clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)

    reads = Faults.of(made, lambda storage: found.append(_rows(Path(storage.base_path), options, storage)))
    for point, _, error in reads.pauses(clean):
        assert error or found[-1] == whole, f"a clean before {point}"
        looked += 1
        found.clear()
    assert looked > 6


# Time travel behind a clean: refused up to what the clean has retained, whichever policy the cleaner had.


@one_of("name", "v9_compacted_cleaned", "v6_compacted_cleaned")
def test_a_point_before_the_retained_commit_is_refused(name: str, tmp_path: Path) -> None:
    """In each of Hudi's forms; the retained commit itself is read."""
    path = unzip_golden(name, tmp_path)
    with pytest.raises(UsageError, match="may have been cleaned") as caught:
        plan_read(open_table(path), ReadOptions(as_of="2026-11-21T00:00:00"))
    retained = str(caught.value.expected).split()[0]
    assert plan_read(open_table(path), ReadOptions(as_of=retained)).to_table().num_rows > 0
    with pytest.raises(UsageError, match="may have been cleaned"):
        plan_read(open_table(path), ReadOptions(as_of=str(int(retained) - 1)))


def test_a_cleaner_of_file_versions_names_no_commit(tmp_path: Path) -> None:
    """It may have removed files of any state before the one that it found: that and later ones are whole."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    change_clean(path, earliestCommitToRetain="")
    timeline = open_table(path).load_timeline()
    clean = next(i for i in timeline.instants if i.action == "clean").requested_time
    older, found = sorted(w for w in timeline.completed_writes if w < clean)[-2:]
    with pytest.raises(UsageError, match="may have been cleaned") as caught:
        plan_read(open_table(path), ReadOptions(as_of=older))
    assert str(caught.value.expected).startswith(clean)
    for whole in (found, timeline.latest_completed):
        plan_read(open_table(path), ReadOptions(as_of=whole))


def test_a_clean_that_removed_nothing_is_passed_over(tmp_path: Path) -> None:
    """Then every point is whole."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    change_clean(path, earliestCommitToRetain="", totalFilesDeleted=0)
    plan_read(open_table(path), ReadOptions(as_of="2026-11-21"))


# Reads with a pin: it holds what they read until they have read it.


def test_a_pin_is_there_while_rows_are_read(tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    table = open_table(path)
    newest = max(table.load_timeline().moment_of(w) for w in table.load_timeline().completed)
    rows = phantombase.read(path, pin="copy", pin_for="30m")
    batches = rows.batches()
    next(batches)
    (pin,) = live_pins(table.storage)
    assert (pin.name, pin.holds, pin.for_s) == ("copy", newest, 1800)
    batches.close()  # type: ignore[attr-defined]
    assert live_pins(table.storage) == []
    assert rows.to_arrow().num_rows
    assert pa.table(rows).num_rows
    assert live_pins(table.storage) == []


def test_what_each_query_holds(tmp_path: Path) -> None:
    """An incremental read its end, a change feed its begin, a point in time the state below the write that it shows."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    timeline = table.load_timeline()
    first, second, third = timeline.completed[:3]
    begin, end = timeline.moment_of(first), timeline.moment_of(second)
    assert held_moment(table, ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end)) == end
    assert held_moment(table, ReadOptions(query=Query.CHANGES, begin=begin, end=end)) == begin
    assert held_moment(table, ReadOptions(query=Query.CHANGES, begin="earliest")) == ""
    assert held_moment(table, ReadOptions(as_of=third.requested_time)) == timeline.moment_of(second)
    assert held_moment(table, ReadOptions(as_of=first.requested_time)) == ""


@one_of("version", 9, 6)
@pytest.mark.parametrize("query", ["snapshot", "incremental"])
def test_a_compaction_that_pends_when_a_pin_is_taken(query: str, version: int, tmp_path: Path) -> None:
    """It completes while the reader reads what went into it, and a clean follows: the pin holds these files."""
    path = tmp_path / "rides"
    keys = [f"k{number}" for number in range(30)]
    moments = []
    for ts in range(3):
        rows = pa.table({"id": keys, "ts": [ts] * len(keys), "p": ["a"] * len(keys)})
        described = phantombase.writer(rows).table("rides", version=version).key("id").ordering("ts").partition("p")
        described = described.buckets(3)
        described.upsert(str(path))
        timeline = open_table(path).load_timeline()
        moments.append(timeline.moment_of(timeline.completed[-1]))
        if ts == 1:
            assert phantombase.schedule(path, sole_writer=True)
    begin = None if query == "snapshot" else moments[1]
    batches = phantombase.read(path, pin="copy", query=query, begin=begin).batches()
    first = next(batches)
    run_all(open_table(path))
    described.upsert(str(path))
    clean(path)
    assert first.num_rows + sum(batch.num_rows for batch in batches) == len(keys)


def test_a_read_that_lost_a_file_says_what_to_do(tmp_path: Path) -> None:
    """The file goes after planning, as when a cleaner was faster; its pin goes too."""
    path = unzip_golden("v9_plain", tmp_path)
    batches = phantombase.read(path, pin="copy", query="changes", begin="earliest").batches()
    next(batches)
    for log in path.rglob(".*.log.*"):
        log.unlink()
    with pytest.raises(MissingFileError, match=r"A cleaner was faster.*pin"):
        list(batches)
    assert live_pins(open_table(path).storage) == []


def test_the_command_lists_and_releases(tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    run = CliRunner()
    assert json.loads(run.invoke(app, ["pins", str(path), "--json"]).stdout)["pins"] == []
    HeldPin(open_table(path).storage, PinOptions.of("copy", "2h"), "")
    (found,) = json.loads(run.invoke(app, ["pins", str(path), "--json"]).stdout)["pins"]
    assert (found["name"], found["holds"], found["live"]) == ("copy", "earliest", True)
    assert 7100 < found["expires_in_s"] <= 7200
    assert "copy" in run.invoke(app, ["pins", str(path)]).stdout
    tried = json.loads(run.invoke(app, ["pins", str(path), "--release", "copy", "--dry-run", "--json"]).stdout)
    assert (tried["released"], len(tried["pins"])) == (1, 1)
    released = json.loads(run.invoke(app, ["pins", str(path), "--release", "copy", "--json"]).stdout)
    assert (released["released"], released["pins"]) == (1, [])
    assert "No pins" in run.invoke(app, ["pins", str(path)]).stdout


@pytest.mark.parametrize("output", [[], ["--output", "copy.parquet"]])
def test_the_command_holds_what_it_reads(output: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    monkeypatch.chdir(tmp_path)
    taken = []

    class Noted(HeldPin):
        def remove(self) -> None:
            taken.extend(live_pins(open_table(path).storage))
            super().remove()

    monkeypatch.setattr("phantombase.timeline.read.pins.HeldPin", Noted)
    done = CliRunner().invoke(app, ["read", str(path), "--pin", "copy", "--pin-for", "30m", *output])
    assert done.exit_code == 0, done.output
    assert [(pin.name, pin.for_s) for pin in taken] == [("copy", 1800)]
    assert live_pins(open_table(path).storage) == []


def test_a_duration_belongs_to_a_pin(tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    done = CliRunner().invoke(app, ["read", str(path), "--pin-for", "30m"])
    assert done.exit_code != 0
    assert "pin_for belongs to a pin" in str(done.exception) + done.output
