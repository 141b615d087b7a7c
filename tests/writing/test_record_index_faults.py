"""A write on a table with Hudi's record index whose storage dies or fails at a call: the index says where the keys are
that a reader finds, after that, after a second death at the same call, and after the next write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Failure, HookedStorage, ProcessDied, die_at, fail_at
from tests.support.golden_tables import unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.record_indexes import check_index
from tests.support.seed import SEED
from tests.support.selection import deep
from tests.support.written_tables import check_nothing_left, impatient, seed_note
from tests.writing.test_record_index import keys, rows
from tests.writing.test_writer_faults import CHAOS, chosen

START = keys(0, 1, *range(3, 15))
DURING = {  # new keys in small and other files, keys that stay, and 2, which comes alive again; a delete of a key
    Operation.UPSERT: ((2, 3, 7, 20, 21, 22), START | keys(2, 20, 21, 22)),
    Operation.DELETE: ((3, 4, 99), START - keys(3, 4)),
    Operation.INSERT_OVERWRITE: ((3, 7, 20), START - keys(0, 6, 10, 13, 14) | keys(20)),
    Operation.INSERT_OVERWRITE_TABLE: ((3, 7, 20), keys(3, 7, 20)),
    Operation.DELETE_PARTITION: ((3, 7, 20), START - keys(0, 3, 6, 7, 10, 13, 14)),
}
NEXT = (4, 5, 20, 30)


@dataclass(frozen=True)
class Ground:
    """Copies of a table, and the storage calls of a write on it that nothing disturbs."""

    origin: Path
    operation: Operation
    calls: tuple[str, ...] = ()

    @staticmethod
    def made(folder: Path, version: int, operation: Operation) -> Ground:
        ground = Ground(unzip_golden(f"more/v{version}_record_index", folder), operation)
        with ground.copy() as path:
            storage = HookedStorage(LocalStorage(str(path)), lambda call: call.do())
            ground.write(storage)
            assert set(check_index(path)) == DURING[operation][1]
        return Ground(ground.origin, operation, tuple(storage.calls))

    @contextmanager
    def copy(self) -> Iterator[Path]:
        path = self.origin.parent / "copy"
        shutil.copytree(self.origin, path)
        yield path
        shutil.rmtree(path)

    def write(self, storage: Storage) -> None:
        """The write; it takes every other writer for dead: all of this process are one process."""
        some, _ = DURING[self.operation]
        self._write(storage, some, self.operation, 20)

    def _write(self, storage: Storage, some: tuple[int, ...], operation: Operation, ts: int) -> None:
        table = open_table(Path(storage.base_path), storage)
        options = impatient(WriteOptions(slots=1, lazy_rollback=False))
        batch = rows(some, ts)
        how = Write(operation=operation, options=options)
        write(table, LocalEngine(batch.select(["id", "p"]) if how.deletes else batch, slots=1), how)

    def check_next(self, path: Path, *expected: set[str]) -> None:
        seen = set(check_index(path))
        assert seen in expected
        self._write(LocalStorage(str(path)), NEXT, Operation.UPSERT, 30)
        assert set(check_index(path)) == seen | keys(*NEXT)
        assert not validate(open_table(path)).differences
        check_nothing_left(path)

    def changing(self) -> list[int]:
        return [n for n, name in enumerate(self.calls) if Failure.AFTER.can_hit(name)]


@pytest.fixture(autouse=True)
def serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that calls have the same numbers each time."""
    serial_pools(monkeypatch)


CASES = [
    (6, Operation.UPSERT),
    (9, Operation.UPSERT),
    (9, Operation.DELETE),
    (9, Operation.INSERT_OVERWRITE),
    (9, Operation.INSERT_OVERWRITE_TABLE),
    (6, Operation.DELETE_PARTITION),
    deep(6, Operation.DELETE),
    deep(6, Operation.INSERT_OVERWRITE),
    deep(6, Operation.INSERT_OVERWRITE_TABLE),
    deep(9, Operation.DELETE_PARTITION),
]


@pytest.mark.parametrize(("version", "operation"), CASES)
def test_a_write_that_dies_at_a_storage_call(version: int, operation: Operation, tmp_path: Path) -> None:
    """Once, and the process that goes on once more."""
    ground = Ground.made(tmp_path, version, operation)
    for number in chosen(ground.changing(), CHAOS):
        with seed_note(SEED, number, ground.calls[number]), ground.copy() as path:
            for _ in range(2):
                try:
                    ground.write(HookedStorage(LocalStorage(str(path)), die_at(number)))
                except ProcessDied:
                    check_index(path)
            ground.check_next(path, START, DURING[operation][1])


@pytest.mark.parametrize(("version", "operation"), CASES)
def test_a_write_one_of_whose_storage_calls_fails(version: int, operation: Operation, tmp_path: Path) -> None:
    """It goes on rightly, or says that it failed and then nothing of it is visible."""
    ground = Ground.made(tmp_path, version, operation)
    cases = [(n, f) for n, name in enumerate(ground.calls) for f in Failure if f.can_hit(name)]
    for number, failure in chosen(cases, CHAOS):
        with seed_note(SEED, number, ground.calls[number], failure), ground.copy() as path:
            inner = LocalStorage(str(path))
            expected = DURING[operation][1]
            try:
                ground.write(HookedStorage(inner, fail_at(number, failure, inner)))
            except PhantombaseError:
                expected = START
            ground.check_next(path, expected)
