"""The tables that real Hudi cleaned: the same files stay."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.cleaning.choice import Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_metadata
from phantombase.timeline.format.instant import Instant, State, later
from phantombase.timeline.instants.instant_files import retained_by
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.pins import HeldPin, PinOptions
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.read.windows import load_state
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    ONE,
    clean,
    cluster,
    data_files,
    one_row,
    overwrite,
    row,
    rows_at,
    unzip,
    upsert,
    upsert_at,
)
from tests.support.compaction_steps import open_table, run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import LOCK
from tests.support.selection import ALL, deep
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.written_tables import Rows, written_table


@pytest.mark.parametrize(
    ("before", "after", "policy"),
    [
        ("v6_0.15.0_clean_commits.before", "v6_0.15.0_clean_commits.after1", Policy.COMMITS),
        ("v6_0.15.0_clean_commits.before2", "v6_0.15.0_clean_commits.after2", Policy.COMMITS),
        ("v6_0.15.0_clean_savepoint.before", "v6_0.15.0_clean_savepoint.after", Policy.COMMITS),
        ("v6_0.15.0_clean_versions.before", "v6_0.15.0_clean_versions.after", Policy.VERSIONS),
        ("v6_0.15.0_replaced.before", "v6_0.15.0_replaced.after", Policy.COMMITS),
        ("v9_1.2.0_t.before", "v9_1.2.0_t.cleaned", Policy.COMMITS),
    ],
)
def test_the_same_files_stay(before: str, after: str, policy: Policy, tmp_path: Path) -> None:
    path, expected = unzip(before, tmp_path), unzip(after, tmp_path)
    rows = read_table(open_table(path))
    clean(path, policy)
    assert data_files(path) == data_files(expected)
    assert_same_rows(read_table(open_table(path)), rows)
    assert clean(path, policy).instant is None


def test_clusterings(tmp_path: Path) -> None:
    """What Hudi clustered goes with the same clean: its state before is put together of what it left, and of the input
    files, which the table before the two later writes has."""
    path, before = unzip("v6_0.15.0_cluster.cleaned", tmp_path), unzip("v6_0.15.0_cluster.after", tmp_path)
    stay, rows = data_files(path), read_table(open_table(path))
    for name in data_files(before) - stay:
        shutil.copy2(before / name, path / name)
    for part in (path / ".hoodie").glob("*.clean*"):
        part.unlink()
    clean(path)
    assert data_files(path) == stay
    assert_same_rows(read_table(open_table(path)), rows)


def test_what_a_pending_clustering_needs_stays(tmp_path: Path) -> None:
    """As Hudi, which cleaned this table beside it."""
    path = unzip("v6_0.15.0_pending_clustering.after", tmp_path)
    stay = data_files(path)
    for part in (path / ".hoodie").glob("*.clean*"):
        part.unlink()
    clean(path)
    assert data_files(path) == stay


# No clean records a cutoff that a replace commit lies below whose replaced files stay: Hudi would archive it.


_REWRITES = WriteOptions(slots=1)
_APPENDS = WriteOptions(slots=1, small_file_bytes=0)


def cutoff(path: Path, instant: str | None) -> str:
    """What the clean recorded."""
    table = open_table(path)
    [made] = [i for i in table.load_timeline().instants if i.requested_time == instant]
    return retained_by(table.files, made)


def table_of(path: Path, version: int) -> None:
    written_table(path, version, row("old", "a", 0), _REWRITES)
    for number in range(6):
        upsert(path, row(f"b{number}", "b", number), _REWRITES)


@pytest.mark.parametrize("policy", [Policy.COMMITS, Policy.VERSIONS])
@pytest.mark.parametrize("version", [6, 9])
def test_what_a_savepoint_keeps(version: int, policy: Policy, tmp_path: Path) -> None:
    """From version 8 on the plan names the savepoint, which is enough where commits are retained."""
    path = tmp_path / "t"
    table_of(path, version)
    saved = open_table(path).load_timeline().latest_completed
    create_savepoint(open_table(path), LOCK, saved, user="", comment="")
    overwrite(path, row("new", "a", 1))
    replacing = open_table(path).load_timeline().latest_completed
    for number in range(3):
        upsert(path, row(f"b{number}", "b", number + 10), _REWRITES)
    done = clean(path, policy)
    assert done.files
    by_name = version > 6 and policy is Policy.COMMITS
    assert (cutoff(path, done.instant) <= replacing) != by_name
    requested = open_table(path).instant_path(
        Instant(requested_time=done.instant or "", action="clean", state=State.REQUESTED)
    )
    assert decode_clean_plan((path / requested).read_bytes(), requested).savepoints == (saved,)


def test_what_a_savepoint_keeps_of_an_earlier_clustering(tmp_path: Path) -> None:
    """It completed behind a savepoint at which Hudi's archiver stops, and began before it."""
    path, saved = tmp_path / "t", list[str]()
    written_table(path, 9, row("k0", "a", 0), _APPENDS)
    for number in range(1, 4):
        upsert(path, row(f"k{number}", "a", number), _APPENDS)

    def hook(call: Call) -> Any:
        if not saved and call.path.endswith("/open"):  # the plan is visible
            saved.append("")
            upsert(path, row("b", "b", 0), _REWRITES)
            saved[0] = create_savepoint(open_table(path), LOCK, None, user="", comment="").instant
        return call.do()

    done = cluster(path, HookedStorage(open_table(path).storage, hook)).done
    assert done is not None
    assert done.instant < saved[0]
    for number in range(3):
        upsert(path, row(f"b{number}", "b", number), _REWRITES)
    cleaned = clean(path)
    assert cleaned.instant is None or cutoff(path, cleaned.instant) <= done.instant
    delete_savepoint(open_table(path), LOCK, saved[0])
    assert clean(path).files == 6


def test_what_a_pending_write_may_replace(tmp_path: Path) -> None:
    """Behind a clean of Hudi by file versions, whose cutoff is its own time."""
    path, done = tmp_path / "t", list[str]()
    table_of(path, 6)

    def hook(call: Call) -> Any:
        found = open_table(path).layout.parse(call.path.rpartition("/")[2]) if call.name == "put_if_absent" else None
        if found is not None and found.action == "replacecommit" and found.state is State.COMPLETED:
            plan = CleanPlan(policy=Policy.VERSIONS.hudi_name, files={"b": ("f-0_1-2-3_20260101000000000.parquet",)})
            time = later(found.requested_time, 1)
            (path / f".hoodie/{time}.clean").write_bytes(encode_clean_metadata(plan, time, 1, frozenset()))
            done.append(clean(path).instant or "")
        return call.do()

    overwrite(path, row("new", "a", 1), HookedStorage(open_table(path).storage, hook))
    replacing = open_table(path).load_timeline().latest_completed
    assert cutoff(path, done[0]) <= replacing


# Cleaning on an object store: deaths at a sample of its requests, lost answers, and a pin.


def old_table(s3: S3Server, version: int) -> tuple[str, Rows]:
    """Two slices of a base file and a log in one file group, and its rows."""
    url = f"s3://{s3.new_bucket()}/a trip=1%20"
    upsert_at(url, version, one_row("k0", 0))
    for number in (1, 2):
        upsert_at(url, version, one_row("k1", number))
        schedule_compaction(Table.open(url), LOCK, PLAN_NOW)
        run_all(Table.open(url))
    upsert_at(url, version, one_row("k1", 3))
    return url, rows_at(url)


def names(url: str) -> set[str]:
    view = Table.open(url).load_view()
    return {file.path for group in view.groups for slice_ in group.slices for file in slice_.files}


@pytest.mark.parametrize("version", [deep(6), 9])
def test_it_is_finished_after_a_death_at_any_request(version: int, s3: S3Server) -> None:
    """Every 17th call, with all tests every seventh; the next run goes on where the last one died."""
    url, rows = old_table(s3, version)
    state = load_state(Table.open(url).with_timeline(Table.open(url).load_timeline(archived=True)), "9" * 17, None)
    needed = {file.path for _, slice_ in state.slices() for file in slice_.files}
    before = names(url)
    for number in count(0, 7 if ALL else 17):
        try:
            clean_table(Table.on(HookedStorage(Table.open(url).storage, die_at(number))), ONE, LOCK)
            ended = True
        except ProcessDied:
            ended = False
        assert rows_at(url) == rows
        if ended:
            break
    assert needed <= names(url) < before
    assert not Table.open(url).load_timeline().pending("clean")


@pytest.mark.parametrize("fault", [Fault.LOST, deep(Fault.CUT)])
def test_lost_answers(fault: Fault, s3: S3Server) -> None:
    """Of every other request that changes something."""
    url, rows = old_table(s3, 9)
    asked = count()

    def faults(one: Asked) -> Fault:
        return fault if one.changes and next(asked) % 2 else Fault.NONE

    s3.faults = faults
    assert clean_table(Table.open(url), ONE, LOCK).files > 0
    s3.faults = lambda one: Fault.NONE
    assert rows_at(url) == rows
    assert not Table.open(url).load_timeline().pending("clean")
    assert clean_table(Table.open(url), ONE, LOCK).instant is None


def test_a_pin_keeps_its_state(s3: S3Server) -> None:
    url, _ = old_table(s3, 9)
    before = names(url)
    pin = HeldPin(Table.open(url).storage, PinOptions(name="reader", for_s=600), "")
    assert clean_table(Table.open(url), ONE, LOCK).why == "a pin holds it"
    assert names(url) == before
    pin.remove()
    assert clean_table(Table.open(url), ONE, LOCK).files > 0
