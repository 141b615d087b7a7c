"""HDFS keeps what every storage must keep, also where answers are lost; tried on a real name node and data node.

What needs them is asked with all tests; that a placed file has left its staged name is asked without them too
(`tests/compactor_daemon/attempt/test_place_moves.py`)."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from phantombase.timeline.errors import LockError, MissingFileError, StorageError, UsageError
from phantombase.timeline.locks.table_lock import StorageLock, table_lock
from phantombase.timeline.storage import hdfs_files as hdfs_client
from phantombase.timeline.storage import hdfs_files as hdfs_files
from phantombase.timeline.storage import hdfs_files as hdfs_lease
from phantombase.timeline.storage import hdfs_store
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import TEMPORARY
from phantombase.timeline.storage.hdfs_store import HdfsStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.staged_file import probe, probe_partitions, staged_output
from tests.support.servers.hdfs_cluster import Hdfs
from tests.support.servers.zookeeper_server import wait_until
from tests.support.storage_contract import BetweenProcesses, OnFileSystems, StorageContract

BUSY = LockError("held by another process")


@pytest.mark.deep
class TestHdfsStorage(StorageContract, BetweenProcesses, OnFileSystems):
    """HDFS."""

    @pytest.fixture
    def url(self, hdfs: Hdfs) -> str:
        return f"{hdfs.new_folder()}/tables/a b+c%é=1"

    @pytest.fixture
    def storage(self, url: str) -> Storage:
        return HdfsStorage(url)

    @pytest.fixture
    def opener(self, url: str) -> Callable[[], Storage]:
        return Reopen(url)


class Reopen:
    """Opens a storage; a class, so that it can be sent to another process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self) -> Storage:
        return open_storage(self._url)


# --- what is opened


def test_a_url_names_a_name_node_and_a_folder() -> None:
    assert open_storage("hdfs://host:8020/a//b/./c/") == open_storage("hdfs://host:8020/a/b/c")
    for url in ("hdfs:///a", "hdfs://host/a/../b"):
        with pytest.raises(UsageError, match="expected hdfs://HOST:PORT/PATH"):
            open_storage(url)


def test_only_the_url_travels() -> None:
    storage = HdfsStorage("hdfs://host:8020/t")
    assert pickle.loads(pickle.dumps(storage)) == storage
    assert len(pickle.dumps(storage)) < 200


def test_a_name_service_without_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(UsageError, match="hdfs-site"):
        HdfsStorage("hdfs://lake/t").find("x")


def test_a_name_node_that_does_not_answer_is_no_missing_file() -> None:
    with pytest.raises(StorageError) as failure:
        HdfsStorage("hdfs://127.0.0.1:1/t").find("x")
    assert not isinstance(failure.value, MissingFileError)


# --- names and listings


@pytest.mark.deep
@pytest.mark.parametrize("name", ["a%20b", "a b", "k=v", "a+b#c", "é", "a%2Fb", "[x]{y}*?"])
def test_names_are_as_they_are(name: str, hdfs_storage: HdfsStorage) -> None:
    hdfs_storage.put_if_absent(f"{name}/{name}", b"1")
    assert [e.name for e in hdfs_storage.list(name)] == [name]
    assert [path for path, _ in hdfs_storage.list_below(name)] == [name]
    assert hdfs_storage.read(f"{name}/{name}") == b"1"


@pytest.mark.deep
@pytest.mark.parametrize("name", ["a:b", "a\0b", "a\udc80"])
def test_impossible_names_are_errors(name: str, hdfs_storage: HdfsStorage) -> None:
    with pytest.raises(StorageError):
        hdfs_storage.put_if_absent(name, b"1")


@pytest.mark.deep
def test_a_file_is_no_folder(hdfs_storage: HdfsStorage) -> None:
    hdfs_storage.put_if_absent("f", b"")
    with pytest.raises(StorageError, match="a file, not a folder"):
        hdfs_storage.list("f")
    with pytest.raises(StorageError):
        hdfs_storage.put_if_absent("f/x", b"")
    with pytest.raises(StorageError):
        hdfs_storage.place("f", "f/x")


@pytest.mark.deep
def test_a_listing_of_many_files_is_whole(hdfs: Hdfs, hdfs_storage: HdfsStorage) -> None:
    """The name node lists a thousand at a time."""
    hdfs_storage.make_folder("d")
    client, folder = hdfs.client, hdfs_storage.base_path.removeprefix(hdfs.url)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: client.create(f"{folder}/d/{number:05}").close(), range(1050)))
    assert [e.name for e in hdfs_storage.list("d")] == [f"{number:05}" for number in range(1050)]


@pytest.mark.deep
def test_no_checksum_files_are_made(hdfs_storage: HdfsStorage) -> None:
    with staged_output(hdfs_storage, "d/x") as file:
        file.write(b"data")
    hdfs_storage.overwrite("d/y", b"data")
    assert [e.name for e in hdfs_storage.list("d")] == ["x", "y"]


# --- files


@pytest.mark.deep
def test_a_large_file_is_read_by_ranges(hdfs_storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 40_000
    with staged_output(hdfs_storage, "x") as file:
        file.write(data[:5])
        file.write(memoryview(data)[5:])
        assert file.tell() == len(data)
    monkeypatch.setattr(hdfs_files, "_WHOLE_BYTES", 1000)
    with hdfs_storage.open_input("x") as found:
        assert found.size() == len(data)
        with ThreadPoolExecutor(4) as pool:
            at = range(0, len(data), 99_999)
            assert list(pool.map(lambda n: found.read_at(1000, n), at)) == [data[n : n + 1000] for n in at]


@pytest.mark.deep
@pytest.mark.parametrize("written", [b"", b"half", b"x" * 3_000_000])
def test_an_abandoned_output_is_removed(written: bytes, hdfs_storage: HdfsStorage) -> None:
    """It is seen while it grows, so only under its staged name; a name of its own can be used again."""

    def write() -> None:
        with staged_output(hdfs_storage, "staged/x") as file:
            file.write(written)
            assert hdfs_storage.find("staged/x") is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert hdfs_storage.list("staged") == []
    with staged_output(hdfs_storage, "staged/x") as file:
        file.write(b"whole")
    assert hdfs_storage.read("staged/x") == b"whole"


@pytest.mark.deep
def test_a_writer_whose_file_was_swept_cannot_finish(hdfs_storage: HdfsStorage) -> None:
    def write() -> None:
        with staged_output(hdfs_storage, "staged") as file:
            file.write(b"half")
            hdfs_storage.delete("staged")

    with pytest.raises(StorageError):
        write()
    assert hdfs_storage.find("staged") is None


@pytest.mark.deep
def test_abandoning_an_output_that_was_swept_is_no_error_of_its_own(hdfs_storage: HdfsStorage) -> None:
    def write() -> None:
        with staged_output(hdfs_storage, "staged") as file:
            file.write(b"half")
            hdfs_storage.delete("staged")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()


@pytest.mark.deep
def test_a_placed_file_has_left_its_staged_name(hdfs_storage: HdfsStorage) -> None:
    """A second placing finds it; the next staged file does not replace it."""
    hdfs_storage.put_if_absent("staged", b"1")
    assert hdfs_storage.place("staged", "final")
    assert hdfs_storage.find("staged") is None
    assert not hdfs_storage.place("staged", "final")
    assert hdfs_storage.read("final") == b"1"


@pytest.mark.deep
def test_the_probe_of_any_table_runs_here(hdfs_storage: HdfsStorage) -> None:
    probe(hdfs_storage)
    probe_partitions(hdfs_storage, ["p=1", ""])
    assert hdfs_storage.list(TEMPORARY) == []


# --- answers that are lost


class Faulty:
    """A client whose next renames are done, or not, and answered otherwise."""

    def __init__(self, client: Any, rename: Callable[[Any, tuple[Any, ...]], None]) -> None:
        self._client, self._rename = client, rename

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        self._rename(self._client, (source, target, overwrite))


def twice(client: Any, args: tuple[Any, ...]) -> None:
    """The first answer is lost, and the client sends the call again."""
    client.rename(*args)
    client.rename(*args)


def cut(client: Any, args: tuple[Any, ...]) -> None:
    """Done, and the connection ends."""
    client.rename(*args)
    raise RuntimeError("connection reset")


def refused(client: Any, args: tuple[Any, ...]) -> None:
    """Not done."""
    raise RuntimeError("the name node is in safe mode")


def gone(client: Any, args: tuple[Any, ...]) -> None:
    """A sweep removes the temporary file; another process puts the same bytes."""
    client.delete(args[0])
    client.create(args[1]).close()
    client.rename(*args)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Gives all clients a fault."""
    real = hdfs_client.open_client

    def use(rename: Callable[[Any, tuple[Any, ...]], None]) -> None:
        monkeypatch.setattr(hdfs_store, "open_client", lambda authority: Faulty(real(authority), rename))

    yield use
    monkeypatch.setattr(hdfs_store, "open_client", real)


@pytest.mark.deep
@pytest.mark.parametrize("fault", [twice, cut])
def test_an_own_put_whose_answer_is_lost_is_known(fault: Any, hdfs_storage: HdfsStorage, faulty: Any) -> None:
    faulty(fault)
    assert hdfs_storage.put_if_absent("x", b"1")
    assert not hdfs_storage.put_if_absent("x", b"1")
    hdfs_storage.overwrite("x", b"2")
    assert hdfs_storage.read("x") == b"2"
    assert hdfs_storage.list(TEMPORARY) == []


@pytest.mark.deep
def test_a_put_that_was_not_done_is_an_error_and_never_done_later(hdfs_storage: HdfsStorage, faulty: Any) -> None:
    faulty(refused)
    for operation in (hdfs_storage.put_if_absent, hdfs_storage.overwrite):
        with pytest.raises(StorageError, match="safe mode"):
            operation("x", b"1")
    assert hdfs_storage.find("x") is None
    assert hdfs_storage.list(TEMPORARY) == []


@pytest.mark.deep
def test_a_put_of_unknown_outcome_is_an_error(hdfs_storage: HdfsStorage, faulty: Any) -> None:
    """Another process put the same bytes: the object is not this one's."""
    faulty(gone)
    with pytest.raises(StorageError, match="not known"):
        hdfs_storage.put_if_absent("x", b"")


@pytest.mark.deep
@pytest.mark.parametrize("fault", [twice, cut])
def test_a_placed_file_whose_answer_is_lost_is_placed(fault: Any, hdfs_storage: HdfsStorage, faulty: Any) -> None:
    hdfs_storage.put_if_absent("staged", b"12345")
    faulty(fault)
    if fault is twice:
        assert not hdfs_storage.place("staged", "final")
    else:
        with pytest.raises(StorageError):
            hdfs_storage.place("staged", "final")
    assert hdfs_storage.read("final") == b"12345"


@pytest.mark.deep
def test_one_of_64_wins(hdfs_storage: HdfsStorage) -> None:
    def put(number: int, path: str, ready: threading.Barrier) -> bool:
        ready.wait(60)
        return hdfs_storage.put_if_absent(path, str(number).encode())

    with ThreadPoolExecutor(64) as pool:
        for path in ("x", "y", "z"):
            ready = threading.Barrier(64)
            won = [n for n, win in enumerate(pool.map(lambda n, p=path, r=ready: put(n, p, r), range(64))) if win]
            assert len(won) == 1
            assert hdfs_storage.read(path) == str(won[0]).encode()
    assert hdfs_storage.list(TEMPORARY) == []


# --- locks and leases


def test_the_table_lock_must_be_one_that_hudi_shares() -> None:
    storage = HdfsStorage("hdfs://host:8020/t")
    for given in (None, "storage", "file:/tmp/lock"):
        with pytest.raises(UsageError, match="zookeeper:HOST"):
            table_lock(storage, given)
    with pytest.raises(UsageError, match="zookeeper:HOST"):
        table_lock(storage, "storage", sole_writer=True)
    assert isinstance(table_lock(storage, None, sole_writer=True), StorageLock)
    table_lock(storage, "zookeeper:host:2181/locks/t")


@pytest.mark.deep
def test_one_holds_a_lease(hdfs_storage: HdfsStorage) -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def work(_: int) -> None:
        with HdfsStorage(hdfs_storage.base_path).hold("lease", 120, BUSY):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert most == [1]
    assert len(hdfs_storage.list("lease")) <= 4


@pytest.mark.deep
def test_a_held_lease_is_busy_while_it_is_renewed(hdfs_storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_lease, "VALID_S", 20.0)
    monkeypatch.setattr(hdfs_lease, "RENEW_S", 0.2)
    with (
        hdfs_storage.hold("lease", 0, BUSY),
        pytest.raises(LockError, match="held by another"),
        hdfs_storage.hold("lease", 22, BUSY),
    ):
        raise AssertionError
    with hdfs_storage.hold("lease", 0, BUSY):
        pass


@pytest.mark.deep
def test_the_lease_of_a_dead_holder_is_free_at_last(hdfs_storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number stays; a holder that wakes does not take it back, and gives back only its own."""
    monkeypatch.setattr(hdfs_lease, "RENEW_S", 1000.0)
    with hdfs_storage.hold("lease", 0, BUSY):
        with pytest.raises(LockError), hdfs_storage.hold("lease", 0, BUSY):
            raise AssertionError
        monkeypatch.setattr(hdfs_lease, "VALID_S", -1.0)  # its time is over
        with hdfs_storage.hold("lease", 60, BUSY):
            monkeypatch.setattr(hdfs_lease, "VALID_S", 1000.0)
            with pytest.raises(LockError), hdfs_storage.hold("lease", 0, BUSY):
                raise AssertionError
    with hdfs_storage.hold("lease", 0, BUSY):
        pass


@pytest.mark.deep
def test_a_lease_is_not_held_once_its_time_is_over_or_another_has_it(
    hdfs_storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it held again by a renewal that came too late."""
    monkeypatch.setattr(hdfs_lease, "RENEW_S", 0.1)
    with hdfs_storage.hold("lease", 0, BUSY) as is_held:
        assert is_held()
        monkeypatch.setattr(hdfs_lease, "VALID_S", 0.5)
        assert not is_held()
        wait_until(lambda: not any(thread.name == "lease-lease" for thread in threading.enumerate()))
        monkeypatch.setattr(hdfs_lease, "VALID_S", 1000.0)
        assert not is_held()
    monkeypatch.undo()
    monkeypatch.setattr(hdfs_lease, "RENEW_S", 0.1)
    with hdfs_storage.hold("lease", 0, BUSY) as is_held:
        number = max(int(e.name) for e in hdfs_storage.list("lease") if e.name.isdecimal())
        hdfs_storage.put_if_absent(f"lease/{number + 1}", b"")
        wait_until(lambda: not is_held())


@pytest.mark.deep
def test_a_held_lease_is_put_anew(hdfs_storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_lease, "RENEW_S", 0.05)

    def put_ms() -> int:
        entry = hdfs_storage.find("lease/1")
        assert entry is not None
        return entry.modified_ms

    with hdfs_storage.hold("lease", 0, BUSY):
        first = put_ms()
        wait_until(lambda: put_ms() != first)
