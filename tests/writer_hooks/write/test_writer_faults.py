"""A write whose storage dies or fails at every call, and what becomes of the table: all of it counts or nothing."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.archiving.archived_files import Archive, remove_instants
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.timeline.errors import ConflictError, LockError, StorageError, UnknownCommitError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.instant_files import load_state_files
from phantombase.timeline.locks.heartbeat import Heartbeats
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import IS_DELETED
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.merge_into import MergeInto
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import Written, write, write_batch
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, Failure, HookedStorage, MovingStorage, ProcessDied, die_at_nth
from tests.support.faults import Faults, LockLostAt, LockLostBehind
from tests.support.golden_tables import LOCK
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL, deep
from tests.support.trips import AFTER, BEFORE, NEXT, rows
from tests.support.written_tables import Rows, check_nothing_left, impatient, read_rows, written_table


def _new(*numbers: int) -> Rows:
    return {f"k{n:04d}": (20, 3.0) for n in numbers}


UPSERTED, OVERWRITTEN = (0, 3, 4, 7, 2, 5), (0, 6, 9)
KEPT: Rows = {key: value for key, value in BEFORE.items() if key not in ("k0000", "k0003")}
BEHIND: dict[Operation, Rows] = {
    Operation.UPSERT: BEFORE | _new(*UPSERTED),
    Operation.INSERT_OVERWRITE: KEPT | _new(*OVERWRITTEN),
    Operation.INSERT_OVERWRITE_TABLE: _new(*OVERWRITTEN),
    Operation.DELETE_PARTITION: KEPT,
}
"""What the table reads behind each operation. All rows that overwrite are in the partition of k0000 and k0003."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A table of two partitions, one with a log, and a write. An upsert appends to a file group with a log, makes a new
    file group, and under the key index writes a small base file anew. `into`: it sets some columns, and inserts.
    `share`: see `Faults`."""

    folder: Path
    share: tuple[int, int]
    version: int
    buckets: int | None = None
    operation: Operation = Operation.UPSERT
    into: MergeInto | None = None

    def make(self) -> None:
        options = WriteOptions(buckets=self.buckets, slots=1)
        first = self._marked(rows(*((n, 10, 1.0) for n in (0, 3, 1, 4))))
        written_table(self.origin, self.version, first, options)
        upsert = Write(operation=Operation.UPSERT, options=options)
        write(open_table(self.origin), LocalEngine(self._marked(rows((3, 11, 2.0))), slots=1), upsert)
        with self.copy() as path:
            written = self.write(LocalStorage(str(path)))
            assert written.files == 3 or self.operation is not Operation.UPSERT
            assert read_rows(path) == self.behind

    def _marked(self, batch: pa.Table) -> pa.Table:
        """Rows with marks of deletion, where the table may have them."""
        return batch if self.into is None else batch.drop_columns([IS_DELETED])

    @property
    def origin(self) -> Path:
        return self.folder / "origin"

    @property
    def behind(self) -> Rows:
        """What the table reads behind the write."""
        return BEHIND[self.operation]

    @property
    def batch(self) -> pa.Table:
        numbers = UPSERTED if self.operation is Operation.UPSERT else OVERWRITTEN
        return rows(*((n, 20, 3.0) for n in numbers))

    @cached_property
    def faults(self) -> Faults:
        """Those of the write."""
        return Faults.of(self.origin, self.write, share=self.share)

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """A fresh copy of the table."""
        path = self.folder / "copy"
        shutil.copytree(self.origin, path)
        yield path
        shutil.rmtree(path)

    def write(self, storage: Storage) -> Written:
        """The write, which takes every other writer for dead: all of this process are one process."""
        return self._write(storage, self.batch, self.operation)

    def write_next(self, path: Path) -> Written:
        return self._write(LocalStorage(str(path)), NEXT, Operation.UPSERT)

    def _write(self, storage: Storage, batch: pa.Table, operation: Operation) -> Written:
        options = impatient(WriteOptions(buckets=self.buckets, slots=1, lazy_rollback=False))
        what = Write(operation=operation, options=options, into=self.into)
        return write(open_table(Path(storage.base_path), storage), LocalEngine(self._marked(batch), slots=1), what)

    def check_next(self, path: Path) -> None:
        """A reader sees the disturbed write or does not; the next write works, and nothing is left of the other."""
        seen = read_rows(path)
        assert seen in (BEFORE, self.behind)
        self.write_next(path)
        assert read_rows(path) == seen | AFTER
        check_nothing_left(path)


MERGE = MergeInto.of(None, ["ts", "fare"], None, inserts=True, delete=None)
UPSERTS: dict[str, dict[str, Any]] = {
    "6 keys": {"version": 6},
    "9 buckets": {"version": 9, "buckets": 1},
    "9 merge": {"version": 9, "into": MERGE},
    "6 buckets": {"version": 6, "buckets": 1},
    "9 keys": {"version": 9},
    "9 merge buckets": {"version": 9, "buckets": 1, "into": MERGE},
}
OVERWRITES: dict[str, dict[str, Any]] = {
    f"{version} {operation.name}{' buckets' if buckets else ''}": {
        "version": version,
        "buckets": buckets,
        "operation": operation,
    }
    for operation, buckets in (
        (Operation.INSERT_OVERWRITE, None),
        (Operation.INSERT_OVERWRITE, 1),
        (Operation.INSERT_OVERWRITE_TABLE, None),
        (Operation.DELETE_PARTITION, None),
    )
    for version in (9, 6)
}


def _cases(grounds: dict[str, dict[str, Any]], usual: int, of: int | None = None) -> list[Any]:
    """The first so many are those of a usual run, with each kind of call on one of them, or one `of` so many kinds."""
    all_ = [((n % usual, of or usual), name) for n, name in enumerate(grounds)]
    return [pytest.param(one, id=one[1]) if n < usual else deep(one, id=one[1]) for n, one in enumerate(all_)]


one_upsert = pytest.mark.parametrize("ground", _cases(UPSERTS, 1), indirect=True)
some_upserts = pytest.mark.parametrize("ground", _cases(UPSERTS, 3, 6), indirect=True)
overwrites = pytest.mark.parametrize("ground", _cases(OVERWRITES, 2, 4), indirect=True)
all_writes = pytest.mark.parametrize("ground", [*_cases(UPSERTS, 3), *_cases(OVERWRITES, 2, 4)], indirect=True)


@pytest.fixture(scope="module")
def made() -> dict[tuple[object, ...], Ground]:
    """Those that tests of this module have had."""
    return {}


@pytest.fixture
def ground(
    request: pytest.FixtureRequest,
    made: dict[tuple[object, ...], Ground],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Ground:
    """A table of each layout and index, one that is merged into, and one for each operation that overwrites. Tests
    change copies."""
    serial_pools(monkeypatch)
    share, name = request.param
    if (share, name) not in made:
        one = Ground(folder=tmp_path_factory.mktemp("ground"), share=share, **(UPSERTS | OVERWRITES)[name])
        one.make()
        made[share, name] = one
    return made[share, name]


@all_writes
def test_a_death_at_every_storage_call(ground: Ground) -> None:
    died = 0
    for _, path in ground.faults.deaths():
        ground.check_next(path)
        died += 1
    assert died > (4 if ALL else 1)


@all_writes
def test_an_error_at_every_storage_call(ground: Ground) -> None:
    """The write goes on rightly, or says that it failed and then nothing of it is visible, and nothing is replaced."""
    said: Counter[bool] = Counter()
    for _, _, path, error in ground.faults.errors():
        assert read_rows(path) == (BEFORE if error else ground.behind)
        ground.check_next(path)
        said[error is not None] += 1
    assert said[True] > (8 if ALL else 3)
    assert said[False] > 0


@some_upserts
def test_deaths_in_the_rollback_too(ground: Ground) -> None:
    """A death, a death of the write that rolls back at a call of the same kind or a later one, then one that
    finishes."""
    faults = ground.faults
    changes = replace(faults, share=(0, 1)).chosen(lambda point: point.changes)
    for number, (first, path) in enumerate(faults.deaths()):
        faults.dies_at(changes[-1 - number] if number % 2 else first, path)
        ground.check_next(path)


@some_upserts
def test_a_write_taken_for_dead_at_every_storage_call(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one rolls it back and writes; the first comes back and loses, unless it was under the lock or done."""
    monkeypatch.setattr(
        "phantombase.writer_hooks.write.write.table_lock",
        lambda storage, _: ProcessLock(storage.location, timeout_s=0.0),
    )
    others: list[Written] = []
    ended: Counter[bool] = Counter()
    for _, path, error in ground.faults.pauses(partial(write_if_free, ground, others), lambda point: point.changes):
        assert error is None or isinstance(error, ConflictError)
        assert error is None or others
        expected = (BEFORE if error else ground.behind) | (AFTER if others else {})
        assert read_rows(path) == expected
        ground.write_next(path)
        assert read_rows(path) == expected | AFTER
        check_nothing_left(path)
        ended[error is not None] += 1
        others.clear()
    assert ended[True] > 0
    assert ended[False] > 0


@one_upsert
def test_a_write_rolled_back_while_it_stages_places_nothing(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody knows of would count as committed once archiving has passed its instant."""
    monkeypatch.setattr(
        "phantombase.writer_hooks.write.write.table_lock", lambda storage, _: ProcessLock(storage.location)
    )
    with ground.copy() as path:
        done: list[object] = []

        def rolled_back(call: Call) -> Any:
            if call.name == "open_output" and not done:
                table, lock = open_table(path), ProcessLock(str(path))
                done.append(roll_back_dead_writers(table, lock, lazy=False, now_ms=lambda: 0, expiry_s=-1e12))
            return call.do()

        before = data_files(path)
        with pytest.raises(ConflictError, match="another process rolled this write back"):
            ground.write(HookedStorage(LocalStorage(str(path)), rolled_back))
        assert done[0]
        assert data_files(path) == before


@one_upsert
@pytest.mark.parametrize("seen_by", ["lock", "heartbeat"])
def test_a_write_rolled_back_right_before_its_commit_takes_it_back(
    ground: Ground, seen_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process slept between its last look and the put, so another one took it for dead. By lock or heartbeat."""
    others: list[object] = []
    lock = LockLostBehind(others if seen_by == "lock" else ())
    monkeypatch.setattr("phantombase.writer_hooks.write.write.table_lock", lambda storage, _: lock)
    monkeypatch.setattr(Heartbeats, "lapsed", lambda *_: bool(others) and seen_by == "heartbeat")
    with ground.copy() as path:

        def rolled_back(call: Call) -> Any:
            if call.name == "put_if_absent" and call.path.endswith(".deltacommit") and not others:
                table = open_table(path)
                others.append(roll_back_dead_writers(table, LOCK, lazy=False, now_ms=lambda: 0, expiry_s=-1e12))
            return call.do()

        with pytest.raises(ConflictError, match="another process rolled this write back"):
            ground.write(HookedStorage(LocalStorage(str(path)), rolled_back))
        assert others[0]
        assert read_rows(path) == BEFORE
        others.clear()
        ground.check_next(path)
    with ground.copy() as path:

        def kept(call: Call) -> Any:
            if call.name == "delete" and call.path.endswith(".deltacommit"):
                raise StorageError("no answer", path=call.path)
            return rolled_back(call)

        with pytest.raises(UnknownCommitError):
            ground.write(HookedStorage(LocalStorage(str(path)), kept))
    others.clear()
    with ground.copy() as path:

        def archived(call: Call) -> Any:
            done = call.do()
            if call.name == "put_if_absent" and call.path.endswith(".deltacommit") and not others:
                others.append(archive_newest(path))
            return done

        ground.write(HookedStorage(LocalStorage(str(path)), archived))
        assert read_rows(path) == ground.behind


def archive_newest(path: Path) -> Instant:
    """As far as an archiver comes that removes the files of the newest write, and is about to remove the last one."""
    table = open_table(path)
    timeline, files = table.load_timeline(), load_state_files(table.storage, table.config)
    newest = timeline.completed_writes[timeline.latest_completed]
    Archive(storage=table.storage, config=table.config, moment=table.times.moment).write([newest], timeline, files)
    remove_instants(table.storage, [one for one in files.files(newest) if not one.instant.completed])
    return newest


def data_files(path: Path) -> set[str]:
    """Names of base and log files."""
    return {p.name for p in path.glob("*/*") if parse_data_file(p.name) is not None}


def write_if_free(ground: Ground, done: list[Written], path: Path) -> None:
    """Another process's write, unless somebody is under the lock."""
    with suppress(LockError):
        done.append(ground.write_next(path))


@one_upsert
def test_a_placing_that_moves_the_staged_file(ground: Ground) -> None:
    """As on HDFS: dead before or behind it, or failed; the rollback and the next write need no staged file."""
    faults = Faults.of(ground.origin, ground.write, MovingStorage)
    changes = [point for point in faults.points if point.changes]
    behind = [point for before, point in pairwise(changes) if before.name == "place"]
    placings = [point for point in faults.chosen() if point.name == "place"]
    assert placings
    for _, path in replace(faults, points=(*placings, *behind)).deaths():
        ground.check_next(path)
    for _, failure, path, _ in replace(faults, points=tuple(placings)).errors():
        if failure is Failure.AFTER:  # its effect is found
            assert read_rows(path) == ground.behind
        ground.check_next(path)


@one_upsert
def test_a_lock_that_is_lost_before_a_write_begins(ground: Ground) -> None:
    """Nothing is left of an instant that was never begun: no next write need look for its heartbeat. From the first
    file on it stays, so that Hudi rolls the instant back."""
    for asked, left in ((0, 0), (1, 1), (2, 1), (3, 1)):
        with ground.copy() as path:
            lock = LockLostAt(asked)
            with (
                pytest.raises(LockError),
                transaction(open_table(path), lock, 30.0),
                lock.hold("complete it") as section,
            ):
                section.check()
            assert len(list((path / ".hoodie/.heartbeat").glob("*"))) == left
            ground.check_next(path)


@overwrites
def test_the_overwrite_again_behind_a_dead_one(ground: Ground) -> None:
    """Twice dead, then done: the same rows as at once."""
    faults = ground.faults
    changes = faults.chosen(lambda point: point.changes)
    for (_, path), second in zip(faults.deaths(), reversed(changes), strict=True):
        faults.dies_at(second, path)
        ground.write(LocalStorage(str(path)))
        assert read_rows(path) == ground.behind
        check_nothing_left(path)


@overwrites
def test_a_batch_of_a_stream_that_died_is_overwritten_once(ground: Ground) -> None:
    """The replayed batch rolls its dead try back at once, although that one's heartbeat is fresh."""
    batch = StreamBatch(name="query", number=7)
    what = Write(operation=ground.operation, options=WriteOptions(buckets=ground.buckets, slots=1))

    def sink(storage: Storage) -> Written | None:
        return write_batch(
            open_table(Path(storage.base_path), storage), LocalEngine(ground.batch, slots=1), what, batch
        )

    with ground.copy() as path:
        ended = ".replacecommit"
        with pytest.raises(ProcessDied):
            sink(HookedStorage(LocalStorage(str(path)), die_at_nth(1, "put_if_absent", ended)))
        assert read_rows(path) == BEFORE
        assert sink(LocalStorage(str(path))) is not None
        assert sink(LocalStorage(str(path))) is None
        assert read_rows(path) == ground.behind
        check_nothing_left(path)
