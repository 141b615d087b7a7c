"""Many at one name at the same moment: one wins, in each round, whatever answers are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from phantombase.timeline.errors import LockError, StorageError
from phantombase.timeline.storage.object_store import ObjectStorage
from tests.support.selection import deep
from tests.support.servers.fault_proxy import Fault, Request, fault_proxy
from tests.support.servers.real_s3_server import RealS3Server
from tests.support.servers.s3_server import S3Server

RACERS = 64
BUSY = LockError("held by another process")

Race = Callable[[ObjectStorage, str, int], bool]


@pytest.fixture(params=["s3", deep("versity"), pytest.param("minio", marks=pytest.mark.minio)])
def server(request: pytest.FixtureRequest) -> S3Server | RealS3Server:
    """An honest one, and real ones."""
    found: S3Server | RealS3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def storage(server: S3Server | RealS3Server) -> ObjectStorage:
    return ObjectStorage(f"s3://{server.new_bucket()}/t")


def put(storage: ObjectStorage, name: str, racer: int) -> bool:
    return storage.put_if_absent(f"{name}/x", str(racer).encode())


def place(storage: ObjectStorage, name: str, racer: int) -> bool:
    storage.overwrite(f"{name}/staged-{racer}", str(racer).encode())
    return storage.place(f"{name}/staged-{racer}", f"{name}/x")


def winners(storage: ObjectStorage, name: str, race: Race) -> list[int]:
    """Who is told that the name is theirs. A racer that learns nothing may have won."""
    start = threading.Barrier(RACERS)

    def run(racer: int) -> bool | None:
        start.wait()
        try:
            return race(storage, name, racer)
        except StorageError:
            return None

    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(run, range(RACERS)))
    owner = int(storage.read(f"{name}/x"))
    assert answers[owner] in (True, None)
    return [racer for racer, won in enumerate(answers) if won] or [owner]


@pytest.mark.parametrize("rounds", [2, deep(20)])
@pytest.mark.parametrize("race", [put, place])
def test_one_of_many_wins(storage: ObjectStorage, race: Race, rounds: int) -> None:
    """And what is there is the winner's."""
    for number in range(rounds):
        [winner] = winners(storage, f"r{number}", race)
        assert storage.read(f"r{number}/x") == str(winner).encode()


@pytest.mark.parametrize("rounds", [1, deep(20)])
@pytest.mark.parametrize("race", [put, place])
def test_one_of_many_wins_while_answers_are_lost(
    server: S3Server | RealS3Server, race: Race, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each third changing request is done, and its answer lost."""
    with fault_proxy(server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        storage = ObjectStorage(f"s3://{server.new_bucket()}/t")
        storage.put_if_absent("first", b"")
        for number in range(rounds):
            proxy.restart(every_third)
            assert len(winners(storage, f"r{number}", race)) == 1
            proxy.restart()


def every_third(asked: Request) -> Fault:
    if not asked.changes or asked.number % 3:
        return Fault.NONE
    return Fault.LOST if asked.number % 2 else Fault.LOST_503


@pytest.mark.parametrize("rounds", [1, deep(10)])
def test_one_of_many_holds_the_lease(storage: ObjectStorage, rounds: int) -> None:
    """One that was never held, then one that was given back."""
    for _ in range(rounds):
        start, tried = threading.Barrier(RACERS), threading.Barrier(RACERS)

        def hold(_: int, start: threading.Barrier = start, tried: threading.Barrier = tried) -> bool:
            start.wait()
            with ExitStack() as held:
                try:
                    held.enter_context(storage.hold("lock", 0, BUSY))
                    won = True
                except LockError:
                    won = False
                tried.wait()
            return won

        with ThreadPoolExecutor(RACERS) as pool:
            assert sum(pool.map(hold, range(RACERS))) == 1
