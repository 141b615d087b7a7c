"""Whether a lease is still held, as the section under it is told."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from phantombase.timeline import clocks
from phantombase.timeline.clocks import Retry
from phantombase.timeline.errors import ClockError, LockError
from phantombase.timeline.storage import object_lease, server_clock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.object_clients import forget
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.server_clock import ahead_of, storage_ms
from phantombase.timeline.storage.staged_file import probe
from tests.support.clock import Clock, calls_of
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.servers.zookeeper_server import wait_until
from tests.world.simulation.memory_storage import MemoryStorage

BUSY = LockError("held by another process")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """With leases that are renewed often."""
    monkeypatch.setattr(object_lease, "LEASE_AGAIN", Retry((0.0,) * 3))
    monkeypatch.setattr(object_lease, "RENEW_S", 0.02)
    found = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    probe(found)
    return found


def renews(asked: Asked) -> bool:
    return asked.method == "PUT" and asked.path.endswith("/lock")


def is_new(storage: ObjectStorage, clock: Clock) -> bool:
    """Whether the lease was just renewed."""
    return int(json.loads(storage.read("lock"))["validUntil"]) > clock.now_ms() + 40_000


def test_a_lease_that_was_just_taken_does_not_look_free(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VersityGW may answer a read with the content before a change and the tag after it: the put would replace it."""
    monkeypatch.setattr(object_lease, "RENEW_S", 600)
    with storage.hold("lock", 0, BUSY):
        pass
    free, real, torn = storage.read("lock"), obstore.get, [False, True]

    def get(store: Any, key: str, **more: Any) -> Any:
        found = real(store, key, **more)
        return (
            SimpleNamespace(meta=found.meta, bytes=lambda: free)
            if key.endswith("/lock") and torn and torn.pop()
            else found
        )

    forget()
    with storage.hold("lock", 0, BUSY) as is_held:
        monkeypatch.setattr(object_lease, "READ_AGAIN", Retry((0.0,)))
        monkeypatch.setattr(obstore, "get", get)
        with pytest.raises(LockError, match="another"), ObjectStorage(storage.base_path).hold("lock", 0, BUSY):
            pass
        assert is_held()
        assert torn == []


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST])
def test_a_renewed_lease_is_held(storage: ObjectStorage, s3: S3Server, clock: Clock, fault: Fault) -> None:
    """Also where the answer is lost: it is read back."""
    with storage.hold("lock", 0, BUSY) as is_held:
        s3.faults = lambda asked: fault if renews(asked) else Fault.NONE
        for _ in range(4):  # a lease is for 45 s
            clock.passed_s += 20
            assert is_held()
            wait_until(lambda: is_new(storage, clock))
        s3.faults = lambda asked: Fault.NONE


def test_a_lease_whose_renewals_are_refused_is_lost_before_others_take_it(
    storage: ObjectStorage, s3: S3Server, clock: Clock
) -> None:
    with storage.hold("lock", 0, BUSY) as is_held:
        s3.faults = lambda asked: Fault.SLOW_DOWN if renews(asked) else Fault.NONE
        wait_until(lambda: any(map(renews, s3.asked)))
        clock.passed_s += 30
        assert is_held()
        clock.passed_s += 14.5
        assert not is_held()
        s3.faults = lambda asked: Fault.NONE


@pytest.mark.parametrize("stolen", [True, False])
def test_a_lease_that_another_has_or_nobody_is_lost_with_the_next_renewal(
    storage: ObjectStorage, clock: Clock, stolen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody: Hudi's overwrite of a whole table takes the lock away with it."""
    monkeypatch.setattr(object_lease, "VALID_S", 1000.0)  # its time alone does not end it
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()
        if stolen:
            theirs = {"expired": False, "validUntil": clock.now_ms() + 60_000, "owner": "x"}
            storage.overwrite("lock", json.dumps(theirs).encode())
        else:
            storage.delete("lock")
        wait_until(lambda: not is_held())
    if stolen:
        assert json.loads(storage.read("lock"))["owner"] == "x"


@pytest.mark.parametrize("clock_name", ["time", "monotonic"])
def test_a_process_that_slept_past_the_end_has_lost_its_lease(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, clock_name: str
) -> None:
    """One of the two clocks may stand while the machine sleeps; it is known before any request."""
    monkeypatch.setattr(object_lease, "RENEW_S", 60)
    monkeypatch.setattr(clocks, "_SET_S", 1000.0)  # that rule has a test of its own
    real = getattr(time, clock_name)
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()
        with monkeypatch.context() as patch:
            patch.setattr(time, clock_name, lambda: real() + 44.5)
            assert not is_held()


def test_a_try_to_take_it_that_came_late_is_ones_own(storage: ObjectStorage, s3: S3Server) -> None:
    """It had no answer, and nothing was there when it was looked for: not another's lock."""
    lease = object_lease._Lease(storage.clients, storage.key("lock"))
    assert lease.try_take()
    assert lease.try_take()
    assert not object_lease._Lease(storage.clients, storage.key("lock")).try_take()


def test_an_answer_that_is_lost_each_time_is_no_refusal(storage: ObjectStorage, s3: S3Server) -> None:
    """What is there tells, after the first request."""
    s3.faults = lambda asked: Fault.LOST if renews(asked) else Fault.NONE
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()
    assert json.loads(storage.read("lock"))["expired"]


def test_a_lease_whose_renewal_came_late_is_renewed_again(storage: ObjectStorage, clock: Clock) -> None:
    """It had no effect when it was looked for, and has one now: what is there is ours, of a version not known yet."""
    lease = object_lease._Lease(storage.clients, storage.key("lock"))
    assert lease.try_take()
    late = {**json.loads(storage.read("lock")), "validUntil": clock.now_ms() + 20_000}
    storage.overwrite("lock", json.dumps(late).encode())
    lease.renew()
    assert not lease.lost
    assert is_new(storage, clock)


@pytest.mark.parametrize("by_s", [10, -10])
def test_a_clock_that_is_set_ends_the_lease(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    """The times in it are that clock's: no other process is told a wrong one."""
    real, renewed = time.time, calls_of(object_lease._Lease, "renew", monkeypatch)
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: real() + by_s)
            assert not is_held()
            renewed(1)  # one may have been under way
            there = storage.read("lock")
            renewed(2)
            assert storage.read("lock") == there


def test_what_this_process_gave_back_it_takes_by_one_request(storage: ObjectStorage, s3: S3Server) -> None:
    """A version that nobody has replaced since is free."""
    with storage.hold("lock", 0, BUSY):
        pass
    first = len(s3.asked)
    with storage.hold("lock", 0, BUSY) as is_held:
        asked = [a.method for a in s3.asked[first:]]
        assert is_held()
    assert asked[:1] == ["PUT"]
    assert "GET" not in asked


def test_what_it_gave_back_and_another_has_since_is_busy(storage: ObjectStorage) -> None:
    """And free again later, also where it is gone."""
    with storage.hold("lock", 0, BUSY):
        pass
    theirs = json.dumps({"expired": False, "validUntil": round(time.time() * 1000) + 40_000, "owner": "another"})
    storage.overwrite("lock", theirs.encode())
    with pytest.raises(LockError, match="held by another"), storage.hold("lock", 0, BUSY):
        pass
    assert storage.read("lock") == theirs.encode()
    storage.delete("lock")
    for _ in range(2):
        with storage.hold("lock", 0, BUSY) as is_held:
            assert is_held()
        storage.delete("lock")


# The clock of a storage against this process's: ages go by the one, and a lease needs both to agree.


NOW_MS = 1_795_000_000_000


@pytest.fixture
def timed_storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    forget()
    return ObjectStorage(f"s3://{s3.new_bucket()}/t")


class Rounding(MemoryStorage):
    """An object store: its times are whole seconds."""

    is_file_system = False


def test_the_time_of_a_new_file() -> None:
    """Nothing is left of it."""
    timed_storage = MemoryStorage(lambda: NOW_MS)
    assert storage_ms(timed_storage) == NOW_MS
    assert timed_storage.fingerprint == 0


@pytest.mark.parametrize("ahead_ms", [-2500, 0, 2500])
@pytest.mark.parametrize("within_ms", [0, 1, 999])
def test_how_far_the_clock_is_ahead(ahead_ms: int, within_ms: int) -> None:
    """Where times are rounded down, it is known to within that second."""
    there = NOW_MS + within_ms
    exact = ahead_of(MemoryStorage(lambda: there), lambda: there + ahead_ms)
    assert (exact.least_ms, exact.most_ms) == (ahead_ms, ahead_ms)
    rounded = ahead_of(Rounding(lambda: NOW_MS), lambda: there + ahead_ms)
    assert rounded.least_ms <= ahead_ms <= rounded.most_ms
    assert rounded.most_ms - rounded.least_ms == 1000


def skewed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """This process's clock is that far ahead from now on."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


@pytest.mark.parametrize(("seconds", "side"), [(600, "ahead"), (-600, "behind"), (13, "ahead"), (-13, "behind")])
def test_a_process_whose_clock_is_wrong_takes_no_lease(
    timed_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, seconds: float, side: str
) -> None:
    """It would take a live one for ended, or hold one that ends at once for others. The live one stays as it is."""
    with timed_storage.hold("lock", 0, BUSY) as is_held:
        before = timed_storage.read("lock")
        with monkeypatch.context() as patch:
            forget()  # as another process
            skewed(patch, seconds)
            with pytest.raises(ClockError, match=rf"at most 10 s; found 1?\d+ s {side}|found \d+ s {side}"):
                timed_storage.hold("lock", 0, BUSY)
        assert timed_storage.read("lock") == before
        assert is_held()


@pytest.mark.parametrize("seconds", [5, -5])
def test_a_clock_that_is_nearly_right_will_do(
    timed_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A live lease is at least half a minute from its end."""
    skewed(monkeypatch, seconds)
    with timed_storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()


def test_trying_a_store_compares_the_clocks(timed_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an object that is put anyway. Clocks that differ are compared again where it matters."""
    monkeypatch.setattr(server_clock, "storage_ms", lambda _: pytest.fail("compared again"))
    timed_storage.verify()
    with timed_storage.hold("lock", 0, BUSY):
        pass


def test_trying_a_store_does_not_hide_a_wrong_clock(
    timed_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    skewed(monkeypatch, 20)
    timed_storage.verify()
    with pytest.raises(ClockError):
        timed_storage.hold("lock", 0, BUSY)


def test_clocks_are_compared_once(timed_storage: ObjectStorage, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a while; again once a clock was set, and after the while."""
    compared: list[int] = []
    real = server_clock.storage_ms

    def counted(storage: Storage) -> int:
        compared.append(1)
        return real(storage)

    timed_storage.verify()
    forget()
    monkeypatch.setattr(server_clock, "storage_ms", counted)
    for _ in range(3):
        with timed_storage.hold("lock", 0, BUSY):
            pass
    assert len(compared) == 1
    with monkeypatch.context() as patch:
        skewed(patch, 5)
        with timed_storage.hold("lock", 0, BUSY):
            pass
    assert len(compared) == 2
    with monkeypatch.context() as patch:
        patch.setattr(server_clock, "_COMPARED_S", 0.0)
        skewed(patch, 5)
        with timed_storage.hold("lock", 0, BUSY):
            pass
        with timed_storage.hold("lock", 0, BUSY):
            pass
    assert len(compared) == 4


@pytest.mark.parametrize("seconds", [600, -600])
def test_a_clock_that_is_set_in_a_section(
    timed_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The lease counts as lost at once, and is not renewed by that clock; it is given back all the same."""
    monkeypatch.setattr(object_lease, "RENEW_S", 0.05)
    renewed = calls_of(object_lease._Lease, "renew", monkeypatch)
    with timed_storage.hold("lock", 0, BUSY) as is_held, monkeypatch.context() as patch:
        assert is_held()
        skewed(patch, seconds)
        assert not is_held()
        renewed(1)  # one may have been under way
        before = timed_storage.read("lock")
        renewed(2)
        assert timed_storage.read("lock") == before
    assert b'"expired":true' in timed_storage.read("lock")
