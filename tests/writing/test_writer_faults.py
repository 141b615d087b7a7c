"""A write whose storage dies or fails at every call, and what becomes of the table."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.recovery.dead_writers import roll_back_dead_writers
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.merge_into import MergeInto
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import Written, write
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Failure, HookedStorage, MovingStorage, ProcessDied, die_at, fail_at, pause_at
from tests.support.interleaving import serial_pools
from tests.support.lost_lock import LockLostAt
from tests.support.seed import SEED
from tests.support.selection import deep
from tests.support.written_tables import Rows, check_nothing_left, impatient, read_rows, seed_note, written_table
from tests.writing.test_writer import rows

CHAOS = int(os.environ.get("PHANTOMBASE_CHAOS", "8"))
"""How many cases a test; from 100 on every call is disturbed in every way."""

BEFORE: Rows = {f"k{n:04d}": (10, 1.0) for n in (0, 3, 1, 4)} | {"k0003": (11, 2.0)}
BATCH = rows(*((n, 20, 3.0) for n in (0, 3, 4, 7, 2, 5)))
DURING: Rows = {f"k{n:04d}": (20, 3.0) for n in (0, 3, 4, 7, 2, 5)}
NEXT = rows(*((n, 30, 4.0) for n in (0, 1, 2, 8)))
Case = TypeVar("Case")
AFTER: Rows = {f"k{n:04d}": (30, 4.0) for n in (0, 1, 2, 8)}


@dataclass(frozen=True)
class Ground:
    """Copies of a table, and the storage calls of a write on it that nothing disturbs.

    The write appends to a file group with a log, makes a new file group, and under the key index writes a small base
    file anew. `into`: it sets some columns, and inserts.
    """

    folder: Path
    buckets: int | None
    into: MergeInto | None
    calls: tuple[str, ...]

    @staticmethod
    def made(folder: Path, version: int, buckets: int | None, into: MergeInto | None = None) -> Ground:
        options = WriteOptions(buckets=buckets, slots=1)
        origin = folder / "origin"
        written_table(origin, version, rows(*((n, 10, 1.0) for n in (0, 3, 1, 4))), options)
        write(
            open_table(origin),
            LocalEngine(rows((3, 11, 2.0)), slots=1),
            Write(operation=Operation.UPSERT, options=options),
        )
        ground = Ground(folder, buckets, into, ())
        with ground.copy() as path:
            storage = HookedStorage(LocalStorage(str(path)), lambda call: call.do())
            done = ground.write(storage)
            assert done.files == 3
            assert read_rows(path) == BEFORE | DURING
        return Ground(folder, buckets, into, tuple(storage.calls))

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """A fresh copy of the table."""
        path = self.folder / "copy"
        shutil.copytree(self.folder / "origin", path)
        yield path
        shutil.rmtree(path)

    def write(self, storage: Storage, batch: pa.Table = BATCH) -> Written:
        """One upsert, which takes every other writer for dead: all of this process are one process."""
        options = impatient(WriteOptions(buckets=self.buckets, slots=1, lazy_rollback=False))
        what = Write(operation=Operation.UPSERT, options=options, into=self.into)
        return write(open_table(Path(storage.base_path), storage), LocalEngine(batch, slots=1), what)

    def check_next(self, path: Path) -> None:
        """A reader sees the disturbed write or does not; the next write works, and nothing is left of the other."""
        seen = read_rows(path)
        assert seen in (BEFORE, BEFORE | DURING)
        self.write(LocalStorage(str(path)), NEXT)
        assert read_rows(path) == seen | AFTER
        check_nothing_left(path)

    def changing(self) -> list[int]:
        """The calls that change something: only deaths before those differ on disk."""
        return [n for n, name in enumerate(self.calls) if Failure.AFTER.can_hit(name)]

    def failures(self) -> list[tuple[int, Failure]]:
        """Every way in which a call can fail."""
        return [(n, f) for n, name in enumerate(self.calls) for f in Failure if f.can_hit(name)]


MERGE = MergeInto.of(None, ["ts", "fare"], None, inserts=True, delete=None)
GROUNDS: dict[str, Any] = {
    "6 keys": (6, None),
    "9 buckets": (9, 1),
    "9 merge": (9, None, MERGE),
    "6 buckets": deep((6, 1)),
    "9 keys": deep((9, None)),
    "9 merge buckets": deep((9, 1, MERGE)),
}


@pytest.fixture(params=list(GROUNDS.values()), ids=list(GROUNDS))
def ground(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A table of each layout and index, and one that is merged into; in a usual run not each layout with each."""
    serial_pools(monkeypatch)
    return Ground.made(tmp_path, *request.param)


def chosen(cases: list[Case], count: int) -> list[Case]:
    """So many of the cases; all in a deep run."""
    return cases if CHAOS >= 100 else sorted(random.Random(SEED).sample(cases, min(count, len(cases))), key=cases.index)


def test_a_death_at_every_storage_call(ground: Ground) -> None:
    for number in chosen(ground.changing(), CHAOS):
        with seed_note(SEED, number), ground.copy() as path:
            with pytest.raises(ProcessDied):
                ground.write(HookedStorage(LocalStorage(str(path)), die_at(number)))
            ground.check_next(path)


def test_an_error_at_every_storage_call(ground: Ground) -> None:
    """The write goes on rightly, or says that it failed and then nothing of it is visible."""
    for number, failure in chosen(ground.failures(), 2 * CHAOS):
        with seed_note(SEED, number, ground.calls[number], failure), ground.copy() as path:
            failed = run_failing(ground, path, number, failure)
            assert read_rows(path) == (BEFORE if failed else BEFORE | DURING)
            ground.check_next(path)


def test_deaths_in_the_rollback_too(ground: Ground) -> None:
    """A death, a death at a random call of the write that rolls back, then one that finishes."""
    pick = random.Random(SEED)
    for _ in range(CHAOS):
        first, second = pick.choice(ground.changing()), pick.randrange(2 * len(ground.calls))
        with seed_note(SEED, first, second), ground.copy() as path:
            for number in (first, second):
                with suppress(ProcessDied):
                    ground.write(HookedStorage(LocalStorage(str(path)), die_at(number)))
            ground.check_next(path)


def test_a_write_taken_for_dead_at_every_storage_call(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one rolls it back and writes; the first comes back and loses, unless it was under the lock or done."""
    monkeypatch.setattr(
        "phantombase.writer_hooks.write.write.table_lock",
        lambda storage, _: ProcessLock(storage.location, timeout_s=0.0),
    )
    for number in chosen(ground.changing(), CHAOS):
        with seed_note(SEED, number), ground.copy() as path:
            others: list[Written] = []
            paused = pause_at(number, partial(write_if_free, ground, path, others))
            lost = False
            try:
                ground.write(HookedStorage(LocalStorage(str(path)), paused))
            except ConflictError:
                lost = True
            assert not lost or others
            expected = BEFORE | ({} if lost else DURING) | (AFTER if others else {})
            assert read_rows(path) == expected
            ground.write(LocalStorage(str(path)), NEXT)
            assert read_rows(path) == expected | AFTER
            check_nothing_left(path)


def test_a_write_rolled_back_while_it_stages_places_nothing(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody knows of would count as committed once archiving has passed its instant."""
    monkeypatch.setattr(
        "phantombase.writer_hooks.write.write.table_lock", lambda storage, _: ProcessLock(storage.location)
    )
    with ground.copy() as path:

        def rolled_back() -> None:
            table, lock = open_table(path), ProcessLock(str(path))
            assert roll_back_dead_writers(table, lock, lazy=False, now_ms=lambda: 0, expiry_s=-1e12)

        before = data_files(path)
        paused = pause_at(ground.calls.index("open_output"), rolled_back)
        with pytest.raises(ConflictError, match="another process rolled this write back"):
            ground.write(HookedStorage(LocalStorage(str(path)), paused))
        assert data_files(path) == before


def data_files(path: Path) -> set[str]:
    """Names of base and log files."""
    return {p.name for p in path.glob("*/*") if parse_data_file(p.name) is not None}


def write_if_free(ground: Ground, path: Path, done: list[Written]) -> None:
    """Another process's write, unless somebody is under the lock."""
    with suppress(LockError):
        done.append(ground.write(LocalStorage(str(path)), NEXT))


def run_failing(ground: Ground, path: Path, number: int, failure: Failure) -> bool:
    """A write in which one call fails; whether it says so, by an error of the tree."""
    inner = LocalStorage(str(path))
    try:
        ground.write(HookedStorage(inner, fail_at(number, failure, inner)))
    except PhantombaseError:
        return True
    return False


def test_a_placing_that_moves_the_staged_file(ground: Ground) -> None:
    """As on HDFS: dead before it, or failed before or after it; the rollback and the next write need no staged file."""
    for number in (n for n, name in enumerate(ground.calls) if name == "place"):
        for hook in (die_at(number), die_at(number + 1), None):
            with ground.copy() as path:
                inner = MovingStorage(str(path))
                with suppress(PhantombaseError, ProcessDied):
                    ground.write(HookedStorage(inner, hook or fail_at(number, Failure.AFTER, inner)))
                if hook is None:  # its effect is found
                    assert read_rows(path) == BEFORE | DURING
                ground.check_next(path)


def test_a_lock_that_is_lost_before_a_write_begins(ground: Ground) -> None:
    """Nothing is left of an instant that was never begun: no next write need look for its heartbeat. From the first
    file on it stays, so that Hudi rolls the instant back.
    """
    for asked, left in ((0, 0), (1, 1)):
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
