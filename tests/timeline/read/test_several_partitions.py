"""Partitions are listed one after the other: whatever is done to the table between them, the rows are of one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, product
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import LOCK, archive, compact, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, OnObjects
from tests.support.faults import Faults
from tests.support.interleaving import serial_pools
from tests.support.selection import deep
from tests.support.served_files import served_files
from tests.support.written_tables import written_table

Service: TypeAlias = Callable[[Path], object]

_DAYS = ("a", "b")
_WRITES = WriteOptions(slots=1, small_file_bytes=0)
_NUMBERS = count(100)


def _in_days(number: int, *days: str) -> pa.Table:
    """The same row in each partition, which is there already: an update is a log file."""
    rows = pa.concat_tables([one_row(f"k{day}", number) for day in days])
    return rows.set_column(1, "day", pa.array(days))


def _all(path: Path) -> None:
    upsert(path, _in_days(next(_NUMBERS), *_DAYS))


def _b(path: Path) -> None:
    upsert(path, _in_days(next(_NUMBERS), "b"))


def _without_a(path: Path) -> None:
    how = Write(operation=Operation.DELETE_PARTITION, options=_WRITES, partitions=("a",))
    write(open_table(path), LocalEngine(one_row("", 0).slice(0, 0), slots=1), how)


def _clean(path: Path) -> None:
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)


SERVICES: dict[str, Sequence[Service]] = {
    "a partition moved": (_b, _without_a, _b, _clean),
    "archived": (_all, _all, _all, archive),
    "compacted and archived": (_all, compact, _all, _clean, _all, _all, archive),
}
STORAGES = {"files": HookedStorage, "objects": OnObjects}


def _rows(path: Path, storage: Storage | None = None) -> list[str]:
    rows = read_table(open_table(path, storage), ReadOptions()).select(["id", "day", "ts"])
    return sorted(map(repr, rows.to_pylist()))


READS = {"rows": _rows, "files": served_files}
USUAL = {
    (9, "a partition moved", "files", "rows"),
    (6, "a partition moved", "objects", "rows"),
    (9, "archived", "objects", "rows"),
    (8, "compacted and archived", "objects", "rows"),
    (6, "a partition moved", "objects", "files"),
}


@pytest.mark.parametrize(
    ("version", "services", "storage", "read"),
    [one if one in USUAL else deep(*one) for one in product((9, 8, 6), SERVICES, STORAGES, READS)],
)
def test_what_is_read_is_of_one_moment(
    version: int, services: str, storage: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every call of a read up to the first data file another process runs its services to their end."""
    serial_pools(monkeypatch)
    made = tmp_path / "trips"
    written_table(made, version, _in_days(0, *_DAYS), _WRITES)
    for _ in range(4):
        _all(made)
    archive(made)
    _all(made)
    moments, found = [READS[read](made, None)], list[list[str]]()

    def serve(path: Path) -> None:
        for service in SERVICES[services]:
            service(path)
            moments.append(READS[read](path, None))

    looked = 0
    reads = Faults.of(
        made, lambda storage: found.append(READS[read](Path(storage.base_path), storage)), hooked=STORAGES[storage]
    )
    for point, _, error in reads.pauses(serve, lambda point: not point.kind.startswith("open_input partition")):
        assert error is None
        assert found[-1] in moments, f"services before {point}"
        looked += 1
        del moments[1:]
    assert looked > 6
