"""The clock of a storage against this process's: ages go by the one, and a lease needs both to agree."""

from __future__ import annotations

import time

import pytest

from phantombase.timeline.errors import ClockError, LockError
from phantombase.timeline.storage import object_lease, server_clock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.object_clients import forget
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.server_clock import ahead_of, storage_ms
from tests.support.clock import calls_of
from tests.support.servers.s3_server import S3Server
from tests.world.simulation.memory_storage import MemoryStorage

BUSY = LockError("held by another process")
NOW_MS = 1_795_000_000_000


@pytest.fixture
def storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    forget()
    return ObjectStorage(f"s3://{s3.new_bucket()}/t")


class Rounding(MemoryStorage):
    """An object store: its times are whole seconds."""

    is_file_system = False


def test_the_time_of_a_new_file() -> None:
    """Nothing is left of it."""
    storage = MemoryStorage(lambda: NOW_MS)
    assert storage_ms(storage) == NOW_MS
    assert storage.fingerprint == 0


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
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, seconds: float, side: str
) -> None:
    """It would take a live one for ended, or hold one that ends at once for others. The live one stays as it is."""
    with storage.hold("lock", 0, BUSY) as is_held:
        before = storage.read("lock")
        with monkeypatch.context() as patch:
            forget()  # as another process
            skewed(patch, seconds)
            with pytest.raises(ClockError, match=rf"at most 10 s; found 1?\d+ s {side}|found \d+ s {side}"):
                storage.hold("lock", 0, BUSY)
        assert storage.read("lock") == before
        assert is_held()


@pytest.mark.parametrize("seconds", [5, -5])
def test_a_clock_that_is_nearly_right_will_do(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A live lease is at least half a minute from its end."""
    skewed(monkeypatch, seconds)
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()


def test_trying_a_store_compares_the_clocks(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an object that is put anyway. Clocks that differ are compared again where it matters."""
    monkeypatch.setattr(server_clock, "storage_ms", lambda _: pytest.fail("compared again"))
    storage.prove()
    with storage.hold("lock", 0, BUSY):
        pass


def test_trying_a_store_does_not_hide_a_wrong_clock(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    skewed(monkeypatch, 20)
    storage.prove()
    with pytest.raises(ClockError):
        storage.hold("lock", 0, BUSY)


def test_clocks_are_compared_once(storage: ObjectStorage, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a while; again once a clock was set, and after the while."""
    compared: list[int] = []
    real = server_clock.storage_ms

    def counted(storage: Storage) -> int:
        compared.append(1)
        return real(storage)

    storage.prove()
    forget()
    monkeypatch.setattr(server_clock, "storage_ms", counted)
    for _ in range(3):
        with storage.hold("lock", 0, BUSY):
            pass
    assert len(compared) == 1
    with monkeypatch.context() as patch:
        skewed(patch, 5)
        with storage.hold("lock", 0, BUSY):
            pass
    assert len(compared) == 2
    with monkeypatch.context() as patch:
        patch.setattr(server_clock, "_COMPARED_S", 0.0)
        skewed(patch, 5)
        with storage.hold("lock", 0, BUSY):
            pass
        with storage.hold("lock", 0, BUSY):
            pass
    assert len(compared) == 4


@pytest.mark.parametrize("seconds", [600, -600])
def test_a_clock_that_is_set_in_a_section(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The lease counts as lost at once, and is not renewed by that clock; it is given back all the same."""
    monkeypatch.setattr(object_lease, "RENEW_S", 0.05)
    renewed = calls_of(object_lease._Lease, "renew", monkeypatch)
    with storage.hold("lock", 0, BUSY) as is_held, monkeypatch.context() as patch:
        assert is_held()
        skewed(patch, seconds)
        assert not is_held()
        renewed(1)  # one may have been under way
        before = storage.read("lock")
        renewed(2)
        assert storage.read("lock") == before
    assert b'"expired":true' in storage.read("lock")
