"""The filter of a window's rows, on a column of commit times."""

from __future__ import annotations

import pyarrow as pa

from phantombase.timeline.filter.bind import bound
from phantombase.timeline.filter.evaluate import matching
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.windows.incremental import wanted_rows
from phantombase.timeline.windows.window import Window
from phantombase.timeline.windows.window_writes import WindowWrites
from tests.support.builders import timeline_of


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
