"""`status` as the page one opens: backlog, the next plan, the last compaction, what a clean could remove."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.status.outlook import backlog_row
from phantombase.timeline.view.view import is_replaced, latest_slice
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of


def call(*words: str | Path) -> str:
    """stdout of a command that must succeed."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def status(path: Path, *words: str) -> dict[str, Any]:
    """The document of `status`."""
    document = json.loads(call("status", path, *words, "--json"))
    assert isinstance(document, dict)
    return document


@one_of("name", "v9_plain", "v6_plain")
def test_a_table_before_and_after_its_compaction(name: str, tmp_path: Path) -> None:
    """The backlog is what the next plan takes; then nothing, and the success is the last one."""
    path = unzip_golden(name, tmp_path)
    found = status(path, "--max-delta-commits", "3")
    slices = json.loads(call("schedule", path, "--dry-run", "--json"))["picked"]
    assert found["backlog"]["file_groups"] == len(slices) > 0
    assert found["backlog"]["log_files"] == sum(one["log_files"] for one in slices)
    assert found["next_plan"]["due"]
    assert " of 3 delta commits since " in found["next_plan"]["why"]
    assert not status(path, "--max-delta-commits", "99")["next_plan"]["due"]
    assert found["last_success"] is None
    (done,) = json.loads(call("compact", path, "--schedule", "--sole-writer", "--json"))["compacted"]
    after = status(path)
    assert (after["backlog"]["file_groups"], after["backlog"]["log_bytes"]) == (0, 0)
    assert after["last_success"]["instant"] == done["instant"]
    assert 0 <= after["last_success"]["ago_s"] < 600
    assert "0 of 5 delta commits" in call("status", path)


def test_logs_of_a_pending_plan_are_no_backlog(tmp_path: Path) -> None:
    """Nor are those of replaced file groups."""
    assert status(unzip_golden("v9_pending", tmp_path))["backlog"]["file_groups"] == 0
    replaced = open_table(unzip_golden("v9_replaced", tmp_path)).load_view()
    assert [latest.logs for group in replaced.groups if is_replaced(group, replaced.facts)
            and (latest := latest_slice(group)) and latest.logs]  # fmt: skip
    assert backlog_row(replaced)["file_groups"] == 0


def test_a_brief_look_lists_no_partition(tmp_path: Path) -> None:
    assert "backlog" not in status(unzip_golden("v9_plain", tmp_path), "--brief")


def test_what_cannot_be_found_out_stops_nothing(tmp_path: Path) -> None:
    """A base file of a completed compaction is lost: the backlog is unknown, the next plan is not."""
    path = unzip_golden("v9_plain", tmp_path)
    call("compact", path, "--schedule", "--sole-writer")
    instant = status(path)["last_success"]["instant"]
    next(path.rglob(f"*_{instant}.parquet")).unlink()
    found = status(path)
    assert found["backlog"]["problem"]
    assert found["next_plan"]["problem"] is None
    assert "names a base file that does not exist" in " ".join(call("status", path).split())


def test_it_is_shown_again_until_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    path = unzip_golden("v9_plain", tmp_path)
    monkeypatch.setattr(time, "sleep", sleep)
    assert call("status", path, "--brief", "--watch", "2").count("No compaction is pending.") == 3
    assert waits == [2, 2, 2]
