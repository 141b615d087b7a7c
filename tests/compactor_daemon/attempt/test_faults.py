"""A compaction whose storage dies, fails or stops at every call, and what becomes of the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import find_decision, read_outcome
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import COMMITTED, attempts
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table, open_metadata_table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.hudi.cases.shared_table import hudi_rs_reads
from tests.support.compaction_steps import check_whole, open_table, run_all, run_one, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, Failure, HookedStorage, ProcessDied
from tests.support.faults import Faults
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL
from tests.support.written_tables import impatient


class Ground:
    """A table with one pending compaction. `share`: see `Faults`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.origin = unzip_golden(name, folder / "origin")
        self.expected = self.origin.with_name(f"{self.origin.name}.expected")
        self.snapshot = pq.read_table(self.expected / "snapshot.parquet")
        (self.instant,) = pending_instants(open_table(self.origin))

    def faults(self, share: tuple[int, int] = (0, 1)) -> Faults:
        """Those of a run that compacts it."""
        return Faults.of(self.origin, compact, share=share)

    def check_one_decision(self, path: Path) -> None:
        """At most one attempt was decided `commit`."""
        storage = LocalStorage(str(path))
        outcomes = [read_outcome(storage, self.instant, n) for n in attempts(storage, self.instant)]
        assert [outcome.kind for outcome in outcomes if outcome is not None].count(COMMITTED) <= 1

    def check_undecided(self, path: Path, before: set[str]) -> None:
        """Without a decision nothing of ours lies outside our folder."""
        if find_decision(LocalStorage(str(path)), self.instant) is None:
            assert visible_files(path) == before


def compact(storage: Storage) -> None:
    """What is disturbed."""
    run_all(Table.on(storage))


@pytest.fixture(params=["v6_pending", "v9_pending"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """A table of each layout."""
    return Ground(request.param, tmp_path)


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_a_death_at_every_storage_call_is_finished_by_the_next_run(ground: Ground) -> None:
    """A reader in between sees the same rows."""
    died = 0
    for _, path in ground.faults().deaths():
        assert_same_rows(read_table(open_table(path)), ground.snapshot)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        died += 1
    assert died > 10


@one_of("ground", "v9_pending", "v6_pending", indirect=True)
def test_an_error_at_every_storage_call_is_finished_by_the_next_run(ground: Ground) -> None:
    """The run goes on rightly or stops with an error of the tree; the next one finishes."""
    before, said = visible_files(ground.origin), Counter[bool]()
    for _, _, path, error in ground.faults().errors():
        assert not isinstance(error, OSError)
        ground.check_undecided(path, before)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        said[error is not None] += 1
    assert said[True] > 10
    assert said[False] > 0


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_errors_in_the_finishing_run_too(ground: Ground) -> None:
    """An error, an error in the run after it at another call, then a run that finishes."""
    changes = ground.faults().chosen(lambda p: p.changes)
    second = cycle(reversed([(point, how) for point in changes for how in (Failure.BEFORE, Failure.AFTER)]))
    faults, failed = ground.faults((0, 8)), 0
    for _, _, path, _ in faults.errors():
        failed += faults.fails_at(*next(second), path) is not None
        run_all(open_table(path))
        check_whole(path, ground.expected)
    assert failed > 0


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_a_run_paused_at_every_storage_call_while_another_compacts(ground: Ground) -> None:
    """Without claim or lock in common: one decision, and the paused run changes nothing that is visible."""
    after: list[set[str]] = []
    ended: Counter[bool] = Counter()

    def whole_run(path: Path) -> None:
        run_all(open_table(path), lock="another process")
        after.append(visible_files(path))

    for _, path, error in ground.faults().pauses(whole_run, lambda p: ALL or p.changes or p.nth == 0):
        assert error is None or isinstance(error, ConflictError)
        assert visible_files(path) == after[-1]
        ground.check_one_decision(path)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        ended[error is None] += 1
    assert ended[True] > 4
    assert ended[False] > 0


@one_of("ground", "v9_pending", "v6_pending", indirect=True)
def test_a_run_paused_while_another_one_dies(ground: Ground) -> None:
    """The other one takes over and is killed at some call; then the first goes on, and a third finishes."""
    faults = ground.faults()
    deaths = cycle(reversed(faults.chosen(lambda p: p.changes)))

    def dying_run(path: Path) -> None:
        faults.dies_at(next(deaths), path, lambda storage: run_all(Table.on(storage), lock="another process"))

    paused = 0
    for _, path, _ in replace(faults, share=(1, 1 if ALL else 4)).pauses(dying_run, lambda p: p.changes):
        ground.check_one_decision(path)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        paused += 1
    assert paused > 2


# Writes and compactions that die or fail at a storage call, on tables of Hudi's that keep the metadata table.
#
# Whatever happens, the metadata table says what lies in storage, as far as writes have completed; who goes on leaves
# nothing behind. Real Hudi goes on in `tests/hudi/cases/test_metadata_table.py`.


Rows: TypeAlias = dict[str, int]
"""Ordering value by key."""
_TS = 10**6
DURING, AFTER = (0, 3), (1, 3)
"""The batch of the write that is disturbed, and of the next one: every third key from the one of that number."""


@dataclass(frozen=True)
class MetadataGround:
    """A table of Hudi's, its rows, and steps on it."""

    origin: Path
    rows: pa.Table

    @staticmethod
    def made(folder: Path, version: int) -> MetadataGround:
        origin = unzip_golden(f"v{version}_with_metadata_table", folder)
        rows = read_table(open_table(origin)).sort_by("id")
        columns = [name for name in rows.schema.names if not name.startswith("_hoodie_")]
        return MetadataGround(origin, rows.select(columns))

    def faults(self, step: Callable[[Path, Storage], None], share: tuple[int, int] = (0, 1)) -> Faults:
        """Those of a step."""
        return Faults.of(self.origin, lambda storage: step(Path(storage.base_path), storage), share=share)

    def batch(self, first: int, every: int) -> pa.Table:
        """Rows of the table with a greater ordering value."""
        some = self.rows.slice(first).filter(pa.array([n % every == 0 for n in range(self.rows.num_rows - first)]))
        later = pc.add(some["ts"], _TS * (1 + first))
        return some.set_column(some.schema.get_field_index("ts"), "ts", later)

    def upsert(self, path: Path, storage: Storage, batch: pa.Table) -> None:
        """A write, which takes every other writer for dead: all of this process are one process."""
        options = impatient(WriteOptions(slots=1, lazy_rollback=False))
        write(
            open_table(path, storage), LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=options)
        )

    def disturbed(self, path: Path, storage: Storage) -> None:
        """The write that is disturbed."""
        self.upsert(path, storage, self.batch(*DURING))

    def check_next(self, path: Path, *expected: Rows) -> None:
        """A reader sees one of these; after the next write and the compactions that pend nothing is left half-way."""
        seen = self.check(path, *expected)
        self.upsert(path, LocalStorage(str(path)), self.batch(*AFTER))
        after = seen | by_key(self.batch(*AFTER))
        self.check(path, after)
        run_all(open_table(path))
        self.check(path, after)
        assert by_key(hudi_rs_reads(path)) == after
        table = open_table(path)
        for timeline in (table.load_timeline(), open_metadata_table(table).load_timeline()):
            assert not [i for i in timeline.instants if not i.completed]

    def check(self, path: Path, *expected: Rows) -> Rows:
        """The snapshot, and that the metadata table agrees with storage."""
        table = open_table(path)
        assert not validate(table).differences
        seen = by_key(read_table(table))
        assert seen in expected
        return seen


def by_key(rows: pa.Table) -> Rows:
    """Ordering value by key; a key twice is an error."""
    keys = rows["id"].to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    return dict(zip(keys, rows["ts"].to_pylist(), strict=True))


def compact_with_metadata(path: Path, storage: Storage) -> None:
    """Executes the compaction that Hudi has requested."""
    (pending,) = open_table(path).load_timeline().pending_compactions
    run_one(open_table(path, storage), pending.requested_time)


@pytest.fixture
def serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that calls have the same numbers each time."""
    serial_pools(monkeypatch)


@pytest.mark.usefixtures("serial")
@one_of("version", 9, 8, 6)
def test_a_write_that_dies_at_a_storage_call(version: int, tmp_path: Path) -> None:
    ground, died = MetadataGround.made(tmp_path, version), 0
    before = by_key(ground.rows)
    for _, path in ground.faults(ground.disturbed, share=(0, 3)).deaths():
        ground.check_next(path, before, before | by_key(ground.batch(*DURING)))
        died += 1
    assert died > 3


@pytest.mark.usefixtures("serial")
@one_of("version", 6, 9)
def test_a_write_one_of_whose_storage_calls_fails(version: int, tmp_path: Path) -> None:
    """It goes on rightly, or says that it failed and then nothing of it is visible. A usual run takes every sixth kind
    of call: the others are those of `tests/writer_hooks/index/test_record_index_faults.py`."""
    ground = MetadataGround.made(tmp_path, version)
    before, said = by_key(ground.rows), Counter[bool]()
    for _, _, path, error in ground.faults(ground.disturbed, share=(0, 6)).errors():
        ground.check_next(path, before if error else before | by_key(ground.batch(*DURING)))
        said[error is not None] += 1
    assert said[True] > 3
    assert said[False] > 0


@pytest.mark.usefixtures("serial")
@one_of("version", 9, 8, 6)
def test_a_compaction_that_dies_at_a_storage_call(version: int, tmp_path: Path) -> None:
    ground, died = MetadataGround.made(tmp_path, version), 0
    for _, path in ground.faults(compact_with_metadata, share=(1, 3)).deaths():
        ground.check_next(path, by_key(ground.rows))
        died += 1
    assert died > 3


def dies_before_it_tells(call: Call) -> Any:
    """A compaction that is decided, and of which the metadata table does not know yet."""
    if call.name == "put_if_absent" and call.path.startswith(METADATA_FOLDER):
        raise ProcessDied(call.path)
    return call.do()


@pytest.mark.usefixtures("serial")
@one_of("version", 9, 8)
def test_a_decision_that_the_metadata_table_was_compacted_after(version: int, tmp_path: Path) -> None:
    """Its commit completes later than decided, so that Hudi does not take it for a part of that compaction."""
    path = unzip_golden(f"v{version}_with_metadata_table", tmp_path)
    (pending,) = open_table(path).load_timeline().pending_compactions
    with pytest.raises(ProcessDied):
        compact_with_metadata(path, HookedStorage(LocalStorage(str(path)), dies_before_it_tells))
    metadata = open_metadata_table(open_table(path))
    began = metadata.next_time()
    ended = metadata.next_time([began])
    done = Instant(requested_time=began, action="commit", state=State.COMPLETED, completion_time=ended)
    metadata.storage.put_if_absent(metadata.instant_path(done), encode(CommitMetadata(), metadata.layout.encoding))
    compact_with_metadata(path, LocalStorage(str(path)))
    (completed,) = open_table(path).files.completed_commits(pending.requested_time)
    assert (completed.completion_time or "") > began
    books = json.loads((path / audit_path(pending.requested_time)).read_bytes())
    assert books["completed"].endswith(completed.file_name)
    assert not validate(open_table(path)).differences
