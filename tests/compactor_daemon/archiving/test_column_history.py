"""Columns that evolve on read: the write with the newest history of them, and compactions behind it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving import archive
from phantombase.compactor_daemon.archiving.archive import ArchiveResult, archive_table
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.triggers import TriggerStrategy
from phantombase.timeline.read.table_read import read_table
from tests.support.compaction_steps import open_table, run_all
from tests.support.evolved_tables import alter, columns_of, renamed
from tests.support.tables import one_of

ONE_AT_A_TIME = ScheduleOptions(strategy=TriggerStrategy.ALWAYS, max_file_slices=1, max_plans=1, incremental=False)
FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


def towns(path: Path) -> dict[str, str]:
    return {row["id"]: row["town"] for row in read_table(open_table(path)).to_pylist()}


def changed_and_compacted(path: Path, version: int) -> str:
    """A table of which every file group was compacted since its column was renamed; the write that renamed it."""
    parts = list("abcd")
    for ts in (1, 2):
        given = {"id": parts, "part": parts, "ts": [ts] * 4, "city": ["Rome"] * 4}
        made = writer(pa.table(given)).table("t", version=version).key("id").partition("part")
        made.ordering("ts").upsert(str(path))
    table = open_table(path)
    changed = alter(table, renamed(columns_of(table), city="town"))
    for _ in parts:
        schedule_compaction(table.reload(), ProcessLock(str(path)), ONE_AT_A_TIME)
        run_all(table.reload())
    return changed


def archived(path: Path) -> ArchiveResult:
    return archive_table(open_table(path), FEW, ProcessLock(str(path)))


@one_of("version", 9, 6)
def test_the_newest_history_stays(version: int, tmp_path: Path) -> None:
    """Without it Hudi takes the table for one whose columns do not evolve; no reader of phantombase read it."""
    path = tmp_path / "t"
    changed = changed_and_compacted(path, version)
    found = archived(path)
    assert (len(found.archived), found.why) == (2, f"write {changed} has the newest history of the columns")
    assert towns(path) == dict.fromkeys("abcd", "Rome")


@one_of("version", 6, 9)
def test_a_history_whose_write_another_archiver_took(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    changed = changed_and_compacted(path, version)
    monkeypatch.setattr(archive, "_history_border", lambda table, timeline: ())
    assert changed in {one.instant for one in archived(path).archived}
    assert towns(path) == dict.fromkeys("abcd", "Rome")
