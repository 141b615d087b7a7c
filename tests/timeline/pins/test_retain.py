"""What a cleaner must keep for pins, against the reader's own rule of which states are whole."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.pins.pin import earliest_to_retain, held_files, moment_to_hold
from phantombase.timeline.windows.retained import earliest_state
from phantombase.timeline.windows.state import load_state
from tests.support.builders import timeline_of
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep


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
    """On version 6 any write, later only a compaction: t20 completes while a reader reads the state at t30.

    Of a stitching a process on another machine decided the completion time, and died: a later one completes it at that
    time.
    """
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
    assert moment_to_hold(requested, "35") == "35"
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
            for _, one in load_state(table, later, None, timeline).slices():
                logs = {
                    log.path for log in one.logs if log.name.instant <= later or not table.layout.has_completion_times
                }
                assert logs | ({one.base.path} if one.base else set()) <= held
    assert all(a >= b for a, b in pairwise(sizes))
