"""A compaction whose storage dies, fails or stops at every call, and what becomes of the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.records.fate import find_go, read_fate
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.instants.attempt_names import GO, attempts
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import check_whole, open_table, run_all, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Failure
from tests.support.faults import Faults
from tests.support.golden_tables import unzip_golden
from tests.support.selection import ALL
from tests.support.tables import one_of


class Ground:
    """A table with one pending compaction. `share`: see `Faults`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.origin = unzip_golden(name, folder / "origin")
        self.expected = self.origin.with_name(f"{self.origin.name}.expected")
        self.snapshot = pq.read_table(self.expected / "snapshot.parquet")
        (self.instant,) = pending_instants(open_table(self.origin))

    def faults(self, share: tuple[int, int] = (0, 1)) -> Faults:
        """Those of a run that compacts it."""
        return Faults.of(self.origin, compact, share=share)

    def check_one_decision(self, path: Path) -> None:
        """At most one attempt was decided `go`."""
        storage = LocalStorage(str(path))
        fates = [read_fate(storage, self.instant, n) for n in attempts(storage, self.instant)]
        assert [fate.kind for fate in fates if fate is not None].count(GO) <= 1

    def check_undecided(self, path: Path, before: set[str]) -> None:
        """Without a decision nothing of ours lies outside our folder."""
        if find_go(LocalStorage(str(path)), self.instant) is None:
            assert visible_files(path) == before


def compact(storage: Storage) -> None:
    """What is disturbed."""
    run_all(Table.on(storage))


@pytest.fixture(params=["v6_pending", "v9_pending"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """A table of each layout."""
    return Ground(request.param, tmp_path)


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_a_death_at_every_storage_call_is_finished_by_the_next_run(ground: Ground) -> None:
    """A reader in between sees the same rows."""
    died = 0
    for _, path in ground.faults().deaths():
        assert_same_rows(read_table(open_table(path)), ground.snapshot)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        died += 1
    assert died > 10


@one_of("ground", "v9_pending", "v6_pending", indirect=True)
def test_an_error_at_every_storage_call_is_finished_by_the_next_run(ground: Ground) -> None:
    """The run goes on rightly or stops with an error of the tree; the next one finishes."""
    before, said = visible_files(ground.origin), Counter[bool]()
    for _, _, path, error in ground.faults().errors():
        assert not isinstance(error, OSError)
        ground.check_undecided(path, before)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        said[error is not None] += 1
    assert said[True] > 10
    assert said[False] > 0


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_errors_in_the_finishing_run_too(ground: Ground) -> None:
    """An error, an error in the run after it at another call, then a run that finishes."""
    faults, share = ground.faults(), 1 if ALL else 8
    others = reversed([(p, f) for p in faults.chosen(lambda p: p.changes) for f in (Failure.BEFORE, Failure.AFTER)])
    second, failed = cycle(others), 0
    for number, (_, _, path, _) in enumerate(faults.errors()):
        if number % share == 0:
            failed += faults.fails_at(*next(second), path) is not None
            run_all(open_table(path))
            check_whole(path, ground.expected)
    assert failed > 0


@one_of("ground", "v6_pending", "v9_pending", indirect=True)
def test_a_run_paused_at_every_storage_call_while_another_compacts(ground: Ground) -> None:
    """Without claim or lock in common: one decision, and the paused run changes nothing that is visible."""
    after: list[set[str]] = []
    ended: Counter[bool] = Counter()

    def whole_run(path: Path) -> None:
        run_all(open_table(path), lock="another process")
        after.append(visible_files(path))

    for _, path, error in ground.faults().pauses(whole_run, lambda p: ALL or p.changes or p.nth == 0):
        assert error is None or isinstance(error, ConflictError)
        assert visible_files(path) == after[-1]
        ground.check_one_decision(path)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        ended[error is None] += 1
    assert ended[True] > 4
    assert ended[False] > 0


@one_of("ground", "v9_pending", "v6_pending", indirect=True)
def test_a_run_paused_while_another_one_dies(ground: Ground) -> None:
    """The other one takes over and is killed at some call; then the first goes on, and a third finishes."""
    faults = ground.faults()
    deaths = cycle(reversed(faults.chosen(lambda p: p.changes)))

    def dying_run(path: Path) -> None:
        faults.dies_at(next(deaths), path, lambda storage: run_all(Table.on(storage), lock="another process"))

    paused = 0
    for _, path, _ in replace(faults, share=(1, 1 if ALL else 4)).pauses(dying_run, lambda p: p.changes):
        ground.check_one_decision(path)
        run_all(open_table(path))
        check_whole(path, ground.expected)
        paused += 1
    assert paused > 2
