"""What every storage must keep."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.clocks import Retry
from phantombase.timeline.errors import MissingFileError, StorageError
from phantombase.timeline.storage import object_lease, object_store
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE

Opener = Callable[[], Storage]


def put_in_another_process(opener: Opener, start: Any, path: str, data: bytes, wins: Any) -> None:
    """One racer of `test_two_processes_race`; at the module's level so that it can be sent there."""
    storage = opener()
    start.wait(120)
    if storage.put_if_absent(path, data):
        wins.put(data)


class StorageContract:
    """The promises of `Storage`. Subclasses give the fixtures `storage` and `opener`."""

    @pytest.fixture
    def storage(self) -> Storage:
        """An empty storage."""
        raise NotImplementedError

    @pytest.fixture
    def opener(self) -> Opener:
        """Makes further handles on the same place; picklable."""
        raise NotImplementedError

    # --- modification times

    def test_a_file_is_given_a_time(self, storage: Storage) -> None:
        """To the millisecond; what is in it stays."""
        storage.put_if_absent("a/x", b"data")
        storage.set_modified("a/x", 1_234_567_890_123)
        assert [e.modified_ms for e in storage.list("a")] == [1_234_567_890_123]
        assert storage.read("a/x") == b"data"
        with pytest.raises(MissingFileError):
            storage.set_modified("a/y", 0)

    # --- put_if_absent

    def test_put_creates_and_never_replaces(self, storage: Storage) -> None:
        """The first put wins, the second says so and changes nothing; folders are made."""
        assert storage.put_if_absent("a/b/x", b"first")
        assert not storage.put_if_absent("a/b/x", b"second")
        assert storage.read("a/b/x") == b"first"
        assert [e.name for e in storage.list("a/b")] == ["x"]

    def test_put_of_nothing(self, storage: Storage) -> None:
        """An empty object is one."""
        assert storage.put_if_absent("x", b"")
        assert not storage.put_if_absent("x", b"data")
        assert storage.read("x") == b""

    def test_threads_race(self, storage: Storage) -> None:
        """Eight threads put under one name: exactly one is told it won, and its bytes are there."""
        for round_ in range(20):
            barrier = threading.Barrier(8)

            def put(i: int, path: str = f"r/{round_}", barrier: threading.Barrier = barrier) -> bool:
                barrier.wait()
                return storage.put_if_absent(path, bytes([i]) * 1000)

            with ThreadPoolExecutor(8) as pool:
                won = [i for i, win in enumerate(pool.map(put, range(8))) if win]
            assert len(won) == 1
            assert storage.read(f"r/{round_}") == bytes(won) * 1000
        assert len(storage.list("r")) == 20

    # --- staged files

    def test_output_then_place(self, storage: Storage) -> None:
        """A staged file gets its final name; what becomes of the staged one changes nothing."""
        with storage.open_output("staging/f") as file:
            file.write(b"data")
            storage.close_output(file)
        assert storage.place("staging/f", "p/f")
        assert storage.read("p/f") == b"data"
        storage.delete("staging/f")
        assert storage.read("p/f") == b"data"

    def test_place_never_replaces(self, storage: Storage) -> None:
        """A name that is taken stays taken, and the staged file stays."""
        storage.put_if_absent("f", b"there")
        storage.put_if_absent("staged", b"new")
        assert not storage.place("staged", "f")
        assert (storage.read("f"), storage.read("staged")) == (b"there", b"new")

    def test_places_race(self, storage: Storage) -> None:
        """Eight staged files, one name: one winner."""
        for i in range(8):
            storage.put_if_absent(f"staged{i}", bytes([i]))
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda i: storage.place(f"staged{i}", "f"), range(8)))
        assert won.count(True) == 1
        assert storage.read("f") == bytes([won.index(True)])

    def test_place_of_nothing(self, storage: Storage) -> None:
        """There must be a staged file."""
        with pytest.raises(MissingFileError):
            storage.place("missing", "f")
        assert storage.find("f") is None

    # --- reading and listing

    def test_list(self, storage: Storage) -> None:
        """Entries by name, with sizes and times; folders without."""
        for path, data in (("d/b", b"12"), ("d/a", b""), ("d/sub/x", b"1")):
            storage.put_if_absent(path, data)
        entries = storage.list("d")
        assert [(e.name, e.is_folder, e.size) for e in entries] == [("a", False, 0), ("b", False, 2), ("sub", True, 0)]
        assert entries[0].modified_ms > 1_500_000_000_000
        assert entries[2].modified_ms == 0
        assert [e.name for e in storage.list("") if e.name != HOODIE] == ["d"]  # what is being written lies there

    def test_list_below(self, storage: Storage) -> None:
        """Every file at any depth, as in the listing of its folder; none where there is no folder."""
        for path in ("d/b", "d/sub/x", "d/sub/deeper/y", "e/z"):
            storage.put_if_absent(path, path.encode())
        found = dict(storage.list_below("d"))
        assert sorted(found) == ["b", "sub/deeper/y", "sub/x"]
        assert found["sub/x"] in storage.list("d/sub")
        assert storage.list_below("missing") == []

    def test_list_of_a_missing_folder(self, storage: Storage) -> None:
        """No folder is an error, not an empty list."""
        with pytest.raises(MissingFileError):
            storage.list("missing")

    def test_find(self, storage: Storage) -> None:
        """One entry, or None."""
        storage.put_if_absent("d/x", b"123")
        found = storage.find("d/x")
        assert found is not None
        assert (found.name, found.is_folder, found.size) == ("x", False, 3)
        assert found in storage.list("d")
        assert storage.find("d/missing") is None
        assert storage.find("missing/x") is None

    def test_reading_what_is_not_there(self, storage: Storage) -> None:
        """Missing files have a name of their own among errors."""
        for operation in (storage.read, storage.open_input):
            with pytest.raises(MissingFileError) as failure:
                operation("missing")
            assert "missing" in str(failure.value)

    def test_random_access(self, storage: Storage) -> None:
        """Any range of a file; an empty one too."""
        storage.put_if_absent("x", b"0123456789")
        with storage.open_input("x") as file:
            assert file.size() == 10
            assert bytes(file.read_at(3, 4)) == b"456"
            assert bytes(file.read_at(9, 8)) == b"89"
        storage.put_if_absent("empty", b"")
        with storage.open_input("empty") as file:
            assert file.size() == 0
            assert isinstance(file, pa.NativeFile)

    # --- replacing and removing

    def test_overwrite(self, storage: Storage) -> None:
        """Replaces what is there, and creates what is not."""
        storage.overwrite("d/x", b"first")
        storage.overwrite("d/x", b"second")
        assert storage.read("d/x") == b"second"
        assert [e.name for e in storage.list("d")] == ["x"]

    def test_readers_see_an_overwrite_whole(self, storage: Storage) -> None:
        """While it is replaced a reader gets the old or the new bytes, never a part or nothing."""
        versions = [bytes([i]) * 50_000 for i in range(2)]
        storage.overwrite("x", versions[0])
        done = threading.Event()

        def write() -> None:
            for i in range(60):
                storage.overwrite("x", versions[i % 2])
            done.set()

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(write)
            while not done.is_set() and not future.done():
                assert storage.read("x") in versions
            future.result()

    def test_delete(self, storage: Storage) -> None:
        """Removes one object; nothing there is success."""
        storage.put_if_absent("d/x", b"")
        storage.put_if_absent("d/y", b"")
        storage.delete("d/x")
        storage.delete("d/x")
        storage.delete("missing/x")
        assert [e.name for e in storage.list("d")] == ["y"]

    def test_delete_folder(self, storage: Storage) -> None:
        """Removes all in it; nothing there is success."""
        storage.put_if_absent("d/sub/x", b"")
        storage.put_if_absent("e/x", b"")
        storage.delete_folder("d")
        storage.delete_folder("d")
        assert storage.delete_empty_folder("d")
        assert storage.delete_empty_folder("e") is not storage.is_file_system  # it has content
        assert [e.name for e in storage.list("") if e.name != HOODIE] == ["e"]

    def test_handles_see_each_other(self, storage: Storage, opener: Opener) -> None:
        """What one handle did, the next one sees at once."""
        other = opener()
        assert storage.put_if_absent("x", b"1")
        assert other.read("x") == b"1"
        assert not other.put_if_absent("x", b"2")


class BetweenProcesses:
    """What `StorageContract` says of a storage that processes share."""

    def test_two_processes_race(self, opener: Opener) -> None:
        """So do two processes."""
        context = multiprocessing.get_context("spawn")
        start, wins = context.Barrier(2), context.Queue()
        racers = [
            context.Process(target=put_in_another_process, args=(opener, start, "x", data, wins))
            for data in (b"1", b"2")
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(180)
        assert [racer.exitcode for racer in racers] == [0, 0]
        assert opener().read("x") == wins.get(timeout=60)
        assert wins.empty()


class OnFileSystems:
    """What `StorageContract` says of a storage that looks at a name without a request."""

    def test_output_of_a_name_that_is_taken(self, storage: Storage) -> None:
        """Output makes new files only."""
        storage.put_if_absent("f", b"there")
        with pytest.raises(StorageError):
            storage.open_output("f")
        assert storage.read("f") == b"there"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr(object_store, "PUT_AGAIN", Retry((0.0,) * 5))
    monkeypatch.setattr(object_lease, "LEASE_AGAIN", Retry((0.0,) * 2))
