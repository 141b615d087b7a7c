"""Which files are stitched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError, UnsupportedError, UsageError
from phantombase.timeline.format.bucket import plain_file_id
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.format.replace_request import (
    StitchGroup,
    StitchPlan,
    decode_stitch_plan,
    encode_replace_request,
    encode_stitch_plan,
)
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.stitching.choice import StitchChoice, choose_windows
from phantombase.timeline.stitching.options import StitchOptions
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice, GroupKey, TableView, ViewFacts

TEN = StitchOptions(target_size=10, small_size=5, min_files=3)


def group(number: int, size: int, *, partition: str = "a", logs: int = 0, bucket: bool = False) -> FileGroup:
    """A file group that came as the `number`-th one."""
    instant = f"2026010100000{number:04d}"
    file_id = f"{number:08d}-0000-4000-8000-000000000000-0" if bucket else f"f{number:07d}{plain_file_id()[8:]}"
    base = DataFile(partition=partition, name=BaseFileName(file_id=file_id, token="0-0-0", instant=instant), size=size)
    log = [LogFileName(file_id=file_id, instant=instant, version=n + 1, token="0-0-0") for n in range(logs)]
    slice_ = FileSlice(
        partition=partition,
        file_id=file_id,
        base_instant=instant,
        base=base,
        logs=tuple(DataFile(partition=partition, name=name, size=1) for name in log),
    )
    return FileGroup(partition=partition, file_id=file_id, slices=(slice_,))


def choose(
    groups: list[FileGroup], options: StitchOptions = TEN, busy: dict[GroupKey, str] | None = None
) -> StitchChoice:
    facts = ViewFacts(pending_plans={}, replaced={}, compacted={})
    view = TableView(timeline=Timeline(layout=LAYOUT_2, instants=()), facts=facts, groups=tuple(groups))
    return choose_windows(view, busy or {}, options, "table")


def sizes(choice: StitchChoice) -> list[list[int]]:
    return [[one.base_bytes for one in window.slices] for window in choice.windows]


def test_windows_of_small_files_in_a_row() -> None:
    """A window ends at the target size, and at a large file; fewer than the least number stay."""
    found = choose([group(n, size) for n, size in enumerate([4, 4, 4, 4, 4, 9, 1, 1, 1, 9, 1, 1])])
    assert sizes(found) == [[4, 4, 4], [1, 1, 1]]
    assert (found.small, found.left) == (10, 0)


def test_they_are_in_the_order_of_their_writes() -> None:
    groups = [group(n, 1) for n in range(4)]
    found = choose([groups[2], groups[0], groups[3], groups[1]])
    assert [s.file_id for s in found.windows[0].slices] == [g.file_id for g in groups]


def test_partitions_stay_apart() -> None:
    found = choose([group(n, 1, partition="ab"[n % 2]) for n in range(5)])
    assert [(w.partition, len(w.slices)) for w in found.windows] == [("a", 3)]


def test_what_cannot_be_stitched_ends_a_row() -> None:
    groups = [group(n, 1, logs=int(n == 3)) for n in range(7)]
    found = choose(groups, busy={groups[6].key: "in a pending clustering"})
    assert sizes(found) == [[1, 1, 1]]
    assert found.kept == {"it has log files": 1, "in a pending clustering": 1}


def test_a_full_run_takes_large_files_among_many_small_ones() -> None:
    options = StitchOptions(target_size=10, small_size=5, full=True)
    assert sizes(choose([group(n, s) for n, s in enumerate([9, 9, 1, 9, 1, 1])], options)) == [[1, 9], [1, 1]]
    assert sizes(choose([group(n, s) for n, s in enumerate([1, 9, 9, 9])], options)) == []
    assert sizes(choose([group(n, s) for n, s in enumerate([9, 1, 1])], options)) == [[1, 1]]


def test_the_bytes_of_a_run_are_bounded() -> None:
    found = choose(
        [group(n, 4) for n in range(9)], StitchOptions(target_size=10, small_size=5, max_bytes=20, min_files=3)
    )
    assert (len(found.windows), found.left) == (1, 2)
    assert (
        len(choose([group(n, 4) for n in range(9)], StitchOptions(target_size=10, max_bytes=1, min_files=3)).windows)
        == 1
    )


def test_buckets_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="bucket"):
        choose([group(n, 1, bucket=True) for n in range(3)])
    assert choose([group(n, 1, bucket=n == 0) for n in range(9)]).windows  # one of many looks so by chance


def test_impossible_options() -> None:
    with pytest.raises(UsageError, match="small-size"):
        StitchOptions(target_size=10, small_size=11)
    with pytest.raises(UsageError, match="min-files"):
        StitchOptions(min_files=1)


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(2, 6), st.booleans())
def test_every_file_is_stitched_once_at_most(given_sizes: list[int], least: int, full: bool) -> None:
    options = StitchOptions(target_size=10, small_size=5, min_files=least, full=full)
    groups = [group(n, size) for n, size in enumerate(given_sizes)]
    found = choose(groups, options)
    taken = [s.file_id for w in found.windows for s in w.slices]
    assert len(taken) == len(set(taken))
    order = [g.file_id for g in groups]
    for window in found.windows:
        first = order.index(window.slices[0].file_id)
        assert [s.file_id for s in window.slices] == order[first : first + len(window.slices)]
        assert len(window.slices) >= (2 if full else least)
    # Again and again it comes to an end: what was stitched is a file of the sum, at the place of the newest.
    for _ in range(50):
        if not found.windows:
            break
        gone = {s.file_id for w in found.windows for s in w.slices}
        made = [group(1000 + n, w.bytes) for n, w in enumerate(found.windows)]
        groups = [*(g for g in groups if g.file_id not in gone), *made]
        groups = [group(n, g.slices[0].base_bytes) for n, g in enumerate(groups)]
        found = choose(groups, options)
    assert not found.windows


def test_the_plan_comes_back() -> None:
    groups = (
        StitchGroup(
            partition="a/b", file_id="new", files=(("f1", "f1_0-0-0_1.parquet", 7), ("f2", "f2_0-0-0_1.parquet", 8))
        ),
        StitchGroup(partition="", file_id="other", files=(("f3", "f3_0-0-0_1.parquet", 9),)),
    )
    found = decode_stitch_plan(
        encode_stitch_plan(StitchPlan(groups=groups, sort_by=("x", "y"), sort_order="zorder"), "/data/table"), "where"
    )
    assert found is not None
    assert [(g.partition, g.file_id, [f[:2] for f in g.files]) for g in found.groups] == [
        (g.partition, g.file_id, [f[:2] for f in g.files]) for g in groups
    ]
    assert (found.sort_by, found.sort_order) == (("x", "y"), "zorder")
    assert decode_stitch_plan(b"", "where") is None
    assert decode_stitch_plan(encode_replace_request("INSERT_OVERWRITE", names_deletes=True), "where") is None
    with pytest.raises(MalformedError):
        decode_stitch_plan(b"no plan", "where")
    outside = StitchGroup(partition="../b", file_id="new", files=(("f1", "f1_0-0-0_1.parquet", 7),))
    data = encode_stitch_plan(StitchPlan(groups=(outside,)), "/data/table")
    with pytest.raises(MalformedError, match="partition"):
        decode_stitch_plan(data, "where")
