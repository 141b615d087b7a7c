"""The simulated storage keeps what every storage must keep."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from phantombase.timeline.errors import StorageError
from phantombase.timeline.storage.contract import Storage
from tests.support.storage_contract import OnFileSystems, StorageContract
from tests.world.simulation.memory_storage import MemoryStorage
from tests.world.simulation.object_memory import MovingMemory, ObjectMemory


class InOneProcess(StorageContract):
    """In memory."""

    @pytest.fixture
    def opener(self, storage: Storage) -> Callable[[], Storage]:
        return lambda: storage


class TestMemoryStorage(InOneProcess, OnFileSystems):
    """As a disk."""

    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


class TestObjectMemory(InOneProcess):
    """As an object store."""

    @pytest.fixture
    def storage(self) -> Storage:
        return ObjectMemory(lambda: round(time.time() * 1000))

    def test_a_file_is_given_a_time(self, storage: Storage) -> None:
        """Refused."""
        with pytest.raises(StorageError, match="times itself"):
            storage.set_modified("a/x", 0)

    def test_a_tag_is_that_of_the_content(self, storage: Storage) -> None:
        """It changes with it, and is the same wherever it is shown."""
        storage.put_if_absent("a/x", b"1")
        (listed,) = storage.list("a")
        first = storage.find("a/x")
        assert first is not None
        assert first.tag == listed.tag != ""
        storage.overwrite("a/x", b"2")
        second = storage.find("a/x")
        assert second is not None
        assert second.tag not in ("", first.tag)

    def test_a_folder_goes_with_its_last_object(self, storage: Storage) -> None:
        storage.put_if_absent("a/b/x", b"")
        storage.make_folder("a/c")
        storage.delete("a/b/x")
        assert storage.find("a") is None


class TestMovingMemory(InOneProcess, OnFileSystems):
    """As HDFS."""

    @pytest.fixture
    def storage(self) -> Storage:
        return MovingMemory()

    def test_what_is_placed_is_no_more_where_it_was(self, storage: Storage) -> None:
        storage.put_if_absent("staged", b"data")
        storage.put_if_absent("another", b"other")
        assert storage.place("staged", "a/final")
        assert not storage.place("another", "a/final")
        assert storage.find("staged") is None
        assert storage.find("another") is not None
