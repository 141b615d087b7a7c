"""A reader beside a rollback or a restore: it reads the rows from before or from behind it, never half a write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import LOCK, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, OnObjects, ProcessDied, die_at
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL, deep
from tests.support.served_files import served_files
from tests.support.written_tables import written_table


def _newest(table: Table) -> str:
    return max(table.load_timeline().completed_writes)


def _roll_back(table: Table) -> None:
    roll_back_newest(table, LOCK, _newest(table))


def _restore(table: Table) -> None:
    restore_table(table, LOCK, sorted(table.load_timeline().completed_writes)[-2])


def _rows(path: Path, storage: Storage | None = None) -> object:
    return sorted(map(repr, read_table(open_table(path, storage), ReadOptions()).select(["id", "ts"]).to_pylist()))


UNDO = {"rollback": _roll_back, "restore": _restore}
READS: dict[str, Callable[..., object]] = {"rows": _rows, "served": served_files}
USUAL = {(9, "rollback", "rows"), (6, "restore", "rows"), (8, "rollback", "served")}


@pytest.mark.parametrize(
    ("version", "undo", "read"),
    [one if one in USUAL else deep(*one) for one in ((v, u, r) for v in (9, 8, 6) for u in UNDO for r in READS)],
)
def test_no_half_of_a_write(
    version: int, undo: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs up to any of its calls between the timeline and the listing of a reader."""
    serial_pools(monkeypatch)
    made, path = tmp_path / "made/trips", tmp_path / "read/trips"
    made.parent.mkdir()
    written_table(made, version, one_row("k0", 0), WriteOptions(slots=1, small_file_bytes=0))
    for number in range(1, 3):
        upsert(made, one_row(f"k{number}", 0))  # a file group of its own
    upsert(made, pa.concat_tables([one_row(f"k{number}", 1) for number in range(3)]))
    before = READS[read](made)
    for at in count(0, 1 if ALL else 2):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(made, path)
        ended = list[bool]()

        def hook(call: Call, at: int, ended: list[bool]) -> Any:
            if call.name == "list" and call.path == "a" and not ended:
                ended.append(True)
                try:
                    UNDO[undo](open_table(path, HookedStorage(LocalStorage(str(path)), die_at(at))))
                except ProcessDied:
                    ended[0] = False
            return call.do()

        found = READS[read](path, OnObjects(LocalStorage(str(path)), partial(hook, at=at, ended=ended)))
        assert found in (before, READS[read](path)), f"dead at call {at}"
        if ended[0]:
            assert found != before
            break
