"""Cleans: no row changes, what is needed stays, and what a dead process left is finished."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint
from phantombase.timeline.errors import ConflictError, MalformedError, UsageError
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_plan
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.pins import HeldPin, PinOptions, all_pins
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import ONE, WRITES, clean, compact, data_files, old_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import Faults, died_or_ended
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.places import SEED
from tests.support.selection import deep
from tests.support.written_tables import Rows, as_rows, read_rows, seed_note, written_table


def instants(path: Path) -> list[str]:
    return sorted(open_table(path).load_timeline().completed_writes)


def as_of(path: Path, instant: str) -> Rows:
    return as_rows(read_table(open_table(path), ReadOptions(as_of=instant)))


@one_of("version", 9, 6)
def test_the_newest_state_stays(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = old_table(path, version)
    before = data_files(path)
    done = clean(path)
    assert done.instant is not None
    assert len(before - data_files(path)) == done.files > 0
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 100))
    compact(path)
    upsert(path, one_row("k1", 101))
    assert clean(path).files > 0
    assert read_rows(path) == rows | {"k1": (101, 101.0)}


@one_of("version", 6, 9)
@pytest.mark.parametrize("policy", list(Policy), ids=lambda p: p.value)
@one_of("retain", 2, 1, 3, 5)
def test_retained_states_are_whole(version: int, policy: Policy, retain: int, tmp_path: Path) -> None:
    """By commits every state from the cutoff on, by versions the newest; an older one is an error, never fewer rows."""
    path = tmp_path / "trips"
    old_table(path, version, 4)
    past = {instant: as_of(path, instant) for instant in instants(path)}
    done = clean(path, policy, retain)
    cleaned = policy is Policy.VERSIONS and done.instant is not None
    cutoff = done.retained or (max(past) if cleaned else "")
    for instant, rows in past.items():
        if instant >= cutoff:
            assert as_of(path, instant) == rows
        else:
            with pytest.raises(UsageError, match="cleaned"):
                as_of(path, instant)
    if policy is Policy.HOURS:
        assert done.instant is None


@one_of("version", 9, 6)
def test_a_query_that_runs_keeps_its_files(version: int, tmp_path: Path) -> None:
    """Until the floor has passed."""
    path = tmp_path / "trips"
    old_table(path, version)
    assert clean_table(open_table(path), CleanOptions(retain=1), LOCK).instant is None
    assert clean_table(open_table(path), CleanOptions(retain=1), LOCK, dry_run=True).why.startswith(
        "a query of 3,600 s"
    )


@one_of("version", 9, 6)
def test_a_pending_compaction_keeps_its_inputs(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = old_table(path, version)
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    for number in (100, 101):
        upsert(path, one_row("k1", number))
    clean(path)
    assert read_rows(path) == rows | {"k1": (101, 101.0)}
    compact(path)
    assert read_rows(path) == rows | {"k1": (101, 101.0)}


@one_of("version", 6, 9)
def test_a_pending_write_stops_it(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, version)
    oldest = instants(path)[1]
    folder = path / open_table(path).config.timeline_folder
    (folder / f"{int(oldest) + 1}.deltacommit.requested").touch()
    (folder / f"{int(oldest) + 1}.deltacommit.inflight").touch()
    done = clean_table(open_table(path), ONE, LOCK, dry_run=True)
    assert done.retained == oldest
    assert "is pending" in done.why


@one_of("version", 9, 6)
def test_a_savepoint_keeps_its_files(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, version)
    first = instants(path)[1]
    rows = as_of(path, first)
    kept = create_savepoint(open_table(path), LOCK, first, user="", comment="")
    done = clean(path)
    assert set(done.kept) == {"a savepoint keeps it"}
    for partition, names in kept.savepoint.files.items():
        assert all((path / partition / name).exists() for name in names)
    assert rows
    delete_savepoint(open_table(path), LOCK, first)
    assert clean(path).files > 0


@one_of("version", 9, 6)
def test_a_pin_keeps_its_state_and_later_ones(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, version)
    timeline = open_table(path).load_timeline()
    second = timeline.completed_writes[instants(path)[1]]
    past = {instant: as_of(path, instant) for instant in instants(path)[1:]}
    pin = HeldPin(LocalStorage(str(path)), PinOptions(name="reader", for_s=600), timeline.counts_from(second))
    done = clean(path)
    assert done.why == "a pin holds it"
    assert {instant: as_of(path, instant) for instant in past} == past
    pin.remove()
    assert clean(path).files > 0


def test_a_pin_that_is_put_while_a_clean_is_planned(tmp_path: Path) -> None:
    """Its reader may have looked before the plan was there: the plan is taken back."""
    path = tmp_path / "trips"
    old_table(path, 9)
    before, inner = data_files(path), LocalStorage(str(path))

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".clean.requested"):
            HeldPin(inner, PinOptions(name="reader", for_s=600), "")
        return call.do()

    with pytest.raises(ConflictError, match="pinned"):
        clean_table(Table.on(HookedStorage(inner, hook)), ONE, LOCK)
    assert data_files(path) == before
    assert not open_table(path).load_timeline().pending("clean")


def test_expired_pins_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    HeldPin(LocalStorage(str(path)), PinOptions(name="gone", for_s=600), "")
    for pin in (path / ".hoodie/.phantombase/pins/gone").iterdir():
        os.utime(pin, (time.time() - 601,) * 2)
    assert clean(path).files > 0
    assert all_pins(LocalStorage(str(path))) == []


def test_an_unreadable_pin_forbids_everything(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    (path / ".hoodie/.phantombase/pins/x").mkdir(parents=True)
    (path / ".hoodie/.phantombase/pins/x/y.json").write_text("{")
    before = data_files(path)
    with pytest.raises(MalformedError):
        clean(path)
    assert data_files(path) == before


@one_of("version", 6, 9)
def test_steps_of_a_bounded_size(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = old_table(path, version, 5)
    whole = clean_table(open_table(path), ONE, LOCK, dry_run=True)
    found = 0
    for _ in range(20):
        done = clean(path, max_files=2)
        assert done.files <= 2
        found += done.files
        assert read_rows(path) == rows
        if done.instant is None:
            break
    assert found == whole.files
    assert done.left == 0


@one_of("version", 9, 6)
def test_what_a_late_compaction_left_goes(version: int, tmp_path: Path) -> None:
    """Requested before the cutoff of a clean and completed after it; Hudi looks at its partition only when written."""
    path = tmp_path / "trips"
    old_table(path, version)
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    for number in (100, 101):
        upsert(path, one_row("k0", number))
    clean(path)
    compact(path)
    upsert(path, one_row("k2", 1))
    assert clean(path).files > 0
    groups = [p.name.partition("_")[0] for p in path.rglob("*.parquet")]
    assert len(groups) == len(set(groups))


@pytest.mark.parametrize(
    "name", ["v9_with_metadata_table", deep("v8_with_metadata_table"), deep("v6_with_metadata_table")]
)
def test_the_metadata_table_forgets_the_files(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    rows = read_table(open_table(path)).num_rows
    CliRunner().invoke(app, ["compact", str(path), "--executor", "local"])
    done = clean(path)
    assert done.files > 0
    assert validate(open_table(path)).differences == ()
    assert read_table(open_table(path)).num_rows == rows


@one_of("version", 9, 6)
def test_died_at_every_call_the_next_run_finishes(version: int, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    rows = old_table(origin, version)
    ended = shutil.copytree(origin, tmp_path / "ended")
    clean(ended)
    left, past = data_files(ended), instants(origin)[-1]
    died = 0
    for died, path in enumerate(died_or_ended(origin, lambda storage: clean_table(Table.on(storage), ONE, LOCK))):  # noqa: B007
        assert read_rows(path) == rows
        assert as_of(path, past) == rows
        clean(path)
        assert data_files(path) == left
        assert read_rows(path) == rows
        assert not open_table(path).load_timeline().pending("clean")
        shutil.rmtree(path)
    assert died > 4


@one_of("version", 6, 9)
def test_an_error_at_every_call_the_next_run_finishes(version: int, tmp_path: Path) -> None:
    origin, said = tmp_path / "origin", 0
    rows = old_table(origin, version)
    whole = shutil.copytree(origin, tmp_path / "whole")
    clean(whole)
    for _, _, path, error in Faults.of(origin, lambda storage: clean_table(Table.on(storage), ONE, LOCK)).errors():
        if error:
            assert read_rows(path) == rows
        clean(path)
        assert data_files(path) == data_files(whole)
        assert read_rows(path) == rows
        said += error is not None
    assert said > 8


def test_a_plan_that_names_what_is_needed_removes_nothing(tmp_path: Path) -> None:
    """As after a restore to a state behind a pending clean. It is taken back, unless files of it may be gone."""
    path = tmp_path / "trips"
    rows = old_table(path, 9)
    before = data_files(path)
    newest = max((name for name in before if name.endswith(".parquet")), key=lambda name: name.rpartition("_")[2])
    partition, _, name = newest.rpartition("/")
    table = open_table(path)
    plan = CleanPlan(policy=Policy.COMMITS.hudi_name, files={partition: (name,)})
    requested = path / table.config.timeline_folder / "20300101000000000.clean.requested"
    requested.write_bytes(encode_clean_plan(plan, str(path)))
    inflight = requested.with_name("20300101000000000.clean.inflight")
    inflight.touch()
    with pytest.raises(ConflictError, match="readers need"):
        clean(path)
    assert data_files(path) == before
    inflight.unlink()
    assert clean(path).finished == ()
    assert newest in data_files(path)
    assert not open_table(path).load_timeline().pending("clean")
    assert read_rows(path) == rows


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = CleanPlan(
        policy="KEEP_LATEST_COMMITS",
        files={"": ("f-0_1-2-3_20260101000000000.parquet",), "a/b": (".f-0_20260101000000000.log.1_1-2-3",)},
        retained=("20260101000000000", "deltacommit"),
        last_completed="20260101000000001",
        partitions=("c",),
    )
    assert decode_clean_plan(encode_clean_plan(plan, "/lake/t"), "there") == plan


@pytest.mark.parametrize("name", ["hoodie.properties", "..", "x/../y.parquet", ""])
def test_a_plan_with_something_else_is_refused(name: str) -> None:
    plan = CleanPlan(policy="KEEP_LATEST_COMMITS", files={"a": (name,)})
    with pytest.raises(MalformedError):
        decode_clean_plan(encode_clean_plan(plan, "/lake/t"), "there")
    outside = CleanPlan(policy="KEEP_LATEST_COMMITS", files={"../a": ("f-0_1-2-3_20260101000000000.parquet",)})
    with pytest.raises(MalformedError):
        decode_clean_plan(encode_clean_plan(outside, "/lake/t"), "there")


@pytest.mark.parametrize("seed", [SEED, *map(deep, range(1, 30))])
@one_of("version", 9, 6)
def test_random_histories(version: int, seed: int, tmp_path: Path) -> None:
    """Writes, plans, compactions, cleans in any order: rows are those last written, at every retained state too."""
    pick, path, model = random.Random(seed), tmp_path / "trips", {"k0": (0, 0.0)}
    states: dict[str, Rows] = {}
    with seed_note(seed, version):
        written_table(path, version, one_row("k0", 0), WRITES)
        retained = ""
        for number in range(1, 25):
            step = pick.choice(("write", "write", "write", "plan", "compact", "clean"))
            if step == "write":
                key = f"k{pick.randrange(4)}"
                upsert(path, one_row(key, number))
                model = model | {key: (number, float(number))}
                states[instants(path)[-1]] = model
            elif step == "plan":
                schedule_compaction(open_table(path), LOCK, PLAN_NOW)
            elif step == "compact":
                compact(path)
            else:
                policy = pick.choice((Policy.COMMITS, Policy.COMMITS, Policy.VERSIONS))
                done = clean(path, policy, pick.randrange(1, 4))
                retained = max(retained, done.retained or "", (done.instant or "") if policy is Policy.VERSIONS else "")
            assert read_rows(path) == model
        for instant, rows in states.items():
            if instant >= retained and not open_table(path).load_timeline().pending_writes:
                assert as_of(path, instant) == rows


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)

    def run(*args: str) -> str:
        done = CliRunner().invoke(app, ["clean", str(path), "--retain", "1", *args])
        assert done.exit_code == 0, done.output
        return done.output

    before = data_files(path)
    assert "nothing to clean: a query of" in " ".join(run("--dry-run").split())
    assert "would be removed" in run("--dry-run", "--floor", "0")
    assert data_files(path) == before
    assert "removed" in run("--floor", "0", "--sole-writer")
    assert data_files(path) < before
    refused = CliRunner().invoke(app, ["clean", str(path)])
    assert isinstance(refused.exception, UsageError)


@one_of("version", 9, 6)
def test_the_newest_write_before_a_clean_of_file_versions_is_whole(version: int, tmp_path: Path) -> None:
    """Its state is that at the time of the clean; the state before it is not whole."""
    path = tmp_path / "trips"
    old_table(path, version)
    *_, before, newest = sorted(open_table(path).load_timeline().completed_writes)
    clean_table(open_table(path), CleanOptions(policy=Policy.VERSIONS, retain=1, floor_s=0), LOCK)
    expected = read_rows(path)
    upsert(path, one_row("later", 1000))
    assert as_rows(read_table(open_table(path), ReadOptions(as_of=newest))) == expected
    with pytest.raises(UsageError, match="may have been cleaned"):
        read_table(open_table(path), ReadOptions(as_of=before))
    assert create_savepoint(open_table(path), LOCK, newest, user="", comment="")
