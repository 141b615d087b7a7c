"""A compaction of ours whose process sleeps between two of its steps while the table goes on, or dies there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.shared_table import SharedTable
from tests.support.compaction_steps import open_table, run_under
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import kept

__all__ = ["Moment", "compact_and_die", "compact_asleep"]


class Moment(Enum):
    """The step that was done last: name and ending of the path of the storage call that does it, and which one."""

    OPENED = ("put_if_absent", "/open", 1)
    STAGED = ("put_if_absent", ".ok", 0)
    DECIDED = ("put_if_absent", "/outcome", 1)
    HALF_PLACED = ("place", "", 1)
    PLACED = ("place", "", 0)
    COMPLETED = ("put_if_absent", "commit", 1)

    def is_by(self, call: Call) -> bool:
        """Whether the call does such a step."""
        name, ending, _ = self.value
        return call.name == name and call.path.endswith(ending)

    def calls(self, slices: int) -> int:
        """How many such calls are made until the moment has come: 0 above stands for one a file slice."""
        return self.value[2] or slices


class _Asleep:
    """Storage hook and table lock of one process: once the moment has come and it holds no lock, `act` happens."""

    def __init__(self, name: str, moment: Moment, slices: int, act: Callable[[], None]) -> None:
        self._inner = ProcessLock(name)
        self._moment, self._left, self._act = moment, moment.calls(slices), act
        self._thread, self._held, self.acted = threading.get_ident(), False, False

    def hook(self, call: Call) -> Any:
        self._may_act()
        done = call.do()
        self._left -= self._moment.is_by(call)
        return done

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock.hold`."""
        self._may_act()
        with self._inner.hold(purpose):
            self._held = True
            try:
                yield kept(purpose)
            finally:
                self._held = False

    def _may_act(self) -> None:
        # Not in the threads of tasks and of the heartbeat: those wait for nobody.
        if self._left <= 0 and not self._held and not self.acted and threading.get_ident() == self._thread:
            self.acted = True
            self._act()


def compact_asleep(table: SharedTable, instant: str, moment: Moment, act: Callable[[], None]) -> bool:
    """We compact one instant, and at that moment `act` happens beside us; whether the moment came. What the compaction
    raises, it raises."""
    slices = len(table.open().compaction_plan(instant).operations)
    asleep = _Asleep(str(table.path), moment, slices, act)
    storage = HookedStorage(LocalStorage(str(table.path)), asleep.hook)
    run_under(open_table(table.path, storage).with_clock(table.clock), instant, asleep)
    return asleep.acted


def compact_and_die(table: SharedTable, instant: str, moment: Moment) -> None:
    """We compact one instant, and are killed at that moment."""

    def die() -> None:
        raise ProcessDied(moment.name)

    with suppress(ProcessDied):
        compact_asleep(table, instant, moment, die)
