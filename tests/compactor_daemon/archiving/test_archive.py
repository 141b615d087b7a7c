"""Archiving of whole tables: what goes, what stays, and that readers and writers see no difference."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint, savepoints
from phantombase.timeline.codec.avro_container import STRING, optional, root_record, write_record
from phantombase.timeline.errors import LockError, MalformedError, UnknownStateError, UsageError
from phantombase.timeline.format.clean import CleanPlan, encode_clean_metadata
from phantombase.timeline.format.instant import Instant, State, later
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.read.windows import cleans
from phantombase.timeline.storage import local
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    SMALL,
    active,
    archive,
    archive_of,
    check_each_once,
    clean,
    compact,
    completed,
    long_table,
    one_row,
    unzipped,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import Faults, LockLostAt, LockLostBehind, died_or_ended
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import deep
from tests.support.written_tables import read_rows, written_table

_REWRITES = WriteOptions(slots=1)


@one_of("version", 9, 6)
def test_the_oldest_go_and_nothing_changes(version: int, tmp_path: Path) -> None:
    """Rows, and the set of completed instants, are as before; the newest two commits stay."""
    path = tmp_path / "trips"
    rows, before, times = long_table(path, version), completed(path), active(path)
    done = archive(path)
    assert active(path) == times[-2:]
    assert [one.instant for one in done.archived] == times[:-2]
    assert completed(path) == before
    assert read_rows(path) == rows
    assert recorded_instants(open_table(path).storage) == ()  # the archived compaction's records went too
    check_each_once(path)
    again = archive(path)
    assert again.archived == () == again.finished
    assert again.why == "2 commits are completed, archiving begins above 3"


@one_of("version", 6, 9)
def test_the_life_of_an_archived_table_goes_on(version: int, tmp_path: Path) -> None:
    """Writes, compactions and archiving in turn: every row is the last one written, every instant is newer."""
    path = tmp_path / "trips"
    long_table(path, version)
    archive(path)
    for number in range(100, 108):
        newest = max(time for time, _ in completed(path))
        upsert(path, one_row(f"k{number % 3}", number))
        assert max(time for time, _ in completed(path)) > newest
        if number % 4 == 0:
            compact(path)
        before = completed(path)
        archive(path)
        assert completed(path) == before
    assert read_rows(path) == {f"k{n % 3}": (n, float(n)) for n in (105, 106, 107)}
    assert len(active(path)) <= 4
    check_each_once(path)


@one_of("version", 9, 6)
def test_died_at_every_call_the_next_run_finishes(version: int, tmp_path: Path) -> None:
    """At no moment is an instant lost or a row different; the next run leaves what an undisturbed run leaves."""
    origin = tmp_path / "origin"
    rows, before, times = long_table(origin, version, 4, compact_at=1), completed(origin), active(origin)
    died = 0
    for died, path in enumerate(died_or_ended(origin, lambda storage: archive_table(Table.on(storage), SMALL, LOCK))):  # noqa: B007
        assert read_rows(path) == rows
        assert completed(path) == before
        archive(path)
        assert active(path) == times[-2:]
        assert completed(path) == before
        assert read_rows(path) == rows
        upsert(path, one_row("k1", 9))
        assert read_rows(path) == rows | {"k1": (9, 9.0)}
        shutil.rmtree(path)
    assert died > 5


@one_of("version", 9, 6)
def test_an_error_at_every_call_the_next_run_finishes(version: int, tmp_path: Path) -> None:
    """An error of the storage is an error of the run, never "nothing there"."""
    origin, said = tmp_path / "origin", 0
    rows, before, times = long_table(origin, version, 4, compact_at=1), completed(origin), active(origin)
    for _, _, path, error in Faults.of(origin, lambda storage: archive_table(Table.on(storage), SMALL, LOCK)).errors():
        if error:
            assert completed(path) == before
            assert read_rows(path) == rows
        archive(path)
        assert active(path) == times[-2:]
        assert completed(path) == before
        assert read_rows(path) == rows
        said += error is not None
    assert said > 8


@pytest.mark.parametrize(
    ("table", "after", "options"),
    [
        ("v9_1.2.0_t.cleaned", "v9_1.2.0_t.archived", ArchiveOptions(min_instants=2, max_instants=3)),
        (
            "v6_0.15.0_archive.before",
            "v6_0.15.0_archive.after1",
            ArchiveOptions(min_instants=4, max_instants=5, commits_retained=1),
        ),
    ],
    ids=["v9", "v6"],
)
def test_the_same_as_hudi(table: str, after: str, options: ArchiveOptions, tmp_path: Path) -> None:
    """Real Hudi archived the same table with the same options: the same instants go, with the same content."""
    ours, theirs = unzipped(table, tmp_path / "ours"), unzipped(after, tmp_path / "theirs")
    rows = read_table(open_table(ours)).sort_by("_hoodie_record_key")
    archive(ours, options)
    assert active(ours) == active(theirs)
    assert read_table(open_table(ours)).sort_by("_hoodie_record_key") == rows
    assert archive_of(ours) == archive_of(theirs)


def test_files_of_a_replaced_group_keep_their_replace_commit(tmp_path: Path) -> None:
    """Archived too early, the replaced rows would be back."""
    path = unzipped("v6_0.15.0_replaced.before", tmp_path)
    rows = read_table(open_table(path)).num_rows
    done = archive(path, SMALL)
    replacing = min(i.requested_time for i in open_table(path).load_timeline().completed if i.family == "replacecommit")
    assert all(one.instant < replacing for one in done.archived)
    assert any("replace commit" in one.why for one in done.kept)
    assert read_table(open_table(path)).num_rows == rows


@one_of("version", 6, 9)
def test_a_lost_lock_stops_it(version: int, tmp_path: Path) -> None:
    """Nothing is put or removed once the lock is lost."""
    path = tmp_path / "trips"
    rows, before = long_table(path, version, 4, compact_at=None), completed(path)
    for number in count():
        lost = LockLostAt(number)
        with suppress(LockError):
            archive_table(open_table(path), SMALL, lost)
        assert completed(path) == before
        assert read_rows(path) == rows
        if lost.asked <= number:
            break
        left = shutil.copytree(path, tmp_path / f"{number}")
        archive(left)
        check_each_once(left)
        assert completed(left) == before
    assert number > 2


@one_of("version", 9, 6)
def test_an_unreadable_archive_is_an_error(version: int, tmp_path: Path) -> None:
    """What cannot be read is unknown: nothing is archived, nothing removed."""
    path = tmp_path / "trips"
    long_table(path, version)
    archive(path)
    for number in range(5, 9):
        upsert(path, one_row("k0", number))
    folder = path / open_table(path).config.history_folder
    for broken in [*folder.glob("*.parquet"), *folder.glob(".commits_*")]:
        broken.write_bytes(broken.read_bytes()[:-9])
    times = active(path)
    with pytest.raises((MalformedError, UnknownStateError)):
        archive(path)
    assert active(path) == times


def test_small_files_of_the_history_become_one(tmp_path: Path) -> None:
    """Ten files of a level become one of the next; the newest four manifests stay with their files."""
    path = tmp_path / "trips"
    long_table(path, 9, 4, compact_at=None)
    archive(path)
    merged: list[str] = []
    for number in range(30):
        upsert(path, one_row("k0", 10 + number))
        upsert(path, one_row("k1", 10 + number))
        before = completed(path)
        merged += archive(path).merged
        assert completed(path) == before
        if merged:
            break
    folder = path / ".hoodie/timeline/history"
    manifest = json.loads((folder / f"manifest_{(folder / '_version_').read_text()}").read_text())
    assert [f["fileName"] for f in manifest["files"]] == merged
    assert merged[0].endswith("_1.parquet")
    assert len(list(folder.glob("manifest_*"))) == 4
    kept = {f["fileName"] for m in folder.glob("manifest_*") for f in json.loads(m.read_text())["files"]}
    assert {p.name for p in folder.glob("*.parquet")} == kept


@one_of("version", 9, 6)
def test_a_dry_run_shows_what_a_dead_run_had_archived(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    long_table(path, version)
    with pytest.raises(ProcessDied):
        archive(path, storage=HookedStorage(LocalStorage(str(path)), die_at_nth(1, "delete", "commit")))
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
    dry = archive_table(open_table(path), SMALL, LOCK, dry_run=True)
    shown = CliRunner().invoke(app, ["archive", str(path), "--dry-run"]).stdout
    assert f"an earlier run would be finished: {len(dry.finished)} archived instant" in shown
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()} == before
    done = archive(path)
    assert (dry.finished, dry.archived) == (done.finished, done.archived)
    assert done.finished


def test_an_empty_folder_of_archive_logs_is_that_of_the_timeline(tmp_path: Path) -> None:
    """As Hudi 0.15.0, which keeps such a setting of tables of its old releases."""
    path = tmp_path / "trips"
    rows = long_table(path, 6)
    properties = path / ".hoodie/hoodie.properties"
    lines = [x for x in properties.read_text().splitlines() if "archivelog" not in x]
    properties.write_text("\n".join([*lines, "hoodie.archivelog.folder=", ""]))
    before = completed(path)
    assert archive(path).archived
    assert list((path / ".hoodie").glob(".commits_.archive.*"))
    assert completed(path) == before
    assert read_rows(path) == rows


def test_names_without_completion_times_are_found_in_the_history(tmp_path: Path) -> None:
    """As an upgrade from version 6 may leave them; the archiver died when the history held them."""
    path = tmp_path / "trips"
    rows = long_table(path, 9)
    folder = path / open_table(path).config.timeline_folder
    for file in folder.iterdir():
        if "_" in file.name:
            file.rename(folder / re.sub(r"_\d+", "", file.name))
    before = completed(path)
    inner = LocalStorage(str(path))
    with pytest.raises(ProcessDied):
        archive(path, storage=HookedStorage(inner, die_at_nth(1, "delete", "requested")))
    assert archive(path).finished
    assert completed(path) == before
    assert read_rows(path) == rows
    check_each_once(path)


def test_a_half_made_savepoint_says_what_ends_it(tmp_path: Path) -> None:
    """Its process died; a list of savepoints does not have it."""
    path = tmp_path / "trips"
    long_table(path, 9)
    second = active(path)[1]
    (path / open_table(path).config.timeline_folder / f"{second}.savepoint.inflight").touch()
    stopped = archive(path)
    assert second not in {one.instant for one in stopped.archived}
    why = " ".join([stopped.why, *(one.why for one in stopped.kept)])
    assert f"`compactor-daemon savepoint create TABLE --instant {second}` completes it" in why
    assert f"`savepoint delete TABLE {second}` removes it" in why
    create_savepoint(open_table(path), LOCK, second, user="", comment="")
    assert [one.instant for one in savepoints(open_table(path).snapshot())] == [second]
    delete_savepoint(open_table(path), LOCK, second)
    assert second in {one.instant for one in archive(path).archived}


def test_a_manifest_of_a_dead_writer_is_continued(tmp_path: Path) -> None:
    """It stands above `_version_`: what it names is not lost."""
    path = tmp_path / "trips"
    long_table(path, 9)
    before = completed(path)
    archive(path)
    folder = path / ".hoodie/timeline/history"
    (folder / "manifest_0").write_text('{"files": []}')
    (folder / "_version_").write_text("0")
    for number in range(5, 9):
        upsert(path, one_row("k0", number))
    archive(path)
    assert before <= completed(path)
    assert (folder / "_version_").read_text() == "2"


def test_a_torn_manifest_above_the_version_is_passed_over(tmp_path: Path) -> None:
    """Hudi writes in place on local disks."""
    path = tmp_path / "trips"
    long_table(path, 9)
    archive(path)
    (path / ".hoodie/timeline/history/manifest_2").write_text('{"fil')
    for number in range(5, 9):
        upsert(path, one_row("k0", number))
    before = completed(path)
    archive(path)
    assert completed(path) == before
    assert (path / ".hoodie/timeline/history/_version_").read_text() == "3"


@pytest.mark.parametrize("phase", ["listed", "looked at"])
def test_a_reader_that_lists_while_instants_go_sees_no_hole(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees the oldest instant, then that one goes and others behind it, of which it sees none."""
    path = tmp_path / "trips"
    long_table(path, 9, 2, compact_at=None)
    for number in range(2, 8):
        upsert(path, one_row(f"n{number}", number))
    rows, first = read_rows(path), active(path)[0]
    folder = path / open_table(path).config.timeline_folder
    names_in, entry_of, once = os.listdir, local._entry, iter([True])

    def goes() -> None:
        if next(once, False):
            assert len(archive(path).archived) > 3

    def in_pieces(where: str) -> list[str]:
        begin = sorted(names_in(where))[:3]
        if phase == "listed" and Path(where) == folder:
            goes()
        return [*begin, *(name for name in names_in(where) if name not in begin)]

    def slowly_looked_at(name: str, stat: os.stat_result) -> Entry:
        entry = entry_of(name, stat)
        if phase == "looked at" and name.startswith(f"{first}_"):
            goes()
        return entry

    monkeypatch.setattr(local, "_NAMES_AT_ONCE", 3)
    monkeypatch.setattr("phantombase.timeline.storage.local.os.listdir", in_pieces)
    monkeypatch.setattr(local, "_entry", slowly_looked_at)
    assert read_rows(path) == rows
    assert next(once, None) is None


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    long_table(path, 9)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    shown = archive_table(open_table(path), SMALL, LOCK, dry_run=True)
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    assert shown.archived == archive(path).archived


@pytest.mark.parametrize("version", [9, deep(6), deep(8)])
def test_a_file_of_a_write_that_was_taken_back_stops_it(version: int, tmp_path: Path) -> None:
    """A task of a dead writer put it after the rollback. Behind the archive its rows would count."""
    path = tmp_path / "t"
    written_table(path, version, one_row("k", 1), WriteOptions(slots=1, small_file_bytes=0))
    for number in range(3):
        upsert(path, one_row("k", number + 2))
    before = set(path.rglob("*.parquet"))
    upsert(path, one_row("dead", 1))
    (file,) = set(path.rglob("*.parquet")) - before
    data, dead = file.read_bytes(), open_table(path).load_timeline().latest_completed
    roll_back_newest(open_table(path), LOCK, dead)
    file.write_bytes(data)
    for number in range(6):
        upsert(path, one_row("k", number + 9))
    whole = read_rows(path)
    for _ in range(2):
        why = archive_table(open_table(path), SMALL, LOCK).why
        assert f"instant {dead} is gone and has files, as {file.relative_to(path)}" in why
        assert read_rows(path) == whole
    file.unlink()
    assert archive_table(open_table(path), SMALL, LOCK).archived
    assert read_rows(path) == whole


@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_dry_run_beside_another_archiver(version: int, tmp_path: Path) -> None:
    """What it reads may be gone at each of its calls: it looks again, and says what is true before or behind it."""
    origin = tmp_path / "origin"
    long_table(origin, version, 6)
    done = shutil.copytree(origin, tmp_path / "done")
    archive(done)
    moments = [archive_table(open_table(one), SMALL, LOCK, dry_run=True).archived for one in (origin, done)]
    assert moments[0]
    for at in count(0, 4):
        path, hit = shutil.copytree(origin, tmp_path / f"t{at}"), list[Call]()

        def hook(call: Call, at: int, path: Path, hit: list[Call]) -> Any:
            if call.number == at:
                hit.append(call)
                archive(path)
            return call.do()

        hooked = HookedStorage(LocalStorage(str(path)), partial(hook, at=at, path=path, hit=hit))
        assert archive_table(open_table(path, hooked), SMALL, LOCK, dry_run=True).archived in moments
        if not hit:
            assert at > 10
            break


def test_a_torn_history_file_that_no_manifest_names_is_replaced(tmp_path: Path) -> None:
    """A dead writer left it under the very name."""
    path = tmp_path / "trips"
    long_table(path, 9)
    before, times = completed(path), active(path)
    folder = path / ".hoodie/timeline/history"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{times[0]}_{times[-3]}_0.parquet").write_bytes(b"PAR1")
    archive(path)
    assert completed(path) == before
    assert active(path) == times[-2:]


@one_of("version", 6, 9)
def test_it_cleans_up_behind_a_compaction_first(version: int, tmp_path: Path) -> None:
    """An executor that died before it had cleaned up does not stop archiving for ever."""
    path = tmp_path / "trips"
    long_table(path, version)
    times = active(path)
    instant = next(i for i in recorded_instants(open_table(path).storage))
    (path / ".hoodie/.heartbeat").mkdir(exist_ok=True)
    (path / ".hoodie/.heartbeat" / instant).write_text("phantombase")
    assert archive_table(open_table(path), SMALL, LOCK, dry_run=True).why.endswith(f"behind compaction {instant}")
    archive(path)
    assert active(path) == times[-2:]


def test_files_that_a_clean_left_behind_keep_their_replace_commit(tmp_path: Path) -> None:
    """A clean may have passed the replace commit and failed to delete a file."""
    path = unzipped("v6_0.15.0_replaced.before", tmp_path)
    rows = read_table(open_table(path)).num_rows
    schema = root_record(
        "HoodieCleanMetadata", optional("totalFilesDeleted", "int"), optional("earliestCommitToRetain", STRING)
    )
    clean = write_record({"totalFilesDeleted": 1, "earliestCommitToRetain": "20990101000000000"}, schema)
    newest = active(path)[-1]
    for ending in (".requested", ".inflight", ""):
        (path / ".hoodie" / f"{int(newest) + 1}.clean{ending}").write_bytes(clean)
    done = archive(path, SMALL)
    replacing = min(i.requested_time for i in open_table(path).load_timeline().completed if i.family == "replacecommit")
    named = [one.why for one in done.kept if f"files that replace commit {replacing} replaced are" in one.why]
    file = named[0].partition("there, as ")[2].partition(":")[0]
    assert (path / file).is_file()
    assert "`compactor-daemon orphans` removes what no clean takes" in named[0]
    assert read_table(open_table(path)).num_rows == rows


def test_an_archiver_that_slept_deletes_no_file_that_another_named(tmp_path: Path) -> None:
    """Both give the file of the same instants the same name."""
    path = tmp_path / "trips"
    rows = long_table(path, 9, 8)
    slept: list[str] = []

    def hook(call: Call) -> object:
        if call.name == "delete" and call.path.endswith("_0.parquet") and not slept:
            slept.append(call.path)
            assert archive(path).archived
        return call.do()

    with pytest.raises(LockError):
        archive_table(Table.on(HookedStorage(LocalStorage(str(path)), hook)), SMALL, LockLostBehind(slept))
    assert slept
    assert len(open_table(path).load_timeline(archived=True).archived) > 0
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 900))
    archive(path)


@pytest.mark.parametrize(("version", "files"), [(9, "timeline/history/*.parquet"), (6, "archived/.commits_.archive*")])
def test_a_file_that_a_dead_archiver_placed_stays(version: int, files: str, tmp_path: Path) -> None:
    """It holds what is to be archived, so it is named as it is, and nothing is archived twice."""
    path = tmp_path / "trips"
    long_table(path, version, 8)

    def dies(call: Call) -> object:
        done = call.do()
        if call.name == "place":
            raise ProcessDied(call.path)
        return done

    with pytest.raises(ProcessDied):
        archive(path, storage=HookedStorage(LocalStorage(str(path)), dies))
    (file,) = (path / ".hoodie").glob(files)
    before = file.stat().st_ino
    done = archive(path)
    assert done.archived if version == 9 else done.finished
    assert file.stat().st_ino == before
    check_each_once(path)
    assert len(open_table(path).load_timeline(archived=True).archived) > 0


@one_of("version", 9, 8)
def test_what_an_archived_clean_removed_is_not_read(version: int, tmp_path: Path) -> None:
    """The newest clean goes with the commits: the states before it are refused, as they were while it was active."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), _REWRITES)
    for number in range(1, 4):
        upsert(path, one_row(f"k{number}", number), _REWRITES)
    first, _, cutoff, last = open_table(path).load_timeline().completed
    assert clean(path, retain=2).files
    for number in range(4, 10):
        upsert(path, one_row(f"k{number}", number), _REWRITES)
    assert {"clean", "deltacommit"} <= {one.action for one in archive(path).archived}
    assert not cleans(open_table(path).load_timeline())
    with pytest.raises(UsageError, match="cleaned"):
        read_table(open_table(path), ReadOptions(as_of=first.requested_time))
    for number, kept in ((3, cutoff), (4, last)):  # its cutoff is in the archive
        assert read_table(open_table(path), ReadOptions(as_of=kept.requested_time)).num_rows == number
    window = ReadOptions(query=Query.INCREMENTAL, begin="earliest", end=last.completion_time)
    assert read_table(open_table(path), window).num_rows == 4
    with pytest.raises(UsageError, match="cleaned"):
        read_table(open_table(path), replace(window, end=first.completion_time))
    # A later clean of Hudi may have retained more: what is gone stays gone.
    table = open_table(path)
    time = table.snapshot().next_time()
    files = {"a": ("f-0_1-2-3_20260101000000000.parquet",)}
    loose = CleanPlan(policy="KEEP_LATEST_COMMITS", files=files, retained=(first.requested_time, "deltacommit"))
    done = Instant(requested_time=time, action="clean", state=State.COMPLETED, completion_time=later(time, 1))
    (path / table.instant_path(done)).write_bytes(encode_clean_metadata(loose, time, 1, frozenset()))
    with pytest.raises(UsageError, match="cleaned"):
        read_table(open_table(path), ReadOptions(as_of=first.requested_time))
