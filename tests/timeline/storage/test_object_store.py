"""An object store keeps what every storage must keep, also where answers are lost; one that cannot is refused."""

from __future__ import annotations

import gc
import io
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.parquet
import pytest
from obstore.exceptions import GenericError

from phantombase.timeline.clocks import Retry, clock_ms
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches, readable
from phantombase.timeline.errors import LockError, MissingFileError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.locks.table_lock import HUDI_LOCK, StorageLock, table_lock
from phantombase.timeline.storage import object_clients, object_lease, object_store
from phantombase.timeline.storage.contract import Storage, open_listed
from phantombase.timeline.storage.object_clients import forget
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.staged_file import place_staged, probe, probe_partitions, staged_output
from phantombase.timeline.storage.storage_options import StorageOptions
from tests.support.clock import sleeps
from tests.support.selection import ALL
from tests.support.servers import fault_proxy as spoilt
from tests.support.servers.azure_server import AzureServer
from tests.support.servers.fault_proxy import FaultProxy, Kind, of_kind
from tests.support.servers.gcs_server import GcsServer
from tests.support.servers.real_s3_server import BUILT, KMS_KEY, RealS3Server
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.storage_contract import BetweenProcesses, StorageContract
from tests.support.storage_contract import no_pauses as no_pauses

BUSY = LockError("held by another process")


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3://{s3.new_bucket()}/tables/a b+c%é"


@pytest.fixture
def storage(url: str) -> ObjectStorage:
    return ObjectStorage(url)


class TestObjectStorage(StorageContract, BetweenProcesses):
    """S3."""

    @pytest.fixture
    def storage(self, url: str) -> Storage:
        return ObjectStorage(url)

    @pytest.fixture
    def opener(self, url: str) -> Callable[[], Storage]:
        return Reopen(url)

    def test_a_file_is_given_a_time(self, storage: Storage) -> None:
        """Only by the store: refused."""
        storage.put_if_absent("a/x", b"data")
        with pytest.raises(StorageError, match="times itself"):
            storage.set_modified("a/x", 1_234_567_890_123)
        with pytest.raises(MissingFileError):
            storage.set_modified("a/y", 0)


class Reopen:
    """Opens an object store; a class, so that it can be sent to another process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self) -> Storage:
        return open_storage(self._url)


# --- what is opened


def test_both_schemes_are_one_place(s3: S3Server) -> None:
    one, other = open_storage("s3://bucket/a/t/"), open_storage("s3a://bucket/a/t")
    assert one.location == other.location == "s3://bucket/a/t"
    assert other.base_path == "s3a://bucket/a/t"


def test_no_secret_travels(storage: ObjectStorage) -> None:
    """A task opens the storage with what its own process knows."""
    sent = pickle.dumps(storage)
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in sent
    assert pickle.loads(sent) == storage


def test_impossible_settings(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no bucket"):
        open_storage("s3://")


# --- folders that are only names


def test_a_folder_without_objects_is_none(storage: ObjectStorage) -> None:
    storage.make_folder("d")
    assert storage.find("d") is None
    storage.put_if_absent("d/x", b"")
    storage.delete("d/x")
    with pytest.raises(MissingFileError):
        storage.list("d")


def test_markers_of_folders_are_no_files(storage: ObjectStorage, s3: S3Server) -> None:
    """Hadoop leaves `d/` where a folder is empty."""
    s3.put(f"{storage.clients.bucket}/{storage.prefix}/d/sub/", b"")
    s3.put(f"{storage.clients.bucket}/{storage.prefix}/d/", b"")
    assert [(e.name, e.is_folder) for e in storage.list("d")] == [("sub", True)]
    assert storage.list("d/sub") == []
    found = storage.find("d/sub")
    assert found is not None
    assert found.is_folder


def test_a_name_is_a_folder_or_a_file(storage: ObjectStorage) -> None:
    """An empty object beside a folder of its name marks the folder."""
    storage.put_if_absent("d/sub", b"")
    storage.put_if_absent("d/sub/x", b"")
    assert [(e.name, e.is_folder) for e in storage.list("d")] == [("sub", True)]


# --- answers that are lost


def at(what: Callable[[Asked], bool], fault: Fault, times: int = 1) -> Callable[[Asked], Fault]:
    """That fault for the first requests of a kind."""
    left = [times]

    def faults(asked: Asked) -> Fault:
        if left[0] and what(asked):
            left[0] -= 1
            return fault
        return Fault.NONE

    return faults


def puts(asked: Asked) -> bool:
    return asked.method == "PUT" and asked.path.endswith("/x")


def completions(asked: Asked) -> bool:
    return asked.method == "POST" and "uploadId" in asked.query


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT, Fault.SLOW_DOWN, Fault.CONFLICT])
@pytest.mark.parametrize("times", [1, 3])
def test_a_put_is_asked_for_until_its_outcome_is_known(
    storage: ObjectStorage, s3: S3Server, fault: Fault, times: int
) -> None:
    """Never "another was first" because of its own object, nor because of a conflict that left nothing."""
    probe(storage)
    s3.faults = at(puts, fault, times)
    assert storage.put_if_absent("x", b"mine")
    s3.faults = at(puts, fault)
    assert not storage.put_if_absent("x", b"other")
    assert storage.read("x") == b"mine"


def test_a_put_whose_outcome_stays_unknown_is_an_error(storage: ObjectStorage, s3: S3Server) -> None:
    probe(storage)
    s3.faults = lambda asked: Fault.SLOW_DOWN if puts(asked) else Fault.NONE
    with pytest.raises(StorageError, match=r"not known.*SlowDown"):
        storage.put_if_absent("x", b"mine")
    assert storage.find("x") is None


def test_puts_race_while_answers_are_lost(storage: ObjectStorage, s3: S3Server) -> None:
    """One winner, whatever is lost."""
    probe(storage)
    asked = count()

    def every_third(request: Asked) -> Fault:
        return (Fault.LOST, Fault.CUT, Fault.NONE)[next(asked) % 3] if request.method == "PUT" else Fault.NONE

    for number in range(10):
        s3.faults = every_third
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda i, n=number: storage.put_if_absent(f"r/{n}", bytes([i])), range(8)))
        s3.faults = lambda asked: Fault.NONE
        assert won.count(True) == 1
        assert storage.read(f"r/{number}") == bytes([won.index(True)])


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT])
def test_a_placed_file_whose_answer_is_lost(storage: ObjectStorage, s3: S3Server, fault: Fault) -> None:
    """The call says that it does not know; the step above looks."""
    with staged_output(storage, "staged") as file:
        file.write(b"bytes")
    probe(storage)
    s3.faults = at(completions, fault)
    with pytest.raises(StorageError, match="not known"):
        storage.place("staged", "p/x")
    s3.faults = at(completions, fault)
    place_staged(storage, "staged", "p/y", 5)
    assert storage.read("p/x") == storage.read("p/y") == b"bytes"


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.CONFLICT])
def test_a_place_that_took_no_effect_is_asked_for_again(storage: ObjectStorage, s3: S3Server, fault: Fault) -> None:
    storage.put_if_absent("staged", b"bytes")
    s3.faults = at(completions, fault)
    assert storage.place("staged", "p/x")
    assert storage.read("p/x") == b"bytes"


def test_what_is_forbidden_is_not_asked_for_again(storage: ObjectStorage, s3: S3Server) -> None:
    probe(storage)
    s3.asked.clear()
    with pytest.raises(StorageError):
        ObjectStorage("s3://no-such-bucket-here/t").put_with_id("x", b"")
    assert len([a for a in s3.asked if a.method == "PUT"]) == 1


# --- outputs


def test_nothing_is_seen_of_an_output_before_its_end(storage: ObjectStorage) -> None:
    """Also of one of several parts; given up or forgotten, nothing ever is."""
    part = b"x" * (5 << 20)
    for end in ("given up", "forgotten", "whole"):
        file = storage.open_output("staged")
        for _ in range(4):
            file.write(part)
        assert storage.find("staged") is None
        if end == "given up":
            storage.abort_output(file)
        if end == "whole":
            storage.close_output(file)
        del file
        gc.collect()
        assert (storage.find("staged") is not None) == (end == "whole")
    assert storage.read("staged") == part * 4


@pytest.mark.parametrize("fault", [spoilt.Fault.LOST_500, spoilt.Fault.LOST])
def test_a_completion_whose_answer_is_lost(url: str, faulty_s3: FaultProxy, fault: spoilt.Fault) -> None:
    """A store that forgets completed uploads says of the second try: no such upload."""
    storage = ObjectStorage(url)
    faulty_s3.faults = of_kind(Kind.COMPLETE, fault, spoilt.Fault.GONE)
    with staged_output(storage, "staged") as file:
        for _ in range(3):
            file.write(b"x" * (8 << 20))
    found = storage.find("staged")
    assert found is not None
    assert found.size == 24 << 20


@pytest.mark.parametrize("there", [b"", b"another"])
def test_an_upload_that_was_aborted_meanwhile(url: str, faulty_s3: FaultProxy, there: bytes) -> None:
    """By a rule of the bucket: an error, whatever is there."""
    storage = ObjectStorage(url)
    faulty_s3.faults = of_kind(Kind.COMPLETE, spoilt.Fault.GONE)
    file = storage.open_output("staged")
    for _ in range(3):
        file.write(b"x" * (8 << 20))
    if there:
        storage.overwrite("staged", there)
    with pytest.raises(OSError, match="404"):
        storage.close_output(file)


def test_a_file_that_could_not_be_placed_is_not_written(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_clients, "_BYTES_MAX", 10)
    with staged_output(storage, "fits") as file:
        file.write(b"x" * 10)
    with pytest.raises(StorageError, match="at most 10 bytes"), staged_output(storage, "staged") as file:
        file.writelines([b"x" * 6, b"x" * 5])
    assert storage.find("staged") is None


def test_a_large_object_is_read_by_ranges(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 20_000
    storage.put_if_absent("x", data)
    monkeypatch.setattr(object_clients, "_WHOLE_BYTES", 1000)
    with storage.open_input("x") as file:
        assert file.size() == len(data)
        assert bytes(file.read_at(10, 4_000_001)) == data[4_000_001:4_000_011]
        file.seek(5)
        assert bytes(file.read_buffer(3_000_000)) == data[5:3_000_005]


def _refused(_: object) -> object:
    raise GenericError("416 Range Not Satisfiable")


@pytest.mark.parametrize(
    "answer", [lambda found: [bytes(one)[:-1] for one in found], lambda found: [*found][1:], _refused]
)
@pytest.mark.parametrize("times", [2, 99])
def test_a_range_that_is_answered_with_other_bytes(
    times: int, answer: Callable[[Any], Any], storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again, and then an error of the storage: also behind the reader of Parquet, and of text."""
    out = io.BytesIO()
    table = pa.table({"n": range(100_000), "t": [str(n) for n in range(100_000)]})
    pa.parquet.write_table(table, out, row_group_size=30_000, compression="none", use_dictionary=False)
    storage.put_if_absent("x", out.getvalue())
    monkeypatch.setattr(object_clients, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(object_clients, "_END_BYTES", 10_000)
    monkeypatch.setattr(object_clients, "READ_AGAIN", Retry((0, 0)))
    left, real = [times], obstore.get_ranges

    def odd(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        found = real(*given, **named)
        return answer(found) if left[0] >= 0 else found

    monkeypatch.setattr(obstore, "get_ranges", odd)
    for whole in (True, False):
        left[0] = times

        def read(whole: bool = whole) -> pa.Table:
            with storage.open_input("x", whole=whole) as source, readable("base file", "x"):
                return pa.Table.from_batches(parquet_batches(source, open_parquet(source), table.column_names, 10_000))

        if times > 2:
            with pytest.raises(StorageError, match=r"storage failed.*/x; found"):
                read()
        else:
            assert read().equals(table)


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_is_shorter_than_its_listing_says(whole: bool, storage: ObjectStorage) -> None:
    """A server that ends the answer early, and gives that as its length: the end of a log would be missing."""
    storage.put_if_absent("x", b"12345")
    assert open_listed(storage, "x", 5, whole=whole).read() == b"12345"
    with pytest.raises(StorageError, match=r"shorter than its listing says.*expected 6 bytes; found 5 bytes"):
        open_listed(storage, "x", 6, whole=whole)


@pytest.mark.parametrize("whole", [True, False])
def test_an_object_that_goes_while_it_is_read(
    whole: bool, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_if_absent("x", bytes(100_000))
    monkeypatch.setattr(object_clients, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(object_clients, "_END_BYTES", 1000)
    with storage.open_input("x", whole=whole) as file:
        storage.delete("x")
        with pytest.raises(MissingFileError, match=r"no such object.*/x\n"):
            file.read_at(10, 10)


# --- stores that do not keep their promises


@pytest.mark.parametrize(
    ("ignored", "promise"), [("If-None-Match", "put-if-absent.*If-None-Match"), ("If-Match", "replace-if-unchanged")]
)
def test_a_store_that_ignores_conditions_is_refused(s3: S3Server, url: str, ignored: str, promise: str) -> None:
    """Before anything rests on it, by the promise it breaks; nothing is left."""
    s3.ignored = frozenset((ignored,))
    storage = ObjectStorage(url)
    for use in (
        lambda: storage.put_if_absent("x", b""),
        lambda: storage.place("x", "y"),
        lambda: storage.hold("lock", 0, BUSY),
    ):
        with pytest.raises(UnsupportedError, match=promise):
            use()
    assert storage.find("") is None


def test_a_store_that_replaces_when_it_copies_is_refused(s3: S3Server, url: str) -> None:
    s3.ignored, s3.ignored_at = frozenset(("If-None-Match",)), completions
    with pytest.raises(UnsupportedError, match="copy-if-absent"):
        ObjectStorage(url).put_if_absent("x", b"")


def test_promises_are_tried_once(s3: S3Server, url: str) -> None:
    """In a process and bucket, not in each call."""
    ObjectStorage(url).put_if_absent("x", b"")
    s3.asked.clear()
    ObjectStorage(f"{url}/other").put_if_absent("x", b"")
    assert s3.counts() == {"PUT": 1}


def test_each_probed_place_has_a_source_of_its_own(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose `place` takes the source away keeps its promise too."""
    real = ObjectStorage.place

    def moves(self: ObjectStorage, source: str, target: str) -> bool:
        done = real(self, source, target)
        if done:
            self.delete(source)
        return done

    monkeypatch.setattr(ObjectStorage, "place", moves)
    probe(storage)
    probe_partitions(storage, ["p=1", "p=2", "p=3"])
    assert storage.find("") is None


# --- the lock


def test_one_holds_the_lock(storage: ObjectStorage) -> None:
    """Threads of two handles: never two inside."""
    inside, most, gate = 0, 0, threading.Lock()

    def enter(number: int) -> None:
        nonlocal inside, most
        with ObjectStorage(storage.base_path).hold("lock", 60, BUSY):
            with gate:
                inside += 1
                most = max(most, inside)
            with gate:
                inside -= 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(enter, range(12)))
    assert most == 1


def test_a_lock_taken_at_the_second_try_is_held(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one was first, and gave it back in this process; or it would be held by none for its whole time."""
    with storage.hold("lock", 0, BUSY):
        pass
    forget()
    others = iter([True])

    def another_is_first() -> int:
        if not storage.clients.known.comparing.locked() and next(others, False):  # the promises are tried before
            with ObjectStorage(storage.base_path).hold("lock", 0, BUSY):
                pass
        return clock_ms()

    monkeypatch.setattr(object_lease, "clock_ms", another_is_first)
    with storage.hold("lock", 60, BUSY) as is_held:
        assert is_held()
    with storage.hold("lock", 0, BUSY):
        pass


def test_a_held_lock_is_busy(storage: ObjectStorage) -> None:
    with storage.hold("lock", 0, BUSY), pytest.raises(LockError, match="another"), storage.hold("lock", 0.2, BUSY):
        pass
    with storage.hold("lock", 0, BUSY):
        pass


def test_the_lock_of_a_dead_holder_is_free_at_last(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000_000_000]
    monkeypatch.setattr(object_lease, "clock_ms", lambda: now[0])
    storage.overwrite("lock", b'{"expired":false,"validUntil":1000000045000,"owner":"another"}')
    for ms in (0, 45_000, 45_500):
        now[0] = 1_000_000_000_000 + ms
        with pytest.raises(LockError), storage.hold("lock", 0, BUSY):
            pass
    now[0] += 1
    with storage.hold("lock", 0, BUSY):
        assert b'"validUntil":1000000090501' in storage.read("lock")
    assert storage.read("lock").startswith(b'{"expired":true,"validUntil":1000000090501,"owner":"')


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT, Fault.SLOW_DOWN])
def test_a_lock_is_kept_and_given_back_whatever_is_lost(storage: ObjectStorage, s3: S3Server, fault: Fault) -> None:
    probe(storage)

    def locks(asked: Asked) -> bool:
        return asked.method == "PUT" and asked.path.endswith("/lock")

    s3.faults = at(locks, fault, 2 if fault is Fault.SLOW_DOWN else 3)
    with storage.hold("lock", 5, BUSY):
        s3.faults = at(locks, fault, 2 if fault is Fault.SLOW_DOWN else 3)
    with storage.hold("lock", 0, BUSY):
        pass


def test_a_lock_is_renewed(storage: ObjectStorage, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a renewal that was refused."""
    monkeypatch.setattr(object_lease, "RENEW_S", 0.02)
    monkeypatch.setattr(object_lease, "VALID_S", 0.5)
    probe(storage)
    with storage.hold("lock", 0, BUSY):
        s3.faults = at(lambda asked: asked.method == "PUT", Fault.SLOW_DOWN, 2)
        with pytest.raises(LockError), storage.hold("lock", 1.5, BUSY):
            pass


def test_the_table_lock_is_hudis(storage: ObjectStorage) -> None:
    assert table_lock(storage, None) == table_lock(storage, "storage") == StorageLock(storage, HUDI_LOCK)
    with pytest.raises(UsageError, match="lock file excludes only"):
        table_lock(storage, "file:/tmp/lock")
    assert table_lock(storage, "zookeeper:h:1/a/b") is not None


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.CONFLICT])
@pytest.mark.parametrize("there", [b"", b'{"expired":true,"validUntil":0,"owner":"another"}'])
def test_a_free_lock_that_could_not_be_taken_at_once_is_not_busy(
    storage: ObjectStorage, s3: S3Server, there: bytes, fault: Fault
) -> None:
    """A refused request says nothing of other holders."""
    probe(storage)
    with storage.hold("other", 0, BUSY):  # clocks are compared
        pass
    if there:
        storage.overwrite("lock", there)
    s3.faults = at(lambda asked: asked.method == "PUT" and asked.path.endswith("/lock"), fault, 2)
    with storage.hold("lock", 0, BUSY):
        pass


# Other stores are held to what moto is held to: GCS by a stand-in only; with all tests Azurite, and real S3 servers.


_SHARED = (
    test_a_folder_without_objects_is_none,
    test_nothing_is_seen_of_an_output_before_its_end,
    test_a_large_object_is_read_by_ranges,
    test_one_holds_the_lock,
    test_a_held_lock_is_busy,
    test_the_lock_of_a_dead_holder_is_free_at_last,
)
"""What no server of S3 is needed for."""


class OnAnotherStore(TestObjectStorage):
    """The contract, and the promises of all object stores."""

    for _test in _SHARED:
        locals()[_test.__name__] = staticmethod(_test)

    def test_64_race_and_one_wins(self, storage: ObjectStorage) -> None:
        """In every round: puts, and copies."""
        storage.put_if_absent("staged", b"bytes")
        with ThreadPoolExecutor(64) as pool:
            for number in range(5 if ALL else 1):
                put = list(pool.map(lambda i, n=number: storage.put_if_absent(f"put/{n}", bytes([i])), range(64)))
                placed = list(pool.map(lambda _, n=number: storage.place("staged", f"placed/{n}"), range(64)))
                assert (put.count(True), placed.count(True)) == (1, 1)
                assert storage.read(f"put/{number}") == bytes([put.index(True)])

    def test_a_folder_is_removed_while_its_files_are(self, storage: ObjectStorage) -> None:
        """An object that another process has removed does not keep the others."""
        for number in range(5):
            storage.put_if_absent(f"d/{number}", b"x")
        listed = obstore.list
        with pytest.MonkeyPatch.context() as patch:

            def removed_meanwhile(*args: object, **more: object) -> object:
                found = list(listed(*args, **more))  # type: ignore[call-overload]
                storage.delete("d/1")
                return found

            patch.setattr(obstore, "list", removed_meanwhile)
            storage.delete_folder("d")
        assert storage.find("d") is None


@pytest.mark.deep
class TestAzure(OnAnotherStore):
    """Azurite."""

    test_a_name_is_a_folder_or_a_file = staticmethod(test_a_name_is_a_folder_or_a_file)

    @pytest.fixture
    def url(self, azure: AzureServer) -> str:
        return azure.url(azure.new_bucket(), "tables/a b+c%é")

    def test_a_folder_of_hadoop_is_no_file(self, storage: ObjectStorage, azure: AzureServer) -> None:
        """Hadoop marks an empty folder by an empty blob of that name."""
        bucket = storage.clients.bucket
        azure.put(f"{bucket}/{storage.prefix}", b"", hdi_isfolder="true")
        azure.put(f"{bucket}/{storage.prefix}/d", b"", hdi_isfolder="true")
        for folder in ("", "d"):
            found = storage.find(folder)
            assert found is not None
            assert found.is_folder
        assert storage.list("d") == []
        storage.put_if_absent("file", b"")
        found = storage.find("file")
        assert found is not None
        assert not found.is_folder

    @pytest.mark.parametrize("ends", [True, False])
    def test_a_copy_that_goes_on_after_its_answer_is_waited_for(
        self, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, ends: bool
    ) -> None:
        """A pending copy shows an empty blob."""
        storage.put_if_absent("staged", b"bytes")

        def begins(store: object, source: str, target: str, *, overwrite: bool) -> None:
            assert not overwrite
            storage.put_with_id("placed", b"")

        def passes(_: float) -> None:
            if ends:
                storage.overwrite("placed", b"bytes")

        monkeypatch.setattr(obstore, "copy", begins)
        sleeps(monkeypatch, passes)
        monkeypatch.setattr(object_store, "COPY_ENDS", Retry((0.0,) * 7))
        if ends:
            assert storage.place("staged", "placed")
            assert storage.read("placed") == b"bytes"
        else:
            with pytest.raises(StorageError, match="does not end"):
                storage.place("staged", "placed")


class TestVersity(OnAnotherStore):
    """VersityGW, which keeps objects as files: an object `x` or objects below `x/`, not both."""

    pytestmark = BUILT

    @pytest.fixture
    def url(self, versity: RealS3Server) -> str:
        return f"s3://{versity.new_bucket()}/tables/a b+c%é"


class TestLocalStack(OnAnotherStore):
    """LocalStack's S3."""

    pytestmark = BUILT

    @pytest.fixture
    def url(self, localstack: RealS3Server) -> str:
        return f"s3://{localstack.new_bucket()}/tables/a b+c%é"


class TestMinio(OnAnotherStore):
    """MinIO. It lists an object `x` and hides `x/`: no name of Hudi's is both."""

    pytestmark = BUILT

    @pytest.fixture
    def url(self, minio: RealS3Server) -> str:
        return f"s3://{minio.new_bucket()}/tables/a b+c%é"

    @pytest.mark.parametrize("more", [{}, {"sse_kms_key_id": KMS_KEY}], ids=["of S3", "of KMS"])
    def test_what_is_placed_is_encrypted(self, url: str, more: dict[str, str], minio: RealS3Server) -> None:
        """Also a large upload, and a copy within the store."""
        options = {"server_side_encryption": "aws:kms" if more else "AES256", **more}
        storage = ObjectStorage(url, StorageOptions.of(options))
        storage.put_if_absent("small", b"x")
        file = storage.open_output("large")
        for _ in range(4):
            file.write(b"x" * (5 << 20))
        storage.close_output(file)
        storage.place("large", "placed")
        assert storage.read("placed") == b"x" * (20 << 20)
        for name in ("small", "large", "placed"):
            found = minio.client.head_object(Bucket=storage.clients.bucket, Key=storage.key(name))
            assert found["ServerSideEncryption"] == options["server_side_encryption"]


class TestGcs(OnAnotherStore):
    """A stand-in: not proved by a judge."""

    @pytest.fixture
    def url(self, gcs: GcsServer) -> str:
        return "gs://bucket/tables/a b+c%é"


def test_conditions_of_gcs_are_generations(gcs: GcsServer) -> None:
    """What is sent is what Google's pages ask for."""
    storage = ObjectStorage("gs://bucket/tables/a b")
    probe(storage)
    gcs.asked.clear()
    storage.put_if_absent("x", b"data")
    storage.place("x", "y")
    (_, _, put), (_, placed, copy) = (asked for asked in gcs.asked if asked[0] == "PUT")
    assert put["x-goog-if-generation-match"] == copy["x-goog-if-generation-match"] == "0"
    assert "x-goog-meta-putid" in put
    assert placed.endswith("/y")
    assert unquote(copy["x-goog-copy-source"]).startswith("bucket/tables/")


def test_a_gcs_that_ignores_conditions_is_refused(gcs: GcsServer) -> None:
    gcs.ignored = frozenset(("x-goog-if-generation-match",))
    with pytest.raises(UnsupportedError, match=r"put-if-absent.*generation-match"):
        ObjectStorage("gs://another/t").put_if_absent("x", b"")


def test_one_place_has_one_name(azure: AzureServer, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its URL is written."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    urls = (
        "abfs://c@acc.dfs.core.windows.net/a/t",
        "abfss://c@acc.dfs.core.windows.net/a/t/",
        "wasbs://c@acc.blob.core.windows.net/a/t",
        "abfs://c/a/t",
        "az://c/a/t",
    )
    assert {ObjectStorage(url).location for url in urls} == {"abfs://c@acc/a/t"}
    assert ObjectStorage("gs://b/a/t").location == "gs://b/a/t"
