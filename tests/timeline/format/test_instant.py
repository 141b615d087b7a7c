"""Instants and their file names in both timeline layouts; times that only go forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.instant import (
    ACTIONS,
    Instant,
    State,
    format_time,
    highest_states,
    next_time,
    parse_as_of,
    parse_time,
)
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from tests.support.selection import for_each

LAYOUTS = [LAYOUT_1, LAYOUT_2]
PENDING_ONLY = {"compaction", "logcompaction", "clustering"}
moments = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1))
times_17 = moments.map(format_time)
times = times_17 | times_17.map(lambda t: t[:14])


@st.composite
def instants(draw: st.DrawFn, layout: Layout) -> Instant:
    """An instant that has a file of its own in `layout`."""
    state = draw(st.sampled_from(State))
    actions = ACTIONS - PENDING_ONLY if state is State.COMPLETED else ACTIONS
    completion = draw(st.none() | times) if state is State.COMPLETED and layout.has_completion_times else None
    action = draw(st.sampled_from(sorted(actions)))
    return Instant(requested_time=draw(times), action=action, state=state, completion_time=completion)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: str(x.judge))
@settings(deadline=None)
@given(data=st.data())
def test_file_names_print_and_parse(layout: Layout, data: st.DataObject) -> None:
    """An instant's file name parses to the instant and prints to the name."""
    instant = data.draw(instants(layout))
    name = layout.file_name(instant)
    parsed = layout.parse(name)
    assert parsed is not None
    assert parsed.file_name == name
    assert layout.file_name(parsed) == name
    assert (parsed.requested_time, parsed.action, parsed.state, parsed.completion_time) == (
        instant.requested_time,
        instant.action,
        instant.state,
        instant.completion_time,
    )


@for_each(
    (layout, *case)
    for layout in LAYOUTS
    for case in [
        ("10.deltacommit.requested", "deltacommit", State.REQUESTED),
        ("10.deltacommit.inflight", "deltacommit", State.INFLIGHT),
        ("10.deltacommit", "deltacommit", State.COMPLETED),
        ("10.commit.requested", "commit", State.REQUESTED),
        ("10.inflight", "commit", State.INFLIGHT),
        ("10.commit.inflight", "commit", State.INFLIGHT),
        ("10.compaction.requested", "compaction", State.REQUESTED),
        ("10.compaction.inflight", "compaction", State.INFLIGHT),
        ("10.clean", "clean", State.COMPLETED),
        ("10.rollback.inflight", "rollback", State.INFLIGHT),
        ("10.savepoint", "savepoint", State.COMPLETED),
    ]
)
def test_names(layout: Layout, name: str, action: str, state: State) -> None:
    """Names both layouts share; a `commit` in flight is named without its action."""
    found = layout.parse(name)
    assert found is not None
    assert (found.requested_time, found.action, found.state, found.completion_time) == ("10", action, state, None)


def test_completion_times_in_names() -> None:
    """Only layout 2 has them, and only on completed files."""
    found = LAYOUT_2.parse("10_12.deltacommit")
    assert found is not None
    assert (found.requested_time, found.completion_time) == ("10", "12")
    assert LAYOUT_1.parse("10_12.deltacommit") is None
    assert LAYOUT_2.parse("10_12.deltacommit.inflight") is None


@for_each(
    [
        "hoodie.properties",
        "10",
        "10.",
        ".10.deltacommit.crc",
        "10.deltacommit.done",
        "10.deltacommit.inflight.tmp1",
        "10.nosuchaction",
        "10.nosuchaction.requested",
        "x10.deltacommit",
        "10.deltacommit.0f1e.tmp",
        ".0f1e.tmp",
    ]
)
def test_what_is_no_instant(name: str) -> None:
    """Anything else in the folder is skipped."""
    assert LAYOUT_1.parse(name) is None
    assert LAYOUT_2.parse(name) is None


@pytest.mark.parametrize(
    ("action", "family"), [("compaction", "commit"), ("logcompaction", "deltacommit"), ("clustering", "replacecommit")]
)
def test_actions_complete_under_their_familys_name(action: str, family: str) -> None:
    """A compaction completes as a commit, and so on."""
    instant = Instant(requested_time="10", action=action, state=State.COMPLETED, completion_time="12")
    assert instant.family == family
    assert instant.is_write
    assert LAYOUT_1.file_name(instant) == f"10.{family}"
    assert LAYOUT_2.file_name(instant) == f"10_12.{family}"


def test_services_that_write_nothing() -> None:
    """Cleans, rollbacks and the like make no data visible."""
    for action in ("clean", "rollback", "savepoint", "restore", "indexing", "schemacommit"):
        assert not Instant(requested_time="10", action=action, state=State.COMPLETED).is_write


def test_the_highest_state_hides_the_others() -> None:
    """Of one time and family the furthest counts, in whatever order files are listed; times are in order."""
    names = ["20.clean", "10.compaction.requested", "10.commit", "10.compaction.inflight", "10.clean.requested"]
    for listed in (names, names[::-1]):
        found = highest_states(i for n in listed if (i := LAYOUT_1.parse(n)))
        assert [i.file_name for i in found] == ["10.clean.requested", "10.commit", "20.clean"]


def test_layouts_by_version() -> None:
    """6, 8 and 9; others are refused with the version found."""
    assert [Layout.of(v) for v in (6, 8, 9)] == [LAYOUT_1, LAYOUT_2, LAYOUT_2]
    for version in (5, 7, 10):
        with pytest.raises(UnsupportedError) as failure:
            Layout.of(version)
        assert failure.value.found == str(version)


# --- times ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(moments)
def test_times_print_and_parse(moment: datetime) -> None:
    """17 digits, to the millisecond, in the order of the moments."""
    text = format_time(moment)
    assert len(text) == 17
    assert parse_time(text) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def test_times_without_milliseconds_stand_for_the_last_one() -> None:
    """As Hudi appends 999."""
    assert parse_time("20260102030405") == datetime(2026, 1, 2, 3, 4, 5, 999000)


@settings(deadline=None)
@given(moments, st.lists(times, max_size=5))
def test_next_time_is_greater_than_all(now: datetime, used: list[str]) -> None:
    """Of 17 digits, greater as text than every used time, and not before the clock."""
    found = next_time(now, used)
    assert len(found) == 17
    assert all(found > time for time in used)
    assert found >= format_time(now)


@settings(deadline=None)
@given(moments, st.lists(st.integers(-5, 5), min_size=1, max_size=20))
def test_next_time_with_a_clock_that_jumps(start: datetime, steps: list[int]) -> None:
    """A clock that stands still or steps back gives strictly growing times all the same."""
    used: list[str] = []
    now = start
    for step in steps:
        now += timedelta(milliseconds=step)
        used.append(next_time(now, used))
    assert used == sorted(set(used))


def test_next_time_cases() -> None:
    """The clock where it is ahead, else one millisecond more; across seconds and years; 14 digits as .999."""
    now = datetime(2026, 1, 1)
    assert next_time(now, []) == "20260101000000000"
    assert next_time(now, ["20251231235959999"]) == "20260101000000000"
    assert next_time(now, ["20260101000000000"]) == "20260101000000001"
    assert next_time(now, ["20261231235959999"]) == "20270101000000000"
    assert next_time(now, ["20260101000000"]) == "20260101000001000"
    assert next_time(now + timedelta(milliseconds=500), ["20260101000000"]) == "20260101000001000"
    assert next_time(now + timedelta(seconds=1), ["20260101000000"]) == "20260101000001000"
    assert next_time(now, ["no time", "9", "99999999999999999999"]) == "20260101000000000"


def test_next_time_with_times_of_both_lengths() -> None:
    """...000 (14 digits) is ...000999; ...000500 beside it must not pull the next time before that."""
    assert next_time(datetime(2025, 1, 1), ["20260101000000", "20260101000000500"]) == "20260101000001000"


@for_each(["", "2026", "2026010203040", "202601020304050", "2026010203040506", "2026-01-02", "x" * 17])
def test_malformed_times(text: str) -> None:
    """Neither 14 nor 17 digits."""
    with pytest.raises(UsageError):
        parse_time(text)


@for_each(
    [
        ("20260102030405006", "20260102030405006"),
        ("20260102030405", "20260102030405"),
        ("2026-01-02 03:04:05.006", "20260102030405006"),
        ("2026-01-02 03:04:05", "20260102030405000"),
        ("2026-01-02T03:04:05", "20260102030405000"),
        ("2026-01-02T03:04:05.006", "20260102030405006"),
        ("2026-01-02", "20260102000000000"),
        ("1767323045", "20260102030405000"),
        ("1767323045006", "20260102030405006"),
    ]
)
def test_points_in_time(text: str, expected: str) -> None:
    """Instants as they are, dates with and without a time of day, and moments since the epoch in the table's zone."""
    assert parse_as_of(text, utc) == expected


NO_DATES = ["", "yesterday", "2026-13-01", "2026", "20260102", "20269999000000000", "999999999999999999"]
NO_TIMES = ["2026-01-02T", "2026-01-02 03:04", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05.0067"]


CUT_OFF = ["2026112109", "2026112109150", "2033051804", "2099123123"]
"""A date and an hour, and an instant without its end, as moments since the epoch from 2033 on."""


@for_each([*NO_DATES, *NO_TIMES, *CUT_OFF])
def test_what_is_no_point_in_time(text: Any) -> None:
    """Refused by name; Hudi takes no zones and no microseconds either."""
    with pytest.raises(UsageError, match=r"not a point in time|not an instant time"):
        parse_as_of(text, utc)


def utc(milliseconds: int) -> str:
    """A moment as an instant time of a table in UTC."""
    return format_time(datetime.fromtimestamp(milliseconds / 1000, UTC))
