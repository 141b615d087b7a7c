"""Tables that are written, compacted and cleaned whenever they are listed: only what may lack rows is read again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import LOCK, archive, compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.tables import one_of

_NUMBERS = count(100)


def _compacted(path: Path) -> None:
    upsert(path, one_row("k0", next(_NUMBERS)))
    compact(path)
    upsert(path, one_row("k1", next(_NUMBERS)))


def _go_on(path: Path, retain: int) -> Path:
    """Writes, a compaction and a clean that removes files; gives the record of the clean."""
    _compacted(path)
    done = clean_table(open_table(path), CleanOptions(retain=retain, floor_s=0), LOCK)
    assert done.files
    table = open_table(path)
    (clean,) = (i for i in table.load_timeline().instants if i.requested_time == done.instant)
    return path / table.instant_path(clean)


def _rows(path: Path, storage: Storage | None = None) -> list[dict[str, Any]]:
    rows = read_table(open_table(path, storage), ReadOptions()).select(["id", "ts"])
    found: list[dict[str, Any]] = rows.sort_by("id").to_pylist()
    return found


def _beside(path: Path, service: Callable[[], object]) -> tuple[list[dict[str, Any]], int]:
    """The rows of a read during whose listings the service runs, and how often that was."""
    runs = []

    def hook(call: Call) -> Any:
        if call.name == "list" and call.path == "a":
            runs.append(call)
            service()
        return call.do()

    return _rows(path, HookedStorage(LocalStorage(str(path)), hook)), len(runs)


def _once(do: Callable[[], object]) -> Callable[[], None]:
    left = [do]

    def once() -> None:
        if left:
            left.pop()()

    return once


@one_of("version", 9, 6)
def test_a_clean_that_retains_what_is_read(version: int, tmp_path: Path) -> None:
    """It would be refused at every try, and a large table that is written every minute could not be read at all."""
    path = tmp_path / "trips"
    long_table(path, version, 4, compact_at=1)
    for _ in range(3):
        _compacted(path)
    before = _rows(path)
    assert _beside(path, partial(_go_on, path, 4)) == (before, 1)


@one_of("version", 6, 9)
def test_a_clean_whose_record_cannot_be_read_may_have_retained_nothing(version: int, tmp_path: Path) -> None:
    """Hudi writes it in place: it may be empty for a moment."""
    path = tmp_path / "trips"
    long_table(path, version, 4, compact_at=1)
    rows, runs = _beside(path, _once(lambda: _go_on(path, 1).write_bytes(b"")))
    assert runs == 2
    assert rows == _rows(path)


@one_of("version", 9, 6)
def test_a_compaction_that_is_archived_meanwhile(version: int, tmp_path: Path) -> None:
    """It pended when the reader loaded the timeline, and is not on the one that is loaded behind the listing."""
    path = tmp_path / "trips"
    long_table(path, version, 3, compact_at=None)
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    upsert(path, one_row("k0", next(_NUMBERS)))

    def service() -> None:
        run_all(open_table(path))
        upsert(path, one_row("k1", next(_NUMBERS)))
        assert clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK).files
        assert archive(path).archived
        assert not any(i.action == "commit" for i in open_table(path).load_timeline().completed)

    rows, runs = _beside(path, _once(service))
    assert runs == 2
    assert rows == _rows(path)
