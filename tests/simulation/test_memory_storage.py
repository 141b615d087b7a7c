"""The simulated storage keeps what every storage must keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tests.unit.test_storage as contract
from tests.simulation.memory_storage import MemoryStorage
from timeline.storage import Storage


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
