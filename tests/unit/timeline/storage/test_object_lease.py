"""Whether a lease is still held, as the section under it is told."""

from __future__ import annotations

import json
import time

import pytest

from phantombase.timeline.errors import LockError
from phantombase.timeline.storage import object_lease
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.probe import probe
from tests.support.s3_server import Asked, Fault, S3Server

BUSY = LockError("held by another process")


@pytest.fixture
def storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """With leases that are short, and renewed often."""
    monkeypatch.setattr(object_lease, "_PAUSES_S", (0.0,) * 3)
    monkeypatch.setattr(object_lease, "VALID_S", 0.8)
    monkeypatch.setattr(object_lease, "LEFT_S", 0.2)
    monkeypatch.setattr(object_lease, "RENEW_S", 0.1)
    found = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    probe(found)
    return found


def lost_after_s(is_held: object) -> float:
    """How long it takes until it is not held any more; 1.5 s at most."""
    since = time.monotonic()
    while is_held() and time.monotonic() < since + 1.5:  # type: ignore[operator]
        time.sleep(0.01)
    return time.monotonic() - since


def renews(asked: Asked) -> bool:
    return asked.method == "PUT" and asked.path.endswith("/lock")


def test_a_renewed_lease_is_held(storage: ObjectStorage) -> None:
    with storage.hold("lock", 0, BUSY) as is_held:
        assert lost_after_s(is_held) > 1.5


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.LOST])
def test_a_lease_whose_renewals_are_refused_is_lost_before_others_take_it(
    storage: ObjectStorage, s3: S3Server, fault: Fault
) -> None:
    """A renewal whose answer is lost counts, once it was read back."""
    with storage.hold("lock", 0, BUSY) as is_held:
        s3.faults = lambda asked: fault if renews(asked) else Fault.NONE
        seconds = lost_after_s(is_held)
        assert (seconds < 0.8) if fault is Fault.SLOW_DOWN else (seconds > 1.5)


@pytest.mark.parametrize("stolen", [True, False])
def test_a_lease_that_another_has_or_nobody_is_lost_with_the_next_renewal(storage: ObjectStorage, stolen: bool) -> None:
    """Nobody: Hudi's overwrite of a whole table takes the lock away with it."""
    until = round(time.time() * 1000) + 60_000
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()
        if stolen:
            storage.overwrite("lock", json.dumps({"expired": False, "validUntil": until, "owner": "x"}).encode())
        else:
            storage.delete("lock")
        assert lost_after_s(is_held) < 0.6
    if stolen:
        assert json.loads(storage.read("lock"))["owner"] == "x"


@pytest.mark.parametrize("clock", ["time", "monotonic"])
def test_a_process_that_slept_past_the_end_has_lost_its_lease(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """One of the two clocks may stand while the machine sleeps; it is known before any request."""
    monkeypatch.setattr(object_lease, "RENEW_S", 60)
    real = getattr(time, clock)
    with storage.hold("lock", 0, BUSY) as is_held:
        assert is_held()
        with monkeypatch.context() as patch:
            patch.setattr(time, clock, lambda: real() + 0.6)
            assert not is_held()


def test_a_try_to_take_it_that_came_late_is_ones_own(storage: ObjectStorage, s3: S3Server) -> None:
    """It had no answer, and nothing was there when it was looked for: not another's lock."""
    lease = object_lease._Lease(storage.clients, storage.key("lock"))
    assert lease.try_take()
    assert lease.try_take()
    assert not object_lease._Lease(storage.clients, storage.key("lock")).try_take()
