"""What an operator does with real Hudi between two steps of a compaction of ours is done: nothing comes back or goes.

The compacting process sleeps meanwhile and wakes up, or is dead and the next run takes up what it left.
`PHANTOMBASE_HISTORIES=2 pytest tests/hudi/cases/test_operators.py` tries every moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.timeline.errors import PhantombaseError
from tests.hudi.cases.asleep import Moment, compact_and_die, compact_asleep
from tests.hudi.cases.indexed_table import stored_files
from tests.hudi.cases.rows import Rows, same, without_files
from tests.hudi.cases.shared_table import SharedTable, check_rows, end_pending
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import base_files, check_no_strays
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

THOROUGH = int(os.environ.get("PHANTOMBASE_HISTORIES", "1")) > 1
LONG_AGO = 6
"""Writes behind a compaction that let Hudi archive it."""
USUAL = [(Moment.DECIDED, False), (Moment.PLACED, True)]
MOMENTS = [(moment, dead) for moment in Moment for dead in (False, True)] if THOROUGH else USUAL
CASES = [(version, *moment) for version in (9, 6) for moment in MOMENTS]


def at_each_moment(*usual: int | None) -> pytest.MarkDecorator:
    """With the table version, if any, that is usual for a moment; with all where all tests run."""
    chosen = [(version, *moment) for version, moment in zip(usual, USUAL, strict=True)]
    return pytest.mark.parametrize(
        ("version", "moment", "dead"),
        [case if THOROUGH or case in chosen else deep(*case) for case in CASES],
        indirect=["version"],
        ids=[f"v{version}-{'dead' if dead else 'asleep'} {moment.name.lower()}" for version, moment, dead in CASES],
    )


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A table with two writes behind a savepoint and a plan of Hudi's for them; `snapshots`: behind each write."""

    table: SharedTable
    savepoint: str
    instant: str
    snapshots: tuple[pa.Table, pa.Table, pa.Table]


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Judge, int], Planned]:
    """By table version; made once."""

    @cache
    def make(judge: Judge, version: int) -> Planned:
        table = SharedTable(judge=judge, path=tmp_path_factory.mktemp("origin") / "table", version=version)
        rows = Rows(seed=version)
        table.create(rows(range(20), 1))
        savepoint = judge.savepoint(table.path)
        assert savepoint is not None
        snapshots = [table.agree()]
        for numbers, ts in ((range(10), 2), (range(5), 3)):
            table.upsert(rows(numbers, ts))
            snapshots.append(table.agree())
        instant = table.hudi_schedules()
        first, second, third = snapshots
        return Planned(table=table, savepoint=savepoint, instant=instant, snapshots=(first, second, third))

    return make


@pytest.fixture
def planned(judge: Judge, version: int, origins: Callable[[Judge, int], Planned], tmp_path: Path) -> Planned:
    """A copy of it."""
    made = origins(judge, version)
    shutil.copytree(made.table.path, tmp_path / "table")
    return replace(made, table=replace(made.table, path=tmp_path / "table"))


def compact_while(planned: Planned, moment: Moment, dead: bool, act: Callable[[], None]) -> None:
    """We compact, and `act` happens at that moment. What is ours to refuse is refused; what pends then has an end."""
    table, instant = planned.table, planned.instant
    if dead:
        compact_and_die(table, instant, moment)
        act()
    else:
        with suppress(PhantombaseError):
            compact_asleep(table, instant, moment, act)
    end_pending(table)


def goes_on(planned: Planned, expected: pa.Table, *, archived: bool) -> None:
    """Both read what is expected, also when the table has moved on; `archived`: past the compaction."""
    table, written = planned.table, Rows(seed=7)(range(15, 18), 4)
    same(without_files(table.agree()), without_files(expected))
    check_no_strays(table.path)
    table.upsert(written)
    before = table.agree()
    check_rows(before, written)
    if archived:
        if table.open().load_timeline().find(planned.savepoint, "savepoint") is not None:
            table.judge.delete_savepoint(table.path, planned.savepoint)
        for _ in range(LONG_AGO):
            table.upsert(written)
        before = table.agree()
        archive_past(table, planned.instant)
        same(table.agree(), before)
    table.audited()


def archive_past(table: SharedTable, instant: str) -> None:
    """Until the active timeline begins behind it."""
    table.judge.clean(table.path)
    for _ in range(2):
        table.judge.archive(table.path)
    assert table.open().load_timeline().start > instant


@at_each_moment(9, None)
def test_what_was_restored_away_stays_away(planned: Planned, moment: Moment, dead: bool) -> None:
    """A restore to a savepoint before the plan, which takes the plan off the timeline."""
    table = planned.table
    compact_while(planned, moment, dead, lambda: table.judge.restore(table.path, planned.savepoint))
    assert not base_files(table.path, planned.instant)
    goes_on(planned, planned.snapshots[0], archived=dead)


@at_each_moment(6, 9)
def test_what_was_rolled_back_stays_away(planned: Planned, moment: Moment, dead: bool) -> None:
    """The newest write below the plan is rolled back, as long as no compaction is completed on top of it."""
    if moment is Moment.COMPLETED:
        return
    table = planned.table
    newest = max(table.open().load_timeline().completed_writes)
    compact_while(planned, moment, dead, lambda: table.judge.rollback(table.path, newest))
    goes_on(planned, planned.snapshots[1], archived=dead)


@at_each_moment(9, None)
def test_what_was_overwritten_stays_away(planned: Planned, moment: Moment, dead: bool) -> None:
    """Every file group of the plan is replaced, and cleaned where only the latest version of a file is kept."""
    table, fresh = planned.table, Rows(seed=3)(range(100, 120), 3)
    table.judge.delete_savepoint(table.path, planned.savepoint)
    replaced = stored_files(table.path)

    def act() -> None:
        table.judge.insert_overwrite(table.path, fresh)
        table.judge.clean_by_versions(table.path)
        assert not any(file in stored_files(table.path) for file in replaced)

    compact_while(planned, moment, dead, act)
    rows = table.agree()
    check_rows(rows, fresh)
    assert rows.num_rows == fresh.num_rows
    goes_on(planned, rows, archived=dead)


@versions(6, deep=[9])
def test_a_compaction_that_was_done_and_archived_meanwhile_is_not_completed_again(planned: Planned) -> None:
    """Another process of ours does it, Hudi writes, cleans and archives; then the first wakes up."""
    table, rows = planned.table, Rows(seed=11)
    table.judge.delete_savepoint(table.path, planned.savepoint)
    truth: list[pa.Table] = []

    def act() -> None:
        assert table.we_compact() == [planned.instant]
        for number in range(LONG_AGO):
            table.upsert(rows(range(2 * number, 2 * number + 2), 4 + number))
        archive_past(table, planned.instant)
        truth.append(table.agree())

    with suppress(PhantombaseError):
        compact_asleep(table, planned.instant, Moment.DECIDED, act)
    same(table.agree(), truth[0])
    assert not table.open().files.completed_commits(planned.instant)
    assert table.we_compact() == []
    goes_on(planned, truth[0], archived=False)
