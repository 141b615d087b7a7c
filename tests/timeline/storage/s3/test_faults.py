"""Each request of a compaction and of a write spoilt in each way: the command ends well or says what failed, the next
one finishes it, and the table is what it would have been."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.file_name import BaseFileName, parse_data_file
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_promises
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.probe import PLACED
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks import options as writing
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.seed import SEED
from tests.support.selection import deep
from tests.support.servers.fault_proxy import OF_CHANGES, Fault, FaultProxy, Faults, nth, seeded
from tests.support.servers.s3_server import S3Server
from tests.support.written_tables import impatient
from tests.writer_hooks.write.test_writer import rows, trips

PLANNED = {6: "v6_pending", 8: "v8_pending", 9: "v9_pending"}
"""A plan of two file groups."""

TURNS = [pytest.param(turn, id=f"turn {turn}") for turn in range(len(OF_CHANGES))]

STAYS = re.compile(r"(open|fate|revoked|claim|claim\.lock|table\.lock|table-id|reserved-.*|.*\.json)")
"""Records of phantombase that outlive a compaction."""


class Compaction:
    """A table with a plan, and what must come out of it."""

    def __init__(self, version: int, s3: S3Server, tmp_path: Path) -> None:
        self._path, self._s3 = unzip_golden(PLANNED[version], tmp_path), s3
        expected = self._path.with_name(f"{self._path.name}.expected")
        self._before, self._after = (
            pq.read_table(expected / f"snapshot{part}.parquet") for part in ("", "_after_compaction")
        )

    def requests(self, proxy: FaultProxy) -> int:
        """How many requests change something when none is spoilt."""
        assert not self.spoilt(proxy, lambda asked: Fault.NONE)
        return self._changes

    def spoilt(self, proxy: FaultProxy, faults: Faults) -> bool:
        """Compacts a fresh copy while requests are spoilt, then again; checks all. Whether a request was spoilt."""
        url = self._s3.upload(self._path, self._s3.new_bucket(), "tables/t")
        [plan] = Table.open(url).load_timeline().pending_merges
        object_promises._proved.clear()
        proxy.restart(faults)
        command = ["compact", url, "--executor", "local"]
        done = CliRunner().invoke(app, command)
        spoilt, self._changes = bool(proxy.spoilt), proxy.changes()
        proxy.restart()
        assert done.exit_code == 0 or isinstance(done.exception, PhantombaseError), repr(done.exception)
        self.ended_well = done.exit_code == 0
        is_done = not Table.open(url).load_timeline().pending_merges
        assert is_done or done.exit_code != 0
        assert_same_rows(read_table(Table.open(url)), self._after if is_done else self._before)
        end_leases(url)
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        table = Table.open(url)
        assert_same_rows(read_table(table), self._after)
        timeline = table.load_timeline()
        assert timeline.pending_merges == ()
        assert len(table.files.completed_commits(plan.requested_time)) == 1
        assert all(audit(table, instant).good for instant in audited_instants(table))
        assert litter(url) == []
        return spoilt


class Write:
    """An upsert of new and old keys, or an insert that makes the table; and what must come out of it."""

    def __init__(self, version: int, new: bool, s3: S3Server, tmp_path: Path) -> None:
        self._version, self._new, self._s3, self._path = version, new, s3, tmp_path / "t"
        trips(rows((1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0)), version).upsert(str(self._path))
        self._before = {"k0001": 1.0, "k0002": 2.0, "k0003": 3.0}
        self._written = {"k0002": 2.5, "k0004": 4.0, "k0005": 5.0}

    def requests(self, proxy: FaultProxy) -> int:
        """How many requests change something when none is spoilt."""
        assert not self.spoilt(proxy, lambda asked: Fault.NONE)
        return self._changes

    def spoilt(self, proxy: FaultProxy, faults: Faults) -> bool:
        """Writes while requests are spoilt, to a new table or a fresh copy; again if it failed. As `Compaction`."""
        bucket = self._s3.new_bucket()
        url = f"s3://{bucket}/tables/t" if self._new else self._s3.upload(self._path, bucket, "tables/t")
        before = {} if self._new else self._before
        object_promises._proved.clear()
        proxy.restart(faults)
        try:
            self._write(url)
            failed = None
        except PhantombaseError as error:
            failed = error
        spoilt, self._changes = bool(proxy.spoilt), proxy.changes()
        proxy.restart()
        self.ended_well = failed is None
        if failed is not None:
            assert fares(url) == before, failed
            self._write(url)
        assert fares(url) == {**before, **self._written}
        writes = Table.open(url).load_timeline().completed_writes
        assert len(writes) == 1 + (not self._new)
        if litter(url):
            self._write_later(url)
        assert fares(url) == {**before, **self._written}
        assert litter(url) == []
        return spoilt

    def _write(self, url: str) -> None:
        trips(_ROWS, self._version).upsert(url)

    def _write_later(self, url: str) -> None:
        """As when the heartbeat of a write has expired whose own rollback failed: the next write undoes it."""
        options = impatient(WriteOptions(slots=1, lazy_rollback=False))
        write(Table.open(url), LocalEngine(_ROWS, slots=1), writing.Write(operation=Operation.UPSERT, options=options))


_ROWS = rows((2, 2, 2.5), (4, 2, 4.0), (5, 2, 5.0))


def end_leases(url: str) -> None:
    """As if their time had ended."""
    storage = ObjectStorage(url)
    claims = [f"{RECORDS}/{path}" for path, _ in storage.list_below(RECORDS) if path.endswith("/claim")]
    storage.delete_all([*claims, ".hoodie/.locks/table_lock.json"])


def fares(url: str) -> dict[str, float]:
    """Key to fare, nothing where nothing was written; a key twice is an error."""
    is_made = ObjectStorage(url).find(".hoodie/hoodie.properties") is not None
    if not is_made or not Table.open(url).load_timeline().completed_writes:
        return {}
    table = read_table(Table.open(url))
    keys = table.column("id").to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    return dict(zip(keys, table.column("fare").to_pylist(), strict=True))


def litter(url: str) -> list[str]:
    """What no finished command leaves: files of phantombase, but records that stay and what a sweep removes later."""
    found, records = [path for path, _ in ObjectStorage(url).list_below("")], ".hoodie/.phantombase/"
    ours = [path for path in found if path.startswith(records) and not path.startswith(f"{records}tmp/")]
    left = [path for path in ours if not STAYS.fullmatch(path.rpartition("/")[2])]
    left += [path for path in found if path.startswith((".hoodie/.heartbeat/", ".hoodie/.temp/"))]
    left += [path for path in found if path.endswith(PLACED)]
    names = [parse_data_file(path.rpartition("/")[2]) for path in found if not path.startswith(records)]
    bases = Counter((name.file_id, name.instant) for name in names if isinstance(name, BaseFileName))
    return left + [str(base) for base, files in bases.items() if files > 1]


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
