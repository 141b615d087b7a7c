"""Writers that meet full file groups: they wait for a compaction, make it themselves, or fail without a trace."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from phantombase import Writer, Written, writer
from phantombase.compactor_daemon.execution.run_compactions import AsyncCompaction
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import PressureError, UsageError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.heartbeat import WANTED, put_wanted, read_wanted
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice, ViewFacts, is_replaced, latest_slice
from phantombase.writer_hooks.commit.compaction import Capacity, full_groups, shows_compaction
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.options import NO_LIMIT, BackPressure, FullAction
from tests.support.builders import NO_FACTS, facts_of, group_of, listing_of, timeline_of
from tests.support.compaction_steps import open_table, run_all
from tests.support.evolved_tables import contents
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import leave_dead_write
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.places import capture_logs
from tests.support.selection import for_each
from tests.support.trips import rows, trips
from tests.support.written_tables import check_nothing_left, read_rows

LIMIT = 3
LONG_S = 120.0
INDEXES = pytest.mark.parametrize("buckets", [None, 1], ids=["key index", "buckets"])


@pytest.fixture
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantombase.writer_hooks.commit.compaction._POLL_S", 0.05)


class Trips:
    """A table with one file group, and what it must read."""

    def __init__(self, path: Path, version: int, buckets: int | None = 1, logs: int = 0) -> None:
        self.path, self.version, self.buckets = path, version, buckets
        self.written = 0
        for _ in range(logs + 1):
            self.write()

    def describe(self, *numbers: int, **pressure: Any) -> Writer:
        """The next upsert of k0000, or of these; `pressure`: the limit it is under, none without."""
        batch = rows(*((n, self.written + 1, float(self.written + 1)) for n in numbers or (0,)))
        described = trips(batch, self.version, self.buckets).option(small_file_bytes=0, slots=1)
        return described.back_pressure(**pressure) if pressure else described

    def write(self, described: Writer | None = None) -> Written:
        """The next upsert."""
        done = (described or self.describe()).upsert(str(self.path))
        self.written += 1
        return done

    def logs(self) -> list[int]:
        """Log files of each file group, as readers merge them."""
        slices = (latest_slice(group) for group in open_table(self.path).load_view().groups)
        return [len(one.logs) for one in slices if one is not None]

    def check(self) -> None:
        """What was acknowledged is there, and nothing else."""
        assert read_rows(self.path) == {"k0000": (self.written, float(self.written))}

    def schedule(self) -> str | None:
        """Requests a compaction."""
        path = str(self.path)
        return schedule_compaction(open_table(self.path), table_lock(open_storage(path), None)).instant

    def compact(self) -> None:
        """Executes what pends."""
        run_all(open_table(self.path))


def neighbour(path: Path, version: int, buckets: int | None) -> int:
    """The number of a key of the same partition that goes to another file group than k0000."""
    table = Trips(path / "to-try", version, buckets)
    for number in (3, 6, 9, 12, 15):
        table.write(table.describe(number))
        if len(table.logs()) > 1:
            return number
    raise AssertionError("all keys in one bucket")


def in_thread(work: Callable[[], None]) -> threading.Thread:
    """Somebody else, at work already."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


# --- room is made -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 9, 6)
def test_a_writer_waits_for_the_compactor_beside_it(version: int, buckets: int | None, tmp_path: Path) -> None:
    """Nothing but the limit makes a compaction due: the writer requests it, the thread executes it."""
    table = Trips(tmp_path / "trips", version, buckets)
    waited = 0.0
    with AsyncCompaction(str(table.path), LocalRunner(1), poll_s=0.05) as compaction, capture_logs() as said:
        for _ in range(10):
            described = table.describe(stop_trigger=LIMIT, wait_s=LONG_S)
            waited += table.write(described.schedule(max_delta_commits=99, notify=compaction.notify)).waited_s
            assert max(table.logs()) <= LIMIT
            table.check()
    assert not compaction.errors
    (group,) = open_table(table.path).load_view().groups
    waits, went_on = ([one for one in said if one["event"] == event] for event in ("write_waits", "write_resumes"))
    assert len(waits) == len(went_on) >= 2
    assert {(one["file_group"], one["logs"], one["limit"]) for one in waits} == {("/".join(group.key), LIMIT, LIMIT)}
    assert waited > 0
    check_nothing_left(table.path)


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 6, 9)
def test_a_writer_that_compacts_inline_does_so_while_it_waits(
    version: int, buckets: int | None, tmp_path: Path
) -> None:
    """Else it would wait for itself. That it may only wait, and not fail, makes no difference."""
    table = Trips(tmp_path / "trips", version, buckets)
    for number in range(9):
        how = ({"action": "wait", "wait_s": LONG_S}, {"action": "fail"})[number % 2]
        described = table.describe(stop_trigger=LIMIT, **how)
        done = table.write(described.compact_inline(max_delta_commits=99))
        assert (done.waited_s > 0) == (number in (3, 6))
        assert table.logs() == [number % LIMIT + 1]
        table.check()
    check_nothing_left(table.path)


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 9, 6)
def test_whatever_options_leave_out_is_compacted(version: int, buckets: int | None, tmp_path: Path) -> None:
    """A plan takes one file group, and the full one is not the first; a strategy would not take it at all."""
    other = neighbour(tmp_path, version, buckets and 2)
    table = Trips(tmp_path / "trips", version, buckets and 2, logs=1)
    for _ in range(LIMIT + 1):
        table.write(table.describe(other))
    described = table.describe(other, stop_trigger=LIMIT, wait_s=LONG_S)
    options: dict[str, Any] = {"max_file_slices": 1, "strategies": (Strategy.LOG_FILE_NUM,), "log_num_threshold": 99}
    done = table.write(described.compact_inline(max_delta_commits=99, **options))
    assert done.waited_s > 0
    assert sorted(table.logs()) == [0, 1]
    check_nothing_left(table.path)


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 9, 6)
def test_only_the_file_groups_of_the_write_count(version: int, buckets: int | None, tmp_path: Path) -> None:
    """Not those beside them in the partition."""
    other = neighbour(tmp_path, version, buckets and 2)
    table = Trips(tmp_path / "trips", version, buckets and 2, logs=LIMIT)
    table.write(table.describe(other))
    assert table.write(table.describe(other, stop_trigger=LIMIT, action="fail")).waited_s == 0
    assert sorted(table.logs()) == [1, LIMIT]
    with pytest.raises(PressureError):
        table.write(table.describe(0, other, stop_trigger=LIMIT, action="fail"))
    assert sorted(table.logs()) == [1, LIMIT]


@pytest.mark.usefixtures("_look_often")
@pytest.mark.parametrize("known_by", ["a plan", "a completed compaction", "the gate"])
def test_a_write_only_writer_waits_where_somebody_compacts(
    known_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Trips(tmp_path / "trips", 6)
    if known_by == "a completed compaction":
        table.write()
        assert table.schedule()
        table.compact()
    for _ in range(LIMIT):
        table.write()
    if known_by == "a plan":
        assert table.schedule()
    if known_by == "the gate":
        # Writers go on after it, in a second, and know of it, for a minute.
        put_wanted(open_table(table.path).storage, LONG_S, clock_ms() - round((LONG_S - 1) * 1000))
    waits, check = threading.Event(), Capacity._refuse_endless_wait

    def noted(room: Capacity) -> None:
        check(room)
        waits.set()

    monkeypatch.setattr(Capacity, "_refuse_endless_wait", noted)

    def somebody() -> None:
        assert waits.wait(LONG_S)
        if known_by != "a plan":
            assert table.schedule()
        table.compact()

    other = in_thread(somebody)
    done = table.write(table.describe(stop_trigger=LIMIT, wait_s=LONG_S))
    other.join()
    assert 0 < done.waited_s < LONG_S
    table.check()
    check_nothing_left(table.path)


@pytest.mark.usefixtures("_look_often")
def test_the_gates_record_goes_when_the_plan_can_be_seen(tmp_path: Path) -> None:
    """A writer that looks for both meanwhile finds one: it does not fail as if nobody compacted the table."""
    table = Trips(tmp_path / "trips", 6, logs=LIMIT)
    storage, planned = LocalStorage(str(table.path)), list[bool]()
    put_wanted(storage, LONG_S, clock_ms())

    def looked(call: Call) -> Any:
        if (call.name, call.path) == ("delete", WANTED):
            planned.append(bool(open_table(table.path).load_timeline().pending_compactions))
        return call.do()

    opened = open_table(table.path, HookedStorage(storage, looked))
    assert schedule_compaction(opened, table_lock(open_storage(str(table.path)), None)).instant is not None
    assert planned == [True]
    assert read_wanted(storage, clock_ms()) is None


# --- version 6: nobody plans while a write pends ----------------------------------------------------------------------


@pytest.mark.usefixtures("_look_often")
@INDEXES
def test_a_writer_that_dies_meanwhile_is_out_of_the_way(
    buckets: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pending delta commit would keep the plan from being made for ever."""
    table = Trips(tmp_path / "trips", 6, buckets, logs=LIMIT)
    wait = Capacity.wait

    def behind_a_death(room: Capacity) -> None:
        leave_dead_write(table.path, age_s=0)
        wait(room)

    monkeypatch.setattr(Capacity, "wait", behind_a_death)
    described = table.describe(stop_trigger=LIMIT, wait_s=LONG_S).option(lazy_rollback=True)
    assert table.write(described.compact_inline(max_delta_commits=99)).waited_s < LONG_S / 2
    table.check()
    check_nothing_left(table.path)


@pytest.mark.usefixtures("_look_often")
def test_another_write_that_pends_is_asked_to_make_way(tmp_path: Path) -> None:
    """Until it is done there is no plan; no other may begin in between."""
    table = Trips(tmp_path / "trips", 6, logs=LIMIT)
    begun, asked = threading.Event(), list[bool]()

    def other() -> None:
        opened = open_table(table.path)
        with suppress(ZeroDivisionError), transaction(opened, table_lock(open_storage(str(table.path)), None), 30.0):
            begun.set()
            until = time.monotonic() + LONG_S / 2
            while not (table.path / WANTED).exists() and time.monotonic() < until:
                time.sleep(0.02)
            asked.append((table.path / WANTED).exists())
            raise ZeroDivisionError

    thread = in_thread(other)
    assert begun.wait(LONG_S)
    done = table.write(table.describe(stop_trigger=LIMIT, wait_s=LONG_S).compact_inline(max_delta_commits=99))
    thread.join()
    assert asked == [True]
    assert done.waited_s > 0
    table.check()
    check_nothing_left(table.path)


# --- no room ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("default_filters")  # it goes by the sizes of files
@pytest.mark.usefixtures("_look_often")
def test_a_log_compaction_makes_room(tmp_path: Path) -> None:
    """The files it stands for are still there, and count no more."""
    table = Trips(tmp_path / "trips", 9, logs=LIMIT)
    universal = ScheduleOptions(
        strategy=TriggerStrategy.ALWAYS, picking=Picking.UNIVERSAL, compaction_trigger=LIMIT, size_ratio=100
    )
    done = schedule_compaction(open_table(table.path), table_lock(open_storage(str(table.path)), None), universal)
    assert [one.plan.action for one in done.requested] == ["logcompaction"]
    with pytest.raises(PressureError, match="the limit of log files"):
        table.write(table.describe(stop_trigger=LIMIT, action="fail"))
    run_all(open_table(table.path))
    assert table.logs() == [LIMIT + 1]
    for _ in range(LIMIT - 1):
        assert table.write(table.describe(stop_trigger=LIMIT, action="fail")).waited_s == 0
    with pytest.raises(PressureError, match=f"found {LIMIT}, no compaction"):
        table.write(table.describe(stop_trigger=LIMIT, action="fail"))
    table.check()


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 6, 9)
def test_time_is_up(version: int, buckets: int | None, tmp_path: Path) -> None:
    """Nobody executes the plan."""
    table = Trips(tmp_path / "trips", version, buckets, logs=LIMIT)
    plan = table.schedule()
    table.write()  # on the phantom slice
    (group,) = open_table(table.path).load_view().groups
    with pytest.raises(PressureError) as caught:
        table.write(table.describe(stop_trigger=LIMIT, wait_s=0.5).schedule())
    error = caught.value
    assert error.path == f"{table.path}/{'/'.join(group.key)}"
    assert (error.instant, error.expected) == (plan, f"fewer than {LIMIT}")
    waited = re.search(rf"{LIMIT + 1}, its compaction is pending, waited (\d+\.\d) s", str(error))
    assert waited is not None
    assert float(waited[1]) >= 0.5
    assert "Nothing of this write is visible" in str(error)
    table.compact()
    table.check()
    check_nothing_left(table.path)
    assert table.write(table.describe(stop_trigger=LIMIT)).waited_s == 0


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 9, 6)
def test_nobody_waits_for_nobody(version: int, buckets: int | None, tmp_path: Path) -> None:
    """A write-only writer of a table that nobody has ever compacted."""
    table = Trips(tmp_path / "trips", version, buckets, logs=LIMIT)
    before, began = contents(table.path), time.monotonic()
    with pytest.raises(PressureError, match="no process is known to compact this table"):
        table.write(table.describe(stop_trigger=LIMIT, wait_s=LONG_S))
    assert time.monotonic() - began < LONG_S / 2
    check_nothing_left(table.path)
    table.check()
    if buckets:
        assert contents(table.path) == before, "it did not even begin"


@pytest.mark.usefixtures("_look_often")
@INDEXES
@one_of("version", 9, 6)
def test_a_writer_may_fail_instead(version: int, buckets: int | None, tmp_path: Path) -> None:
    """At once; but it requests what nobody else might."""
    table = Trips(tmp_path / "trips", version, buckets, logs=LIMIT)
    with capture_logs() as said, pytest.raises(PressureError, match="its compaction is pending"):
        table.write(table.describe(stop_trigger=LIMIT, action="fail").schedule(max_delta_commits=99))
    assert not [one for one in said if one["event"] == "write_resumes"]
    assert len(open_table(table.path).load_timeline().pending_compactions) == 1
    table.compact()
    check_nothing_left(table.path)
    table.write(table.describe(stop_trigger=LIMIT, action="fail"))
    table.check()


@pytest.mark.usefixtures("_look_often")
@one_of("name", "v6_replaced", "v9_replaced")
def test_what_hudi_has_replaced_is_not_full(name: str, tmp_path: Path) -> None:
    """Of the two file groups with a log that the partition's folder holds one lives."""
    table = open_table(unzip_golden(name, tmp_path))
    room = Capacity(table, BackPressure(), 1, lambda _: "", compacts=False)
    with pytest.raises(PressureError, match="found 1, its compaction is pending") as caught:
        room.check(["north", "never-made"], lambda _: True)
    view = table.load_view("north")
    (living,) = (g for g in view.groups if not is_replaced(g, view.facts))
    assert caught.value.path == f"{table.storage.base_path}/{'/'.join(living.key)}"


# --- off and on -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_look_often")
@INDEXES
def test_off_for_a_batch_on_for_a_stream(buckets: int | None, tmp_path: Path) -> None:
    """A batch that fails so is written once when there is room."""
    table = Trips(tmp_path / "trips", 9, buckets, logs=8)
    table.write()
    assert table.logs() == [9]
    path, batch = str(table.path), rows((0, 99, 99.0))
    sink = table.describe()
    with pytest.raises(PressureError, match="expected fewer than 8; found 9, no compaction of it is pending"):
        sink.foreach_batch(path)(batch, 0)
    table.check()
    sink.back_pressure(action="go-on").foreach_batch(path, stream="unlimited")(batch, 0)
    assert table.logs() == [10]
    assert table.schedule()
    table.compact()
    for _ in range(2):
        sink.foreach_batch(path)(rows((0, 100, 100.0)), 0)
    assert table.logs() == [1]
    assert read_rows(table.path) == {"k0000": (100, 100.0)}
    check_nothing_left(table.path)


# Which file groups are full, who is known to compact, what options say: pure decisions, each with its story.


V6_DELTAS = "10.deltacommit 20.deltacommit 30.deltacommit"
V6_PLANNED = f"{V6_DELTAS} 40.compaction.requested 50.deltacommit"
V6_COMPACTED = f"{V6_DELTAS} 40.commit 50.deltacommit"
V8_DELTAS = "10_11.deltacommit 20_21.deltacommit 30_31.deltacommit"
V8_PLANNED = f"{V8_DELTAS} 40.compaction.requested 50_51.deltacommit"
V8_COMPACTED = f"{V8_DELTAS} 40_45.commit 50_51.deltacommit"
PLAN = facts_of(pending="40")


@pytest.mark.parametrize(
    ("layout", "instants", "files", "facts", "logs"),
    [
        pytest.param(LAYOUT_1, V6_DELTAS, "b10", NO_FACTS, 0, id="a base file alone"),
        pytest.param(LAYOUT_1, V6_DELTAS, "b10 l10.1 l10.2", NO_FACTS, 2, id="v6: two logs"),
        pytest.param(LAYOUT_2, V8_DELTAS, "b10 l20.1 l30.1", NO_FACTS, 2, id="v8: two logs"),
        pytest.param(LAYOUT_1, V6_DELTAS, "l10.1 l10.2", NO_FACTS, 2, id="v6: no base file, the logs count"),
        pytest.param(LAYOUT_2, V8_DELTAS, "l10.1 l20.1 l30.1", NO_FACTS, 3, id="v8: no base file, the logs count"),
        pytest.param(LAYOUT_1, V6_PLANNED, "b10 l10.1 l10.2 l40.1", PLAN, 3, id="v6: planned is not yet done"),
        pytest.param(LAYOUT_2, V8_PLANNED, "b10 l20.1 l30.1 l50.1", PLAN, 3, id="v8: planned is not yet done"),
        pytest.param(LAYOUT_1, V6_COMPACTED, "b10 l10.1 l10.2 b40 l40.1", NO_FACTS, 1, id="v6: compacted is done"),
        pytest.param(LAYOUT_2, V8_COMPACTED, "b10 l20.1 l30.1 b40 l50.1", NO_FACTS, 1, id="v8: compacted is done"),
        pytest.param(
            LAYOUT_2, f"{V8_DELTAS} 50.deltacommit.inflight", "b10 l20.1 l50.1", NO_FACTS, 1, id="v8: pending"
        ),
    ],
)
def test_a_group_is_full_at_the_limit(layout: Layout, instants: str, files: str, facts: ViewFacts, logs: int) -> None:
    """One more log file would go beyond it; below it there is room for one."""
    group = group_of(timeline_of(layout, *instants.split()), listing_of(*files.split()), facts)
    assert full_groups([group], logs + 1) == ()
    if logs:
        (full,) = full_groups([group], logs)
        assert (full.key, full.logs, full.plan) == (group.key, logs, group.pending_compaction)


def with_logs(partition: str, file_id: str, logs: int) -> FileGroup:
    """A file group with so many log files."""
    names = (LogFileName(file_id=file_id, instant="10", version=n + 1, token="0-0-0") for n in range(logs))
    files = tuple(DataFile(partition=partition, name=name, size=1) for name in names)
    slice_ = FileSlice(partition=partition, file_id=file_id, base_instant="10", base=None, logs=files)
    return FileGroup(partition=partition, file_id=file_id, slices=(slice_,) if logs else ())


def test_the_longest_log_comes_first_and_order_changes_nothing() -> None:
    groups = [with_logs("p", "a", 3), with_logs("p", "b", 5), with_logs("o", "c", 3), with_logs("p", "d", 2)]
    groups.append(with_logs("p", "e", 0))
    found = full_groups(groups, 3)
    assert [(*one.key, one.logs) for one in found] == [("p", "b", 5), ("o", "c", 3), ("p", "a", 3)]
    assert full_groups(reversed(groups), 3) == found


@pytest.mark.parametrize(
    ("layout", "instants", "known"),
    [
        pytest.param(LAYOUT_1, "10.deltacommit", False, id="v6: writes alone"),
        pytest.param(LAYOUT_2, "10_11.deltacommit 20.deltacommit.inflight", False, id="v8: writes alone"),
        pytest.param(LAYOUT_1, "10.deltacommit 20.rollback 30.clean", False, id="other services"),
        pytest.param(LAYOUT_1, "10.deltacommit 20.compaction.requested", True, id="v6: requested"),
        pytest.param(LAYOUT_2, "10_11.deltacommit 20.compaction.inflight", True, id="v8: at work"),
        pytest.param(LAYOUT_1, "10.deltacommit 20.commit", True, id="v6: done"),
        pytest.param(LAYOUT_2, "10_11.deltacommit 20_25.commit", True, id="v8: done"),
        pytest.param(LAYOUT_2, "10_11.deltacommit 20.logcompaction.requested", True, id="a log compaction"),
    ],
)
def test_who_is_known_to_compact(layout: Layout, instants: str, known: bool) -> None:
    assert shows_compaction(timeline_of(layout, *instants.split())) is known


@for_each(
    [
        {"stop_trigger": 0},
        {"stop_trigger": -1},
        {"stop_trigger": 3, "action": "go-on"},
        {"stop_trigger": 3, "slow_trigger": 3},
        {"slow_s": 3.0},
        {"wait_s": 0.0},
        {"wait_s": -1.0},
        {"wait_s": float("inf")},
        {"action": "sleep"},
    ]
)
def test_limits_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"stop-trigger|slow|wait-s|not an action for a full file group"):
        writer().back_pressure(**wrong)


def test_writes_slow_down_before_they_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is there before it returns; what it leaves alone slows no write."""
    table, slept = Trips(tmp_path / "trips", 9, logs=1), list[float]()
    monkeypatch.setattr("phantombase.writer_hooks.commit.compaction.time.sleep", slept.append)
    how: dict[str, Any] = {"stop_trigger": 5, "slow_trigger": 2, "slow_s": 9.0}
    waited = [table.write(table.describe(**how)).waited_s for _ in range(3)]
    assert (waited, slept, table.logs()) == ([0.0, 3.0, 6.0], [3.0, 6.0], [4])
    for _ in range(2):
        table.write(table.describe(**how).compact_inline(max_delta_commits=99))
    assert (slept, table.logs()) == ([3.0, 6.0, 9.0], [1]), "what was compacted meanwhile is deep no more"
    table.check()


def test_the_limit_goes_by_the_compaction_trigger() -> None:
    assert [BackPressure().limit(trigger) for trigger in (2, 5)] == [5, 8]
    assert BackPressure(stop_trigger=1).limit(5) == 1
    assert NO_LIMIT.limit(5) is None
    with pytest.raises(UsageError, match="slow-trigger below 8"):
        BackPressure(slow_trigger=8).limit(5)
    slow = BackPressure(slow_trigger=4, stop_trigger=8, slow_s=10.0)
    assert [slow.slow_for(logs, 8) for logs in (3, 4, 7, 9)] == [0.0, 2.5, 10.0, 10.0]
    assert [slow.slow_for(logs, None) for logs in (3, 4)] == [0.0, 10.0]


def test_configuration_means_the_same_as_the_api() -> None:
    said = {
        "phantombase.write.stop.trigger": "3",
        "phantombase.write.stop.action": "WAIT",
        "phantombase.write.stop.wait.seconds": "1.5",
        "phantombase.write.slow.trigger": "2",
        "phantombase.write.slow.wait.seconds": "0.5",
    }
    wanted = BackPressure(stop_trigger=3, action=FullAction.WAIT, wait_s=1.5, slow_trigger=2, slow_s=0.5)
    assert writer().conf(said).options.back_pressure == wanted
    assert (
        writer()
        .back_pressure(stop_trigger=3, action="wait", wait_s=1.5, slow_trigger=2, slow_s=0.5)
        .options.back_pressure
        == wanted
    )
    one_by_one = writer()
    for name, value in said.items():
        one_by_one = one_by_one.conf({name: value})
    assert one_by_one.options.back_pressure == wanted
    assert writer().conf({"phantombase.write.stop.action": "go-on"}).options.back_pressure == NO_LIMIT
    assert writer().conf({"phantombase.write.stop.action": "fail"}).options.back_pressure == BackPressure(
        action=FullAction.FAIL
    )
    for name, value in (("trigger", "0"), ("trigger", "x"), ("action", "sleep"), ("wait.seconds", "-1")):
        with pytest.raises(UsageError):
            writer().conf({f"phantombase.write.stop.{name}": value})
