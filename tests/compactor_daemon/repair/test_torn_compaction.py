"""A completed file of a compaction that cannot be read, as Hudi leaves it that is killed while it writes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.restoring.torn_compaction import write_anew
from phantombase.timeline.errors import ConflictError, LedgerError, MalformedError, MissingFileError, UsageError
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.selection import deep
from tests.support.tables import LOCK
from tests.support.written_tables import Rows, read_rows

_VERSIONS = [6, deep(8), 9]


def _made(path: Path, version: int) -> tuple[Rows, Instant, CommitMetadata]:
    """A table whose last compaction has writes behind it; its rows, that compaction, and what its file says."""
    long_table(path, version)
    compact(path)
    upsert(path, one_row("k1", 50))
    table = open_table(path)
    done = next(i for i in reversed(table.load_timeline().completed) if i.action == "commit")
    return read_rows(path), done, table.commit_metadata(done)


def _tear(path: Path, done: Instant, size: int = 0, *, age_s: float = 200) -> Path:
    file = path / open_table(path).instant_path(done)
    file.write_bytes(file.read_bytes()[:size])
    os.utime(file, (file.stat().st_mtime - age_s, file.stat().st_mtime - age_s))
    return file


def _essence(metadata: CommitMetadata) -> tuple[object, ...]:
    stats = sorted(
        (s.path, s.num_writes, s.file_size_in_bytes) for of in metadata.partition_to_write_stats.values() for s in of
    )
    return stats, metadata.compacted, metadata.operation_type, metadata.extra_metadata["schema"]


@pytest.mark.parametrize("size", [0, 50])
@pytest.mark.parametrize("version", _VERSIONS)
def test_the_command_that_its_error_names_writes_it_anew(version: int, size: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows, done, metadata = _made(path, version)
    file = _tear(path, done, size)
    before = file.stat().st_mtime_ns
    with pytest.raises(MalformedError) as error:
        read_rows(path)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [str(path) if word == "TABLE" else word for word in command.split()]
    assert CliRunner().invoke(app, [*words, "--dry-run"]).exit_code == 0
    assert file.stat().st_size == size
    ended = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    assert _essence(open_table(path).commit_metadata(done)) == _essence(metadata)
    if version == 6:  # a completion time for Hudi 1.x
        assert file.stat().st_mtime_ns // 10**6 == before // 10**6
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    compact(path)
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


@pytest.mark.parametrize("version", _VERSIONS)
def test_where_a_clean_has_removed_what_it_merged(version: int, tmp_path: Path) -> None:
    """Hudi cleans behind such a file, and reads on. The clean shows that the compaction counts as completed."""
    path = tmp_path / "trips"
    rows, done, metadata = _made(path, version)
    keep = ["--policy", "versions", "--retain", "1", "--floor", "0"]
    cleaned = CliRunner().invoke(app, ["clean", str(path), *keep, "--sole-writer"])
    assert cleaned.exit_code == 0, cleaned.output
    inputs = [_input(open_table(path), done, base) for base in _base_files(path, metadata)]
    assert not any((path / name).exists() for name in inputs)
    _tear(path, done)
    (clean,) = (f for f in (path / ".hoodie").rglob("*.clean") if f.is_file())
    clean.rename(clean.with_suffix(".away"))
    _refused(path, done, MissingFileError, "merged is gone")
    clean.with_suffix(".away").rename(clean)
    ended = CliRunner().invoke(app, ["repair", str(path), done.requested_time, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    stats, *rest = _essence(metadata)
    assert _essence(open_table(path).commit_metadata(done)) == (stats, *rest)
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    compact(path)
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


def _refused(path: Path, done: Instant, error: type[Exception], match: str) -> None:
    file = path / open_table(path).instant_path(done)
    size = file.stat().st_size
    with pytest.raises(error, match=match):
        write_anew(open_table(path), done.requested_time, LOCK)
    assert file.stat().st_size == size


@pytest.mark.parametrize("version", _VERSIONS)
def test_one_that_may_still_be_written_is_left_alone(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    _, done, _ = _made(path, version)
    _tear(path, done, age_s=60)
    _refused(path, done, ConflictError, "may still be writing")


def test_one_that_can_be_read_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    _, done, _ = _made(path, 9)
    _refused(path, done, UsageError, "can be read")


def _base_files(path: Path, metadata: CommitMetadata) -> list[Path]:
    return [path / name for name in sorted(metadata.named_files)]


def _input(table: Table, done: Instant, base: Path) -> str:
    """The base file that was merged into `base`."""
    plan = table.compaction_plan(done.requested_time)
    (name,) = (o.data_file_path for o in plan.operations if base.name.startswith(o.file_id))
    assert name is not None
    return f"{base.parent.name}/{name}"


@pytest.mark.parametrize("version", _VERSIONS)
def test_what_cannot_be_proved_is_left_alone(version: int, tmp_path: Path) -> None:
    """A base file of it is gone, has other rows, or has a second one beside it; what it merged is gone."""
    path = tmp_path / "trips"
    _, done, metadata = _made(path, version)
    _tear(path, done)
    base = _base_files(path, metadata)[0]
    whole = base.read_bytes()
    base.unlink()
    _refused(path, done, MissingFileError, "not one base file")
    merged = path / _input(open_table(path), done, base)
    base.write_bytes(merged.read_bytes())
    _refused(path, done, LedgerError, "does not balance")
    base.write_bytes(whole[: len(whole) // 2])
    _refused(path, done, MalformedError, "")
    base.write_bytes(whole)
    second = base.with_name(re.sub(r"_[^_]*_", "_9-9-9_", base.name, count=1))
    second.write_bytes(whole)
    _refused(path, done, MissingFileError, "not one base file")
    second.unlink()
    merged.unlink()
    _refused(path, done, MissingFileError, "merged is gone")
