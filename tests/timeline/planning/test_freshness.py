"""Freshness: the lag of a table, when a plan is due for a goal, and what it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import (
    PLAN_NOW,
    Pace,
    ScheduleOptions,
    batch_bytes,
    estimated_s,
    is_near,
    latest_starts,
    past_runs,
    write_interval_s,
)
from phantombase.timeline.planning.schedule import Scheduled, read_lag, schedule_compaction
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, FileSlice, Lag, OldestRow, oldest_time, table_lag, with_write
from phantombase.timeline.view.witness import FileRecord, Marks
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.write.write import write
from tests.support.builders import group_of, listing_of, timeline_of
from tests.support.clock import Clock
from tests.support.compaction_steps import open_table, run_all
from tests.support.selection import deep


def named(file_id: str, found: FileGroup, **fields: object) -> FileGroup:
    slices = tuple(replace(one, file_id=file_id) for one in found.slices)
    return replace(found, file_id=file_id, slices=slices, **fields)  # type: ignore[arg-type]


def test_a_predicate_over_partition_columns(tmp_path: Path) -> None:
    """Other partitions are left out until it is gone. A predicate over other columns, or of which folders show no
    values, is refused before anything changes."""
    fields = ("day", "n", "at")
    made = NewTable(name="t", version=9, key_fields=("id",), partition_fields=fields, ordering_fields=("ts",))
    create_table(LocalStorage(str(tmp_path)), made)
    days, numbers = ["mon", "tue", "wed"], pa.array([1, 10, 9])
    for ts in range(2):
        columns = {"id": ["a", "b", "c"], "ts": [ts] * 3, "day": days, "n": numbers, "at": [True] * 3}
        engine = LocalEngine(pa.table(columns), slots=1)
        write(open_table(tmp_path), engine, Write(operation=Operation.UPSERT, options=WriteOptions(buckets=1)))

    def planned(where: str | None) -> list[str]:
        options = replace(PLAN_NOW, where=where)
        found = schedule_compaction(open_table(tmp_path), ProcessLock(str(tmp_path)), options, dry_run=True)
        return sorted(one.partition_path for plan in found.requested for one in plan.plan.operations)

    assert planned("day > 'mon' and n >= 10") == ["tue/10/true"]
    assert planned("n in (1, 9) or day like 'x%'") == ["mon/1/true", "wed/9/true"]
    assert planned("not day = 'mon'") == ["tue/10/true", "wed/9/true"]
    assert len(planned(None)) == 3
    with pytest.raises(UsageError, match="not a filter"):
        replace(PLAN_NOW, where="n >")
    lag = read_lag(open_table(tmp_path).snapshot(), options=replace(PLAN_NOW, where="n = 10", exclude=("mon/*",)))
    assert (lag.file_groups, lag.log_files, lag.free and lag.free.partition) == (3, 1, "tue/10/true")
    for wrong, why in (("ts > 1", "other columns than those of partitions"), ("at = true", "do not show"), ("n >", "")):
        with pytest.raises(UsageError, match=why):
            planned(wrong)


def test_the_lag_is_of_rows_in_no_base_file() -> None:
    """From the completion of their writes, also those in a pending plan; a write that completes late counts late."""
    writes = ("20_90.deltacommit", "30_40.deltacommit", "50.deltacommit.inflight")
    timeline = timeline_of(LAYOUT_2, "10_11.commit", *writes)
    files = {"a": ("b10", "l30.1", "l20.1", "l50.1"), "b": ("b10", "l20.1"), "c": ("b10",)}
    a, b, c = (named(name, group_of(timeline, listing_of(*of))) for name, of in files.items())
    first, second = (OldestRow(time=time, partition="p", file_id=name) for time, name in (("40", "a"), ("90", "b")))
    assert table_lag([a, b, c], timeline, {}) == Lag(
        oldest=first, free=first, file_groups=2, source_bytes=5, log_files=3, log_bytes=3
    )
    clustered = table_lag([a, b, c], timeline, {("p", "a"): "in a clustering"})
    assert (clustered.oldest, clustered.free) == (replace(first, held="in a clustering"), second)
    planned = table_lag([replace(a, pending_compaction="92"), c], timeline, {})
    assert planned == Lag(oldest=replace(first, plan="92"), file_groups=1)
    later = with_write(planned, "99")
    assert (later.oldest, later.free) == (planned.oldest, OldestRow(time="99", partition="", file_id=""))
    # Version 6: by the writes that name a log file. A file with a rollback only has no row; no write of an active
    # timeline names it. One of archived writes is older than the timeline.
    old = timeline_of(LAYOUT_1, "10.commit", "20.deltacommit", "30.deltacommit")
    (slice_,) = group_of(old, listing_of("b10", "l10.1", "l10.2")).slices
    times = frozenset({"10", "20", "30"})

    def marked(*writes: str, is_stray: bool = False) -> FileSlice:
        records = tuple(FileRecord(instant=one, size=9) for one in writes)
        marks = Marks(known=times, writes=records, is_stray=is_stray)
        return replace(slice_, logs=tuple(replace(log, marks=marks) for log in slice_.logs))

    assert oldest_time(marked("30", "20"), old) == "20"
    assert oldest_time(marked(is_stray=True), old) is None
    assert oldest_time(marked(), old) == "10"
    assert oldest_time(replace(slice_, logs=tuple(replace(log, size=0) for log in slice_.logs)), old) is None


def test_when_jobs_must_begin_so_that_all_meet_their_deadlines() -> None:
    assert latest_starts([(100, 10)], 1) == [90]
    assert latest_starts([(100, 10), (100, 20), (95, 5)], 1) == [90, 70, 65]
    assert latest_starts([(100, 10), (100, 20), (95, 5)], 2) == [90, 80, 85]
    assert latest_starts([(100, 10), (20, 30)], 1) == [90, -10]
    assert latest_starts([], 3) == []
    # An estimate: one long run is left out, two are not; without any, a part of the goal.
    assert [estimated_s(runs, 600) for runs in ((), (8,), (8, 4000), (8, 4000, 4), (8, 4000, 4000))] == [
        150,
        10,
        5000,
        10,
        5000,
    ]
    assert (batch_bytes(None, 600), batch_bytes(10.0, 600)) == (4_026_531_840, 1200)
    day = "20260101"
    timeline = timeline_of(
        LAYOUT_2,
        *(f"{day}0000{s:02d}000_{day}0000{s + 1:02d}000.deltacommit" for s in (0, 10, 20)),
        f"{day}000030000_{day}000130500.commit",
    )
    assert (past_runs(timeline), write_interval_s(timeline)) == ((60.5,), 10)
    assert [is_near(*case) for case in ((479.0, 600.0), (480.0, 600.0), (None, 600.0), (9.0, None))] == [
        False,
        True,
        False,
        False,
    ]


GOAL = replace(PLAN_NOW, freshness_s=600.0)


SKEWED = ClockOptions(clock_skew_s=1e6)


def opened(path: Path) -> Table:
    """No clock of the storage knows of the time that passes here."""
    return open_table(path).with_clock(SKEWED)


def upsert(path: Path, days: list[str]) -> None:
    """One row a day, in one bucket a day."""
    columns = {"id": [f"k-{d}" for d in days], "day": days, "ts": [1] * len(days)}
    options = WriteOptions(buckets=1, slots=1, clock=SKEWED)
    write(opened(path), LocalEngine(pa.table(columns), slots=1), Write(operation=Operation.UPSERT, options=options))


@pytest.mark.parametrize("version", [9, deep(6), deep(8)])
def test_a_plan_is_made_as_late_as_the_goal_allows(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes, of which a first compaction is expected to take a quarter. Under pressure the oldest come first."""
    clock = Clock(monkeypatch)
    made = NewTable(
        name="trips", version=version, key_fields=("id",), partition_fields=("day",), ordering_fields=("ts",)
    )
    create_table(LocalStorage(str(tmp_path)), made)

    def schedule(options: ScheduleOptions = GOAL, pace: Pace | None = None, *, dry_run: bool = False) -> Scheduled:
        held = ProcessLock(str(tmp_path))
        return schedule_compaction(opened(tmp_path), held, options, pace=pace, dry_run=dry_run)

    def days(done: Scheduled) -> list[str]:
        return [o.partition_path for one in done.requested for o in one.plan.operations]

    def lag() -> Lag:
        return read_lag(opened(tmp_path).snapshot())

    upsert(tmp_path, ["a", "b", "c"])
    upsert(tmp_path, ["c"])
    clock.passed_s += 200
    upsert(tmp_path, ["b"])
    clock.passed_s += 130
    upsert(tmp_path, ["a"])
    assert not schedule(pace=Pace(lead_s=250)).requested
    assert len(days(schedule(replace(GOAL, max_plans=2), dry_run=True))) == 3
    pressed = Pace(lead_s=300, urgent_only=True, max_bytes=1)
    assert days(schedule(pace=pressed)) == ["c"]
    oldest, free = lag().oldest, lag().free
    assert oldest is not None
    assert free is not None
    assert (oldest.partition, free.partition, free.plan) == ("c", "b", None)
    assert oldest.plan == opened(tmp_path).load_timeline().pending_compactions[0].requested_time
    run_all(opened(tmp_path))
    assert not schedule(pace=Pace(lead_s=200)).requested
    assert days(schedule(pace=replace(pressed, lead_s=500))) == ["b"]
    clock.passed_s += 500
    assert days(schedule()) == ["a"]
    run_all(opened(tmp_path))
    assert lag() == Lag()
    assert "no row that a plan can take" in schedule().why


def test_a_goal_of_freshness_says_when() -> None:
    """Instead of the trigger, whose options have no effect then; log compactions put no row into a base file."""
    assert ScheduleOptions(freshness_s=60, max_delta_commits=9, max_delta_seconds=9).idle == (
        "max_delta_commits",
        "max_delta_seconds",
    )
    assert GOAL.idle == ()
    assert replace(GOAL, gate_s=1.0).idle == ()
    with pytest.raises(UsageError, match="freshness needs compactions that write base files"):
        ScheduleOptions(freshness_s=60, picking=Picking.UNIVERSAL)
    with pytest.raises(UsageError, match="freshness-s must be at least 1"):
        ScheduleOptions(freshness_s=0.5)
