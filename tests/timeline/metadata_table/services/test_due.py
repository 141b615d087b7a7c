"""When the metadata table's compaction is due, and at which instant."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.metadata_table.services.clean import clean_waits
from phantombase.timeline.metadata_table.services.due import Due, blocked_by, due
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from tests.support.tables import one_of

NEW = "20260102000000000"


def at(number: int) -> str:
    """An instant time."""
    return f"202601010000{number:02d}000"


def timeline(version: int, done: Iterable[int] = (), pending: Iterable[int] = (), *more: Instant) -> Timeline:
    """Completed and pending delta commits; on versions with completion times each took half a second."""
    layout = Layout.of(version)
    completed = [
        Instant(
            requested_time=at(n),
            action="deltacommit",
            state=State.COMPLETED,
            completion_time=f"{at(n)[:-3]}500" if layout.has_completion_times else None,
        )
        for n in done
    ]
    begun = [Instant(requested_time=at(n), action="deltacommit", state=State.INFLIGHT) for n in pending]
    return Timeline(layout=layout, instants=tuple(sorted((*completed, *begun, *more))))


def decide(data: Timeline, metadata: Timeline, building: tuple[str, ...] = (), least: int = 3) -> Due:
    return due(data, metadata, building=building, max_delta_commits=least, new_time=lambda: NEW)


@pytest.mark.parametrize(("version", "instant"), [(6, f"{at(3)}001"), (8, NEW), (9, NEW)])
def test_after_so_many_delta_commits(version: int, instant: str) -> None:
    data = timeline(version, range(1, 4))
    assert decide(data, timeline(version, range(1, 3))).instant is None
    assert decide(data, timeline(version, range(1, 4))).instant == instant


@one_of("version", 9, 6)
def test_waits_for_what_is_half_done_here(version: int) -> None:
    data = timeline(version, range(1, 4))
    found = decide(data, timeline(version, range(1, 4), [5]))
    assert found.instant is None
    assert at(5) in found.why
    found = decide(data, timeline(version, range(1, 4)), building=("column_stats",))
    assert found.instant is None
    assert "column_stats" in found.why


def test_a_pending_log_compaction_of_hudi_shows_what_ends_it() -> None:
    """Phantombase makes and executes none there."""
    merge = Instant(requested_time=at(2), action="logcompaction", state=State.REQUESTED)
    metadata = timeline(9, range(3, 7), (), merge)
    for why in (decide(timeline(9, range(3, 7)), metadata).why, clean_waits(metadata), blocked_by(metadata)):
        assert why is not None
        assert f"logcompaction {at(2)} of the metadata table is pending: a writer of Hudi executes it" in why
        assert "--drop-metadata-table" in why
    assert blocked_by(timeline(9, range(3, 7))) is None


def test_version_6_waits_while_an_instant_of_the_table_up_to_the_last_delta_commit_is_pending() -> None:
    metadata = timeline(6, range(1, 4))
    for pending in (1, 3):
        found = decide(timeline(6, {1, 2, 3} - {pending}, [pending]), metadata)
        assert found.instant is None
        assert at(pending) in found.why
    assert decide(timeline(6, range(1, 4), [4]), metadata).instant == f"{at(3)}001"


def test_an_entry_of_a_pending_instant_stays_above() -> None:
    """Versions 8 and 9: only where the metadata table holds it already."""
    data = timeline(9, [1, 2], [3])
    assert decide(data, timeline(9, [1, 2, 3])).instant == "20260101000002999"
    assert decide(data, timeline(9, [0, 1, 2])).instant == NEW
    last = Instant(requested_time="20260101000002999", action="commit", state=State.COMPLETED, completion_time=at(4))
    found = decide(data, timeline(9, [1, 2, 3, 5, 6, 7], [], last))
    assert found.instant is None
    assert at(3) in found.why


@pytest.mark.parametrize("version", [6, 9])
def test_no_entry_that_may_still_be_removed_is_merged(version: int) -> None:
    """Every delta commit that completed before the compaction's instant is of no instant that is pending."""
    chosen = beside_pending = 0
    for states in product(("both", "data pending", "metadata only"), repeat=5):
        numbers = range(1, len(states) + 1)
        pending = {n for n, state in zip(numbers, states, strict=True) if state == "data pending"}
        data = timeline(version, {n for n, s in zip(numbers, states, strict=True) if s == "both"}, pending)
        found = decide(data, timeline(version, numbers), least=1)
        if found.instant is not None:
            assert all(at(n) > found.instant for n in pending)
            chosen, beside_pending = chosen + 1, beside_pending + bool(pending)
    assert chosen > 30
    assert (beside_pending > 0) is (version == 9)  # version 6 waits


def test_less_than_one_delta_commit_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        MetadataOptions(max_delta_commits=0)
