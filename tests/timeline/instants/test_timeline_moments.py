"""Two timelines of one table, and an archive that is read later than the timeline (pure)."""

from __future__ import annotations

from phantombase.timeline.format.layout import LAYOUT_2
from tests.support.builders import timeline_of

ARCHIVED = ("10_11.deltacommit", "12_13.commit", "20_25.deltacommit", "30_31.deltacommit", "40_41.commit")


def test_what_was_archived_since_the_listing_does_not_count() -> None:
    """Neither what began behind its newest instant, nor what was pending then."""
    then = timeline_of(LAYOUT_2, "20.deltacommit.requested", "22_23.deltacommit", "26.compaction.requested")
    found = then.with_its_archived(timeline_of(LAYOUT_2, archived=ARCHIVED).archived)
    assert [i.requested_time for i in found.archived] == ["10", "12"]
    assert found.instants == then.instants


def test_an_instant_in_both_places_counts() -> None:
    then = timeline_of(LAYOUT_2, "12_13.commit", "30_31.deltacommit")
    found = then.with_its_archived(timeline_of(LAYOUT_2, archived=ARCHIVED).archived)
    assert [i.requested_time for i in found.archived] == ["10", "12", "20", "30"]


def test_all_count_where_all_active_writes_are_rolled_back() -> None:
    """What is left may be older than what is archived."""
    then = timeline_of(LAYOUT_2, "15_16.clean")
    archived = timeline_of(LAYOUT_2, archived=ARCHIVED).archived
    assert then.with_its_archived(archived).archived == archived


def test_writes_that_may_take_the_place_of_files() -> None:
    """Completed since, active or archived; not those of before, which the earlier one has archived.

    Of delta commits those that wrote a base file.
    """
    then = timeline_of(LAYOUT_2, "20_21.commit", "24.compaction.requested", "26_27.replacecommit")
    now = timeline_of(LAYOUT_2, "24_33.commit", "30_31.deltacommit", "50.replacecommit.requested", archived=ARCHIVED)
    assert now.superseding_since(then, (), below="9") == ["24", "40"]
    assert now.superseding_since(then, {"10", "20", "30"}, below="9") == ["20", "24", "30", "40"]
    assert now.superseding_since(then, None, below="9") == ["20", "24", "30", "40"]
    assert now.superseding_since(then, None, below="30") == ["20", "24"]
    assert now.superseding_since(then, None, below="") == []
    assert then.superseding_since(then, {"20"}, below="9") == []
