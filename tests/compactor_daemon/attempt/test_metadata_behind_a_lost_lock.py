"""The metadata table, when a process sleeps in a section, loses the lock there, and wakes up behind others.

It sleeps right before a storage call, that is behind its last check of the lock. Others finish what it began and go
on; then it wakes up, makes that call, and dies some calls later. Nothing may be missing from the metadata table then.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.services.serve import serve_metadata
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import decided, open_table, run_all, run_under
from tests.support.failing_storage import Call, Failure, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import unzip_golden
from tests.support.selection import ALL
from tests.support.tables import one_of
from tests.support.written_tables import read_rows

Work: TypeAlias = Callable[[Table, TableLock], object]

STEP = 1 if ALL else 3
FOR_EVER = 10**6
LOCK = ProcessLock("not slept")


class LostLock:
    """A lock of one process; `lose`: from now on its section does not hold it."""

    def __init__(self) -> None:
        self._is_held = True

    def lose(self) -> None:
        self._is_held = False

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock`."""
        yield Section(purpose=purpose, lock="lost", is_held=lambda: self._is_held)


def serve(table: Table, lock: TableLock = LOCK) -> None:
    serve_metadata(table, MetadataOptions(max_delta_commits=1), lock)


def compact(table: Table, lock: TableLock = LOCK) -> None:
    for instant in pending_instants(table):
        run_under(table, instant, lock)


def write(path: Path, ts: int) -> None:
    ids = [f"k{i:03d}" for i in range(6)]
    writer(pa.table({"id": ids, "p": ["north"] * 6, "ts": [ts] * 6})).upsert(str(path))


def calls_of(path: Path, work: Work) -> list[tuple[int, str]]:
    """The storage calls of the work that concern the metadata table."""
    seen: list[tuple[int, str]] = []

    def hook(call: Call) -> Any:
        if call.path.startswith(".hoodie/metadata/"):
            seen.append((call.number, f"{call.name} {call.path}"))
        return call.do()

    work(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), LOCK)
    return seen


def changes(calls: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Those that change something."""
    return [(at, what) for at, what in calls if Failure.AFTER.can_hit(what.partition(" ")[0])]


def sleep_and_die(path: Path, work: Work, at: int, lives: int, meanwhile: Callable[[Path], None]) -> None:
    """Does the work; sleeps before call `at` while others work, and dies `lives` calls later."""
    lock = LostLock()

    def hook(call: Call) -> Any:
        if call.number == at:
            meanwhile(path)
            lock.lose()
        if call.number >= at + lives:
            raise ProcessDied(call.path)
        return call.do()

    with suppress(PhantombaseError, ProcessDied):
        work(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), lock)


def check(path: Path, expected: object) -> None:
    """The metadata table lists what is there; after the next runs and writes too, and no row is missing."""
    assert validate(open_table(path)).differences == ()
    compact(open_table(path))
    serve(open_table(path))
    write(path, 2 * 10**6)
    serve(open_table(path))
    assert validate(open_table(path)).differences == ()
    assert read_rows(path) == expected


def play(
    start: Path, work: Work, meanwhile: Callable[[Path], None], lives: tuple[int, ...], step: int, reads: bool
) -> None:
    """Sleeps before each change of the metadata table in turn, and before reads of it."""
    folder = start.parent
    whole = shutil.copytree(start, folder / "whole")
    calls = calls_of(whole, work)
    if not reads:
        calls = changes(calls)
    meanwhile(whole)
    write(whole, 2 * 10**6)
    expected = read_rows(whole)
    assert len(calls) > 4
    for at, what in (c for n, c in enumerate(calls) if n % step == 0 or c[1].startswith("delete")):
        for more in lives:
            path = shutil.copytree(start, folder / "slept")
            sleep_and_die(path, work, at, more, meanwhile)
            try:
                check(path, expected)
            except Exception as error:
                error.add_note(f"slept before {what}, died {more} calls later")
                raise
            shutil.rmtree(path)


@one_of("version", "v9", "v8", "v6")
def test_a_compaction_of_the_table(version: str, tmp_path: Path) -> None:
    """Two processes publish the same decision. What the sleeper forgets, it might never record again."""
    start = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    (instant,) = pending_instants(open_table(start))
    decided(open_table(start), instant)
    with pytest.raises(ProcessDied):  # before the data table's completed file: there is something to forget
        compact(open_table(start, HookedStorage(LocalStorage(str(start)), _dies_at_completion)))
    play(start, compact, lambda path: compact(open_table(path)), (1, 2, 4, FOR_EVER) if ALL else (1, 8), STEP, True)


def _dies_at_completion(call: Call) -> Any:
    if call.name == "put_if_absent" and call.path.endswith(".commit") and "metadata/" not in call.path:
        raise ProcessDied(call.path)
    return call.do()


@one_of("version", "v6", "v9", "v8")
def test_a_compaction_of_the_metadata_table(version: str, tmp_path: Path) -> None:
    """A dead process has left base files: the sleeper must not remove them once another one has completed them."""
    start = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    run_all(open_table(start))
    calls = changes(calls_of(shutil.copytree(start, tmp_path / "probe"), serve))
    (completed,) = [at for at, what in calls if what.startswith("put_if_absent") and what.endswith(".commit")]
    dead = shutil.copytree(start, tmp_path / "dead")
    with pytest.raises(ProcessDied):
        serve(open_table(dead, HookedStorage(LocalStorage(str(dead)), die_at(completed))))

    def write_only(path: Path) -> None:
        write(path, 10**6)

    def serve_and_write(path: Path) -> None:
        serve(open_table(path))
        write_only(path)

    for begun, meanwhile in ((dead, serve_and_write), (start, serve_and_write), (start, write_only)):
        folder = tmp_path / "each"
        folder.mkdir()
        play(shutil.copytree(begun, folder / "start"), serve, meanwhile, (1, FOR_EVER) if ALL else (FOR_EVER,), 1, ALL)
        shutil.rmtree(folder)
