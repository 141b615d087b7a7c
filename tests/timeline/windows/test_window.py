"""Windows on a timeline, and the earliest state that a clean has left whole; instants by the names of their files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.filter.bind import bound
from phantombase.timeline.filter.evaluate import matching
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.windows.incremental import wanted_rows
from phantombase.timeline.windows.retained import earliest_state
from phantombase.timeline.windows.window import EARLIEST, Window, fix_window
from phantombase.timeline.windows.window_writes import WindowWrites
from tests.support.builders import timeline_of

V8 = "10_12.deltacommit 20_40.deltacommit 25_30.deltacommit 50.deltacommit.inflight"
V6 = "10.deltacommit 20.deltacommit 30.deltacommit.requested 40.deltacommit"


def v8(instants: str = V8) -> Timeline:
    return timeline_of(LAYOUT_2, *instants.split())


def v6(instants: str = V6) -> Timeline:
    return timeline_of(LAYOUT_1, *instants.split())


@pytest.mark.parametrize(("begin", "end", "fixed"), [("12", None, "40"), ("12", "35", "35"), ("12", "99", "40")])
def test_an_end_is_never_in_the_future(begin: str, end: str | None, fixed: str) -> None:
    """What completes after this read belongs to the next window, whatever end was asked for."""
    assert fix_window(v8(), begin, end) == Window(begin=begin, end=fixed)


def test_nothing_new() -> None:
    """A begin at or behind the newest write gives an empty window that begins and ends there."""
    assert fix_window(v8(), "40", None) == Window(begin="40", end="40")
    assert fix_window(v8(), "60", None) == Window(begin="60", end="60")
    assert fix_window(v8("50.deltacommit.inflight"), EARLIEST, None) == Window(begin="", end="")


def test_an_end_before_its_begin_is_refused() -> None:
    with pytest.raises(UsageError, match="before it begins"):
        fix_window(v8(), "30", "12")
    assert fix_window(v8(), "30", "30").end == "30"


def test_a_requested_time_as_begin_is_noticed() -> None:
    """20 is the requested time of a write and no completion time: probably a mistake. 15 is neither."""
    assert fix_window(v8(), "20", None).begin_requested
    assert not fix_window(v8(), "15", None).begin_requested
    assert not fix_window(v8("10_12.deltacommit 12_14.deltacommit"), "12", None).begin_requested


def test_v6_stops_before_the_first_pending_write() -> None:
    """t30 pends and t40 is completed: 40 belongs to no window yet, since rows of 30 may still appear before it."""
    assert fix_window(v6(), "10", None) == Window(begin="10", end="20", blocked_by="30")
    assert fix_window(v6(), "10", "40") == Window(begin="10", end="20", blocked_by="30")
    assert fix_window(v6(), "10", "29") == Window(begin="10", end="29")
    assert fix_window(v6(), "35", None) == Window(begin="35", end="35", blocked_by="30")


def test_v6_pending_compactions_block_nothing() -> None:
    """They change no row."""
    assert fix_window(v6("10.deltacommit 20.compaction.requested 30.deltacommit"), "10", None).end == "30"


def test_states_before_the_retained_write_are_cleaned() -> None:
    """A clean that retains 25 keeps the state just before it: on version 6 that of 20."""
    assert earliest_state(v6("10.deltacommit 20.deltacommit 25.deltacommit"), "25") == "20"
    assert earliest_state(v8("10_12.deltacommit 20_22.deltacommit 25_27.deltacommit"), "25") == "22"
    assert earliest_state(v8("10_12.deltacommit"), "10") == ""


def test_a_write_requested_before_the_retained_one_and_completed_later() -> None:
    """The cleaner may have seen t20's base file: the states before its completion at 40 are not whole."""
    assert earliest_state(v8(), "25") == "40"


def test_a_compaction_is_read_from_its_requested_time_on() -> None:
    """What t20 merged may be gone, its base file is not: the states from 20 on are whole."""
    assert earliest_state(v8("10_12.deltacommit 20_40.commit 25_30.deltacommit"), "25") == "20"


# The filter of a window's rows, on a column of commit times.


def rows(timeline: Timeline, window: Window, writes: str, times: str) -> str:
    none: frozenset[str] = frozenset()
    found = WindowWrites(
        writes=frozenset(writes.split()),
        groups=None,
        replaced=frozenset(),
        stamps=none,
        log_compactions=none,
        compacted_logs={},
        clusterings=none,
        unlisted=False,
    )
    table = pa.table({"_hoodie_commit_time": times.split()})
    node = bound(wanted_rows(timeline, window, found), table.schema)
    return " ".join(matching(node, table).column(0).to_pylist())


def test_the_rows_of_the_writes() -> None:
    """t20 was requested before t25 and lies in the window, t25 does not."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20_40.deltacommit", "25_30.deltacommit")
    assert rows(timeline, Window(begin="30", end="40"), "20", "10 20 25") == "20"
    assert rows(timeline, Window(begin="40", end="40"), "", "10 20 25") == ""


def test_rows_of_writes_that_the_archive_has_lost() -> None:
    """t05 and t07 are known to no timeline; t07 was requested after the begin, so it completed after it too."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20_40.deltacommit")
    assert rows(timeline, Window(begin="06", end="12"), "10", "05 07 10 20") == "07 10"
    assert rows(timeline, Window(begin="11", end="12"), "10", "05 07 10 20") == "10"


def test_v6_compares_requested_times() -> None:
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.deltacommit", "30.deltacommit")
    assert rows(timeline, Window(begin="10", end="20"), "20", "05 10 15 20 30") == "15 20"
