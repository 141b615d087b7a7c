"""The simulated storage keeps what every storage must keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tests.unit.timeline.storage.test_local as contract
from phantombase.timeline.storage.contract import Storage
from tests.simulation.memory_storage import MemoryStorage


class TestMemoryStorage(contract.StorageContract):
    """In memory, in one process."""

    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()

    @pytest.fixture
    def opener(self, storage: Storage) -> Callable[[], Storage]:
        return lambda: storage

    @pytest.mark.skip(reason="It lives in one process.")
    def test_two_processes_race(self, opener: Callable[[], Storage]) -> None: ...
