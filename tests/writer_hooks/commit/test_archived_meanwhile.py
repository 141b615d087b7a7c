"""A long write, and others that end beside it and are archived before it ends: it must still see that they conflict."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.timeline.archiving import choice
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.metadata_table.record_index import GLOBAL_KEYS_MARK
from phantombase.timeline.recovery.dead_writers import roll_back_dead_writers
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.tables import LOCK, one_of
from tests.support.written_tables import read_rows, written_table

VERSIONS = pytest.mark.parametrize("version", [6, 9])
FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
ROWS = {"old": (0, 0.0), "older": (14, 14.0), "x": (5, 5.0)}
_APPENDS = WriteOptions(slots=1, small_file_bytes=0)


class Slow:
    """A write of one row that waits before it places its files, until `end`."""

    def __init__(
        self, path: Path, pool: ThreadPoolExecutor, key: str, number: int, operation: Operation = Operation.UPSERT
    ) -> None:
        self._there, self._go = threading.Event(), threading.Event()

        def wait(call: Call) -> Any:
            if call.name == "place":
                self._there.set()
                self._go.wait(60)
            return call.do()

        table = open_table(path, HookedStorage(LocalStorage(str(path)), wait))
        engine, how = LocalEngine(one_row(key, number), slots=1), Write(operation=operation, options=_APPENDS)
        self._done: Future[object] = pool.submit(lambda: write(table, engine, how))
        assert self._there.wait(60)

    def end(self) -> None:
        """Lets it go on; its error."""
        self._go.set()
        self._done.result(60)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def beside(path: Path, version: int, pool: ThreadPoolExecutor, key: str) -> Slow:
    """A slow write of a key. While it waits, a new key and an older one are written by writes that began before it, and
    another one by five that began later.
    """
    written_table(path, version, one_row("old", 0), _APPENDS)
    upsert(path, one_row("older", 1))
    slow = [Slow(path, pool, one, number) for number, one in enumerate(("x", "older", key), 5)]
    slow[0].end()
    slow[1].end()
    for number in range(10, 15):
        upsert(path, one_row("older", number))
    return slow[2]


@one_of("version", 9, 6)
def test_what_ended_beside_a_pending_write_stays(version: int, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Both inserted a key: the row would be doubled."""
    path = tmp_path / "trips"
    last = beside(path, version, pool, "x")
    done = archive_table(open_table(path), FEW, LOCK)
    assert len(done.archived) == 2
    assert "a write is pending that began before" in done.why
    with pytest.raises(ConflictError, match="inserts into partition 'a'"):
        last.end()
    assert read_rows(path) == ROWS
    assert archive_table(open_table(path), FEW, LOCK).archived  # now nothing is pending


@pytest.fixture
def as_hudi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archiving goes up to the last write before the earliest pending one, as Hudi's does."""
    monkeypatch.setattr(choice, "_beside_pending", lambda *_: ())


@VERSIONS
def test_what_an_archiver_of_hudi_took_is_asked_for(
    version: int, pool: ThreadPoolExecutor, as_hudi: None, tmp_path: Path
) -> None:
    path = tmp_path / "trips"
    last = beside(path, version, pool, "x")
    assert len(archive_table(open_table(path), FEW, LOCK).archived) == 3
    with pytest.raises(ConflictError, match="archived meanwhile: " + ("what it" if version == 6 else "inserts into")):
        last.end()
    assert read_rows(path) == ROWS
    upsert(path, one_row("x", 20))  # again: it finds the key
    assert read_rows(path) == ROWS | {"x": (20, 20.0)}


def test_what_was_archived_is_no_conflict_where_it_wrote_elsewhere(
    pool: ThreadPoolExecutor, as_hudi: None, tmp_path: Path
) -> None:
    path = tmp_path / "trips"
    last = beside(path, 9, pool, "old")
    assert len(archive_table(open_table(path), FEW, LOCK).archived) == 3
    last.end()
    assert read_rows(path) == ROWS | {"old": (7, 7.0)}


def test_a_slow_insert_that_is_archived_at_once_is_looked_at(
    pool: ThreadPoolExecutor, as_hudi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are unique over all partitions. It ends between the look-up and the begin of a write of the same key."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("old", 0), _APPENDS)
    (path / GLOBAL_KEYS_MARK).touch()
    slow = Slow(path, pool, "x", 5, Operation.INSERT)
    for number in range(10, 15):
        upsert(path, one_row("old", number))
    monkeypatch.setattr(choice, "_late", lambda *_: None)
    once = iter([True])

    def it_ends(*args: Any, **more: Any) -> Any:
        if next(once, False):
            slow.end()
            assert len(archive_table(open_table(path), FEW, LOCK).archived) == 4
        return roll_back_dead_writers(*args, **more)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.roll_back_dead_writers", it_ends)
    elsewhere = one_row("x", 20).set_column(1, "day", pa.array(["b"]))
    with pytest.raises(UnsupportedError, match="move keys to another partition"):
        upsert(path, elsewhere)
    assert read_rows(path) == {"old": (14, 14.0), "x": (5, 5.0)}


@one_of("version", 6, 9)
def test_the_size_of_a_row_is_not_asked_of_what_was_archived_meanwhile(version: int, tmp_path: Path) -> None:
    """A write estimates it by the newest commits, of which an archiver may have left two."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), _APPENDS)
    for number in range(1, 7):
        upsert(path, one_row("k0", number))
    oldest = open_table(path).instant_path(open_table(path).load_timeline().completed[0])
    archived = list[object]()

    def hook(call: Call) -> Any:
        if call.name == "read" and call.path == oldest and not archived:
            archived.extend(archive_table(open_table(path), FEW, LOCK).archived)
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    write(table, LocalEngine(one_row("new", 9), slots=1), Write(operation=Operation.UPSERT, options=_APPENDS))
    assert archived
    assert read_rows(path) == {"k0": (6, 6.0), "new": (9, 9.0)}
