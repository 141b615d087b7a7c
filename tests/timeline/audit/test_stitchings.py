"""Audits of stitchings: what is right is proved as far as files exist, what is wrong is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.audit.audit import InstantAudit, Verdict
from phantombase.timeline.audit.group_ledger import STITCHED, decode_ledgers
from phantombase.timeline.audit.stitchings import audit_stitching, stitched_instants
from phantombase.timeline.cli.main import app
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.view.view import is_replaced
from tests.support.archived_tables import LOCK, one_row, overwrite, upsert
from tests.support.cleaned_tables import ONE
from tests.support.clustered_tables import built_upon, small_files, stitch
from tests.support.compaction_steps import open_table
from tests.support.tables import one_of

Found = tuple[InstantAudit, Verdict]


def audited(path: Path) -> Found:
    """The audit of the only stitching, which made one file."""
    table = open_table(path)
    (instant,) = stitched_instants(table)
    found = audit_stitching(table, instant)
    (group,) = found.groups
    return found, group.verdict


@one_of("version", 9, 8, 6)
def test_proved_and_cleaned(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    stitch(path)
    assert audited(path)[1] is Verdict.PROVED
    upsert(path, one_row("k1", 100))
    upsert(path, one_row("k1", 101))
    clean_table(open_table(path), ONE, LOCK)
    assert audited(path)[1] is Verdict.OUTPUT_PROVED
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exit_code == 0, done.output
    assert "output proved" in done.output
    overwrite(path, one_row("k1", 102))
    upsert(path, one_row("k1", 103))
    clean_table(open_table(path), ONE, LOCK)
    assert audited(path)[1] is Verdict.CLEANED


def test_another_file_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9)
    stitch(path)
    view = open_table(path).load_view()
    (base,) = (g.slices[-1].base for g in view.groups if not is_replaced(g, view.facts))
    assert base is not None
    data = path / base.path
    shutil.copy(next(p for p in (path / "a").glob("*.parquet") if p != data), data)
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert not found.good
    data.unlink()
    _, verdict = audited(path)
    assert verdict is Verdict.WRONG
    with pytest.raises(MissingFileError, match="a completed write names a base file"):  # readers fail, too
        read_table(open_table(path))


def test_other_rows_than_recorded(tmp_path: Path) -> None:
    """The inputs are gone; the ledger agrees with itself, but not with the file."""
    path = tmp_path / "trips"
    small_files(path, 6)
    stitch(path)
    table = open_table(path)
    (commit,) = (i for i in table.load_timeline().completed if i.family == "replacecommit")
    file, text = path / table.instant_path(commit), table.commit_metadata(commit).extra_metadata[STITCHED]
    (recorded,) = decode_ledgers(text, "test")
    assert recorded.ledger.identity is not None
    hashed = recorded.ledger.identity.out
    file.write_text(file.read_text().replace(f"{hashed:016x}", f"{hashed ^ 1:016x}"))
    for name in recorded.inputs:
        (path / recorded.path(name)).unlink()
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert "hash of the rows in the written file" in found.groups[0].problems[0]


@one_of("version", 6, 9, 8)
def test_rows_that_came_back(version: int, tmp_path: Path) -> None:
    """The commit came late, and others had built upon it."""
    path = tmp_path / "trips"
    small_files(path, version)
    built_upon(path, lambda: overwrite(path, one_row("new", 100)), lambda: upsert(path, one_row("k3", 300)))
    found, _ = audited(path)
    assert "its rows are visible again" in found.groups[0].problems[0]
    assert CliRunner().invoke(app, ["audit", str(path)]).exit_code == 1


@one_of("version", 9, 8, 6)
def test_a_log_on_a_file_that_was_joined(version: int, tmp_path: Path) -> None:
    """As of a writer that asks for no plan, while the stitching slept: its row is in no base file."""
    path = tmp_path / "trips"
    small_files(path, version)
    built_upon(path, lambda: upsert(path, one_row("k1", 100)), lambda: upsert(path, one_row("k2", 200)))
    assert "belongs to a stitched file" in audited(path)[0].groups[0].problems[0]
