"""A table lock that a process loses in the middle of a section."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import pytest

from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.format.instant import State
from phantombase.timeline.format.rollback_plan import encode_rollback_plan
from phantombase.timeline.locks.section import Section
from phantombase.timeline.recovery.undo import traces_of_all
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.pending_rollbacks import PendingRollback
from tests.support.archived_tables import one_row, upsert
from tests.support.cleaned_tables import REWRITES
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import unzip_golden
from tests.support.tables import LOCK
from tests.support.written_tables import written_table


class LockLostAt:
    """It is lost at the n-th question. `asked`: how often it was asked for."""

    def __init__(self, number: int) -> None:
        self.asked = 0
        self._number = number

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        yield Section(purpose=purpose, lock="lost", is_held=self._is_held)

    def _is_held(self) -> bool:
        self.asked += 1
        return self.asked <= self._number


class LockLostBehind:
    """It keeps nobody out, and is lost once something has happened: `events` is longer than at its beginning."""

    def __init__(self, events: Sized) -> None:
        self._events = events

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        before = len(self._events)
        yield Section(purpose=purpose, lock="lost", is_held=lambda: len(self._events) == before)


def small_table(path: Path, version: int) -> str:
    """Two writes into one file group, each a base file; the first one's instant."""
    written_table(path, version, one_row("k0", 0), REWRITES)
    first = max(open_table(path).load_timeline().completed_writes)
    upsert(path, one_row("k1", 1), REWRITES)
    return first


def plan_put(call: Call) -> bool:
    return call.name == "put_if_absent" and call.path.endswith((".rollback.requested", ".restore.requested"))


def die_behind(what: Callable[[Call], bool]) -> Callable[[Call], Any]:
    def hook(call: Call) -> Any:
        done = call.do()
        if what(call):
            raise ProcessDied(call.path)
        return done

    return hook


def roll_back_half_way(path: Path, newest: str) -> None:
    """A process on another machine that dies, or sleeps, right behind its plan."""
    storage = HookedStorage(LocalStorage(str(path)), die_behind(plan_put))
    with pytest.raises(ProcessDied):
        roll_back_newest(open_table(path, storage), LOCK, newest)


# Sections under a lock, for locks of tests.


def kept(purpose: str) -> Section:
    """Under a lock that is never lost."""
    return Section(purpose=purpose, lock="a lock of a test", is_held=lambda: True)


# What a Hudi leaves that dies while it rolls a completed write back, before it has hidden the write.


def request_rollback(path: Path) -> PendingRollback:
    """Of the newest delta commit of a table."""
    table = open_table(path)
    timeline = table.load_timeline()
    write = (timeline.latest_completed, "deltacommit")
    plan = traces_of_all(table, timeline, [write])[write]
    rollback = PendingRollback(instant=table.next_time(timeline), plan=plan)
    content = encode_rollback_plan(plan, table.storage.base_path)
    table.storage.put_if_absent(table.instant_path(rollback.at(State.REQUESTED)), content)
    return rollback


def pending_rollback(path: Path, tmp_path: Path, target: str) -> None:
    """A rollback that Hudi has requested, of version 9."""
    donor = unzip_golden("v9_rolled_back", tmp_path / "donor")
    (plan,) = (donor / ".hoodie" / "timeline").glob("*.rollback.requested")
    data = plan.read_bytes()
    (record,) = fastavro.reader(io.BytesIO(data))
    of = str(record["instantToRollback"]["commitTime"])  # type: ignore[index, call-overload]
    file = path / ".hoodie" / "timeline" / "20990101000000000.rollback.requested"
    file.write_bytes(data.replace(of.encode(), target.encode()))
