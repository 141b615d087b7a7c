"""Which tables a test takes: of the versions that it holds for one in the usual run; tables made once and copied."""

from __future__ import annotations

import pytest

from tests.support.selection import deep


def one_of(name: str, usual: object, *others: object, indirect: bool = False) -> pytest.MarkDecorator:
    """Parametrizes a test that holds for each of these, mostly table versions; the usual run takes the first.

    Of a folder's tests some take an old version, so that both have what is general to them. A test in which the version
    matters says `pytest.mark.parametrize` instead.
    """
    return pytest.mark.parametrize(name, [usual, *map(deep, others)], indirect=indirect)
