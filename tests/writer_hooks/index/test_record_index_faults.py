"""A write on a table with Hudi's record index whose storage dies or fails at a call: the index says where the keys are
that a reader finds, after that, after a second death at the same call, and after the next write."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table
from tests.support.faults import Faults
from tests.support.golden_tables import unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.record_indexes import check_index, keys, rows
from tests.support.selection import ALL, deep
from tests.support.written_tables import check_nothing_left, impatient

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
    """A table of Hudi's, and a write on it. `share`: see `Faults`; each kind of call in one of the usual cases."""

    origin: Path
    operation: Operation
    share: tuple[int, int]

    @staticmethod
    def made(folder: Path, version: int, operation: Operation) -> Ground:
        number = [*USUAL, *MORE].index((version, operation))
        share = number % len(USUAL), len(USUAL)
        ground = Ground(unzip_golden(f"more/v{version}_record_index", folder), operation, share)
        path = shutil.copytree(ground.origin, folder / "undisturbed")
        ground.write(LocalStorage(str(path)))
        assert set(check_index(path)) == DURING[operation][1]
        return ground

    def faults(self) -> Faults:
        """Those of the write. A usual run takes the calls at the metadata table, and those that complete the write: the
        others are those of `test_writer_faults.py`."""
        faults = Faults.of(self.origin, self.write, share=self.share)
        which = (METADATA_FOLDER, "commit")
        return replace(faults, points=tuple(p for p in faults.points if ALL or any(one in p.kind for one in which)))

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


@pytest.fixture(autouse=True)
def serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that calls have the same numbers each time."""
    serial_pools(monkeypatch)


USUAL = [(6, Operation.UPSERT), (9, Operation.UPSERT), (9, Operation.DELETE), (6, Operation.INSERT_OVERWRITE)]
MORE = [
    (6, Operation.DELETE),
    (9, Operation.INSERT_OVERWRITE),
    (9, Operation.INSERT_OVERWRITE_TABLE),
    (6, Operation.DELETE_PARTITION),
    (6, Operation.INSERT_OVERWRITE_TABLE),
    (9, Operation.DELETE_PARTITION),
]
CASES = pytest.mark.parametrize(("version", "operation"), [*USUAL, *(deep(*case) for case in MORE)])


@CASES
def test_a_write_that_dies_at_a_storage_call(version: int, operation: Operation, tmp_path: Path) -> None:
    """Once, and the process that goes on once more."""
    ground, twice = Ground.made(tmp_path, version, operation), 0
    faults = ground.faults()
    for point, path in faults.deaths():
        check_index(path)
        twice += faults.dies_at(point, path)
        ground.check_next(path, START, DURING[operation][1])
    assert twice > 0


@CASES
def test_a_write_one_of_whose_storage_calls_fails(version: int, operation: Operation, tmp_path: Path) -> None:
    """It goes on rightly, or says that it failed and then nothing of it is visible."""
    ground, failed = Ground.made(tmp_path, version, operation), 0
    for _, _, path, error in ground.faults().errors():
        ground.check_next(path, START if error else DURING[operation][1])
        failed += 1
    assert failed > 1
