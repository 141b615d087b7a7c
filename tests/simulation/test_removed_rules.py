"""Each invariant of the protocol is removed once: within some hundred seeds the simulation shows what it is there for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

import compactor_daemon.attempt
import compactor_daemon.compactor
import compactor_daemon.retire
from compactor_daemon.attempt import Attempt
from compactor_daemon.records import Go, attempt_folder, attempts, find_go, instant_folder, read_fate
from tests.simulation.played import Stage, simulated
from tests.simulation.story import Plot, Story
from timeline.errors import PhantombaseError
from timeline.plan import CompactionOperation
from timeline.storage import Storage
from timeline.table import Table
from timeline.view import FileGroup, FileSlice

_SEEDS = 400


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Where worlds are played."""
    yield from simulated(monkeypatch)


@dataclass(frozen=True)
class Removed:
    """A rule that is taken away: what takes it away, in which stories it shows, and what is seen then."""

    rule: str
    patches: dict[str, Any]
    story: dict[str, Any]
    shows: str


def believed(storage: Storage, instant: str, attempt: int, record: bytes, nonce: str) -> None:
    """In the place of `decide`: whoever comes second believes that it won."""
    storage.put_if_absent(f"{attempt_folder(instant, attempt)}/fate", record)


def folder_removed(storage: Storage, instant: str, by: str) -> list[int]:
    """In the place of `declare_dead`: the folder of an undecided attempt is removed, as if that stopped its owner."""
    undecided = [n for n in attempts(storage, instant) if read_fate(storage, instant, n) is None]
    for number in undecided:
        storage.delete_folder(attempt_folder(instant, number))
    return undecided


def staged_removed(storage: Storage, instant: str, by: str) -> list[int]:
    """In the place of `declare_dead`: what the dead have staged is removed too, though one may have been decided."""
    undecided = [n for n in attempts(storage, instant) if read_fate(storage, instant, n) is None]
    for number in undecided:
        folder = attempt_folder(instant, number)
        for entry in storage.list(folder):
            if entry.name.endswith((".parquet", ".ok")):
                storage.delete(f"{folder}/{entry.name}")
    return _declare_dead(storage, instant, by)


def named_before(table: Table, attempt: Attempt, done: Any, schema: Any, lock: Any) -> Go:
    """In the place of `decide_go`: files get their final names first."""
    for one in done:
        table.storage.place(one.staged, one.final)
    return _decide_go(table, attempt, done, schema, lock)


def records_removed(storage: Storage, instant: str) -> None:
    """In the place of `remove_staged`: an instant that is completed needs no records any more."""
    _remove_staged(storage, instant)
    storage.delete_folder(instant_folder(instant))


def planned_only(group: FileGroup | None, instant: str, operation: CompactionOperation) -> FileSlice:
    """In the place of the closure: the logs that the plan names."""
    slice_ = _closed(group, instant, operation)
    return replace(slice_, logs=tuple(log for log in slice_.logs if str(log.name) in operation.delta_file_paths))


def none_is_no(storage: Storage, instant: str) -> Go | None:
    """In the place of `find_go`: what cannot be asked is not there."""
    with suppress(PhantombaseError):
        return find_go(storage, instant)
    return None


def nobody(*_: object) -> list[Any]:
    """In the place of a look: it finds nothing."""
    return []


def nothing(*_: object, **__: object) -> None:
    """In the place of something that is to be done."""


_declare_dead = compactor_daemon.attempt.declare_dead
_decide_go = compactor_daemon.compactor.decide_go
_remove_staged = compactor_daemon.retire.remove_staged
_closed = compactor_daemon.attempt._closed

NO_LOCK = {"locked": False, "writers": 1, "hudi": False}
CROWD = {"compactors": 3, "daemons": 0, "deaths": 0, "hudi": False}
RULES = [
    Removed("1: one go", {"compactor_daemon.records.decide": believed}, CROWD, ""),
    Removed("1: fate, not a folder", {"compactor_daemon.attempt.declare_dead": folder_removed}, CROWD, ""),
    Removed("2: no final name before go", {"compactor_daemon.compactor.decide_go": named_before}, {}, "final name"),
    Removed("3: closure", {"compactor_daemon.attempt._closed": planned_only}, NO_LOCK, "lost"),
    Removed("4: barrier", {"compactor_daemon.attempt._pending_of": nobody}, NO_LOCK, "lost"),
    Removed("5: records stay", {"compactor_daemon.retire.remove_staged": records_removed}, CROWD, ""),
    Removed("8: staged data stays", {"compactor_daemon.attempt.declare_dead": staged_removed}, CROWD, "was deleted"),
]


@pytest.mark.parametrize("removed", RULES, ids=lambda r: r.rule)
def test_without_it(removed: Removed, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run fails; with the rule in its place none of these stories does (`test_with_them`)."""
    for name, broken in removed.patches.items():
        monkeypatch.setattr(name, broken)
    for seed in range(_SEEDS):
        try:
            story_of(seed, removed).play(stage)
        except Exception as error:
            print(f"seed {seed}: {error}")
            assert removed.shows in str(error)
            return
    raise AssertionError(f"{_SEEDS} runs without this rule, and no harm")


def story_of(seed: int, removed: Removed) -> Story:
    """A story in which the rule counts."""
    return Story(seed, plot=replace(Plot.of(random.Random(seed)), **removed.story))
