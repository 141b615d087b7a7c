"""An overwrite whose storage dies or fails at every call: it replaces all or nothing, and the next write ends it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import Written, write, write_batch
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import Faults
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL, deep
from tests.support.trips import AFTER, BEFORE, NEXT, rows
from tests.support.written_tables import Rows, check_nothing_left, impatient, read_rows, written_table

BATCH = rows(*((n, 20, 3.0) for n in (0, 6, 9)))
NEW: Rows = {f"k{n:04d}": (20, 3.0) for n in (0, 6, 9)}
KEPT: Rows = {key: value for key, value in BEFORE.items() if key not in ("k0000", "k0003")}
DURING: dict[Operation, Rows] = {
    Operation.INSERT_OVERWRITE: KEPT | NEW,
    Operation.INSERT_OVERWRITE_TABLE: NEW,
    Operation.DELETE_PARTITION: KEPT,
}
"""Behind each operation: what the table reads. All rows of BATCH are in the partition of k0000 and k0003."""


@dataclass(frozen=True)
class Ground:
    """A table of two partitions, one with a log, and an overwrite of it. `share`: see `Faults`."""

    folder: Path
    operation: Operation
    buckets: int | None
    share: tuple[int, int]

    def faults(self) -> Faults:
        """Those of the overwrite."""
        return Faults.of(self.folder / "origin", self.write, share=self.share)

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """A fresh copy of the table."""
        path = self.folder / "copy"
        shutil.copytree(self.folder / "origin", path)
        yield path
        shutil.rmtree(path)

    def write(self, storage: Storage, operation: Operation | None = None, batch: pa.Table = BATCH) -> Written:
        """The overwrite, or another write; every other writer counts as dead."""
        options = impatient(WriteOptions(buckets=self.buckets, slots=1, lazy_rollback=False))
        what = Write(operation=operation or self.operation, options=options)
        return write(open_table(Path(storage.base_path), storage), LocalEngine(batch, slots=1), what)

    def check_next(self, path: Path) -> None:
        """All or nothing is replaced; the next write works, and nothing is left of the other."""
        seen = read_rows(path)
        assert seen in (BEFORE, DURING[self.operation])
        self.write(LocalStorage(str(path)), Operation.UPSERT, NEXT)
        assert read_rows(path) == seen | AFTER
        check_nothing_left(path)


CASES: list[tuple[int, int | None, Operation]] = [
    (9, None, Operation.INSERT_OVERWRITE),
    (6, None, Operation.INSERT_OVERWRITE),
]
MORE: list[tuple[int, int | None, Operation]] = [(9, 1, Operation.INSERT_OVERWRITE), (6, 1, Operation.INSERT_OVERWRITE)]
MORE += [(v, None, o) for v in (6, 9) for o in (Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)]


@pytest.fixture(params=[*CASES, *(deep(case) for case in MORE)], ids=str)
def ground(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A table of each layout and index, for each operation; in a usual run each kind of call on one of them."""
    serial_pools(monkeypatch)
    version, buckets, operation = request.param
    options = WriteOptions(buckets=buckets, slots=1)
    made = Ground(tmp_path, operation, buckets, (version == 6, len(CASES)))
    written_table(tmp_path / "origin", version, rows(*((n, 10, 1.0) for n in (0, 3, 1, 4))), options)
    made.write(LocalStorage(str(tmp_path / "origin")), Operation.UPSERT, rows((3, 11, 2.0)))
    with made.copy() as path:
        made.write(LocalStorage(str(path)))
        assert read_rows(path) == DURING[operation]
    return made


def test_a_death_at_every_storage_call(ground: Ground) -> None:
    died = 0
    for _, path in ground.faults().deaths():
        ground.check_next(path)
        died += 1
    assert died > 4


def test_an_error_at_every_storage_call(ground: Ground) -> None:
    """The write goes on rightly, or says that it failed and then nothing is replaced."""
    said: Counter[bool] = Counter()
    for _, _, path, error in ground.faults().errors():
        assert read_rows(path) == (BEFORE if error else DURING[ground.operation])
        ground.check_next(path)
        said[error is not None] += 1
    assert said[True] > 8
    assert said[False] > 0


def test_the_overwrite_again_behind_a_dead_one(ground: Ground) -> None:
    """Twice dead, then done: the same rows as at once."""
    faults = replace(ground.faults(), share=(0, 1 if ALL else 4))
    changes = faults.chosen(lambda point: point.changes)
    for (_, path), second in zip(faults.deaths(), reversed(changes), strict=True):
        faults.dies_at(second, path)
        ground.write(LocalStorage(str(path)))
        assert read_rows(path) == DURING[ground.operation]
        check_nothing_left(path)


def test_a_batch_of_a_stream_that_died_is_overwritten_once(ground: Ground) -> None:
    """The replayed batch rolls its dead try back at once, although that one's heartbeat is fresh."""
    batch = StreamBatch(name="query", number=7)
    what = Write(operation=ground.operation, options=WriteOptions(buckets=ground.buckets, slots=1))

    def sink(storage: Storage) -> Written | None:
        return write_batch(open_table(Path(storage.base_path), storage), LocalEngine(BATCH, slots=1), what, batch)

    with ground.copy() as path:
        ended = ".replacecommit"
        with pytest.raises(ProcessDied):
            sink(HookedStorage(LocalStorage(str(path)), die_at_nth(1, "put_if_absent", ended)))
        assert read_rows(path) == BEFORE
        assert sink(LocalStorage(str(path))) is not None
        assert sink(LocalStorage(str(path))) is None
        assert read_rows(path) == DURING[ground.operation]
        check_nothing_left(path)
