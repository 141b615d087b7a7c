"""Planning on tables: what is looked at, that bounded plans come round, and what sizes that nobody tells do."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.errors import PhantombaseError, StorageError, UsageError
from phantombase.timeline.format.compaction_plan import CompactionPlan, encode_plan
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.log_block import BlockKind
from phantombase.timeline.instants.triggers import Urgency
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.planning.limits import MissingSize, Picking
from phantombase.timeline.planning.log_compaction import runs_of
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.partition_walk import NOTES, decode_waiting
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.planning.survey import Survey
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey, latest_slice
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import Faults, LockLostAt, kept
from tests.support.golden_tables import one_of, template
from tests.support.selection import deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

pytestmark = pytest.mark.usefixtures("default_filters")
"""What is planned goes by the sizes of files."""
ONE = replace(PLAN_NOW, max_file_slices=1)
DAYS = [f"2026/11/{day}" for day in range(10, 18)]


def upsert(path: Path, days: list[str], ts: int) -> None:
    """One row a day, in one bucket a day."""
    columns = {"id": [f"k-{d}" for d in days], "day": days, "ts": [ts] * len(days), "fare": [1.0 * ts] * len(days)}
    options = WriteOptions(buckets=1, slots=1)
    write(open_table(path), LocalEngine(pa.table(columns), slots=1), Write(operation=Operation.UPSERT, options=options))


@pytest.fixture(params=[9, deep(6)], ids="v{}".format)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with one file group a day, each with a log file."""

    def make(path: Path) -> None:
        path.mkdir()
        spec = NewTable(
            name="trips", version=request.param, key_fields=("id",), partition_fields=("day",), ordering_fields=("ts",)
        )
        create_table(LocalStorage(str(path)), spec)
        upsert(path, DAYS, 1)
        upsert(path, DAYS, 2)

    return template(("planning", request.param), tmp_path / "trips", make)


@pytest.mark.parametrize("max_plans", [1, 3])
def test_a_plan_of_everything_is_the_planners(path: Path, max_plans: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, with what the next planning must know, although few files are looked at as objects: one log file
    cannot be merged, one is torn at its end."""
    options = replace(PLAN_NOW, max_plans=max_plans)
    logs = sorted(path.rglob(".*.log.*"))
    refused = bytearray(logs[0].read_bytes())
    refused[21] = BlockKind.HFILE_DATA
    logs[0].write_bytes(refused)
    logs[3].write_bytes(logs[3].read_bytes() + b"torn")
    fast = schedule(path, options, dry_run=True)
    monkeypatch.setattr(Survey, "finds_plain", False)
    slow = schedule(path, options, dry_run=True)
    assert [encode_plan(one.plan) for one in fast.requested] == [encode_plan(one.plan) for one in slow.requested]
    assert (fast.why, fast.notes) == (slow.why, slow.notes)
    assert len(fast.requested) == max_plans
    assert sum(len(one.plan.operations) for one in fast.requested) == len(DAYS) - 1
    assert "left out that cannot be merged" in fast.why


def schedule(path: Path, options: ScheduleOptions = ONE, storage: Any = None, **said: Any) -> Scheduled:
    table = Table.on(storage) if storage is not None else open_table(path)
    return schedule_compaction(table, ProcessLock(str(path)), options, **said)


def days_of(done: Scheduled) -> list[str]:
    """Partitions of what was requested."""
    return [o.partition_path for one in done.requested for o in one.plan.operations]


def listed(path: Path, options: ScheduleOptions, **said: Any) -> tuple[list[str], Scheduled]:
    """The days that were listed while planning."""
    seen: list[str] = []

    def hook(call: Call) -> Any:
        if call.name == "list" and call.path in DAYS:
            seen.append(call.path)
        return call.do()

    done = schedule(path, options, HookedStorage(LocalStorage(str(path)), hook), **said)
    return sorted(seen), done


@one_of("path", 6, 9, indirect=True)
def test_bounded_plans_come_round(path: Path) -> None:
    """One day a plan: each of them once, executed or not, and then nothing more."""
    found = []
    for number in range(len(DAYS)):
        found += days_of(schedule(path))
        if number % 2:
            run_all(open_table(path))
    assert sorted(found) == DAYS
    run_all(open_table(path))
    assert schedule(path).instant is None


def test_a_hot_day_does_not_starve_the_others(path: Path) -> None:
    """The first day is written to before every plan; its turn comes again when all others have had theirs."""
    found = []
    for number in range(len(DAYS) + 1):
        upsert(path, DAYS[:1], 10 + number)
        found += days_of(schedule(path))
        run_all(open_table(path))
    assert sorted(found[:-1]) == DAYS
    assert found[-1] == DAYS[0]


def test_a_plan_is_returned_also_if_the_lock_is_lost_right_behind_it(path: Path) -> None:
    table = open_table(path)
    done = schedule_compaction(table, LockLostAt(1), ONE)
    assert [done.instant] == [i.requested_time for i in table.load_timeline().pending_compactions]


def test_only_what_was_written_is_looked_at(path: Path) -> None:
    """After a plan of everything: the days written since. Without `incremental`: all of them."""
    assert len(days_of(schedule(path, PLAN_NOW))) == len(DAYS)
    run_all(open_table(path))
    upsert(path, DAYS[3:5], 3)
    everything = replace(PLAN_NOW, incremental=False)
    assert days_of(schedule(path, everything, dry_run=True)) == DAYS[3:5]
    assert listed(path, everything, dry_run=True)[0] == DAYS
    seen, done = listed(path, PLAN_NOW)
    assert seen == DAYS[3:5]
    assert sorted(days_of(done)) == DAYS[3:5]


@one_of("path", 6, 9, indirect=True)
def test_hudi_is_told_of_partitions_and_not_of_folders(path: Path) -> None:
    """What was not looked at lies in folders; Hudi takes each name for a partition, and forgets what has none."""
    upsert(path, ["2026/12/01"], 1)
    upsert(path, ["2026/12/01"], 2)
    (path / "2026/12/notes.txt").write_text("no folder")
    plan = schedule(path).plan
    assert plan is not None
    assert sorted(plan.missing_schedule_partitions or ()) == [*DAYS, "2026/12/01"]


def test_a_dry_run_changes_nothing(path: Path) -> None:
    before = sorted(path.rglob("*"))
    done = schedule(path, PLAN_NOW, dry_run=True)
    assert len(days_of(done)) == len(DAYS)
    assert done.notes is not None
    assert sorted(path.rglob("*")) == before
    assert days_of(schedule(path, PLAN_NOW)) == days_of(done)


def test_what_pends_is_looked_at_again(path: Path) -> None:
    """A day written to under its own plan: it is left out then, and found later though nobody writes any more."""
    first = schedule(path)
    upsert(path, days_of(first), 3)
    rest = schedule(path, PLAN_NOW)
    assert sorted(days_of(first) + days_of(rest)) == DAYS
    run_all(open_table(path))
    assert days_of(schedule(path, PLAN_NOW)) == days_of(first)


@one_of("path", 6, 9, indirect=True)
def test_a_plan_that_was_taken_back_is_made_again(path: Path) -> None:
    """Also when a later one was made since, which knew it as pending and did not look there."""
    two = replace(PLAN_NOW, max_file_slices=2)
    first = schedule(path, two)
    schedule(path, two)
    assert first.instant is not None
    unschedule(open_table(path), first.instant, ProcessLock(str(path)))
    everything = days_of(schedule(path, PLAN_NOW))
    assert set(days_of(first)) <= set(everything)
    assert len(everything) == len(DAYS) - 2


def test_after_a_plan_of_hudi_everything_is_looked_at(path: Path) -> None:
    """Its plan does not tell what it left out."""
    schedule(path, replace(PLAN_NOW, max_file_slices=2))
    run_all(open_table(path))
    table = open_table(path)
    later = "20991122000000000"
    plan = CompactionPlan(operations=(), missing_schedule_partitions=())
    (path / table.config.timeline_folder / f"{later}.compaction.requested").write_bytes(encode_plan(plan))
    assert len(days_of(schedule(path, PLAN_NOW))) == len(DAYS) - 2


def test_several_plans_at_a_time(path: Path) -> None:
    """On different file groups, with instants of their own; a fleet executes them in any order."""
    done = schedule(path, replace(PLAN_NOW, max_plans=3))
    assert len(done.requested) == 3
    assert len({r.instant for r in done.requested}) == 3
    assert sorted(days_of(done)) == DAYS
    run_all(open_table(path))
    assert schedule(path, PLAN_NOW).instant is None


@one_of("path", 6, 9, indirect=True)
def test_rows_are_counted(path: Path) -> None:
    """A base row and a log row a day."""
    assert len(days_of(schedule(path, replace(PLAN_NOW, max_source_rows=5), dry_run=True))) == 2
    assert len(days_of(schedule(path, replace(PLAN_NOW, max_source_rows=6), dry_run=True))) == 3
    none = schedule(path, replace(PLAN_NOW, max_source_rows=1, hard=True))
    assert none.requested == ()
    assert "by itself larger than max_source_rows=1" in none.why


@pytest.mark.parametrize(
    ("path", "death"),
    [(6, True), (9, False), deep(6, False), deep(9, True)],
    indirect=["path"],
    ids=["v6-dies", "v9-fails", "v6-fails", "v9-dies"],
)
def test_a_request_that_ends_at_any_call_is_taken_up(path: Path, death: bool) -> None:
    """Of two plans none, one or both are there, each whole; the next ones hold the rest, and nothing twice."""
    two, ended = replace(PLAN_NOW, max_file_slices=3, max_plans=2), 0
    faults = replace(Faults.of(path, lambda storage: schedule(Path(storage.base_path), two, storage)), each=death)
    for copy in (p for _, p in faults.deaths()) if death else (p for _, _, p, _ in faults.errors()):
        while schedule(copy, two).instant is not None:
            pass
        planned = [key for i in open_table(copy).load_timeline().pending_compactions for key in _keys(copy, i)]
        assert sorted(partition for partition, _ in planned) == DAYS
        run_all(open_table(copy))
        ended += 1
    assert ended > 2


def _keys(path: Path, instant: Instant) -> list[GroupKey]:
    plan = open_table(path).compaction_plan(instant.requested_time)
    return [(o.partition_path, o.file_id) for o in plan.operations]


def without_sizes(path: Path, lost: str) -> HookedStorage:
    """Listings that tell no size of files with this ending."""

    def hook(call: Call) -> Any:
        found = call.do()
        if call.name != "list" or not call.path.startswith("2026"):
            return found
        return [replace(e, size=0) if lost in e.name else e for e in _entries(found)]

    return HookedStorage(LocalStorage(str(path)), hook)


def _entries(found: list[Entry]) -> Iterator[Entry]:
    yield from found


@pytest.mark.parametrize("lost", [".parquet", ".log."])
def test_a_size_nobody_tells_is_looked_up_or_refused(lost: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And never zero: the same plan as with sizes."""
    small = replace(PLAN_NOW, max_source_bytes=1)
    expected = schedule(path, PLAN_NOW, dry_run=True)
    found = schedule(path, PLAN_NOW, without_sizes(path, lost), dry_run=True)
    assert found.plan is not None
    assert expected.plan is not None
    assert list(found.plan.operations) == list(expected.plan.operations)
    assert any("size_looked_up" in line for line in caplog.messages)
    with pytest.raises(StorageError, match="does not give the size"):
        schedule(path, replace(small, missing_size=MissingSize.ERROR), without_sizes(path, lost))


def test_an_empty_base_file_is_left_out(path: Path) -> None:
    """The other file groups are planned."""
    empty = next(path.glob("2026/11/10/*.parquet"))
    empty.write_bytes(b"")
    done = schedule(path, PLAN_NOW)
    assert done.notes is not None
    (lost,) = done.notes.unmergeable
    assert empty.name in lost.why
    assert done.plan is not None
    assert lost.file_id not in {o.file_id for o in done.plan.operations}


@one_of("path", 6, 9, indirect=True)
def test_a_listing_that_fails_makes_no_plan(path: Path) -> None:
    """Unknown is never "nothing there"."""

    def hook(call: Call) -> Any:
        if call.name == "list" and call.path == DAYS[-1]:
            raise StorageError("injected", path=call.path)
        return call.do()

    before = sorted(path.rglob("*"))
    with pytest.raises(PhantombaseError, match="injected"):
        schedule(path, PLAN_NOW, HookedStorage(LocalStorage(str(path)), hook))
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("version", [deep(6), 9])
def test_minor_and_major_take_turns(version: int, tmp_path: Path) -> None:
    """Universal picking under steady updates: rows stay what was written, and logs stay few."""
    path = tmp_path / "trips"
    options = WriteOptions(buckets=1, slots=1)
    written_table(path, version, rows(*((n, 1, 1.0) for n in range(2000))), options)
    universal = replace(
        PLAN_NOW,
        picking=Picking.UNIVERSAL,
        compaction_trigger=3,
        max_size_amplification=20,
        readers_1x_only=version == 6,
    )
    expected = {f"k{n:04d}": (1, 1.0) for n in range(2000)}
    done: Counter[str] = Counter()
    most = 0
    for turn in range(2, 22):
        changed = rows(*((n, turn, 1.0 * turn) for n in range(turn % 4, 900, 2)))
        write(open_table(path), LocalEngine(changed, slots=1), Write(operation=Operation.UPSERT, options=options))
        expected |= as_rows_of(changed)
        for one in schedule(path, universal).requested:
            done[one.plan.action] += 1
        run_all(open_table(path))
        assert read_rows(path) == expected, f"turn {turn}"
        table = open_table(path)
        timeline = table.load_timeline()
        rules = slice_rules(table.with_timeline(timeline), table.with_timeline(timeline).newest_schema())
        for group in table.load_view().groups:
            slice_ = latest_slice(group)
            assert slice_ is not None
            most = max(most, sum(len(run.pieces) for run in runs_of(table.storage, slice_, rules, ())))
    assert done["logcompaction"] >= 2
    assert done["compaction"] >= 1
    assert most <= 3
    for instant in audited_instants(open_table(path)):
        assert audit(open_table(path), instant).good


def as_rows_of(batch: pa.Table) -> dict[str, tuple[int, float]]:
    """Rows of a batch by key."""
    ids, ts, fares = (batch.column(name).to_pylist() for name in ("id", "ts", "fare"))
    return {i: (t, f) for i, t, f in zip(ids, ts, fares, strict=True)}


# --- nothing is forgotten ---------------------------------------------------------------------------------------------


def universal(path: Path) -> ScheduleOptions:
    """Minor compactions of three log files and more, on every version."""
    return replace(
        PLAN_NOW,
        picking=Picking.UNIVERSAL,
        compaction_trigger=3,
        size_ratio=50,
        readers_1x_only=open_table(path).config.version == 6,
    )


def come_round(path: Path, *requests: ScheduleOptions) -> list[str]:
    """The days planned by these requests, then by one of everything."""
    found = [day for options in requests for day in days_of(schedule(path, options))]
    return sorted([*found, *days_of(schedule(path, PLAN_NOW))])


def test_what_a_strategy_chose_and_a_limit_left_is_planned_next(path: Path) -> None:
    two = replace(PLAN_NOW, strategies=(Strategy.LOG_FILE_SIZE,), max_file_slices=2)
    plan = schedule(path, two).plan
    assert plan is not None
    assert len(plan.operations) == 2
    assert set(plan.missing_schedule_partitions or ()) >= set(DAYS) - {o.partition_path for o in plan.operations}
    assert len(come_round(path, two)) == len(DAYS) - 2


def test_one_of_several_plans_is_taken_back(path: Path) -> None:
    done = schedule(path, replace(PLAN_NOW, max_plans=2))
    first, second = done.requested
    unschedule(open_table(path), first.instant, ProcessLock(str(path)))
    run_all(open_table(path))
    assert sorted(days_of(schedule(path, PLAN_NOW))) == sorted(o.partition_path for o in first.plan.operations)
    assert second.plan.operations


@one_of("path", 6, 9, indirect=True)
def test_what_was_merged_into_a_log_is_compacted_later(path: Path) -> None:
    """Of a planning with minor and major ones: the minor's logs still wait, executed or taken back."""
    for ts in (3, 4):
        upsert(path, DAYS[:2], ts)
    upsert(path, DAYS[:1], 5)
    options = replace(universal(path), full_compaction_delta_commits=4)
    done = schedule(path, options)
    assert sorted((r.plan.action, *(o.partition_path for o in r.plan.operations)) for r in done.requested) == [
        ("compaction", DAYS[0]),
        ("logcompaction", DAYS[1]),
    ]
    run_all(open_table(path))
    assert sorted(days_of(schedule(path, PLAN_NOW))) == DAYS[1:]


def test_minor_ones_take_turns_too(path: Path) -> None:
    """A day with steady writes does not keep the others' logs from being merged."""
    options = replace(universal(path), max_file_slices=1)
    found = set()
    for number in range(8):
        upsert(path, DAYS[:3], 10 + 4 * number)
        for more in range(3):
            upsert(path, DAYS[:1], 11 + 4 * number + more)
        found |= set(days_of(schedule(path, options)))
        run_all(open_table(path))
    assert found == set(DAYS[:3])


def test_what_is_radical_does_not_wait_for_a_write(path: Path) -> None:
    """The limit closes each plan; the next one is due at once, until everything is planned."""
    options = ScheduleOptions(urgency=Urgency.RADICAL, max_delta_commits=99, max_file_slices=3)
    found = [day for _ in range(3) for day in days_of(schedule(path, options))]
    assert sorted(found) == DAYS
    run_all(open_table(path))
    assert schedule(path, options).requested == ()


@one_of("path", 6, 9, indirect=True)
def test_a_day_that_is_gone_is_no_error(path: Path) -> None:
    upsert(path, ["2027/01/01"], 1)
    upsert(path, ["2027/01/01"], 2)
    schedule(path)
    run_all(open_table(path))
    shutil.rmtree(path / "2027")
    assert days_of(schedule(path)) == DAYS[1:2]


def test_partitions_of_any_depth_are_named_to_hudi(path: Path) -> None:
    for day in ("2028", "2029/01"):
        upsert(path, [day], 1)
        upsert(path, [day], 2)
    plan = schedule(path).plan
    assert plan is not None
    assert {"2028", "2029/01"} <= set(plan.missing_schedule_partitions or ())


def test_notes_do_not_grow(path: Path) -> None:
    """Each folder is in them twice at most, however many plans were limited."""
    for number in range(12):
        upsert(path, DAYS, 10 + number)
        plan = schedule(path).plan
        run_all(open_table(path))
    assert plan is not None
    waiting = decode_waiting((plan.extra_metadata or {})[NOTES], "1")
    assert waiting is not None
    assert len(waiting) <= 2 * len(DAYS)


@one_of("path", 6, 9, indirect=True)
def test_commands_share_the_lock_of_daemons_and_writers(path: Path) -> None:
    """`--sole-writer`: other processes of ours may be there all the same."""
    held: list[str] = []

    class Lock(ProcessLock):
        @contextmanager
        def hold(self, purpose: str) -> Iterator[Section]:
            held.append(purpose)
            yield kept(purpose)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phantombase.compactor_daemon.cli.option_flags.table_lock", lambda *_, **__: Lock("x"))
        done = CliRunner().invoke(app, ["schedule", str(path), "--sole-writer", "--json"])
        assert done.exit_code == 0, done.output
        instant = json.loads(done.stdout)["instant"]
        done = CliRunner().invoke(app, ["unschedule", str(path), instant, "--sole-writer"])
        assert done.exit_code == 0, done.output
    assert len(held) == 2


@pytest.mark.parametrize(
    "said",
    [
        ["schedule", "T", "--conf", "hoodie.compaction.target.io=1", "--conf", "hoodie.compaction.target.io=2"],
        ["schedule", "T", "--trigger", "num-commits", "--max-interval", "nan"],
        ["schedule", "T", "--max-delta-commits", "100"],
        ["schedule", "T", "--urgency", "radical"],
        ["schedule", "T", "--config", "no/such/file"],
        ["run", "T", "--max-file-slices", "1"],
    ],
)
def test_options_that_say_two_things_or_none_are_refused(said: list[str], path: Path) -> None:
    done = CliRunner().invoke(app, [str(path) if word == "T" else word for word in said] + ["--sole-writer"])
    assert isinstance(done.exception, UsageError) or done.exit_code == 2, done.output


def test_a_strategy_keeps_its_settings_from_anywhere(path: Path) -> None:
    """The command line names it, Hudi's configuration its target."""
    said = ["--strategy", "bounded-io", "--conf", "hoodie.compaction.target.io=500", "--dry-run"]
    done = CliRunner().invoke(app, ["schedule", str(path), *said])
    assert done.exit_code == 0, done.output


@one_of("path", 6, 9, indirect=True)
def test_a_major_plan_before_a_minor_one_is_taken_back(path: Path) -> None:
    """The last request, which tells where to look, is a log compaction."""
    for ts in (3, 4):
        upsert(path, DAYS[:2], ts)
    upsert(path, DAYS[:1], 5)
    options = replace(universal(path), full_compaction_delta_commits=4, max_file_slices=1, max_plans=2)
    major, minor = schedule(path, options).requested
    assert (major.plan.action, minor.plan.action) == ("compaction", "logcompaction")
    unschedule(open_table(path), major.instant, ProcessLock(str(path)))
    assert DAYS[0] in days_of(schedule(path, PLAN_NOW))
