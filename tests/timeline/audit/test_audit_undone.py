"""`timeline audit` of compactions that were undone, executed again, or whose partition is gone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import decisions, find_decision
from phantombase.compactor_daemon.attempt.publish import retire
from phantombase.timeline.audit.audit import InstantAudit, Verdict, audit, audited_instants, was_undone
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.commit_metadata import LEDGER, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import LAYOUT_1
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import base_files, open_table, run_all
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import (
    FIRST,
    clean,
    planned,
    replace_first_group,
    restore_first_commit,
    timeline_files,
    upsert,
)
from tests.support.trips import rows
from tests.support.written_tables import read_rows


def compacted(path: Path, version: int) -> str:
    """A table of one file group, written twice and compacted; the compaction's instant."""
    instant = planned(path, version)
    run_all(open_table(path))
    return instant


def snapshot(path: Path, instant: str) -> InstantAudit:
    return audit(open_table(path), instant)


def verdicts(path: Path, instant: str) -> set[Verdict]:
    """Those of a compaction of which nothing is wrong."""
    found = snapshot(path, instant)
    assert found.good, (found.problems, [g.problems for g in found.groups])
    return {g.verdict for g in found.groups}


def problems(path: Path, instant: str) -> str:
    found = snapshot(path, instant)
    assert not found.good
    return " | ".join([*found.problems, *(p for g in found.groups for p in g.problems)])


def roll_back_compaction(path: Path, instant: str) -> None:
    """What Hudi's rollback of a completed compaction leaves: its plan pends again."""
    for file in timeline_files(path):
        if file.name.startswith(instant) and file.name.endswith(".commit"):
            file.unlink()
    remove_outputs(path, instant)
    assert pending_instants(open_table(path)) == (instant,)


def roll_back_last_write(path: Path, version: int) -> None:
    """What Hudi's rollback of a completed delta commit leaves; on version 6 a log stays, and does not count."""
    newest = max(f.name[:17] for f in timeline_files(path) if "deltacommit" in f.name)
    for file in timeline_files(path):
        if file.name.startswith(newest):
            file.unlink()
    for log in path.glob("*/.*.log.*") if version > 6 else ():
        log.unlink()
    assert read_rows(path) == FIRST


def remove_outputs(path: Path, instant: str) -> None:
    for file in base_files(path, instant):
        file.unlink()


def executed_again(path: Path, version: int) -> str:
    """Compacted, rolled back, a merged write rolled back too, and compacted again without it."""
    instant = compacted(path, version)
    roll_back_compaction(path, instant)
    roll_back_last_write(path, version)
    with pytest.raises(ConflictError, match="which it merged, was rolled back"):
        run_all(open_table(path))
    run_all(open_table(path))
    assert pending_instants(open_table(path)) == ()
    assert read_rows(path) == FIRST
    return instant


# --- undone -----------------------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_restored_away(version: int, tmp_path: Path) -> None:
    """The table is right without it; what is written and compacted afterwards does not change that."""
    path = tmp_path / "t"
    instant = compacted(path, version)
    remove_outputs(path, instant)
    restore_first_commit(path)
    assert verdicts(path, instant) == {Verdict.UNDONE}
    upsert(LocalStorage(str(path)), rows((0, 7, 7.0)))
    assert verdicts(path, instant) == {Verdict.UNDONE}


@one_of("version", 6, 9)
def test_rolled_back(version: int, tmp_path: Path) -> None:
    """Its plan pends again. Executed once more, of the same writes, it is proved by the entry that is there."""
    path = tmp_path / "t"
    instant = compacted(path, version)
    roll_back_compaction(path, instant)
    assert verdicts(path, instant) == {Verdict.UNDONE}
    run_all(open_table(path))
    assert verdicts(path, instant) == {Verdict.PROVED}
    assert not (path / audit_path(instant, 2)).exists()


@one_of("version", 9, 6)
def test_a_commit_removed_by_hand_excuses_nothing(version: int, tmp_path: Path) -> None:
    """While its base file is there, that is audited as ever."""
    path = tmp_path / "t"
    instant = compacted(path, version)
    for file in timeline_files(path):
        if file.name.startswith(instant) and file.name.endswith(".commit"):
            file.unlink()
    (base,) = base_files(path, instant)
    base.write_bytes(base.read_bytes() + b"x")
    assert "size of the written file" in problems(path, instant)


@one_of("version", 9, 6)
def test_what_cannot_be_known_is_wrong(version: int, tmp_path: Path) -> None:
    """The timeline begins behind it, and no archive tells whether it completed."""
    path = tmp_path / "t"
    instant = compacted(path, version)
    upsert(LocalStorage(str(path)), rows((0, 7, 7.0)))
    for file in timeline_files(path)[:-1]:
        if file.name[:17] <= instant:
            file.unlink()
    remove_outputs(path, instant)
    assert "is missing although it is the newest" in problems(path, instant)


def test_nothing_is_concluded_from_half_a_timeline(tmp_path: Path) -> None:
    """An upgrade by Hudi moves it file by file."""
    path = tmp_path / "t"
    instant = compacted(path, 6)
    remove_outputs(path, instant)
    moved = path / HOODIE / "timeline"
    moved.mkdir(exist_ok=True)
    for file in timeline_files(path):
        if file.name.startswith(instant):
            file.rename(moved / file.name)
    assert "is being upgraded" in problems(path, instant)


# --- executed again ---------------------------------------------------------------------------------------------------


@one_of("version", 6, 9)
def test_executed_again_of_other_writes(version: int, tmp_path: Path) -> None:
    """Each execution has its entry; the commit tells which one counts, and without it the last one does."""
    path = tmp_path / "t"
    instant = executed_again(path, version)
    first, second = (json.loads((path / audit_path(instant, n)).read_bytes()) for n in (1, 2))
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert verdicts(path, instant) == {Verdict.PROVED}
    assert audited_instants(open_table(path)) == (instant,)
    for file in timeline_files(path):
        if file.name.startswith(instant) and file.name.endswith(".commit"):
            file.unlink()
    assert verdicts(path, instant) == {Verdict.PROVED}


@one_of("version", 9, 6)
def test_its_entry_is_missed_and_written_again(version: int, tmp_path: Path) -> None:
    """The entry of an execution that was undone is none of this one's."""
    path = tmp_path / "t"
    instant = executed_again(path, version)
    entry = path / audit_path(instant, 2)
    whole = entry.read_bytes()
    entry.unlink()
    assert f"no entry {audit_path(instant, 2)}" in problems(path, instant)
    decision = find_decision(open_table(path).storage, instant)
    assert decision is not None
    for _ in range(2):
        retire(open_table(path), decision)
    assert entry.read_bytes() == whole
    assert not (path / audit_path(instant, 3)).exists()
    entry.write_bytes(whole.replace(b'\\"rows_out\\":', b'\\"rows_out\\":1', 1))
    assert "different ledgers" in problems(path, instant)


@one_of("version", 9, 6)
def test_a_decision_that_was_undone_leaves_no_entry_late(version: int, tmp_path: Path) -> None:
    """Its process slept between the commit and the clean-up."""
    path = tmp_path / "t"
    instant = executed_again(path, version)
    for execution in (1, 2):
        (path / audit_path(instant, execution)).unlink()
    first, second = decisions(open_table(path).storage, instant)
    retire(open_table(path), first)
    assert not (path / audit_path(instant)).exists()
    retire(open_table(path), second)
    assert verdicts(path, instant) == {Verdict.PROVED}


@one_of("version", 6, 9)
def test_an_unreadable_entry_hides_no_other(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = executed_again(path, version)
    (path / audit_path(instant)).write_bytes(b"")
    found = snapshot(path, instant)
    assert "unreadable entry of the audit log" in "".join(found.problems)
    assert len(found.problems) == 1
    assert {g.verdict for g in found.groups} == {Verdict.PROVED}


@one_of("version", 9, 6)
@pytest.mark.parametrize("left", [False, True])
def test_executed_again_by_hudi(version: int, left: bool, tmp_path: Path) -> None:
    """Its commit has no ledger and names other files. A file of ours beside them is wrong."""
    path = tmp_path / "t"
    instant = compacted(path, version)
    table = open_table(path)
    (done,) = (i for i in table.files.completed_commits() if i.requested_time == instant)
    metadata = table.commit_metadata(done)
    (ours,) = base_files(path, instant)
    theirs = ours.with_name(ours.name.replace("-990000000_", "-77_"))
    shutil.copy(ours, theirs)
    if not left:
        ours.unlink()
    stats = {
        partition: tuple(replace(s, path=f"{partition}/{theirs.name}") for s in of)
        for partition, of in metadata.partition_to_write_stats.items()
    }
    extra = {key: text for key, text in metadata.extra_metadata.items() if key != LEDGER}
    changed = replace(metadata, partition_to_write_stats=stats, extra_metadata=extra)
    (path / table.instant_path(done)).write_bytes(encode(changed, table.layout.encoding))
    if left:
        assert "a second base file of the instant" in problems(path, instant)
    else:
        assert verdicts(path, instant) == {Verdict.UNDONE}


# --- partition gone ---------------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_a_partition_removed_by_hand_is_wrong(version: int, tmp_path: Path) -> None:
    """Every row of it is lost, and readers fail."""
    path = tmp_path / "t"
    instant = compacted(path, version)
    shutil.rmtree(base_files(path, instant)[0].parent)
    with pytest.raises(MissingFileError):
        read_rows(path)
    assert "is missing although it is the newest" in problems(path, instant)


@one_of("version", 6, 9)
def test_a_partition_lost_after_a_later_compaction_is_wrong(version: int, tmp_path: Path) -> None:
    """The first commit is no longer there; the second one names the group's base file."""
    path = tmp_path / "t"
    first = compacted(path, version)
    upsert(LocalStorage(str(path)), rows((0, 7, 7.0)))
    second = schedule_compaction(open_table(path), LOCK).instant
    assert second is not None
    run_all(open_table(path))
    assert verdicts(path, first) == {Verdict.PROVED}
    for file in timeline_files(path):
        if file.name[:17] <= first:
            file.unlink()
    shutil.rmtree(base_files(path, second)[0].parent)
    assert not snapshot(path, first).good
    assert not snapshot(path, second).good


@one_of("name", "v9_pending", "v6_pending")
def test_a_replaced_group_that_was_cleaned_is_right(name: str, tmp_path: Path) -> None:
    """Its partition may go with it."""
    path = unzip_golden(name, tmp_path)
    (instant,) = pending_instants(open_table(path))
    run_all(open_table(path))
    file_id, _ = replace_first_group(path, instant)
    partition = next(f.parent for f in base_files(path, instant) if file_id in f.name)
    clean(path, file_id)
    assert Verdict.CLEANED in verdicts(path, instant)
    if not list(partition.glob("*.parquet")):
        shutil.rmtree(partition)
        assert Verdict.CLEANED in verdicts(path, instant)


# --- the rule itself --------------------------------------------------------------------------------------------------


def write(time: str, action: str = "deltacommit", state: State = State.COMPLETED) -> Instant:
    return Instant(requested_time=time, action=action, state=state)


_PLAN = write("05", "compaction", State.REQUESTED)


@pytest.mark.parametrize(
    ("active", "archived", "expected"),
    [
        pytest.param([write("01"), write("09")], [], True, id="gone from the timeline"),
        pytest.param([write("01"), _PLAN, write("09")], [], True, id="pending again"),
        pytest.param([write("09")], [], False, id="the archive does not reach back"),
        pytest.param([write("09")], [write("06")], False, id="the archive begins behind it"),
        pytest.param([write("09")], [write("01")], True, id="the archive passed it and has it not"),
        pytest.param([write("09")], [write("01"), write("05", "commit")], False, id="archived"),
        pytest.param([write("01"), write("09")], [write("05", "commit")], False, id="archived behind a savepoint"),
        pytest.param([_PLAN, write("09")], [write("05", "commit")], False, id="archiving died half-way"),
    ],
)
def test_rule(active: list[Instant], archived: list[Instant], expected: bool) -> None:
    timeline = Timeline(layout=LAYOUT_1, instants=tuple(active), archived=tuple(archived))
    assert was_undone("05", timeline) is expected
