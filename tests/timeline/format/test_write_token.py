"""Which files are those of phantombase."""

from __future__ import annotations

import pytest

from phantombase.timeline.format.write_token import is_of_phantombase


@pytest.mark.parametrize("token", ["3-1-990000000", "0-980000000-123456789", "12-980000000-990000000"])
def test_tokens_of_phantombase(token: str) -> None:
    assert is_of_phantombase(token)


@pytest.mark.parametrize("token", [None, "", "0-12-34", "980000000-1-2", "0-990000000-1", "0-1-980000000"])
def test_tokens_of_others(token: str | None) -> None:
    assert not is_of_phantombase(token)
