"""Which file groups are full, who is known to compact, what options say: pure decisions, each with its story."""

from __future__ import annotations

from typing import Any

import pytest

from phantombase import writer
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice, ViewFacts
from phantombase.writer_hooks.commit.back_pressure import full_groups, shows_compaction
from phantombase.writer_hooks.options import NO_LIMIT, BackPressure, FullAction
from tests.support.builders import NO_FACTS, facts_of, group_of, listing_of, timeline_of

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


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop_trigger": 0},
        {"stop_trigger": -1},
        {"stop_trigger": 3, "action": "go-on"},
        {"wait_s": 0.0},
        {"wait_s": -1.0},
        {"wait_s": float("inf")},
        {"action": "sleep"},
    ],
)
def test_limits_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"stop-trigger|wait-s|not an action for a full file group"):
        writer().back_pressure(**wrong)


def test_the_limit_goes_by_the_compaction_trigger() -> None:
    assert [BackPressure().limit(trigger) for trigger in (2, 5)] == [5, 8]
    assert BackPressure(stop_trigger=1).limit(5) == 1
    assert NO_LIMIT.limit(5) is None


def test_configuration_means_the_same_as_the_api() -> None:
    said = {
        "phantombase.write.stop.trigger": "3",
        "phantombase.write.stop.action": "FAIL",
        "phantombase.write.stop.wait.seconds": "1.5",
    }
    wanted = BackPressure(stop_trigger=3, action=FullAction.FAIL, wait_s=1.5)
    assert writer().conf(said).options.back_pressure == wanted
    assert writer().back_pressure(stop_trigger=3, action="fail", wait_s=1.5).options.back_pressure == wanted
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
