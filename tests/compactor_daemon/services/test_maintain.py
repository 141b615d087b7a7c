"""`maintain`: all that is due on a table, once; a step that fails holds no other one back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import phantombase
from phantombase.compactor_daemon.cleaning import clean as cleaning
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import last_runs
from phantombase.timeline.errors import StorageError, UsageError
from tests.support.archived_tables import old_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.places import traces
from tests.support.written_tables import read_rows

STEPS = ["schedule", "compact", "metadata", "cluster", "clean", "archive"]
SMALL = (
    *("--clean-retain", "1", "--clean-floor", "0", "--archive-min-instants", "3", "--archive-max-instants", "4"),
    *("--archive-commits-retained", "1", "--max-delta-commits", "1", "--archive-compaction-commits", "1"),
)


def maintain(*words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["maintain", *words, "--executor", "local", "--json"])
    assert done.exit_code in (0, 1), done.output + repr(done.exception)
    return done.exit_code, json.loads(done.stdout)


def steps(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in data["tables"][0]["steps"]}


def test_all_that_is_due_is_done_in_order_and_a_second_run_finds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    upsert(path, one_row("k0", 9))
    rows, before = read_rows(path), traces(path)
    code, tried = maintain(str(path), "--dry-run", *SMALL)
    assert (code, list(steps(tried)), traces(path)) == (0, STEPS, before)
    assert steps(tried)["schedule"]["what"].startswith("would request 1 compaction")
    assert "would be removed" in steps(tried)["clean"]["what"]
    code, data = maintain(str(path), "--sole-writer", *SMALL)
    did = steps(data)
    assert (code, list(did)) == (0, STEPS)
    assert did["schedule"]["what"].startswith("requested 1 compaction: ")
    assert did["compact"]["what"].startswith("executed 1 compaction: ")
    assert did["clean"]["files"] > 0
    assert did["archive"]["instants"] > 0
    assert read_rows(path) == rows
    assert [s.value for s in last_runs(open_table(path).storage)] == STEPS[2:]  # daemons need not run them again
    code, again = maintain(str(path), "--sole-writer", *SMALL)
    assert code == 0
    assert steps(again)["compact"]["what"] == "no compaction is pending"
    assert [s["step"] for s in again["tables"][0]["steps"] if s["instants"] and s["step"] != "archive"] == []


def test_a_failed_step_holds_no_other_one_back_and_a_sick_table_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        old_table(tmp_path / "lake" / name, 9, 1)
    (tmp_path / "lake/a/.hoodie/hoodie.properties").write_bytes(b"hoodie.table.version=9\n")

    def fails(*_: Any, **__: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(cleaning, "clean_table", fails)
    code, data = maintain("--root", str(tmp_path / "lake"), "--sole-writer", *SMALL)
    sick, other = data["tables"]
    assert code == 1
    assert [(step["step"], step["failed"]) for step in sick["steps"]] == [("open", True)]
    assert [(s["step"], s["failed"]) for s in other["steps"]] == [(name, name == "clean") for name in STEPS]
    assert other["steps"][4]["what"] == "the disk is full"
    assert last_runs(open_table(tmp_path / "lake/b").storage)[Service.CLEAN].failed
    monkeypatch.undo()
    ran = phantombase.maintain(tmp_path / "lake/b", services="clean,orphans", sole_writer=True)
    assert [(one.step, one.failed) for one in ran] == [(n, False) for n in ("schedule", "compact", "clean", "orphans")]
    with pytest.raises(UsageError, match="maintain needs to know which other processes write"):
        phantombase.maintain(tmp_path / "lake/b")
    twice = [phantombase.CleanOptions(retain=1), phantombase.CleanOptions(retain=50)]
    with pytest.raises(phantombase.UsageError, match="given twice"):
        phantombase.maintain(tmp_path / "lake/b", services="clean", options=twice, sole_writer=True)
