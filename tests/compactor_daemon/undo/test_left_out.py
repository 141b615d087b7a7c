"""A compaction leaves out a file group that was replaced while it pended; then the replacing write is taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.undo.restore import restore_table, to_undo
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RestorePlan, encode_restore_plan
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.in_progress import merges_no_logs
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.facts import HASHING_METADATA, FactLoader
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    archive,
    capture_changes,
    cluster,
    long_table,
    one_row,
    overwrite,
    small_files,
    upsert,
)
from tests.support.change_feeds import MERGE_LOGS, request
from tests.support.compaction_steps import open_table, run_all, run_one
from tests.support.evolved_tables import digest
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.written_tables import written_table

_WRITES = WriteOptions(slots=1)
_THREE_STAY = ArchiveOptions(min_instants=3, max_instants=4, compaction_commits=1)
_STATE = {("k0", 2), ("k1", 0)}


def rows(table: Table, as_of: str | None = None) -> set[tuple[str, int]]:
    found = read_table(table, ReadOptions(as_of=as_of))
    return set(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))


def left_out(path: Path, version: int) -> tuple[str, str]:
    """A table; the last write before an overwrite beside a pending compaction, which then completes; the overwrite."""
    written_table(path, version, pa.concat_tables([one_row("k0", 0), one_row("k1", 0)]), _WRITES)
    upsert(path, one_row("k0", 1), _WRITES)
    assert schedule_compaction(open_table(path), LOCK, PLAN_NOW).instant is not None
    upsert(path, one_row("k0", 2), _WRITES)
    before = open_table(path).load_timeline().latest_completed
    overwrite(path, one_row("n", 3))
    replacing = open_table(path).load_timeline().latest_completed
    run_all(open_table(path))
    return before, replacing


@one_of("version", 9, 8, 6)
def test_the_state_before_is_read_whole_and_not_restored(version: int, tmp_path: Path) -> None:
    """Restored, Hudi's readers of version 6 would miss the rows of the base file that was not made."""
    path = tmp_path / "t"
    before, replacing = left_out(path, version)
    assert rows(open_table(path), before) == _STATE
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="left out a file group"):
            restore_table(open_table(path), LOCK, before, dry_run=dry_run)
        with pytest.raises(UsageError, match="left out a file group"):
            roll_back_newest(open_table(path), LOCK, replacing, dry_run=dry_run)
    assert rows(open_table(path)) == {("n", 3)}


def _torn(path: Path, replacing: str) -> None:
    table = open_table(path)
    (path / table.instant_path(table.load_timeline().completed_writes[replacing])).write_bytes(b"")


@one_of("version", 6, 9, 8)
def test_one_whose_file_cannot_be_read_may_have_replaced_what_was_left_out(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    before, replacing = left_out(path, version)
    _torn(path, replacing)
    with pytest.raises(UsageError, match="may have left out a file group"):
        restore_table(open_table(path), LOCK, before)
    second = sorted(open_table(path).load_timeline().completed_writes)[1]
    restore_table(open_table(path), LOCK, second)
    assert rows(open_table(path)) == {("k0", 1), ("k1", 0)}


@one_of("version", 9, 6)
def test_states_before_and_behind_are_restored(version: int, tmp_path: Path) -> None:
    """The compaction goes, or the replacing write stays."""
    path = tmp_path / "t"
    _, replacing = left_out(path, version)
    upsert(path, one_row("n", 4), _WRITES)
    restore_table(open_table(path), LOCK, replacing)
    assert rows(open_table(path)) == {("n", 3)}
    second = sorted(open_table(path).load_timeline().completed_writes)[1]
    restore_table(open_table(path), LOCK, second)
    assert rows(open_table(path)) == {("k0", 1), ("k1", 0)}


@one_of("version", 9, 6)
def test_the_compaction_is_archived_with_the_replacing_write_only(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    before, _ = left_out(path, version)
    upsert(path, one_row("n", 4), _WRITES)
    [compaction] = [i for i in open_table(path).load_timeline().completed if i.family == "commit"]
    done = archive(path, _THREE_STAY)
    assert done.archived
    assert max(one.instant for one in done.archived) < compaction.requested_time
    with pytest.raises(UsageError, match="left out a file group"):
        restore_table(open_table(path), LOCK, before)


def test_an_archiver_of_hudi_has_taken_the_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On version 6 the log files behind the plan still show it."""
    path = tmp_path / "t"
    before, replacing = left_out(path, 6)
    upsert(path, one_row("n", 4), _WRITES)
    with monkeypatch.context() as patched:
        patched.setattr(FactLoader, "left_out", lambda *_: {})  # Hudi has no such rule (seen: 0.15.0)
        archive(path, _THREE_STAY)
    timeline = open_table(path).load_timeline()
    assert not [i for i in timeline.completed if i.family == "commit"]
    assert before in timeline.completed_writes
    assert rows(open_table(path), before) == _STATE
    with pytest.raises(UsageError, match="left out a file group"):
        restore_table(open_table(path), LOCK, before)
    assert rows(open_table(path)) == {("n", 4)}
    _torn(path, replacing)
    with pytest.raises(UsageError, match="may have left out a file group"):
        restore_table(open_table(path), LOCK, before)


# What was written before an upgrade from version 6: undone whole, or refused before anything is changed.


FIRST, LAST = "20261121100505698", "20261121100514783"
"""Writes of version 6: the later ones are in log files that are named after the first."""


def files(path: Path) -> set[Path]:
    return {p for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("dry_run", [False, True], ids=["restore", "dry run"])
def test_blocks_of_version_6_are_not_left_in_place(dry_run: bool, tmp_path: Path) -> None:
    path = unzip_golden("v9_upgraded", tmp_path)
    before = files(path)
    with pytest.raises(UsageError, match=f"upgrade from version 6.*expected a state from {LAST} on"):
        restore_table(open_table(path), LOCK, FIRST, dry_run=dry_run)
    assert files(path) == before


def test_the_last_state_of_version_6_comes_back_and_its_write_stays(tmp_path: Path) -> None:
    path = unzip_golden("v9_upgraded", tmp_path)
    rows = read_table(open_table(path), ReadOptions(as_of=LAST)).sort_by("_hoodie_record_key")
    restore_table(open_table(path), LOCK, LAST)
    assert read_table(open_table(path)).sort_by("_hoodie_record_key").equals(rows)
    before = files(path)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="upgrade from version 6"):
            roll_back_newest(open_table(path), LOCK, LAST, dry_run=dry_run)
        assert files(path) == before


@pytest.mark.parametrize("dry_run", [False, True], ids=["restore", "dry run"])
def test_a_restore_of_hudi_that_is_half_way_is_left_to_hudi(dry_run: bool, tmp_path: Path) -> None:
    """Another one cannot begin, so a later state is no way out."""
    path = unzip_golden("v9_upgraded", tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    plan = RestorePlan(target=FIRST, undone=to_undo(timeline, FIRST))
    requested = Instant(
        requested_time=table.with_timeline(timeline).next_time(), action="restore", state=State.REQUESTED
    )
    table.storage.put_if_absent(table.instant_path(requested), encode_restore_plan(plan))
    before = files(path)
    with pytest.raises(UsageError, match=r"in progress\. Only Hudi can finish it"):
        restore_table(open_table(path), LOCK, None, dry_run=dry_run)
    assert files(path) == before


# Tables with consistent-hashing buckets: what would bring replaced file groups back, or move rows, is left to Hudi.
#
# Of tables with change data capture the same is refused, but for writes.


def hash_buckets(path: Path) -> None:
    """Hudi's hashing metadata of one partition."""
    (path / HASHING_METADATA / "1").mkdir(parents=True)


def writes(path: Path) -> list[str]:
    return list(open_table(path).load_timeline().completed_writes)


@one_of("version", 9, 6)
@pytest.mark.parametrize(
    ("kind", "make"), [("the consistent-hashing bucket index", hash_buckets), ("change data capture", capture_changes)]
)
@pytest.mark.parametrize(
    ("what", "step"),
    [
        ("restoring", lambda path: restore_table(open_table(path), LOCK, min(writes(path)))),
        ("taking back writes of", lambda path: roll_back_newest(open_table(path), LOCK, max(writes(path)))),
        ("clustering", cluster),
    ],
)
def test_refused_before_anything_is_changed(
    what: str, step: Callable[[Path], object], kind: str, make: Callable[[Path], None], version: int, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    small_files(path, version)
    make(path)
    there = digest(path)
    with pytest.raises(UnsupportedError, match=f"{what} a table with {kind}"):
        step(path)
    assert digest(path) == there


@one_of("version", 6, 9)
def test_writes_are_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_files(path, version)
    hash_buckets(path)
    there = digest(path)
    with pytest.raises(UnsupportedError, match="writing a table with the consistent-hashing bucket index"):
        writer(pa.table({"id": ["a"]})).upsert(str(path))
    assert digest(path) == there


@pytest.mark.usefixtures("default_filters")  # it goes by the sizes of files
@one_of("version", 9, 8)
def test_log_files_are_not_merged_with_each_other(version: int, tmp_path: Path) -> None:
    """Their names do not show which writes they hold."""
    path = tmp_path / "t"
    long_table(path, version, 8, compact_at=None)
    plain = schedule_compaction(open_table(path), LOCK, MERGE_LOGS, dry_run=True)
    assert any(one.plan.merges_logs for one in plain.requested)
    hash_buckets(path)
    assert merges_no_logs(open_table(path))
    hashed = schedule_compaction(open_table(path), LOCK, MERGE_LOGS, dry_run=True)
    assert not any(one.plan.merges_logs for one in hashed.requested)
    instant = request(open_table(path))
    with pytest.raises(UnsupportedError, match=f"unschedule TABLE {instant}"):
        run_one(open_table(path), instant)


def test_on_version_6_they_are(tmp_path: Path) -> None:
    """There they carry the base instant, in every table."""
    path = tmp_path / "t"
    long_table(path, 6)
    hash_buckets(path)
    assert not merges_no_logs(open_table(path))
