"""The facts of a table's report, each computed once: the same for `show`, `status`, the pages and the metrics."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from phantombase.timeline.dashboard.compactions import completed_compactions
from phantombase.timeline.dashboard.overview import FLAT, OPTIONAL, Clock, Known, as_json, is_late, overview
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import ServiceClient


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Leaf:
    colour: Colour
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tree:
    leaf: Leaf | None = field(default=None, metadata=FLAT)
    other: Leaf | None = field(default=None, metadata=OPTIONAL)
    names: dict[str, Leaf] = field(default_factory=dict)
    problem: Known[int] = Known()


def test_one_rule_makes_json_of_a_report() -> None:
    leaf, shown = Leaf(colour=Colour.RED, sizes=(1, 2)), {"colour": "red", "sizes": [1, 2]}
    assert as_json(Tree()) == {"names": {}, "problem": {"problem": None}}
    error = MalformedError("torn", path="x")
    full = as_json(Tree(leaf=leaf, other=leaf, names={"a": leaf}, problem=Known(problem=error)))
    assert full == {**shown, "other": shown, "names": {"a": shown}, "problem": {"problem": str(error)}}
    assert list(full)[:2] == ["colour", "sizes"], "flat fields stand where the field stands"
    json.dumps(full)


def test_when_a_compaction_is_late() -> None:
    """A goal of 0 seconds is a goal; an unknown age is neither late nor in time."""
    ages = ((5.0, None), (None, 60.0), (60.0, 60.0), (60.1, 60.0), (0.1, 0.0))
    assert [is_late(age, slo_s) for age, slo_s in ages] == [False, None, False, True, True]


def test_the_heartbeat_of_a_process_that_ended_is_stale_at_once(tmp_path: Path) -> None:
    """As for `status` and for the writers that roll it back; a heartbeat of the far future is stale, too."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    done = subprocess.Popen([sys.executable, "-c", ""])
    gone = replace(Process.current(), pid=done.pid)
    done.wait()
    for number, process in enumerate((Process.current(), gone)):
        time = f"2999010100000000{number}"
        Path(table.storage.base_path, f".hoodie/timeline/{time}.deltacommit.inflight").touch()
        table.storage.overwrite(heartbeat_path(time), b"phantombase\n" + json.dumps(asdict(process)).encode())
    assert [one.heartbeat for one in overview(table.snapshot(cached=False)).pending] == ["fresh", "stale"]


def test_a_write_is_no_completed_compaction(tmp_path: Path) -> None:
    """A table that was COPY_ON_WRITE has commits of writes; the ledger of phantombase's compactions balances."""
    path = unzip_golden("v9_pending", tmp_path)
    run_all(Table.open(str(path)))
    table = open_table(path)
    timeline = table.load_timeline()
    (before,) = completed_compactions(table.with_timeline(timeline), 9)
    assert (before.by, before.balanced, before.problem) == ("phantombase", True, None)
    now = format_time(table.now())
    write = Instant(requested_time=now, action="commit", state=State.COMPLETED, completion_time=now)
    metadata = encode(CommitMetadata(operation_type="UPSERT"), table.layout.encoding)
    assert table.storage.put_if_absent(table.instant_path(write), metadata)
    after = table.snapshot(cached=False)
    assert completed_compactions(after.snapshot(), 9) == (before,)
    assert completed_compactions(after.snapshot(), 0) == ()


def of_api(path: Path) -> dict[str, Any]:
    (row,) = ServiceClient.of(path, slo_s=60).ask("/api/tables").json()["tables"]
    return dict(row)


def test_no_time_has_passed_since_a_compaction_that_never_was(tmp_path: Path) -> None:
    """Nor is the time since its request that since its end: `status` counts from the end."""
    path = unzip_golden("v9_pending", tmp_path)
    row = of_api(path)
    assert (row["last_compaction"], row["seconds_since_compaction"]) == (None, None)
    run_all(Table.open(str(path)))
    assert 0 <= of_api(path)["seconds_since_compaction"] < 600


def test_a_pending_log_compaction_is_a_pending_compaction(tmp_path: Path) -> None:
    """As the daemon's metrics and `status` count it."""
    path = unzip_golden("v9_pending", tmp_path)
    (plan,) = path.glob(".hoodie/timeline/*.compaction.requested")
    plan.rename(plan.with_name(plan.name.replace("compaction", "logcompaction")))
    row = of_api(path)
    assert (row["pending_compactions"], row["health"]) == (1, "needs care")
    assert row["oldest_pending_s"] > 60


def test_the_oldest_is_of_those_whose_age_is_known() -> None:
    """An instant of a made-up time hides no other one."""
    clock = Clock(0, datetime(2026, 11, 21, 9, 0, 50))
    assert clock.oldest(["00000000000001", "20261121090020000", "20261121090010000"]) == 40.0
    assert [clock.oldest(instants) for instants in ((), ("00000000000001",))] == [None, None]


def test_a_compaction_is_no_write(tmp_path: Path) -> None:
    """The last write is one that a writer made."""
    path = unzip_golden("v9_plain", tmp_path)
    before = of_api(path)["last_write"]
    schedule_compaction(open_table(path), ProcessLock(str(path)), PLAN_NOW)
    run_all(Table.open(str(path)))
    row = of_api(path)
    assert (row["last_write"], row["writes_last_hour"]) == (before, 0)
    assert row["last_compaction"] > before
