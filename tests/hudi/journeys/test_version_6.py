"""The journey of version 6 with real Hudi 0.15.0: a bucket index, and blocks of Parquet in the logs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import BarrierError, ConflictError
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.indexed_table import HUDI, IndexedTable
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, OPTIMISTIC, PARQUET_LOGS, Completes, hudi_rs_reads
from tests.hudi.journeys.journey import LOCK, Journey, Stage, check_keys, travel
from tests.hudi.judge.fixtures import Judges
from tests.hudi.judge.java_client import archived_instants
from tests.support.archived_tables import data_files
from tests.support.compaction_steps import check_no_strays, open_table, run_all, run_one
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth

pytestmark = pytest.mark.interop


def hudi_finds_the_rows_that_we_wrote(journey: Journey) -> None:
    """In base files and logs of our writes, updates and tombstones; and it updates and deletes them."""
    table, rows, path = journey.table, journey.rows, str(journey.path)
    table.creator(rows(range(60), 1)).bulk_insert(path)
    table.creator(rows(range(40, 90), 2)).upsert(path)
    table.creator(rows(range(10), 3, deleted=True)).upsert(path)
    table.creator(rows(range(10, 20), 0).drop_columns(["ts"])).delete(path)
    check_keys(journey.look(), range(20, 90))
    latest = rows(range(30, 110, 3), (3, 4))
    table.upsert(latest)
    table.delete(rows(range(20, 30), 5))
    journey.look(latest, range(30))


def a_log_on_a_plan_keeps_it(journey: Journey) -> None:
    """Logs of both on a plan carry its instant: it cannot be taken back, and what either makes of it reads the same."""
    table, rows = journey.table, journey.rows
    instant = table.hudi_schedules()
    # A late update after a planned delete is decided by the base row before compaction and wins after it.
    table.upsert(rows([*range(20, 26), *range(60, 80, 3)], (1, 9)))
    with pytest.raises(ConflictError, match="file of this instant"):
        unschedule(table.open(), instant, LOCK)
    written = journey.we_upsert(rows(range(40, 60, 3), (1, 20)))
    stats = table.open().commit_metadata(table.open().load_timeline().completed_writes[written])
    files = [str(stat.path) for of in stats.partition_to_write_stats.values() for stat in of]
    assert {f"_{instant}.log." in file for file in files} == {True}
    before, hudis = table.we_read(), table.copy()
    hudis.hudi_compacts(instant)
    assert table.we_compact() == [instant]
    snapshot, base_files = journey.look(), table.agree_on_base_files()
    same(snapshot, before)
    same(base_files, hudis.hudi_reads("read_optimized"))
    same(snapshot, hudis.hudi_reads())
    same(hudi_rs_reads(table.path), snapshot)


def a_write_below_the_plan_of_hudi(journey: Journey) -> None:
    """It is read whenever it completes: at each snapshot of ours at the timeline, when each slice was staged before."""
    table, path = journey.table, journey.path
    journey.we_upsert(journey.rows(range(30, 50), 30))
    journey.we_upsert(journey.rows(range(30, 40), 31))
    expected, opened = table.we_read(), table.open()
    timeline = opened.load_timeline()
    done = opened.instant_path(timeline.completed_writes[timeline.latest_completed])
    content = opened.storage.read(done)
    opened.storage.delete(done)
    instant = table.judge.schedule_compaction(path, OPTIMISTIC)
    assert instant is not None
    with pytest.raises(BarrierError):
        table.we_compact(attempt=AttemptOptions(barrier_s=0.3))
    for number in count(1):
        left = replace(table, path=path.with_name(f"look{number}"))
        shutil.copytree(path, left.path)
        completes = Completes(left, done, content, number)
        storage = HookedStorage(LocalStorage(str(left.path)), completes.hook)
        try:
            run_one(open_table(left.path, storage), instant)
        except BarrierError:
            break
        assert completes.looks >= number
        same(left.we_read(), expected)
    assert number > 3, "the write was never completed between two looks"
    same(table.judge.read(left.path.with_name(f"look{number - 1}")), expected)
    opened.storage.put_if_absent(done, content)
    assert table.we_compact() == [instant]
    same(journey.look(), expected)


def hudi_finishes_what_we_left(journey: Journey) -> None:
    """Where all our files were placed; they go with our next run. It takes our plan for its own."""
    table, rows = journey.table, journey.rows
    latest = rows(range(0, 100, 6), 40)
    table.upsert(latest)
    instant = table.we_schedule()
    before = table.we_read()
    half = HookedStorage(LocalStorage(str(table.path)), die_at_nth(1, "put_if_absent", "commit"))
    with pytest.raises(ProcessDied):
        run_all(open_table(table.path, half))
    assert table.pending() == [instant]
    table.hudi_compacts(instant)
    same(journey.look(latest), before)
    assert table.we_compact() == []
    check_no_strays(table.path)


def hudi_cleans_nothing_that_we_left(journey: Journey) -> None:
    """Nor do we leave anything that its cleaner would delete."""
    table, hudis = journey.table, journey.table.copy()
    before = table.we_read()
    assert clean_table(table.open(), CleanOptions(retain=1, floor_s=0), LOCK).files
    hudis.judge.clean(hudis.path)
    assert data_files(table.path) == data_files(hudis.path)
    cleans = table.open().load_timeline().instants
    table.judge.clean(table.path)
    assert table.open().load_timeline().instants == cleans
    same(journey.look(), before)


def both_archive(journey: Journey) -> None:
    """Hudi reads in the archive what we have moved there, and the other way round; then it goes on."""
    table, rows, path = journey.table, journey.rows, journey.path
    small = ArchiveOptions(min_instants=4, max_instants=5, commits_retained=1, compaction_commits=1)
    assert archive_table(table.open(), small, LOCK).archived
    ours = table.open().load_timeline(archived=True).archived
    assert sorted(archived_instants("0.15.0", path)) == sorted((i.requested_time, i.action) for i in ours)
    table.judge.archive(path)
    assert len(table.open().load_timeline(archived=True).archived) > len(ours)
    latest = rows(range(0, 120, 5), 50)
    table.upsert(latest)
    table.hudi_compacts(table.we_schedule())
    same(journey.look(latest), table.agree_on_base_files())


STAGES: Sequence[Stage] = (
    (
        {**EVENT_TIME, **BUCKET, **PARQUET_LOGS},
        (
            hudi_finds_the_rows_that_we_wrote,
            a_log_on_a_plan_keeps_it,
            a_write_below_the_plan_of_hudi,
            hudi_finishes_what_we_left,
            hudi_cleans_nothing_that_we_left,
            both_archive,
        ),
    ),
)


@pytest.mark.parametrize("version", [6])
def test_journey(version: int, judges: Judges, tmp_path: Path) -> None:
    """What real Hudi 0.15 and we do to one table."""
    judge = judges(HUDI[version])
    travel(IndexedTable(judge=judge, path=tmp_path / "table", version=version, partition_field=None), STAGES)
