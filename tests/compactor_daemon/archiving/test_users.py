"""What reads the timeline, on a table most of whose instants are archived."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.archiving import archive as archive_module
from phantombase.compactor_daemon.archiving import archived_files
from phantombase.compactor_daemon.archiving.archive import ArchiveResult, archive_table, gone_but_there, resize_cutoffs
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cli.main import app as compactor
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.format.commit_metadata import STREAM_CHECKPOINT, encode
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.facts import HASHING_METADATA
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write, write_batch
from tests.support.archived_tables import (
    SMALL,
    active,
    archive,
    archive_of,
    compact,
    completed,
    long_table,
    one_row,
    overwrite,
    rows_at,
    unzipped,
    upsert,
    upsert_at,
)
from tests.support.compaction_steps import open_table, run_all
from tests.support.evolved_tables import alter, columns_of, renamed
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at
from tests.support.faults import kill_newest
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import ALL, deep
from tests.support.servers.s3_server import S3Server
from tests.support.written_tables import Rows, read_rows

VERSIONS = pytest.mark.parametrize("version", [6, 9])


def archived_table(path: Path, version: int) -> set[tuple[str, str]]:
    """A table with two active instants and an archived compaction of phantombase; its instants."""
    long_table(path, version)
    before = completed(path)
    archive(path)
    return before


@VERSIONS
def test_commands_that_look(version: int, tmp_path: Path) -> None:
    """`timeline show --archived`, `validate` and `audit`, and `status`: nothing is missing, and nothing is wrong."""
    path = tmp_path / "trips"
    before = archived_table(path, version)
    shown = CliRunner().invoke(timeline_app, ["show", str(path), "--archived", "--json"])
    assert {(row["instant"], row["action"]) for row in json.loads(shown.stdout)["instants"]} == before
    for command in ("validate", "audit") if version == 6 else ("audit",):
        done = CliRunner().invoke(timeline_app, [command, str(path), "--json"])
        assert done.exit_code == 0, done.output
    assert CliRunner().invoke(compactor, ["status", str(path), "--json"]).exit_code == 0


@one_of("version", 9, 6)
def test_an_archived_compaction_is_not_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    compaction = next(time for time, action in archived_table(path, version) if action == "commit")
    done = CliRunner().invoke(compactor, ["unschedule", str(path), compaction, "--sole-writer"])
    assert done.exit_code != 0
    assert read_rows(path) == {"k0": (4, 4.0), "k1": (3, 3.0)}


@one_of("version", 6, 9)
def test_a_batch_that_is_archived_is_not_written_again(version: int, tmp_path: Path) -> None:
    """The intent outlives archiving, and the archive says that its delta commit completed."""
    path = tmp_path / "trips"
    long_table(path, version)
    options = WriteOptions(slots=1, small_file_bytes=0)
    batch = StreamBatch(name="rides", number=7)

    def written() -> None:
        what = Write(operation=Operation.INSERT, options=options)
        write_batch(open_table(path), LocalEngine(one_row("new", 1), slots=1), what, batch)

    written()
    for number in range(5, 9):
        upsert(path, one_row("k0", number))
    archive(path)
    rows, times = read_rows(path), active(path)
    written()
    assert active(path) == times
    assert read_rows(path) == rows


def has_said(path: Path, number: int, extra: dict[str, str]) -> str:
    """Gives a completed write of a table further metadata; its time."""
    table = open_table(path)
    instant = [i for i in table.load_timeline().completed if i.action == "deltacommit"][number]
    metadata = table.commit_metadata(instant)
    said = replace(metadata, extra_metadata={**metadata.extra_metadata, **extra})
    file = path / table.instant_path(instant)
    before = file.stat()
    file.write_bytes(encode(said, table.layout.encoding))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # on version 6 the time when it completed
    return instant.requested_time


@pytest.mark.parametrize(
    ("version", "extra", "job"),
    [
        (9, {"streamer.checkpoint.key.v2": "t,0:7"}, "Hudi Streamer"),
        (6, {"deltastreamer.checkpoint.key": "t,0:7"}, "Hudi Streamer"),
        (6, {STREAM_CHECKPOINT: '{"a": "7"}'}, "the stream a"),
    ],
)
def test_the_newest_checkpoint_of_a_job_stays(version: int, extra: dict[str, str], job: str, tmp_path: Path) -> None:
    """Hudi's jobs find it on the active timeline only. Writes after it do not matter; an older one may go."""
    path = tmp_path / "trips"
    long_table(path, version)
    for number in range(5, 9):
        upsert(path, one_row("k0", number))
    older, newest = has_said(path, 0, extra), has_said(path, 1, extra)
    done = archive(path)
    assert older in {one.instant for one in done.archived}
    assert done.why == f"write {newest} has the newest checkpoint of {job}: see --drop-checkpoints"
    assert active(path)[0] == newest
    archive(path, replace(SMALL, drop_checkpoints=True))
    assert len(active(path)) == 2


@one_of("version", 9, 6)
def test_triggers_count_as_before(version: int, tmp_path: Path) -> None:
    """As many delta commits as make a compaction due stay, so it is due where it was."""
    path = tmp_path / "trips"
    options = ScheduleOptions(max_delta_commits=4, gate_s=0)
    long_table(path, version, 7, compact_at=None)
    archive(path, type(SMALL)(min_instants=2, max_instants=3, commits_retained=20, compaction_commits=4))
    assert len(active(path)) == 4
    assert schedule_compaction(open_table(path), LOCK, options).instant is not None


def since(path: Path, begin: str) -> int:
    """Rows of an incremental read from an instant on."""
    rows: int = read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin=begin)).num_rows
    return rows


@one_of("version", 9, 6)
def test_a_writer_archives_after_its_commits(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The active timeline stays short, also under Hudi's names; an error of archiving fails no write."""
    path = tmp_path / "trips"
    long_table(path, version, 2, compact_at=None)
    ours = writer(one_row("k0", 9)).key("id").archive(min_instants=2, max_instants=3, compaction_commits=1)
    named = writer(one_row("k0", 9)).key("id").conf({"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"})
    assert named.conf({"hoodie.archive.automatic": "false"}).options.archive is None
    archived = [one.upsert(str(path)).after.archived for one in (ours, named) * 6]
    # A trigger of compactions counts the last five delta commits.
    assert archived == [0, 0, 0, 1] + [1] * 8
    assert len(active(path)) == 5

    def failing(*_: object, **_how: object) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(archive_module, "archive_table", failing)
    done = ours.upsert(str(path))
    assert done.after.error == "no answer"
    assert done.instant in active(path)


@one_of("version", 6, 9)
def test_incremental_reads_of_archived_writes(version: int, tmp_path: Path) -> None:
    """A window that begins in the archive has the same rows as before."""
    path = tmp_path / "trips"
    long_table(path, version, compact_at=None)
    begins = active(path)
    before = [since(path, begin) for begin in begins]
    archive(path)
    assert [since(path, begin) for begin in begins] == before
    assert before[0] == 2


@one_of("version", 9, 6)
def test_reads_of_the_past(version: int, tmp_path: Path) -> None:
    """At each archived moment the table reads as before."""
    path = tmp_path / "trips"
    long_table(path, version)
    moments = [i.completion_time or i.requested_time for i in open_table(path).load_timeline().instants]

    def past() -> list[list[dict[str, object]]]:
        tables = [read_table(open_table(path), ReadOptions(as_of=moment)) for moment in moments]
        return [table.select(["id", "ts"]).sort_by("id").to_pylist() for table in tables]

    before = past()
    archive(path)
    assert past() == before
    assert len({str(rows) for rows in before}) == 5


# All writes of the active timeline are rolled back, and the earlier ones are archived: these still count.


_COLUMNS = ["id", "day", "ts", "fare"]
_WRITES = WriteOptions(slots=1, small_file_bytes=0)


def rolled_back(path: Path, version: int) -> Rows:
    """The rows of the archived writes."""
    rows = long_table(path, version, 4, compact_at=None)
    for number in (4, 5):
        upsert(path, one_row("k9", number))
    assert len(archive(path).archived) == 4
    for _ in range(2):
        roll_back(open_table(path), kill_newest(open_table(path)), LOCK)
    assert not open_table(path).load_timeline().completed
    return rows


@one_of("version", 9, 8, 6)
def test_the_last_active_write_is_not_taken_back(version: int, tmp_path: Path) -> None:
    """Hudi 0.15.0 and 1.2.0 read no row then, and their next upsert doubles rows (seen)."""
    path = tmp_path / "trips"
    long_table(path, version, 6, compact_at=None)
    archive(path)
    for number in (2, 1):
        rows, newest = read_rows(path), max(open_table(path).load_timeline().completed_writes)
        if number == 2:
            roll_back_newest(open_table(path), LOCK, newest)
            continue
        for dry_run in (True, False):
            with pytest.raises(UsageError, match="no completed write would be left"):
                roll_back_newest(open_table(path), LOCK, newest, dry_run=dry_run)
        assert read_rows(path) == rows


def columns(path: Path) -> list[str]:
    return [name for name in read_table(open_table(path)).column_names if not name.startswith("_hoodie")]


@one_of("version", 6, 9, 8)
def test_the_archived_rows_are_read(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    assert rolled_back(path, version) == read_rows(path)
    assert columns(path) == _COLUMNS


@one_of("version", 9, 8, 6)
def test_a_delete_does_not_make_a_new_schema(version: int, tmp_path: Path) -> None:
    """Its rows have the key alone: the other columns of all rows would be gone, for ever with the next compaction."""
    path = tmp_path / "trips"
    rows = rolled_back(path, version)
    keys = pa.table({"id": ["k0"], "day": ["a"], "ts": [100]})
    write(open_table(path), LocalEngine(keys, slots=1), Write(operation=Operation.DELETE, options=_WRITES))
    compact(path)
    assert columns(path) == _COLUMNS
    assert read_rows(path) == {key: row for key, row in rows.items() if key != "k0"}


@one_of("version", 9, 6)
def test_an_older_schema_of_create_table_does_not_count(version: int, tmp_path: Path) -> None:
    """As SQL's CREATE TABLE leaves it in the settings. Rows were missing without a word."""
    path = tmp_path / "trips"
    rows = rolled_back(path, version)
    fields = ",".join(f'{{"name":"{name}","type":["null","string"]}}' for name in ("id", "day"))
    text = f'{{"type":"record","name":"trips","fields":[{fields}]}}'.replace(":", "\\:")
    with (path / ".hoodie/hoodie.properties").open("a") as file:
        file.write(f"hoodie.table.create.schema={text}\n")
    assert open_table(path).config.create_schema
    assert columns(path) == _COLUMNS
    assert read_rows(path) == rows


# Columns that evolve on read: the write with the newest history of them, and compactions behind it.


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
        schedule_compaction(table.snapshot(cached=False), ProcessLock(str(path)), ONE_AT_A_TIME)
        run_all(table.snapshot(cached=False))
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
    monkeypatch.setattr(archive_module, "_history_cutoff", lambda table: ())
    assert changed in {one.instant for one in archived(path).archived}
    assert towns(path) == dict.fromkeys("abcd", "Rome")


# Consistent-hashing buckets: what archiving leaves on the timeline.


def hashed(path: Path, version: int) -> str:
    """A table whose hashing metadata was changed by its only replace commit: the time of that one."""
    long_table(path, version)
    overwrite(path, one_row("k0", 9))
    upsert(path, one_row("k1", 10))
    (replaced,) = (i.requested_time for i in open_table(path).load_timeline().completed if i.family == "replacecommit")
    folder = path / HASHING_METADATA / "a"
    folder.mkdir(parents=True)
    (folder / "00000000000000.hashing_meta").write_bytes(b"{}")
    (folder / f"{replaced}.hashing_meta").write_bytes(b"{}")
    return replaced


def cutoffs(path: Path) -> list[tuple[str, str]]:
    table = open_table(path)
    timeline = table.load_timeline()
    return [
        (b.time, b.why)
        for b in (*resize_cutoffs(table.with_timeline(timeline)), *gone_but_there(table.with_timeline(timeline)))
    ]


@one_of("version", 9, 6)
def test_a_resize_stays_until_hudi_has_noted_that_it_is_done(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    replaced = hashed(path, version)
    assert cutoffs(path) == [(replaced, f"Hudi's next write has to note that resize {replaced} of buckets is done")]
    (path / HASHING_METADATA / "a" / f"{replaced}.commit").write_bytes(b"")
    assert cutoffs(path) == []


@one_of("version", 6, 9)
def test_files_of_an_instant_that_is_gone(version: int, tmp_path: Path) -> None:
    """The timeline must not begin behind them: they would count as archived."""
    path = tmp_path / "trips"
    replaced = hashed(path, version)
    (path / HASHING_METADATA / "a" / f"{replaced}.commit").write_bytes(b"")
    before = open_table(path).load_timeline().latest_completed
    gone = str(int(before) + 1)
    (path / "a" / f".x-0_{gone}.log.1_0-0-0").write_bytes(b"")
    upsert_behind(path)
    [(time, why)] = cutoffs(path)
    assert (time, f"instant {gone} is gone" in why) == (before, True)


def upsert_behind(path: Path) -> None:
    """A later write, for which the table is none with such buckets."""
    folder, aside = path / HASHING_METADATA, path.with_name("aside")
    folder.rename(aside)
    upsert(path, one_row("k1", 11))
    aside.rename(folder)


# Tables as real Hudi's services left them, with a long history or a metadata table that was archived.


def _named(manifest: Path) -> list[dict[str, object]]:
    files: list[dict[str, object]] = json.loads(manifest.read_text())["files"]
    return files


def test_a_level_is_merged_as_by_hudi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real Hudi merged four files, one of them of phantombase: the same files become one of the same name and rows."""
    theirs = unzipped("v9_1.2.0_lsm_compacted", tmp_path / "theirs")
    ours = shutil.copytree(theirs, tmp_path / "ours")
    before = completed(ours)
    folder = Path(".hoodie/timeline/history")
    merged = next((theirs / folder).glob("*_1.parquet"))
    (ours / folder / "manifest_6").unlink()
    (ours / folder / merged.name).unlink()
    (ours / folder / "_version_").write_text("5")
    monkeypatch.setattr(archived_files, "next_merge", partial(archived_files.next_merge, count=4))
    table = open_table(ours)
    made = archived_files.compact_history(table.storage, table.config, lambda: nullcontext(table.storage))
    assert made == (merged.name,)
    columns = pq.read_schema(ours / folder / merged.name).names
    rows, expected = (pq.read_table(path / folder / merged.name).select(columns) for path in (ours, theirs))
    assert rows.to_pylist() == expected.to_pylist()
    names = [[f["fileName"] for f in _named(path / folder / "manifest_6")] for path in (ours, theirs)]
    assert names[0] == names[1]
    assert {p.name for p in (ours / folder).glob("[0-9m]*")} == {p.name for p in (theirs / folder).glob("[0-9m]*")}
    assert completed(ours) == completed(theirs) == before


@pytest.mark.parametrize("name", ["v6_0.15.0_mdt.early", "v6_0.15.0_mdt.late"])
def test_a_metadata_table_that_hudi_serves(name: str, tmp_path: Path) -> None:
    """Seven commits, or 27 and six compactions with twelve archive files: phantombase reads it and goes on serving."""
    path = unzipped(name, tmp_path)
    rows = read_table(open_table(path)).sort_by("_hoodie_record_key")
    assert rows.num_rows > 0
    assert validate(open_table(path)).differences == ()
    served = []
    for _ in range(2):
        served.append(serve_metadata(open_table(path), MetadataOptions(max_delta_commits=1), ProcessLock("x")))
        assert validate(open_table(path)).differences == ()
        assert read_table(open_table(path)).sort_by("_hoodie_record_key") == rows
    first, second = served
    assert (len(first.compactions), len(first.cleans)) == (1, 0 if name.endswith("early") else 1)
    assert (second.compactions, second.cleans) == ((), ())


def test_an_archive_of_five_files_goes_on(tmp_path: Path) -> None:
    """What Hudi archived in five runs is read as one history, and ours is put behind it."""
    path = unzipped("v6_0.15.0_archive.after2", tmp_path)
    rows = read_table(open_table(path)).sort_by("_hoodie_record_key")
    before, theirs = completed(path), archive_of(path)
    assert len(list((path / ".hoodie/archived").glob(".commits_.archive.*"))) == 5
    archive(path, ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1))
    ours = archive_of(path)
    assert ours[: len(theirs)] == theirs
    assert len(ours) > len(theirs)
    assert completed(path) == before
    assert read_table(open_table(path)).sort_by("_hoodie_record_key") == rows


# Archiving on an object store: deaths and lost answers at a sample of its requests.


@pytest.mark.parametrize("version", [deep(6), 9])
def test_it_is_finished_after_a_death_at_any_request(version: int, s3: S3Server) -> None:
    """Every 31st call, with all tests every seventh; the table goes on where the last run died."""
    url = f"s3://{s3.new_bucket()}/trips"
    for number in range(4):
        upsert_at(url, version, one_row(f"k{number % 2}", number))
    for number in count(0, 7 if ALL else 31):
        before, rows = _completed(url), rows_at(url)
        table = Table.open(url)
        try:
            archive_table(Table.on(HookedStorage(table.storage, die_at(number))), SMALL, LOCK)
            ended = True
        except ProcessDied:
            ended = False
        assert _completed(url) == before
        assert rows_at(url) == rows
        if ended:
            break
        upsert_at(url, version, one_row("k0", 10 + number))
    timeline = Table.open(url).load_timeline(archived=True)
    assert len(timeline.instants) <= SMALL.max_instants
    assert not set(_keys(timeline.instants)) & set(_keys(timeline.archived))


def _completed(url: str) -> set[tuple[str, str]]:
    timeline = Table.open(url).load_timeline(archived=True)
    return {*_keys(timeline.archived), *_keys(i for i in timeline.instants if i.completed)}


def _keys(instants: Iterable[Instant]) -> Iterator[tuple[str, str]]:
    return ((i.requested_time, i.action) for i in instants)
