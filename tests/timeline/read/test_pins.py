"""Pins: what they hold, when they end, and that an unreadable one is never no pin."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phantombase import read
from phantombase.compactor_daemon.cleaning.choice import held_files
from phantombase.compactor_daemon.fleet import budget
from phantombase.compactor_daemon.fleet.budget import PastWork
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, MalformedError, UsageError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.read.pins import PINS, HeldPin, Pin, PinOptions, SharedPin, all_pins, hold, live_pins, release
from phantombase.timeline.read.windows import earliest_state, earliest_to_retain, load_state, moment_to_hold
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.snapshot import ContentCache, SnapshotStorage
from phantombase.timeline.table import history
from phantombase.timeline.table.history import COUNT_READS, HOUR_MS, READS, reads_an_hour, reads_by_hour
from tests.support.builders import timeline_of
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

COPY = PinOptions.of("copy", "2h")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    (tmp_path / ".hoodie").mkdir()
    return LocalStorage(str(tmp_path))


def test_a_pin_holds_while_the_body_runs(storage: LocalStorage) -> None:
    with hold(storage, COPY, "20261121090000000"):
        (pin,) = live_pins(storage)
        assert (pin.name, pin.holds, pin.for_s) == ("copy", "20261121090000000", 7200)
    assert live_pins(storage) == []


def test_reads_with_a_pin_are_counted(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one object of each process and hour, put once a minute at most; those that are over go. A storage that takes
    none does not stop a read."""
    now_ms = 500_000 * HOUR_MS

    def read() -> list[str]:
        monkeypatch.setattr(history, "clock_ms", lambda: now_ms)
        with hold(storage, COPY, "1"):
            return [name for of in reads_by_hour(storage).values() for name in of]

    (first,) = read()
    assert first.endswith("-1")
    for _ in range(3):
        assert read() == [first]
    now_ms += 60_000
    (second,) = read()
    assert second.endswith("-5")
    assert (reads_an_hour(storage, now_ms), PastWork().costs(storage, 1.0).reads) == (5, 1.0)
    now_ms += HOUR_MS
    assert len(read()) == 2
    assert reads_an_hour(storage, now_ms) == 5
    monkeypatch.setattr(budget, "clock_ms", lambda: now_ms)
    assert (PastWork().costs(storage, 1.0).reads, PastWork().costs(storage, 9.0).reads) == (5.0, 9.0)
    now_ms += 2 * HOUR_MS
    assert reads_an_hour(storage, now_ms) == 0
    assert len(read()) == 1
    monkeypatch.setattr(history, "READS", "no/such\0folder")
    now_ms += HOUR_MS
    SharedPin.take(storage, COPY, "1")


def test_reads_without_a_pin_are_counted_where_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    storage = LocalStorage(str(path))
    read(str(path)).count()
    assert not (path / READS).exists()
    monkeypatch.setenv(COUNT_READS, "1")
    for _ in range(2):
        read(str(path)).count()
    monkeypatch.setattr(history, "_PUT_EACH_MS", 0)
    read(str(path)).count()
    assert reads_an_hour(storage, clock_ms()) == 3


def test_two_readers_of_one_name_hold_both(storage: LocalStorage) -> None:
    with hold(storage, COPY, "2"), hold(storage, COPY, "1"):
        assert {pin.holds for pin in live_pins(storage)} == {"1", "2"}


def test_it_ends_by_the_clock_of_the_storage(storage: LocalStorage) -> None:
    """The file's time and now are both the storage's; a pin from the future holds, since that clock was set back."""
    held = HeldPin(storage, COPY, "1")
    (pin,) = all_pins(storage)
    assert pin.is_live(pin.taken_ms + 7_199_999)
    assert not pin.is_live(pin.taken_ms + 7_200_000)
    assert pin.is_live(pin.taken_ms - 10**9)
    path = f"{storage.base_path}/{pin.path}"
    os.utime(path, (pin.taken_ms / 1000 - 7_201,) * 2)
    assert live_pins(storage) == []
    held.remove()


def test_a_pin_moves_and_leaves_one_object(storage: LocalStorage) -> None:
    held = HeldPin(storage, COPY, "1")
    held.renew()
    (first,) = all_pins(storage)
    held.renew("2")
    (second,) = all_pins(storage)
    assert (first.holds, second.holds) == ("1", "2")
    assert first.path != second.path


def test_a_pin_that_is_renewed_while_all_are_read_is_found(storage: LocalStorage) -> None:
    """Or a clean of a dead process goes on, a restore takes its state back, as if there were no pin."""
    held = HeldPin(storage, COPY, "1")
    left = [held]

    def renew(call: Call) -> Any:
        if call.name == "read" and left:
            left.pop().renew("2")
        return call.do()

    (pin,) = all_pins(HookedStorage(storage, renew))
    assert pin.holds == "2"


def test_pins_that_come_and_go_all_the_time_are_an_error(storage: LocalStorage) -> None:
    """Which of them hold is not known."""
    held, seen = HeldPin(storage, COPY, "1"), list[str]()

    def renew(call: Call) -> Any:
        if call.name == "read":
            seen.append(call.path)
            held.renew(f"{len(seen)}0")
        return call.do()

    with pytest.raises(ConflictError, match="come and go"):
        all_pins(HookedStorage(storage, renew))


def test_a_look_that_is_older_than_a_pin_does_not_hide_it(storage: LocalStorage) -> None:
    """It is the first record of the table; who made the snapshot knew of no such folder."""
    snapshot = SnapshotStorage(storage, {".hoodie"}, ContentCache())
    assert snapshot.list(".hoodie") == []
    with hold(storage, COPY, "1"):
        assert [pin.holds for pin in live_pins(snapshot)] == ["1"]


def test_what_was_released_is_not_renewed(storage: LocalStorage) -> None:
    held = HeldPin(storage, COPY, "1")
    assert release(storage, "copy") == 1
    held.renew("2")
    assert all_pins(storage) == []


UNREADABLE = [
    b"",
    b"{}",
    b'{"for_s": 1, "holder": "h", "holds": "x", "version": 1}',
    b'{"for_s": 0, "holder": "h", "holds": "1", "version": 1}',
    b'{"for_s": 1, "holder": "h", "holds": "1", "version": 2}',
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_an_unreadable_pin_is_an_error_until_it_is_released(storage: LocalStorage, data: bytes) -> None:
    storage.put_if_absent(f"{PINS}/copy/a.json", data)
    with pytest.raises(MalformedError, match="unreadable pin"):
        live_pins(storage)
    release(storage, "copy")
    assert live_pins(storage) == []


@pytest.mark.parametrize(
    ("name", "time"), [("a/b", "2h"), ("", "2h"), ("..", "2h"), ("a", "2"), ("a", "0h"), ("a", "")]
)
def test_names_and_durations(name: str, time: str) -> None:
    with pytest.raises(UsageError):
        PinOptions.of(name, time)
    assert PinOptions.of("a", "90 s").for_s == 90


def test_the_axis_is_in_the_record(storage: LocalStorage) -> None:
    """Before everything is a moment too."""
    HeldPin(storage, COPY, "")
    (pin,) = live_pins(storage)
    assert isinstance(pin, Pin)
    assert pin.holds == ""


# What a cleaner must keep for pins, against the reader's own rule of which states are whole.


def test_the_first_write_that_is_not_in_the_state() -> None:
    """Overlapping writers: t20 was requested before t25 and completed after it."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20_40.deltacommit", "25_30.deltacommit")
    assert earliest_to_retain(timeline, []) is None
    assert earliest_to_retain(timeline, [""]) == "10"
    assert earliest_to_retain(timeline, ["12"]) == "20"
    assert earliest_to_retain(timeline, ["30"]) == "20"
    assert earliest_to_retain(timeline, ["40", "30"]) == "20"
    assert earliest_to_retain(timeline, ["40"]) is None


def test_version_6_and_pending_writes() -> None:
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.deltacommit", "30.deltacommit.inflight")
    assert earliest_to_retain(timeline, ["10"]) == "20"
    assert earliest_to_retain(timeline, ["20"]) == "30"


def test_what_pends_may_count_from_before_the_moment_that_a_reader_needs() -> None:
    """On version 6 any write, later only a compaction: t20 completes while a reader reads the state at t30. Of a
    clustering a process may have decided the completion time, and died: a later one completes it at that time."""
    for action, layout, held in [
        ("deltacommit", LAYOUT_1, "10"),
        ("compaction", LAYOUT_1, "10"),
        ("compaction", LAYOUT_2, "12"),
        ("clustering", LAYOUT_2, "12"),
        ("deltacommit", LAYOUT_2, "35"),
    ]:
        ends = {"10": "10", "30": "30"} if layout is LAYOUT_1 else {"10": "10_12", "30": "30_35"}
        written = [f"{ends[time]}.deltacommit" for time in ("10", "30")]
        newest = ends["30"][-2:]
        pending = timeline_of(layout, *written, f"20.{action}.inflight")
        assert moment_to_hold(pending, newest) == held
        assert [moment_to_hold(pending, one) for one in (held, "05")] == [held, "05"]
        done = {"compaction": "commit", "clustering": "replacecommit"}.get(action, action)
        at = "" if layout is LAYOUT_1 else "_25" if action == "clustering" else "_40"
        completed = timeline_of(layout, *written, f"20{at}.{done}")
        assert earliest_to_retain(completed, [held]) == "20"
    requested = timeline_of(LAYOUT_2, "10_12.deltacommit", "20.clustering.requested", "30_35.deltacommit")
    assert moment_to_hold(requested, "35") == "12"
    assert moment_to_hold(timeline_of(LAYOUT_1, "20.deltacommit.inflight", "30.deltacommit"), "30") == ""


TABLES = [
    "v9_two_pending",
    "v6_replaced",
    *map(deep, ("v6_two_pending", "v9_replaced", "v9_log_compacted", "v9_clustered", "v6_clustered")),
]


@pytest.mark.parametrize("name", TABLES)
def test_pinned_states_keep_their_files(name: str, tmp_path: Path) -> None:
    """For each moment: what is retained leaves its state whole by the reader's rule, and all its files are held."""
    table = open_table(unzip_golden(name, tmp_path))
    view = table.load_view()
    timeline = view.timeline
    moments = sorted({timeline.moment_of(w) for w in timeline.completed})
    sizes = []
    for moment in moments:
        retain = earliest_to_retain(timeline, [moment])
        assert retain is None or earliest_state(timeline, retain) <= moment
        held = held_files(view, retain)
        sizes.append(len(held))
        for later in (m for m in moments if m >= moment):
            for _, one in load_state(table.with_timeline(timeline), later, None).slices():
                logs = {
                    log.path for log in one.logs if log.name.instant <= later or not table.layout.has_completion_times
                }
                assert logs | ({one.base.path} if one.base else set()) <= held
    assert all(a >= b for a, b in pairwise(sizes))


# A pin that the tasks of a query renew: by its age on the storage, one new object for all of them.


REPORT = PinOptions.of("report", "100s")


def _age(storage: LocalStorage, seconds: float) -> None:
    for pin in all_pins(storage):
        os.utime(f"{storage.base_path}/{pin.path}", (pin.taken_ms / 1000 - seconds,) * 2)


def test_it_is_renewed_when_half_of_its_time_is_gone(storage: LocalStorage) -> None:
    pin = pickle.loads(pickle.dumps(SharedPin.take(storage, REPORT, "7")))
    first = all_pins(storage)
    _age(storage, 40)
    pin.renew(storage)
    assert [p.path for p in all_pins(storage)] == [first[0].path]
    _age(storage, 15)
    pin.renew(storage)
    (second,) = live_pins(storage)
    assert (second.name, second.holds, second.for_s) == ("report", "7", 100)
    assert second.path != first[0].path


def test_another_query_of_its_name_does_not_keep_it(storage: LocalStorage) -> None:
    """The other pin holds another moment, or goes first."""
    pin = SharedPin.take(storage, REPORT, "7")
    other = SharedPin.take(storage, REPORT, "8")
    _age(storage, 60)
    other.renew(storage)
    pin.renew(storage)
    assert {p.holds for p in live_pins(storage)} == {"7", "8"}
    _age(storage, 45)
    assert {p.holds for p in live_pins(storage)} == {"7", "8"}


def test_tasks_that_renew_at_the_same_time_leave_one_object(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task renews after this one has looked."""
    pin = SharedPin.take(storage, REPORT, "7")
    _age(storage, 60)
    put = LocalStorage.put_if_absent
    puts = []

    def put_second(self: LocalStorage, path: str, data: bytes) -> bool:
        if not path.startswith(PINS):
            return put(self, path, data)
        puts.append(path)
        if len(puts) == 1:
            pin.renew(storage)
        return put(self, path, data)

    monkeypatch.setattr(LocalStorage, "put_if_absent", put_second)
    pin.renew(storage)
    assert len(puts) == 2
    assert len(live_pins(storage)) == 1


def test_a_released_one_stays_away(storage: LocalStorage) -> None:
    pin = SharedPin.take(storage, REPORT, "7")
    release(storage, "report")
    pin.renew(storage)
    assert all_pins(storage) == []
