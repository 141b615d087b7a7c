"""Which tests and how many samples a run takes: all of them with `PHANTOMBASE_ALL=1`, as `deploy/test.sh --all` sets.

The usual run has every rule, and of each kind of sample at least one. What it leaves out is the same rule again: on
another table version or with another setting that other tests of the usual run have. Those tests have the mark `deep`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

_MORE = {"PHANTOMBASE_HISTORIES", "PHANTOMBASE_METADATA_HISTORIES", "PHANTOMBASE_INDEX_HISTORIES"}
"""Who asks for more random histories wants them of all table versions."""
ALL = os.environ.get("PHANTOMBASE_ALL") == "1" or bool(_MORE & os.environ.keys())


def deep(*values: object, id: str | None = None) -> Any:
    """Values for `pytest.mark.parametrize` that only a run of all tests takes."""
    return pytest.param(*values, marks=pytest.mark.deep, id=id)


def versions(*usual: int, deep: Sequence[int] = ()) -> pytest.MarkDecorator:
    """Parametrizes the fixture `version` with the table versions of a usual run, and those of a run of all tests."""
    found = [*usual, *(pytest.param(version, marks=pytest.mark.deep) for version in deep)]
    return pytest.mark.parametrize("version", found, indirect=True, ids="v{}".format)
