"""The view as of a completion time: a timeline, a listing, and what a reader at that moment saw.

Names as in `test_view`; `10_40.deltacommit` was requested at 10 and completed at 40.
"""

from __future__ import annotations

import pytest

from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.view.view import FileSlice, ViewFacts, latest_slice
from tests.support.builders import NO_FACTS, facts_of, group_of, listing_of, picture, timeline_of


def at(time: str, instants: str, files: str, facts: ViewFacts = NO_FACTS, *, archived: str = "") -> str | None:
    """The slice that a reader merges at a completion time."""
    return picture(slice_at(timeline_of(LAYOUT_2, *instants.split(), archived=archived.split()), time, files, facts))


def slice_at(timeline: Timeline, time: str, files: str, facts: ViewFacts) -> FileSlice | None:
    return latest_slice(group_of(timeline.completed_by(time), listing_of(*files.split()), facts))


OVERLAPPING = "10_12.deltacommit 20_40.deltacommit 25_30.deltacommit"


@pytest.mark.parametrize(
    ("time", "seen"), [("11", None), ("12", "10: b10"), ("30", "10: b10 l25.1"), ("40", "10: b10 l20.1 l25.1")]
)
def test_requested_first_completed_last(time: str, seen: str | None) -> None:
    """t20 began before t25 and completed after it: between the two only t25 is seen. No requested time says that."""
    assert at(time, OVERLAPPING, "b10 l20.1 l25.1") == seen


def test_a_base_file_of_a_later_completion_is_not_there_yet() -> None:
    """t20 writes a small base file anew and completes last: until then base 10 and the log of t25 are read."""
    assert at("30", OVERLAPPING, "b10 b20 l25.1") == "10: b10 l25.1"
    assert at("40", OVERLAPPING, "b10 b20 l25.1") == "20: b20 l25.1"


def test_a_compaction_counts_from_its_requested_time_on() -> None:
    """t20 changes no row: it may be read before its completion, and what it merged may be cleaned by now."""
    timeline = "10_12.deltacommit 15_16.deltacommit 20_40.commit 25_30.deltacommit"
    facts = facts_of(compacted="20")
    assert at("16", timeline, "b10 l15.1 b20 l25.1", NO_FACTS) == "10: b10 l15.1"
    assert at("30", timeline, "b20 l25.1", facts) == "20: b20 l25.1"


def test_a_pending_compaction_stays_pending() -> None:
    """t20 pends: before its requested time it is no plan yet, afterwards both slices are read as one."""
    timeline = "10_12.deltacommit 20.compaction.requested 25_30.deltacommit"
    assert at("30", timeline, "b10 l25.1", facts_of(pending="20")) == "10: b10 l25.1"
    early = timeline_of(LAYOUT_2, *timeline.split()).completed_by("19")
    assert early.pending_compactions == ()
    assert early.pending_writes.keys() == {"20", "25"}


def test_an_archived_write_that_completed_later_is_pending_again() -> None:
    """t10 and t20 are archived and t20 completed last: older than the active timeline is not committed here."""
    archived = "10_12.deltacommit 20_40.deltacommit 25_30.deltacommit"
    active = "50_52.deltacommit"
    assert at("30", active, "b10 l20.1 l25.1 l50.1", archived=archived) == "10: b10 l25.1"
    assert at("45", active, "b10 l20.1 l25.1 l50.1", archived=archived) == "10: b10 l20.1 l25.1"
    assert at("52", active, "b10 l20.1 l25.1 l50.1", archived=archived) == "10: b10 l20.1 l25.1 l50.1"


def test_a_write_in_both_places_counts_once() -> None:
    """Hudi archives by copying and then deleting."""
    timeline = timeline_of(LAYOUT_2, "20_40.deltacommit", archived=["20_40.deltacommit"])
    assert [i.requested_time for i in timeline.completed_by("30").instants] == ["20"]


def test_a_file_without_completion_time_in_its_name() -> None:
    """Tables upgraded from version 6: the file's modification time stands in."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20.deltacommit", legacy={"20": "33"})
    assert picture(slice_at(timeline, "32", "b10 l20.1", NO_FACTS)) == "10: b10"
    assert picture(slice_at(timeline, "33", "b10 l20.1", NO_FACTS)) == "10: b10 l20.1"
