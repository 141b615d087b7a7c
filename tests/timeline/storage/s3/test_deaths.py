"""A compaction, a write and an unscheduling that die before a call of the storage: the next run finishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table, run_all, staged
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import HookedStorage, ProcessDied
from tests.support.golden_tables import unzip_golden
from tests.support.s3_table import PLANNED, die_before_change, fares, litter
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.tables import LOCK
from tests.support.trips import rows, trips
from tests.support.written_tables import impatient


def each(usual: int) -> pytest.MarkDecorator:
    """Versions, and which calls: in a usual run each n-th of those that change something, in the deep one all."""
    return pytest.mark.parametrize(
        ("version", "step"), [(9, usual), deep(6, 1), deep(8, 1), deep(9, 1)], ids=lambda value: f"{value}"
    )


def deaths(path: Path, s3: S3Server, step: int, do: Callable[[Storage], object]) -> Iterator[str]:
    """Copies of a table on which `do` died before a call that changes something; at last one where it came to its end.

    The first copy is one where it died before its second such call.
    """
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


@each(9)
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


@each(6)
def test_a_write_dies(version: int, step: int, s3: S3Server, tmp_path: Path) -> None:
    """It is visible as a whole or not at all; the next write goes on and removes what it left."""
    path = tmp_path / "t"
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), version).upsert(str(path))
    options = impatient(WriteOptions(slots=1, lazy_rollback=False))
    batch, following = rows((2, 2, 2.5), (3, 2, 3.0)), rows((3, 3, 3.5))

    def upsert(storage: Storage, what: Any = batch) -> None:
        write(Table.on(storage), LocalEngine(what, slots=1), Write(operation=Operation.UPSERT, options=options))

    before = {"k0001": 1.0, "k0002": 2.0}
    for url in deaths(path, s3, step, upsert):
        seen = fares(url)
        assert seen in (before, {**before, "k0002": 2.5, "k0003": 3.0})
        upsert(ObjectStorage(url), following)
        assert fares(url) == {**seen, "k0003": 3.5}
        assert litter(url) == []


@each(4)
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
