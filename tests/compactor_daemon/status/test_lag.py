"""The lag of a table as a daemon keeps it, and the reason why it is near its goal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder, SeenLag
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import TableClaims
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.status.lag import LagTracker, PlanState, why_behind
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.layout import LAYOUT_1
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import Pace, ScheduleOptions
from phantombase.timeline.planning.schedule import read_lag
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.view.view import Lag, OldestRow
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.builders import timeline_of
from tests.support.clock import upsert
from tests.support.compaction_steps import open_table, run_all

ROWS = pa.table({"id": ["a"], "ts": [1]})


def test_a_daemon_keeps_the_lag_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view is loaded only when plans or base files have changed; each step is what the next snapshot shows."""
    made = NewTable(name="t", version=9, key_fields=("id",), partition_fields=(), ordering_fields=("ts",))
    create_table(LocalStorage(str(tmp_path)), made)
    settings = DaemonSettings(
        who="d",
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=DaemonOrder.EARLIEST,
        schedule=ScheduleOptions(freshness_s=600.0),
    )
    lock = ProcessLock(str(tmp_path))
    claims = TableClaims(open_table(tmp_path), "d")
    served, loads = TableOnStorage(str(tmp_path), claims, lock, LocalRunner(1), settings), [0]

    def counted(*given: object, **how: object) -> object:
        loads[0] += 1
        return read_lag(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr("phantombase.timeline.planning.schedule.read_lag", counted)

    def seen() -> tuple[SeenLag, int]:
        found = served.snapshot()
        assert (found.due, found.lag is None) == (False, False)
        return found.lag, loads[0]  # type: ignore[return-value]

    upsert(tmp_path, ROWS)  # a new file group: its rows are in a base file at once
    assert seen() == (SeenLag(goal_s=600.0), 1)
    upsert(tmp_path, ROWS)
    lag, count = seen()
    times = open_table(tmp_path).times
    done = open_table(tmp_path).load_timeline().completed[-1].completion_time
    assert (lag.oldest_ms, lag.free_ms, count) == (times.milliseconds(str(done)), lag.oldest_ms, 1)
    upsert(tmp_path, ROWS)
    assert seen() == (lag, 1)
    assert not served.request(Pace(lead_s=60)).requested
    assert seen()[0].free_ms == lag.free_ms
    (plan,) = served.request(Pace(lead_s=600)).requested
    planned, count = seen()
    assert (planned.oldest_ms, planned.free_ms, count) == (lag.oldest_ms, None, 5)  # each request has loaded one, too
    assert planned.oldest is not None
    assert planned.oldest.plan == plan.instant
    shown = CliRunner().invoke(app, ["status", str(tmp_path), "--freshness", "1s", "--json"])
    fresh = json.loads(shown.stdout)["freshness"]
    assert (fresh["goal_s"], fresh["lag_s"] > 0, fresh["problem"]) == (1, True, None)
    text = CliRunner().invoke(app, ["status", str(tmp_path), "--freshness", "10m"]).stdout
    assert "the goal is 10 min" in " ".join(text.split())
    run_all(open_table(tmp_path))
    merged, _ = seen()
    assert (merged.oldest, merged.free_ms, len(merged.runs)) == (None, None, 1)


def test_a_write_that_took_long_on_version_6_counts_from_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a write that was requested later were the oldest until then."""
    first, later = "20260101000000000", "20260101000500000"
    began, ended = f"{first}.deltacommit.inflight", f"{first}.deltacommit"
    tracker, times = LagTracker(), [later]

    def lag_with(*names: str) -> str | None:
        row = OldestRow(time=min(times), partition="", file_id="f")
        monkeypatch.setattr("phantombase.timeline.planning.schedule.read_lag", lambda *_: Lag(oldest=row, free=row))
        seen = SimpleNamespace(timeline=timeline_of(LAYOUT_1, *names), snapshot=lambda: None)
        found = tracker.at(cast(Any, seen), ScheduleOptions())
        return None if found is None or found.free is None else found.free.time

    assert lag_with(began, f"{later}.deltacommit") == later
    times.append(first)
    assert lag_with(ended, f"{later}.deltacommit") == first


ROW = OldestRow(time="20260101000000000", partition="p", file_id="f")
PLANNED = replace(ROW, plan="7")
ONE = PlanState(instant="7", state="waiting")


def test_the_reason_of_a_lag_near_its_goal() -> None:
    def why(row: OldestRow | None, *plans: PlanState, lag_s: float = 480.0, **said: object) -> str | None:
        return why_behind(row, lag_s, 600.0, plans, **said)  # type: ignore[arg-type]

    assert why(ROW, lag_s=479.0) is None
    assert why(None) is None
    assert why_behind(ROW, 480.0, None, ()) is None
    assert why(ROW) == "no process requests a compaction"
    assert why(ROW, requested=True) == "a plan is requested at the next poll"
    assert why(ROW, requested=True, slots="all 2 slots are in use") == "all 2 slots are in use"
    assert why(replace(ROW, held="in a pending clustering")) == "p/f: in a pending clustering"
    assert why(ROW, writer="5") == "a plan waits for the write 5: version 6 is planned only without pending writes"
    assert why(PLANNED) == "compaction 7 is pending"
    assert why(PLANNED, ONE) == "no process works on compaction 7: there is no daemon, or it has too few slots"
    assert why(PLANNED, ONE, requested=True) == "compaction 7 waits for this daemon to take it"
    assert why(PLANNED, ONE, slots="all 2 slots are in use") == "all 2 slots are in use"
    assert why(PLANNED, replace(ONE, why="waits: x")) == "compaction 7 is waiting: waits: x"
    assert why(PLANNED, replace(ONE, state="parked", why="torn")) == "compaction 7 is parked: torn"
    assert why(PLANNED, replace(ONE, state="running", run_s=30.0)) == "compaction 7 is in progress"
    assert "too large for the goal" in str(why(PLANNED, replace(ONE, state="running", run_s=300.0)))
