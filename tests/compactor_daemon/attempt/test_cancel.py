"""`cancel`: the work on one instant ends in whichever process it runs, at each moment; the plan stays."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.attempt.outcome import CancelledWork, cancel_work, find_decision
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import AttemptDeadError, ConflictError, UsageError
from phantombase.timeline.instants.reserved_times import STAGED_DATA, staged_files
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import check_whole, open_table, run_all, staged
from tests.support.faults import Faults
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.selection import ALL


def command(*words: object) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*map(str, ("cancel", *words)), "--json"])
    assert done.exit_code in (0, 1), done.output + repr(done.exception)
    return done.exit_code, json.loads(done.stdout)


def compact(storage: Storage) -> None:
    run_all(Table.on(storage), lock="a process")


@one_of("name", "v9_pending", "v6_pending")
def test_a_cancel_at_every_moment_ends_the_work_or_comes_after_its_decision(name: str, tmp_path: Path) -> None:
    """The files that were staged go, and the next run executes the plan."""
    origin = unzip_golden(name, tmp_path)
    expected = origin.with_name(f"{origin.name}.expected")
    (instant,) = pending_instants(open_table(origin))
    ended, answers = Counter[str](), list[CancelledWork]()

    def cancelled(path: Path) -> None:
        answers.append(cancel_work(LocalStorage(str(path)), instant, "by ann: too large"))

    for _, path, error in Faults.of(origin, compact, share=(0, 3)).pauses(
        cancelled, lambda p: ALL or p.changes or p.nth == 0
    ):
        answer, storage = answers[-1], LocalStorage(str(path))
        still_open = instant in pending_instants(open_table(path))
        if answer.attempts and find_decision(storage, instant) is None and still_open:
            assert isinstance(error, ConflictError)
            assert "cancelled" in str(error)
            assert not staged_files(storage, instant, STAGED_DATA)
            ended["cancelled"] += 1
        else:  # before the attempt, or after its decision
            assert error is None
            assert not still_open
            ended["decided" if answer.decided else "nothing"] += 1
        run_all(open_table(path))
        check_whole(path, expected)
    assert min(ended[one] for one in ("cancelled", "decided", "nothing")) > 0, ended


@one_of("name", "v9_pending", "v6_pending")
def test_a_cancel_that_dies_at_each_of_its_calls_concerns_no_later_attempt(name: str, tmp_path: Path) -> None:
    origin = unzip_golden(name, tmp_path)
    expected = origin.with_name(f"{origin.name}.expected")
    (instant,) = pending_instants(open_table(origin))
    staged(open_table(origin), instant)
    deaths = 0
    for _, path in Faults.of(origin, lambda storage: cancel_work(storage, instant, "by ann")).deaths():
        run_all(open_table(path))
        check_whole(path, expected)
        deaths += 1
    assert deaths >= 2


def test_the_process_at_work_stops_at_its_next_check_and_says_who_cancelled(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    (instant,) = pending_instants(open_table(path))
    at_work, answer = threading.Event(), list[tuple[int, Any]]()

    def runner(storage: Storage, tasks: Any, progress: Any) -> list[SliceDone]:
        done = LocalRunner(1)(storage, tasks, lambda done, total: None)
        assert command(path, instant, "--dry-run")[1]["attempts"] == [1]
        answer.append(command(path, instant, "--reason", "too large"))
        (row,) = json.loads(CliRunner().invoke(app, ["status", str(path), "--json"]).stdout)["pending"]
        assert (row["state"], "too large; its process stops" in row["why"]) == ("running", True)
        at_work.set()
        progress(len(done), len(tasks))
        raise AssertionError("it went on")

    with pytest.raises(AttemptDeadError, match=r"was cancelled.*too large.*the plan stays requested"):
        compact_instant(
            open_table(path),
            instant,
            lock=LOCK,
            runner=runner,
            progress=lambda done, total: None,
            output=OutputOptions(),
            options=AttemptOptions(foreign_poll_s=0.0),
        )
    assert at_work.is_set()
    assert (answer[0][0], answer[0][1]["attempts"], answer[0][1]["decided"]) == (0, [1], False)
    assert not staged_files(LocalStorage(str(path)), instant, STAGED_DATA)
    assert command(path, instant)[1]["attempts"] == []
    (row,) = json.loads(CliRunner().invoke(app, ["status", str(path), "--json"]).stdout)["pending"]
    assert "was cancelled by" in row["why"]
    assert row["state"] == "waiting"
    run_all(open_table(path))
    check_whole(path, path.with_name(f"{path.name}.expected"))
    done = CliRunner().invoke(app, ["cancel", str(path), instant])
    assert isinstance(done.exception, UsageError)
    assert "not a pending compaction" in str(done.exception)
