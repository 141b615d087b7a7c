"""Which files are cleaned: rules that need facts which are hard to make on storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.cleaning.choice import CleanChoice, CleanFacts, CleanOptions, Policy, choose
from phantombase.timeline.errors import UsageError
from phantombase.timeline.view.view import TableView
from tests.support.archived_tables import unzip
from tests.support.compaction_steps import open_table

LATE = "9" * 17
FACTS: dict[str, Any] = {"hours_ago": LATE, "floor": LATE}


@pytest.fixture
def view(tmp_path: Path) -> TableView:
    return open_table(unzip("v6_0.15.0_clean_commits.before", tmp_path)).load_view()


@pytest.fixture
def replaced(tmp_path: Path) -> TableView:
    return open_table(unzip("v6_0.15.0_replaced.before", tmp_path)).load_view()


def chosen(view: TableView, options: CleanOptions | None = None, **facts: Any) -> CleanChoice:
    return choose(view, CleanFacts(**{**FACTS, **facts}), options or CleanOptions(retain=1, floor_s=0))


def test_file_groups_of_a_pending_clustering_are_left_alone(view: TableView) -> None:
    key = view.groups[0].key
    choice = chosen(view, clustering={key})
    assert choice.gone
    assert key not in {(one.partition, one.file_id) for one in choice.gone}
    assert choice.kept == {"a pending clustering has it": 3}


def test_what_a_compaction_merged_stays_until_it_is_retired(view: TableView) -> None:
    [first, *_] = [i.requested_time for i in view.timeline.completed if i.action == "commit"]
    choice = chosen(view, unfinished={first})
    assert (choice.gone, choice.retained) == ((), first)
    assert "has not cleaned up" in choice.why


def test_replaced_groups_go_whatever_the_bounds(replaced: TableView) -> None:
    whole = chosen(replaced)
    assert len([one for one in whole.gone if one.why == "replaced"]) == 2
    bounded = chosen(replaced, CleanOptions(retain=1, floor_s=0, max_files=1, max_partitions=1))
    assert {one for one in whole.gone if one.why == "replaced"} <= set(bounded.gone)


def test_replaced_groups_stay_until_the_cutoff_has_passed(replaced: TableView) -> None:
    times = [i.requested_time for i in replaced.timeline.completed if i.action == "replacecommit"]
    assert chosen(replaced, holds=(replaced.timeline.completed[0].requested_time,)).gone == ()
    assert chosen(replaced, unfinished={times[0]}).gone == ()


def test_partitions_are_taken_one_after_the_other(view: TableView) -> None:
    whole = chosen(view)
    choice = chosen(view, CleanOptions(retain=1, floor_s=0, max_partitions=1))
    assert len({one.partition for one in choice.gone}) == 1
    assert {*choice.gone, *choice.left} == set(whole.gone)


def test_files_of_captured_changes_go_with_their_slice(tmp_path: Path) -> None:
    """Those of the newest slice stay."""
    path = unzip("v6_0.15.0_clean_commits.before", tmp_path)
    before = chosen(open_table(path).load_view())
    for base in path.rglob("*.parquet"):
        file_id, token, instant = base.stem.split("_")
        (base.parent / f".{file_id}_{instant}.log.1_{token}.cdc").write_bytes(b"changes")
    after = chosen(open_table(path).load_view())
    pairs = list(zip(before.gone, after.gone, strict=True))
    assert any(name.endswith(".parquet") for one, _ in pairs for name in one.files)
    for one, with_changes in pairs:
        added = [name for name in with_changes.files if name not in one.files]
        assert len(added) == sum(name.endswith(".parquet") for name in one.files)
        assert all(f"{one.file_id}_{one.base_instant}.log." in name and name.endswith(".cdc") for name in added)
        assert with_changes.bytes == one.bytes + len(added) * len(b"changes")


def test_commits(view: TableView) -> None:
    """The n-th from the end; nothing goes before there are more than n."""
    times = sorted(view.timeline.completed_writes)
    for n in range(1, len(times)):
        assert chosen(view, CleanOptions(retain=n, floor_s=0)).retained == times[-n]
    assert chosen(view, CleanOptions(retain=len(times), floor_s=0)).gone == ()


def test_hours(view: TableView) -> None:
    """By the commits of the last hours; the newest state stays when there is none."""
    options, times = CleanOptions(policy=Policy.HOURS, floor_s=0), sorted(view.timeline.completed_writes)
    assert chosen(view, options, hours_ago=times[0]).gone == ()
    assert chosen(view, options, hours_ago=times[3]).retained == times[3]
    assert chosen(view, options).retained == times[-1]


def test_an_older_cutoff_never_removes_more(view: TableView) -> None:
    before: set[str] = set()
    for time in sorted(view.timeline.completed_writes):
        gone = {name for one in chosen(view, floor=time).gone for name in one.files}
        assert before <= gone
        before = gone
    assert before


@pytest.mark.parametrize(
    "given", [{"retain": 0}, {"max_files": 0}, {"floor_s": float("nan")}, {"policy": Policy.HOURS, "retain": 10**9}]
)
def test_impossible_options(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CleanOptions(**given)
