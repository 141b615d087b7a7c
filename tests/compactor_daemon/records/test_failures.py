"""Failed tries: what counts, how long an instant waits, when it is parked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.records.failures import (
    Failure,
    Parked,
    Ready,
    RetryOptions,
    Waits,
    Weight,
    failure_of,
    read_failures,
    readiness,
    record_failure,
    release_failures,
    weigh,
)
from phantombase.timeline.errors import (
    AttemptDeadError,
    BarrierError,
    ClaimedError,
    ConflictError,
    LedgerError,
    LockError,
    MissingFileError,
    SparkError,
    StalePlanError,
    StoppedError,
    StorageError,
    TableChangedError,
    UnknownStateError,
)
from phantombase.timeline.storage.local import LocalStorage

OPTIONS = RetryOptions(retries=3, backoff_s=10.0, backoff_max_s=25.0)


def failed(at_ms: int, *, park: bool = False) -> Failure:
    return Failure(at_ms=at_ms, error="StorageError", what="disk full", who="host:1", park=park)


@pytest.mark.parametrize(
    ("failures", "now_ms", "expected"),
    [
        ([], 0, Ready()),
        ([failed(1000)], 1000, Waits(11_000)),
        ([failed(1000)], 11_000, Ready()),
        ([failed(0), failed(1000)], 20_999, Waits(21_000)),
        ([failed(0), failed(0), failed(1000)], 25_000, Waits(26_000)),  # 40 s, capped
        ([failed(0)] * 4, 10**9, Parked("StorageError: disk full")),
        ([failed(0, park=True)], 10**9, Parked("StorageError: disk full")),
        ([failed(1_000_000)], 1000, Ready()),  # its clock, or ours, was put back
    ],
)
def test_standing(failures: list[Failure], now_ms: int, expected: object) -> None:
    assert readiness(failures, now_ms, OPTIONS) == expected


@given(st.integers(1, 8), st.integers(0, 10**7), st.integers(0, 10**7))
def test_nobody_waits_longer_than_the_longest_backoff(count: int, at_ms: int, now_ms: int) -> None:
    found = readiness([failed(at_ms)] * count, now_ms, RetryOptions(retries=9, backoff_s=7.0, backoff_max_s=60.0))
    assert isinstance(found, Ready) or (isinstance(found, Waits) and 0 < found.until_ms - now_ms <= 120_000)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LedgerError("books"), Weight.PARK),
        (StorageError("disk full"), Weight.RETRY),
        (UnknownStateError("?"), Weight.RETRY),
        (MissingFileError("gone"), Weight.RETRY),
        (LockError("busy"), Weight.RETRY),
        (SparkError("lost"), Weight.RETRY),
        (TableChangedError("upgraded"), Weight.RETRY),
        (ValueError("a bug"), Weight.RETRY),
        (StoppedError("limit"), Weight.NOTHING),
        (AttemptDeadError("taken over"), Weight.NOTHING),
        (BarrierError("a write pends"), Weight.NOTHING),
        (StalePlanError("no neighbours"), Weight.PARK),
        (ConflictError("Hudi is at work"), Weight.NOTHING),
        (ClaimedError("busy"), Weight.NOTHING),
    ],
)
def test_what_counts_as_a_failure(error: Exception, expected: Weight) -> None:
    assert weigh(error) is expected


def test_failures_are_kept_in_order_and_released(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    assert read_failures(storage, "001") == ()
    for at_ms in range(12):  # more than nine: numbers are no texts
        record_failure(storage, "001", failed(at_ms))
    assert [f.at_ms for f in read_failures(storage, "001")] == list(range(12))
    assert release_failures(storage, "001") == 12
    assert read_failures(storage, "001") == ()
    assert release_failures(storage, "001") == 0


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"at_ms": "soon", "error": "E", "what": "w", "who": "h"}'])
def test_an_unreadable_failure_parks(tmp_path: Path, data: bytes) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_if_absent(".hoodie/.phantombase/001/failures/1", data)
    assert isinstance(readiness(read_failures(storage, "001"), 10**12, OPTIONS), Parked)


def test_a_failure_says_what_was_found() -> None:
    kept = failure_of(LedgerError("books do not balance", path="p", instant="001"), "host:1", 5)
    assert kept == Failure(
        at_ms=5, error="LedgerError", what="books do not balance; at p; instant 001", who="host:1", park=True
    )
