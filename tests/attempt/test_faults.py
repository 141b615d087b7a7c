"""A compaction whose storage dies, fails or stops at every call, and what becomes of the table."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.records.fate import find_go, read_fate
from phantombase.timeline.errors import ConflictError, PhantombaseError
from phantombase.timeline.instants.attempt_names import GO, attempts
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import check_whole, open_table, run_all, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Failure, Hook, HookedStorage, ProcessDied, die_at, fail_at, pause_at
from tests.support.golden_tables import unzip_golden
from tests.support.seed import SEED
from tests.support.selection import ALL, deep
from tests.support.tables import one_of

CHAOS = int(os.environ.get("PHANTOMBASE_CHAOS", "8"))
"""How many random cases; from 100 on every call is disturbed, also those that only read."""


class Ground:
    """Copies of a table with one pending compaction, and the storage calls of a run that nothing disturbs."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        self._origin = unzip_golden(name, folder / "origin")
        self.expected = self._origin.with_name(f"{self._origin.name}.expected")
        self.snapshot = pq.read_table(self.expected / "snapshot.parquet")
        (self.instant,) = pending_instants(open_table(self._origin))
        with self.copy() as path:
            storage = hooked(path, lambda call: call.do())
            run_all(open_table(path, storage))
            self.calls = storage.calls
        assert len(self.calls) > 60

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """A fresh copy of the table."""
        path = self._folder / "copy"
        shutil.copytree(self._origin, path)
        yield path
        shutil.rmtree(path)

    def chosen(self) -> list[int]:
        """The calls to disturb: all that change something, and a random part of those that read."""
        pick = random.Random(SEED)
        part = 1.0 if CHAOS >= 100 else 0.3 if ALL else 0.1
        return [n for n, name in enumerate(self.calls) if Failure.AFTER.can_hit(name) or pick.random() < part]

    def failures(self) -> list[tuple[int, Failure]]:
        """Every way in which a chosen call of a run can fail."""
        return [(n, f) for n in self.chosen() for f in Failure if f.can_hit(self.calls[n])]

    @contextmanager
    def told(self, *case: object) -> Iterator[None]:
        """An error says how to run the case again."""
        try:
            yield
        except BaseException as error:
            error.add_note(f"PHANTOMBASE_SEED={SEED} PHANTOMBASE_CHAOS={CHAOS}, case {case}")
            raise

    def check_one_decision(self, path: Path) -> None:
        """At most one attempt was decided `go`."""
        storage = LocalStorage(str(path))
        fates = [read_fate(storage, self.instant, n) for n in attempts(storage, self.instant)]
        assert [fate.kind for fate in fates if fate is not None].count(GO) <= 1

    def check_undecided(self, path: Path, before: set[str]) -> None:
        """Without a decision nothing of ours lies outside our folder."""
        if find_go(LocalStorage(str(path)), self.instant) is None:
            assert visible_files(path) == before


def hooked(path: Path, hook: Hook) -> HookedStorage:
    """The storage of a table, behind a hook."""
    return HookedStorage(LocalStorage(str(path)), hook)


def run_failing(path: Path, number: int, failure: Failure) -> None:
    """A run in which one call fails: it ends well or with an error of the tree."""
    inner = LocalStorage(str(path))
    with suppress(PhantombaseError):
        run_all(open_table(path, HookedStorage(inner, fail_at(number, failure, inner))))


@pytest.fixture(params=["v9_pending", deep("v6_pending")])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """A table of each layout."""
    return Ground(request.param, tmp_path)


@pytest.mark.parametrize("ground", ["v6_pending", deep("v9_pending")], indirect=True)
def test_a_death_at_every_storage_call_is_finished_by_the_next_run(ground: Ground) -> None:
    """Only deaths before a call that changes something differ on disk. A reader in between sees the same rows."""
    for number, name in enumerate(ground.calls):
        if not Failure.AFTER.can_hit(name):
            continue
        with ground.told(number), ground.copy() as path:
            with pytest.raises(ProcessDied):
                run_all(open_table(path, hooked(path, die_at(number))))
            assert_same_rows(read_table(open_table(path)), ground.snapshot)
            run_all(open_table(path))
            check_whole(path, ground.expected)


@pytest.mark.parametrize("ground", [deep("v6_pending"), "v9_pending"], indirect=True)
def test_an_error_at_every_storage_call_is_finished_by_the_next_run(ground: Ground) -> None:
    """The run goes on rightly or stops with an error of the tree; the next one finishes."""
    for number, failure in ground.failures():
        with ground.told(number, failure), ground.copy() as path:
            before = visible_files(path)
            run_failing(path, number, failure)
            ground.check_undecided(path, before)
            run_all(open_table(path))
            check_whole(path, ground.expected)


def test_errors_in_the_finishing_run_too(ground: Ground) -> None:
    """A random error, a random error in the run after it, then a run that finishes."""
    pick = random.Random(SEED)
    for _ in range(CHAOS):
        faults = pick.choices(ground.failures(), k=2)
        with ground.told(faults), ground.copy() as path:
            for fault in faults:
                run_failing(path, *fault)
            run_all(open_table(path))
            check_whole(path, ground.expected)


@pytest.mark.parametrize("ground", ["v6_pending", deep("v9_pending")], indirect=True)
def test_a_run_paused_at_every_storage_call_while_another_compacts(ground: Ground) -> None:
    """Without claim or lock in common: one decision, and the paused run changes nothing that is visible."""
    for number in ground.chosen():
        with ground.told(number, ground.calls[number]), ground.copy() as path:
            after: list[set[str]] = []
            with suppress(ConflictError):
                run_all(open_table(path, hooked(path, pause_at(number, whole_run(path, after)))))
            assert visible_files(path) == after[0]
            ground.check_one_decision(path)
            run_all(open_table(path))
            check_whole(path, ground.expected)


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_a_run_paused_while_another_one_dies(ground: Ground) -> None:
    """The other one takes over and is killed at a random call; then the first goes on, and a third finishes."""
    pick = random.Random(SEED)
    for _ in range(CHAOS):
        paused, died = pick.choices(range(len(ground.calls)), k=2)
        with ground.told(paused, died), ground.copy() as path:
            with suppress(PhantombaseError):
                run_all(open_table(path, hooked(path, pause_at(paused, dying_run(path, died)))))
            ground.check_one_decision(path)
            run_all(open_table(path))
            check_whole(path, ground.expected)


def dying_run(path: Path, number: int) -> Callable[[], None]:
    """Another process's compaction that is killed at that call."""

    def run() -> None:
        with suppress(ProcessDied):
            run_all(open_table(path, hooked(path, die_at(number))), lock="another process")

    return run


def whole_run(path: Path, after: list[set[str]]) -> Callable[[], None]:
    """Another process's whole compaction; it notes which files are visible then."""

    def run() -> None:
        run_all(open_table(path), lock="another process")
        after.append(visible_files(path))

    return run
