"""Folders that are listed in pages: what goes or comes between two of them takes no row from a read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.contract import Entry, Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import from_one_snapshot
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import archive, compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, OnObjects
from tests.support.faults import Faults
from tests.support.golden_tables import LOCK, one_of
from tests.support.interleaving import serial_pools
from tests.support.selection import deep
from tests.support.service_client import served_files
from tests.support.written_tables import written_table


@dataclass(frozen=True, slots=True)
class InPages(LocalStorage):
    """Its first listing of `folder` comes in two pages, one of `size` names; `between` happens between them."""

    folder: str
    size: int
    between: list[Callable[[], object]]

    @property
    def names_at_once(self) -> int | None:
        return 1

    @classmethod
    def of(cls, path: Path, folder: str, size: int, between: Callable[[], object]) -> InPages:
        return cls(str(path), folder, size, [between])

    def list(self, folder: str) -> list[Entry]:
        if folder != self.folder or not self.between:
            return LocalStorage.list(self, folder)
        first = LocalStorage.list(self, folder)[: self.size]
        self.between.pop()()
        return first + [e for e in LocalStorage.list(self, folder) if e.name > first[-1].name]


class Unseen(InPages):
    """What comes while `folder` is listed comes into a page that was read, and what goes is on a later one."""

    @property
    def names_at_once(self) -> int | None:
        return 0

    def list(self, folder: str) -> list[Entry]:
        found = LocalStorage.list(self, folder)
        if folder != self.folder or not self.between:
            return found
        self.between.pop()()
        left = {e.name for e in LocalStorage.list(self, folder)}
        return [e for e in found if e.name in left]


def _rows(path: Path, storage: LocalStorage | None = None, options: ReadOptions | None = None) -> list[str]:
    rows = from_one_snapshot(lambda: read_table(open_table(path, storage), options or ReadOptions()))
    return sorted(map(repr, rows.select(["id", "day", "ts", "fare"]).to_pylist()))


def _clean(path: Path) -> None:
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)


def _tidy(path: Path) -> None:
    compact(path)
    _clean(path)
    archive(path)


@one_of("version", 9, 6)
def test_archiving_between_two_pages(version: int, tmp_path: Path) -> None:
    """An old instant on the first page has gone, and later ones with it, before the second one begins."""
    made, path = tmp_path / "made/trips", tmp_path / "read/trips"
    made.parent.mkdir()
    long_table(made, version, 3, compact_at=None)
    for number in range(3, 7):
        upsert(made, one_row(f"k{number}", number))
    rows, folder = _rows(made), open_table(made).config.timeline_folder
    names = len(LocalStorage(str(made)).list(folder))
    for size in range(1, names):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(made, path)
        assert _rows(path, InPages.of(path, folder, size, lambda: _tidy(path))) == rows, f"a page of {size} names"


@one_of("version", 6, 9)
def test_two_writes_complete_between_two_pages(version: int, tmp_path: Path) -> None:
    """The first completion comes into the page that was read, the second one into the other: a stream would go on."""
    path = tmp_path / "trips"
    long_table(path, version, 2, compact_at=None)
    for number in range(2, 4):
        upsert(path, one_row(f"k{number}", number))
    table, everything = open_table(path), ReadOptions(query=Query.INCREMENTAL, begin="earliest")
    rows, folder = _rows(path, options=everything), table.config.timeline_folder
    third = table.files.path(table.load_timeline().completed[2])
    held = tmp_path / "held"
    shutil.move(path / third, held)
    size = 1 + sum(e.name <= Path(third).name for e in LocalStorage(str(path)).list(folder))
    storage = InPages.of(path, folder, size, lambda: shutil.move(held, path / third))
    assert _rows(path, storage, everything) == rows


def _compacted(path: Path) -> None:
    compact(path)
    upsert(path, one_row("k0", 8))
    _clean(path)


def _written_anew(path: Path) -> None:
    """Inserts write the base file of a small file group anew, by delta commits."""
    for number in (8, 9):
        upsert(path, one_row(f"n{number}", number), WriteOptions(slots=1))
    _clean(path)


@one_of("version", 9, 6)
@pytest.mark.parametrize(("services", "partition"), [(_compacted, ()), (_written_anew, ()), (_written_anew, ("day",))])
def test_base_files_come_and_go_between_two_pages(
    services: Callable[[Path], None], partition: tuple[str, ...], version: int, tmp_path: Path
) -> None:
    """The new one and the old one are seen on no page."""
    path = tmp_path / "trips"
    described = writer(one_row("k0", 0)).table("trips", version=version).key("id").ordering("ts").partition(*partition)
    described.upsert(str(path))
    if services is _compacted:
        upsert(path, one_row("k0", 1))
    before = _rows(path)
    storage = Unseen.of(path, "a" if partition else "", 0, lambda: services(path))
    found = _rows(path, storage)
    assert not storage.between
    assert found in (before, _rows(path))


# Partitions are listed one after the other: whatever is done to the table between them, the rows are of one moment.


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


SERVICES: dict[str, Sequence[Service]] = {
    "a partition moved": (_b, _without_a, _b, _clean),
    "archived": (_all, _all, _all, archive),
    "compacted and archived": (_all, compact, _all, _clean, _all, _all, archive),
}
STORAGES = {"files": HookedStorage, "objects": OnObjects}


def _several_partitions_rows(path: Path, storage: Storage | None = None) -> list[str]:
    rows = read_table(open_table(path, storage), ReadOptions()).select(["id", "day", "ts"])
    return sorted(map(repr, rows.to_pylist()))


class Seen(InPages):
    """What comes and goes before `folder` is listed."""

    @property
    def names_at_once(self) -> int | None:
        return None

    def list(self, folder: str) -> list[Entry]:
        if folder == self.folder and self.between:
            self.between.pop()()
        return LocalStorage.list(self, folder)


@one_of("version", 9, 6)
@pytest.mark.parametrize("storage", [Unseen, Seen])
def test_a_base_file_of_an_archived_write_is_written_anew_and_cleaned(
    storage: type[InPages], version: int, tmp_path: Path
) -> None:
    """No active write names the one that was there: only the new writes show that it is missed."""
    path = tmp_path / "trips"
    written_table(path, version, _in_days(0, "a"), _WRITES)
    (first,) = open_table(path).load_timeline().completed_writes
    for _ in range(6):
        _b(path)
    archive(path)
    assert first not in open_table(path).load_timeline().completed_writes
    before, looked = _rows(path), storage.of(path, "a", 0, lambda: _written_anew(path))
    assert _rows(path, looked) in (before, _rows(path))
    assert not looked.between


READS = {"rows": _several_partitions_rows, "files": served_files}
USUAL = {
    (9, "a partition moved", "files", "rows"),
    (9, "archived", "objects", "rows"),
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
