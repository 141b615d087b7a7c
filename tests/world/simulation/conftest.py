"""The stage of the worlds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.world.simulation.played import Stage, simulated


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Where worlds are played."""
    yield from simulated(monkeypatch)
