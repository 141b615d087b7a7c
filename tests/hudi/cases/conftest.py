"""Hands out real Hudi by table version, and orders the tests so that each version of Hudi starts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.judge.client import Judge
from tests.hudi.judge.fixtures import Judges
from tests.support.selection import deep

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests of this folder by Hudi version, newest first, in the places they have among all tests."""
    places = [place for place, item in enumerate(items) if _FOLDER in item.path.parents]
    ordered = sorted((items[place] for place in places), key=_hudi_version, reverse=True)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _hudi_version(item: pytest.Item) -> tuple[int, ...]:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return tuple(int(part) for part in HUDI[parameters.get("version", 6)].split("."))


@pytest.fixture(params=[9, deep(8), 6], ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> int:
    """The table version. To Hudi and us 8 is 9 but for hoodie.properties: tests that it matters to name it."""
    return int(request.param)


@pytest.fixture
def judge(version: int, judges: Judges) -> Judge:
    """The real Hudi of that table version."""
    return judges(HUDI[version])
