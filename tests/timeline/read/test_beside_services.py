"""A reader beside table services: whichever of its calls they run at, it reads the rows of one moment, or an error.

At every storage call of a read, one after the other, another process runs its services to their end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from phantombase import PhantombaseError
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.metadata_table.read import MetadataListing
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.writer_hooks.options import WriteOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.archived_tables import archive, cluster, compact, long_table, one_row, overwrite, request, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, OnObjects, ProcessDied, die_at
from tests.support.faults import Faults
from tests.support.golden_tables import LOCK
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL, deep
from tests.support.service_client import served_files
from tests.support.written_tables import written_table

Service: TypeAlias = Callable[[Path], object]
READS = {
    "snapshot": ReadOptions(),
    "filter": ReadOptions(filter="fare >= 0"),
    "read optimized": ReadOptions(query=Query.READ_OPTIMIZED),
    "incremental": ReadOptions(query=Query.INCREMENTAL, begin="earliest"),
}
_INSERTS = WriteOptions(slots=1)
_NUMBERS = count(100)


def _write(path: Path) -> None:
    number = next(_NUMBERS)
    upsert(path, one_row(f"n{number}", number))


def _insert(path: Path) -> None:
    """The base file of a small file group is written anew, by a delta commit."""
    number = next(_NUMBERS)
    upsert(path, one_row(f"i{number}", number), _INSERTS)


def _overwrite(path: Path) -> None:
    number = next(_NUMBERS)
    overwrite(path, one_row(f"o{number}", number))


def _clean(path: Path) -> None:
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)


SERVICES: dict[str, Sequence[Service]] = {
    "write": (_write,),
    "compact": (compact,),
    "clean, archive": (_clean, archive),
    "compact, clean, archive": (compact, _clean, archive),
    "writes, archive, clean": (_write, _write, _write, archive, _clean),
    "writes, compact, clean, archive": (_write, _write, _write, compact, _clean, archive),
    "overwrites, clean, archive": (_overwrite, _overwrite, _clean, archive),
    "inserts, clean": (_insert, _insert, _clean),
    "inserts, clean, archive": (_insert, _insert, _insert, _clean, archive),
}
USUAL = {
    (9, "writes, compact, clean, archive", "snapshot"),
    (9, "compact", "incremental"),
    (6, "overwrites, clean, archive", "incremental"),
    (9, "inserts, clean", "snapshot"),
}


def rows_of(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    """What a read finds, in the order of the text."""
    rows = read_table(open_table(path, storage), options).select(["id", "day", "ts", "fare"])
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize(
    ("version", "services", "read"),
    [one if one in USUAL else deep(*one) for one in product((9, 8, 6), SERVICES, READS)],
)
def test_the_rows_of_one_moment(
    version: int, services: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before, between or behind the services; errors are of the tree, and in a usual run there are none."""
    serial_pools(monkeypatch)
    made, options = tmp_path / "trips", READS[read]
    if _insert in SERVICES[services]:
        written_table(made, version, one_row("k0", 0), _INSERTS)
        for _ in range(5):
            _insert(made)
    else:
        long_table(made, version, 5, compact_at=2)
        for number in range(2, 6):
            upsert(made, one_row(f"m{number}", number))
    moments, found = [rows_of(made, options)], list[list[str]]()

    def serve(path: Path) -> None:
        for service in SERVICES[services]:
            service(path)
            with suppress(PhantombaseError):  # what a window of all time needs was cleaned
                moments.append(rows_of(path, options))

    looked = 0
    reads = Faults.of(made, lambda storage: found.append(rows_of(Path(storage.base_path), options, storage)))
    for point, _, error in reads.pauses(serve):
        if (version, services, read) in USUAL or error is None:
            assert error is None
            assert found[-1] in moments, f"services before {point}"
        looked += 1
        del moments[1:]
    assert looked > 6


# A reader that lists the metadata table, beside services: what pended when it began counts there for nothing, and
# what a clean removed since is not listed. All rows are there, or the read is refused.


METADATA_READS = {
    "snapshot": ReadOptions(),
    "read optimized": ReadOptions(query=Query.READ_OPTIMIZED),
    "window": ReadOptions(query=Query.INCREMENTAL, begin="earliest"),
}
METADATA_USUAL = {(9, "compaction", "snapshot")}


def _made(path: Path, version: int, pending: str) -> None:
    """A table without partitions, where a compaction or a clustering is pending."""
    path.mkdir(parents=True)
    spec = NewTable(name="trips", version=version, key_fields=("id",), ordering_fields=("ts",), metadata_table=True)
    create_table(LocalStorage(str(path)), spec)
    for number in range(3):
        upsert(path, one_row(f"k{number}", number))
    if pending == "clustering":
        request(path, alive=False)
    else:
        upsert(path, one_row("k0", 3))
        schedule_compaction(open_table(path), LOCK, PLAN_NOW)
        upsert(path, one_row("k0", 4))


def _rows(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    def load() -> list[str]:
        table = replace(open_table(path, storage), listing=MetadataListing())
        rows = plan(table, options).to_table().select(["id", "ts"])
        return sorted(map(repr, rows.to_pylist()))

    return from_one_snapshot(load)


@pytest.mark.parametrize(
    ("version", "pending", "read"),
    [
        one if one in METADATA_USUAL else deep(*one)
        for one in product((9, 8, 6), ("compaction", "clustering"), METADATA_READS)
    ],
)
def test_all_rows_or_an_error(
    version: int, pending: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_pools(monkeypatch)
    made = tmp_path / "made/trips"
    _made(made, version, pending)
    options = METADATA_READS[read]
    moments, found = [_rows(made, options)], list[list[str]]()

    def serve(path: Path) -> None:
        if pending == "compaction":
            run_all(open_table(path))
        else:
            cluster(path)
        clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
        moments.append(_rows(path, options))

    looked = 0
    reads = Faults.of(made, lambda storage: found.append(_rows(Path(storage.base_path), options, storage)))
    for point, _, error in replace(reads, each=ALL).pauses(serve):
        if (version, pending, read) in METADATA_USUAL or error is None:
            assert error is None
            assert found[-1] in moments, f"services before {point}"
        looked += 1
        del moments[1:]
    assert looked > 6


# A reader beside a rollback or a restore: it reads the rows from before or from behind it, never half a write.


def _newest(table: Table) -> str:
    return max(table.load_timeline().completed_writes)


def _roll_back(table: Table) -> None:
    roll_back_newest(table, LOCK, _newest(table))


def _restore(table: Table) -> None:
    restore_table(table, LOCK, sorted(table.load_timeline().completed_writes)[-2])


def _undone_rows(path: Path, storage: Storage | None = None) -> object:
    return sorted(map(repr, read_table(open_table(path, storage), ReadOptions()).select(["id", "ts"]).to_pylist()))


UNDO = {"rollback": _roll_back, "restore": _restore}
UNDO_READS: dict[str, Callable[..., object]] = {"rows": _undone_rows, "served": served_files}
UNDO_USUAL = {(9, "rollback", "rows"), (6, "restore", "rows"), (8, "rollback", "served")}


@pytest.mark.parametrize(
    ("version", "undo", "read"),
    [
        one if one in UNDO_USUAL else deep(*one)
        for one in ((v, u, r) for v in (9, 8, 6) for u in UNDO for r in UNDO_READS)
    ],
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
    before = UNDO_READS[read](made)
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

        found = UNDO_READS[read](path, OnObjects(LocalStorage(str(path)), partial(hook, at=at, ended=ended)))
        assert found in (before, UNDO_READS[read](path)), f"dead at call {at}"
        if ended[0]:
            assert found != before
            break
