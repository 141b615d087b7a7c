"""Savepoints: what they keep, what is refused, and what a process leaves that dies while it makes or deletes one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import ConflictError, UsageError
from phantombase.timeline.format.savepoint import Savepoint, decode_savepoint, encode_savepoint
from phantombase.timeline.recovery.savepoint import create_savepoint, delete_savepoint, savepoints
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import open_table, run_all
from tests.support.faults import died_or_ended
from tests.support.golden_tables import unzip_golden
from tests.support.tables import LOCK, one_of


def keep(table: Table, instant: str | None = None) -> str:
    return create_savepoint(table, LOCK, instant, user="who", comment="why").instant


def files(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*.savepoint*"))


def test_a_record_is_read_as_it_was_written() -> None:
    made = Savepoint(user="who", comment="why", made_ms=7, files={"": ("a.parquet",), "süd": (".a.log.1", "b.parquet")})
    assert decode_savepoint(encode_savepoint(made), "there") == made


@one_of("name", "v9_pending", "v6_pending")
def test_the_newest_write_is_kept_once(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    instant = keep(open_table(path))
    assert instant == max(open_table(path).load_timeline().completed_writes)
    before = files(path)
    assert keep(open_table(path), instant) == instant
    assert files(path) == before
    [kept] = savepoints(open_table(path))
    assert (kept.savepoint.user, kept.savepoint.comment) == ("who", "why")
    assert all((path / partition / n).exists() for partition, names in kept.savepoint.files.items() for n in names)


@one_of("name", "v6_pending", "v9_pending")
def test_of_an_older_write(name: str, tmp_path: Path) -> None:
    """Files that were begun later are no part of it."""
    path = unzip_golden(name, tmp_path)
    run_all(open_table(path))
    oldest = min(open_table(path).load_timeline().completed_writes)
    keep(open_table(path), oldest)
    [kept] = savepoints(open_table(path))
    bases = [n for names in kept.savepoint.files.values() for n in names if n.endswith(".parquet")]
    assert bases
    assert all(n.endswith(f"_{oldest}.parquet") for n in bases)


@one_of("name", "v9_pending", "v6_pending")
def test_only_completed_writes_are_kept(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    [pending] = open_table(path).load_timeline().pending_merges
    for instant in (pending.requested_time, "20200101000000000"):
        with pytest.raises(UsageError, match="completed write"):
            keep(open_table(path), instant)
    with pytest.raises(UsageError, match="no such savepoint"):
        delete_savepoint(open_table(path), LOCK, pending.requested_time)
    assert files(path) == []


@one_of("name", "v9_pending", "v6_pending")
def test_a_state_that_may_still_change_is_not_kept(name: str, tmp_path: Path) -> None:
    """A write is pending below it: by default an earlier state is kept."""
    path = unzip_golden(name, tmp_path)
    times = sorted(open_table(path).load_timeline().completed_writes)
    pending = f"{int(times[-1]) - 1}"
    table = open_table(path)
    for ending in ("requested", "inflight"):
        (path / table.config.timeline_folder / f"{pending}.deltacommit.{ending}").touch()
    with pytest.raises(UsageError, match="pending write"):
        keep(open_table(path), times[-1])
    assert keep(open_table(path)) == times[-2]


@one_of("name", "v6_pending", "v9_pending")
def test_not_beside_a_pending_clean(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (path / table.config.timeline_folder / "29990101000000000.clean.requested").touch()
    with pytest.raises(ConflictError, match="a clean is pending"):
        keep(table)
    assert files(path) == []


@one_of("name", "v9_pending", "v6_pending")
def test_a_process_dies_while_it_makes_one(name: str, tmp_path: Path) -> None:
    """There is a whole savepoint or none, and the next run makes it."""
    origin = unzip_golden(name, tmp_path)
    for path in died_or_ended(origin, lambda storage: keep(Table.on(storage))):
        assert len(savepoints(open_table(path))) in (0, 1)
        instant = keep(open_table(path))
        [kept] = savepoints(open_table(path))
        assert kept.instant == instant
        assert len(files(path)) == 2


@one_of("name", "v9_pending", "v6_pending")
def test_a_process_dies_while_it_deletes_one(name: str, tmp_path: Path) -> None:
    """It is there as long as any file of it is, and the next run deletes the rest."""
    origin = unzip_golden(name, tmp_path)
    instant = keep(open_table(origin))
    for path in died_or_ended(origin, lambda storage: delete_savepoint(Table.on(storage), LOCK, instant)):
        assert bool(files(path)) == bool(savepoints(open_table(path)))
        if files(path):
            delete_savepoint(open_table(path), LOCK, instant)
        assert files(path) == []


def test_commands(tmp_path: Path) -> None:
    path = str(unzip_golden("v9_pending", tmp_path))

    def run(*args: str) -> str:
        done = CliRunner().invoke(app, ["savepoint", *args])
        assert done.exit_code == 0, done.output
        return done.output

    assert "no savepoints" in run("list", path)
    assert "files in 2 partitions are kept" in run("create", path, "--comment", "before", "--sole-writer")
    assert "before" in run("list", path)
    [kept] = savepoints(Table.open(path))
    assert "is deleted" in run("delete", path, kept.instant, "--sole-writer")
    assert "no savepoints" in run("list", path)
    refused = CliRunner().invoke(app, ["savepoint", "create", path])
    assert isinstance(refused.exception, UsageError)
