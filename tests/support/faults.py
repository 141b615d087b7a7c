"""Somebody at work on a table who dies, meets an error or falls asleep at a call of the storage, on a fresh copy each.

A usual run takes the first call of each kind: the operation, and the path with its partition, instants, ids and numbers
masked. So it is the same each time, whatever order threads make calls in. A run of all tests takes every call.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.failing_storage import Call, Failure, Hook, HookedStorage, ProcessDied, fail_at
from tests.support.selection import ALL

Work: TypeAlias = Callable[[Storage], object]
"""What is disturbed; the storage is that of a copy of the table."""
Said: TypeAlias = PhantombaseError | OSError
"""The error that it ended with."""

_OWN_NAMES = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|\d+")
_PROBES = ("/tmp/probe-", "/.phantombase-probe")
"""Files of the probe of a storage, which has a test of its own (`tests/compactor_daemon/attempt/test_attempt.py`)."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A call of an undisturbed run: the `nth` (from 0) of its kind; `new`: the first of its kind behind such a call."""

    name: str
    kind: str
    nth: int
    new: bool

    @property
    def counts(self) -> bool:
        """Whether a usual run takes it: also a second place or delete, before which some files are there or gone."""
        return self.nth < (2 if self.name in ("place", "delete") else 1)

    @property
    def changes(self) -> bool:
        """Whether it changes something: only deaths before such calls differ on disk."""
        return Failure.AFTER.can_hit(self.name)


def kind_of(call: Call) -> str:
    """The operation, and the path without what differs from table to table and from run to run."""
    path = call.path
    if not path.startswith(".hoodie"):
        path = f"partition/{path.rpartition('/')[2]}" if parse_data_file(path.rpartition("/")[2]) else "partition"
    return f"{call.name} {_OWN_NAMES.sub('#', path)}"


@dataclass(frozen=True)
class Faults:
    """The calls of some work on a table.

    `share`: (which, of how many); tests on several tables have each a part. `each`: every call, also in a usual run.
    """

    origin: Path
    do: Work
    points: tuple[Point, ...]
    storage: Callable[[str], Storage] = LocalStorage
    share: tuple[int, int] = (0, 1)
    hooked: type[HookedStorage] = HookedStorage
    each: bool = False

    @staticmethod
    def of(
        origin: Path,
        do: Work,
        storage: Callable[[str], Storage] = LocalStorage,
        share: tuple[int, int] = (0, 1),
        hooked: type[HookedStorage] = HookedStorage,
    ) -> Faults:
        """Counted on a copy on which the work comes to its end."""
        made: list[Point] = []
        seen: Counter[str] = Counter()
        pairs: set[tuple[str, str]] = set()

        def count(call: Call) -> Any:
            kind = kind_of(call)
            pair = made[-1].kind if made else "", kind
            made.append(Point(name=call.name, kind=kind, nth=seen[kind], new=pair not in pairs))
            seen[kind] += 1
            pairs.add(pair)
            return call.do()

        with _copied(origin) as path:
            do(hooked(storage(str(path)), count))
        return Faults(origin, do, tuple(made), storage, share, hooked)

    def chosen(self, among: Callable[[Point], bool] = lambda point: True) -> Sequence[Point]:
        """Those that a run disturbs."""
        points = [point for point in self.points if among(point)]
        if ALL or self.each:
            return points
        first = [p for p in points if p.counts and not any(probe in p.kind for probe in _PROBES)]
        which, of = self.share
        return first[which::of]

    def deaths(self) -> Iterator[tuple[Point, Path]]:
        """Copies on which the work died before a call that changes something."""
        for point in self.chosen(lambda p: p.changes):
            with _copied(self.origin) as path:
                if self.dies_at(point, path):
                    yield point, path

    def dies_at(self, point: Point, path: Path, do: Work | None = None) -> bool:
        """The work on a copy, or other work like it, dead before that call; False if such a call did not come."""
        fault = _At(point, _dies)
        try:
            (do or self.do)(self.hooked(self.storage(str(path)), fault))
        except ProcessDied:
            return fault.was_met()
        assert not fault.met, "it was dead and went on"
        return False

    def fails_at(self, point: Point, failure: Failure, path: Path) -> Said | None:
        """The work on a copy, one of whose calls fails; what it said then."""
        return self._fails(point, failure, path)[1]

    def _fails(self, point: Point, failure: Failure, path: Path) -> tuple[bool, Said | None]:
        inner = self.storage(str(path))
        fault = _At(point, lambda call: fail_at(call.number, failure, inner)(call))
        try:
            self.do(self.hooked(inner, fault))
        except (PhantombaseError, OSError) as error:
            return fault.was_met(failure), error
        return fault.was_met(failure), None

    def errors(self) -> Iterator[tuple[Point, Failure, Path, Said | None]]:
        """Copies on which a call failed, and the error that the work said then, if it did."""
        torn: set[str] = set()
        for point in self.chosen():
            for failure in Failure:
                if not failure.can_hit(point.name) or (failure is Failure.TORN and point.name in torn and not ALL):
                    continue
                torn |= {point.name} if failure is Failure.TORN else set()
                with _copied(self.origin) as path:
                    met, said = self._fails(point, failure, path)
                    if met:
                        yield point, failure, path, said

    def pauses(
        self, meanwhile: Callable[[Path], object], among: Callable[[Point], bool] = lambda point: True
    ) -> Iterator[tuple[Point, Path, PhantombaseError | None]]:
        """Copies on which something else happened just before a call, and the error that the work said then.

        A usual run takes the first call of each kind behind each other kind: what was seen before it matters too.
        """
        which, of = (0, 1) if ALL else self.share
        for point in [p for p in self.points if (p.new or self.each or ALL) and among(p)][which::of]:
            with _copied(self.origin) as path:

                def goes_on(call: Call, path: Path = path) -> Any:
                    meanwhile(path)
                    return call.do()

                fault, said = _At(point, goes_on), None
                try:
                    self.do(self.hooked(self.storage(str(path)), fault))
                except PhantombaseError as error:
                    said = error
                if fault.was_met():
                    yield point, path, said


def died_or_ended(origin: Path, do: Work) -> Iterator[Path]:
    """Copies of a table on which `do` died before a call that changes something, at last one on which it ended."""
    for _, path in Faults.of(origin, do).deaths():
        yield path
    with _copied(origin) as path:
        do(LocalStorage(str(path)))
        yield path


@dataclass
class _At:
    """A hook that does something else at one call, once; a death lasts."""

    point: Point
    do: Hook
    seen: int = 0
    met: bool = False

    def __call__(self, call: Call) -> Any:
        if self.met:
            return _dies(call) if self.do is _dies else call.do()
        if kind_of(call) == self.point.kind:
            self.seen += 1
            if self.seen > self.point.nth:
                self.met = True
                return self.do(call)
        return call.do()

    def was_met(self, *more: object) -> bool:
        """Says what was disturbed, for whoever reads of a failure. A first call of its kind always comes."""
        print("disturbed:", self.point, *more)
        return self.met


def _dies(call: Call) -> Any:
    raise ProcessDied(f"{call.name} {call.path}")


@contextmanager
def _copied(origin: Path) -> Iterator[Path]:
    path = origin.with_name(f"{origin.name}-copy")
    shutil.copytree(origin, path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # the test may have done so
