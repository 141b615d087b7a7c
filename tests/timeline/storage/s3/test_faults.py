"""Each request of a compaction and of a write spoilt in each way: the command ends well or says what failed, the next
one finishes it, and the table is what it would have been."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.support.s3_table import Compaction, Write
from tests.support.seed import SEED
from tests.support.selection import deep
from tests.support.servers.fault_proxy import OF_CHANGES, Fault, FaultProxy, Faults, nth, seeded
from tests.support.servers.s3_server import S3Server

TURNS = [pytest.param(turn, id=f"turn {turn}") for turn in range(len(OF_CHANGES))]


def sample(seed: int, faults: Sequence[Fault], requests: int) -> list[tuple[int, Fault]]:
    """(number of a request, what becomes of it), each fault once."""
    chance = random.Random(seed)
    return [(chance.randrange(requests), fault) for fault in faults]


@pytest.mark.parametrize("version", [6, 9])
def test_a_compaction_with_a_spoilt_request(version: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """A sample: each fault once on one version."""
    compaction = Compaction(version, s3, tmp_path)
    for number, fault in sample(version, OF_CHANGES[version == 6 :: 2], compaction.requests(faulty_s3)):
        assert compaction.spoilt(faulty_s3, nth(number, fault)), (number, fault)


@pytest.mark.parametrize(
    ("version", "new"),
    [(6, False), (9, True), deep(6, True), deep(9, False)],
    ids=["6-old table", "9-new table", "6-new table", "9-old table"],
)
def test_a_write_with_a_spoilt_request(
    version: int, new: bool, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path
) -> None:
    """A sample: each fault once, on one version; with all tests on each version."""
    write = Write(version, new, s3, tmp_path)
    for number, fault in sample(version, OF_CHANGES[new::2], write.requests(faulty_s3)):
        assert write.spoilt(faulty_s3, nth(number, fault)), (number, fault)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_each_request_of_a_compaction_spoilt(
    version: int, turn: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path
) -> None:
    """Every changing request, the next one in the next way; over all turns each of them in every way."""
    compaction = Compaction(version, s3, tmp_path)
    for number in count():
        fault = OF_CHANGES[(number + turn) % len(OF_CHANGES)]
        if not compaction.spoilt(faulty_s3, nth(number, fault)):
            break
    assert number > 20


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("new", [False, True], ids=["old table", "new table"])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_each_request_of_a_write_spoilt(
    version: int, turn: int, new: bool, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path
) -> None:
    """As of a compaction."""
    write = Write(version, new, s3, tmp_path)
    for number in count():
        fault = OF_CHANGES[(number + turn) % len(OF_CHANGES)]
        if not write.spoilt(faulty_s3, nth(number, fault)):
            break
    assert number > 15


@pytest.mark.parametrize("every", [29, deep(3)])
def test_answers_that_are_cut_short(every: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """Of each n-th request that reads, half of the body comes: never taken for the whole."""
    compaction, write = Compaction(9, s3, tmp_path), Write(9, False, s3, tmp_path)
    for cut in range(every if every < 10 else 1):
        faults = every_nth_answer(every, cut)
        assert compaction.spoilt(faulty_s3, faults)
        assert write.spoilt(faulty_s3, faults)


def every_nth_answer(every: int, first: int) -> Faults:
    """Cuts the body of each n-th answer to a request that changes nothing."""
    return lambda asked: Fault.CUT if not asked.changes and asked.number % every == first else Fault.NONE


@pytest.mark.parametrize("seed", [SEED, *map(deep, range(1, 20))])
def test_any_request_spoilt_in_any_way(seed: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """Each twentieth by chance; what fails is finished by the next run without faults."""
    assert Compaction(9, s3, tmp_path).spoilt(faulty_s3, seeded(seed, 0.05))
    assert Write(9, False, s3, tmp_path).spoilt(faulty_s3, seeded(seed, 0.05))
