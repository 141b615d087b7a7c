"""Each request of a compaction and of a write spoilt in each way: the command ends well or says what failed, the next
one finishes it, and the table is what it would have been."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.errors import StorageError, UnknownCommitError
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, WriteOptions
from phantombase.writer_hooks.options import Write as TableWrite
from phantombase.writer_hooks.write.write import write, write_batch
from tests.support.compaction_steps import open_table, run_all, staged
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.places import SEED
from tests.support.s3_table import PLANNED, Compaction, Write, die_before_change, fares, litter
from tests.support.selection import ALL, deep
from tests.support.servers.fault_proxy import OF_CHANGES, Fault, FaultProxy, Faults, nth, seeded
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips
from tests.support.written_tables import impatient

TURNS = [pytest.param(turn, id=f"turn {turn}") for turn in range(len(OF_CHANGES))]


def sample(seed: int, requests: int) -> list[tuple[int, Fault]]:
    """(number of a request, what becomes of it): a usual run has two thirds of the faults, each in one of three tests;
    those of each kind of request have `test_answers.py`."""
    faults, chance = OF_CHANGES if ALL else OF_CHANGES[seed::5], random.Random(seed)
    return [(chance.randrange(requests), fault) for fault in faults]


@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_compaction_with_a_spoilt_request(version: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """A sample, see there."""
    compaction = Compaction(version, s3, tmp_path)
    for number, fault in sample(0, compaction.requests(faulty_s3)):
        assert compaction.spoilt(faulty_s3, nth(number, fault)), (number, fault)


@pytest.mark.parametrize(
    ("version", "new"),
    [(6, False), (9, True), deep(6, True), deep(9, False)],
    ids=["6-old table", "9-new table", "6-new table", "9-old table"],
)
def test_a_write_with_a_spoilt_request(
    version: int, new: bool, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path
) -> None:
    """A sample, see there."""
    write = Write(version, new, s3, tmp_path)
    for number, fault in sample(1 + new, write.requests(faulty_s3)):
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


# A compaction, a write and an unscheduling that die before a call of the storage: the next run finishes them.


def each(usual: int) -> pytest.MarkDecorator:
    """Versions, and which calls: in a usual run each n-th of those that change something, in the deep one all."""
    return pytest.mark.parametrize(
        ("version", "step"), [(9, usual), deep(6, 1), deep(8, 1), deep(9, 1)], ids=lambda value: f"{value}"
    )


def deaths(path: Path, s3: S3Server, step: int, do: Callable[[Storage], object]) -> Iterator[str]:
    """Copies of a table on which `do` died before a call that changes something; at last one where it came to its end.
    The first copy is one where it died before its second such call."""
    bucket = s3.new_bucket()
    for number in count(1, step):
        url = s3.upload(path, bucket, f"t{number}")
        try:
            do(HookedStorage(ObjectStorage(url), die_before_change(number)))
        except ProcessDied:
            yield url
        else:
            assert number > 5
            yield url
            return


@each(14)
def test_a_compaction_dies(version: int, step: int, s3: S3Server, tmp_path: Path) -> None:
    """A reader in between sees the same rows."""
    path = unzip_golden(PLANNED[version], tmp_path)
    expected = path.with_name(f"{path.name}.expected")
    snapshot, after = (pq.read_table(expected / f"snapshot{part}.parquet") for part in ("", "_after_compaction"))
    for url in deaths(path, s3, step, lambda storage: run_all(Table.on(storage))):
        seen = after if not pending_instants(Table.open(url)) else snapshot
        assert_same_rows(read_table(Table.open(url)), seen)
        run_all(Table.open(url))
        table = Table.open(url)
        assert_same_rows(read_table(table), after)
        assert all(audit(table, instant).good for instant in audited_instants(table))
        assert litter(url) == []


@each(14)
def test_a_write_dies(version: int, step: int, s3: S3Server, tmp_path: Path) -> None:
    """It is visible as a whole or not at all; the next write goes on and removes what it left."""
    path = tmp_path / "t"
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), version).upsert(str(path))
    options = impatient(WriteOptions(slots=1, lazy_rollback=False))
    batch, following = rows((2, 2, 2.5), (3, 2, 3.0)), rows((3, 3, 3.5))

    def upsert(storage: Storage, what: Any = batch) -> None:
        write(Table.on(storage), LocalEngine(what, slots=1), TableWrite(operation=Operation.UPSERT, options=options))

    before = {"k0001": 1.0, "k0002": 2.0}
    for url in deaths(path, s3, step, upsert):
        seen = fares(url)
        assert seen in (before, {**before, "k0002": 2.5, "k0003": 3.0})
        upsert(ObjectStorage(url), following)
        assert fares(url) == {**seen, "k0003": 3.5}
        assert litter(url) == []


@each(8)
def test_an_unscheduling_dies(version: int, step: int, s3: S3Server, tmp_path: Path) -> None:
    """Before the plan is gone nothing has happened: compactors and a second try both go on."""
    path = tmp_path / "t"
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), version).upsert(str(path))
    trips(rows((1, 2, 1.5), (2, 2, 2.5)), version).upsert(str(path))
    instant = schedule_compaction(open_table(path), LOCK).instant
    assert instant is not None
    staged(open_table(path), instant)  # something to clean up
    for number, url in enumerate(deaths(path, s3, step, lambda storage: unschedule(Table.on(storage), instant, LOCK))):
        assert fares(url) == {"k0001": 1.5, "k0002": 2.5}
        if pending_instants(Table.open(url)) and number % 2:
            unschedule(Table.open(url), instant, LOCK)
        run_all(Table.open(url))
        assert pending_instants(Table.open(url)) == ()
        assert fares(url) == {"k0001": 1.5, "k0002": 2.5}
        assert litter(url) == []


# A write on S3 whose last request is not answered: it may take effect later, so nothing of the write is removed.


UPSERT = TableWrite(operation=Operation.UPSERT, options=WriteOptions(slots=1))
UPSERTED = LocalEngine(rows((1, 2, 2.0)), slots=1)


def unanswered(
    url: str, upsert: Callable[[Table], Any] = lambda table: write(table, UPSERTED, UPSERT)
) -> Callable[[], Any]:
    """An upsert whose completed file is not put, and no answer comes; returns what puts it after all."""
    under_way: list[Callable[[], Any]] = []

    def hook(call: Call) -> Any:
        if call.name == "put_if_absent" and call.path.endswith(".deltacommit"):
            under_way.append(call.do)
            raise StorageError("no answer", path=call.path)
        return call.do()

    table = Table.on(HookedStorage(ObjectStorage(url), hook))
    with pytest.raises(UnknownCommitError, match="may complete yet"):
        upsert(table)
    return under_way[0]


@pytest.fixture
def url(s3: S3Server) -> str:
    """A table of one row."""
    found = f"s3://{s3.new_bucket()}/t"
    trips(rows((1, 1, 1.0)), 9).upsert(found)
    return found


def test_it_takes_effect_later(url: str) -> None:
    """Then the write is there with all its files, and the next one too."""
    land = unanswered(url)
    assert fares(url) == {"k0001": 1.0}
    land()
    assert fares(url) == {"k0001": 2.0}
    trips(rows((2, 3, 3.0)), 9).upsert(url)
    assert fares(url) == {"k0001": 2.0, "k0002": 3.0}


def test_it_never_takes_effect(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write leaves it alone while its heartbeat is fresh, and rolls it back afterwards."""
    unanswered(url)
    (pending,) = Table.open(url).load_timeline().pending_delta_commits
    trips(rows((2, 3, 3.0)), 9).upsert(url)
    assert Table.open(url).load_timeline().pending_delta_commits == (pending,)
    monkeypatch.setattr("phantombase.compactor_daemon.undo.dead_writers.storage_ms", lambda s: storage_ms(s) + 125_000)
    trips(rows((3, 4, 4.0)), 9).upsert(url)
    assert Table.open(url).load_timeline().pending_delta_commits == ()
    assert fares(url) == {"k0001": 1.0, "k0002": 3.0, "k0003": 4.0}


@pytest.mark.parametrize("lands", [True, False])
def test_a_batch_of_a_stream_waits_for_it(lands: bool, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that starts again at once: were its earlier try rolled back, that could complete without its files."""

    def upsert(table: Table) -> Any:
        return write_batch(table, UPSERTED, UPSERT, StreamBatch(name="s", number=1))

    land, waited = unanswered(url, upsert), list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if lands:
            land()
        else:
            now = storage_ms
            monkeypatch.setattr("phantombase.writer_hooks.write.write.storage_ms", lambda s: now(s) + 125_000)

    with monkeypatch.context() as patch:
        clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)  # of this module: other threads sleep, too
        patch.setattr("phantombase.writer_hooks.write.write.time", clock)
        assert (upsert(Table.open(url)) is None) == lands
    assert len(waited) == 1
    assert fares(url) == {"k0001": 2.0}
    assert len(Table.open(url).load_timeline().completed_writes) == 2
    assert Table.open(url).load_timeline().pending_writes == {}
