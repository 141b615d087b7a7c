"""What reads the timeline, on a table most of whose instants are archived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app as compactor
from phantombase.compactor_daemon.services import serve
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import StorageError
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write_batch
from tests.support.archived_tables import LOCK, SMALL, active, archive, completed, long_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.tables import one_of
from tests.support.written_tables import read_rows

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

    def failing(*_: object) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(serve, "archive_table", failing)
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
