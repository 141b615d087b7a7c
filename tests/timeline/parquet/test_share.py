"""Shares of a base file have each row group once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.parquet.share import Share


@given(st.integers(0, 40), st.integers(1, 50), st.sets(st.integers(0, 39)))
def test_each_row_group_once(count: int, of: int, wanted: set[int]) -> None:
    shares = [Share(part, of) for part in range(of)]
    assert [group for share in shares for group in share.of_groups(count)] == list(range(count))
    chosen = sorted(group for group in wanted if group < count)
    assert [group for share in shares for group in share.of_groups(count, chosen)] == chosen


def test_shares_are_alike() -> None:
    sizes = [len(Share(part, 4).of_groups(10)) for part in range(4)]
    assert max(sizes) - min(sizes) <= 1
