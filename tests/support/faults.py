"""Processes that die, meet an error, stall or lose a lock at a call of the storage, each on a fresh copy of a table.

A usual run takes the first call of each kind: the operation, and the path with its partition, instants, ids and numbers
masked. So it is the same each time, whatever order threads make calls in. A run of all tests takes every call."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import pytest

from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.undo import traces_of_all
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State, next_time
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.rollback_plan import encode_rollback_plan
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.locks.section import Section
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.in_progress import PendingRollback
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Marker, MarkerKind, list_markers, log_marker_kind, make_marker
from tests.support.archived_tables import REWRITES, one_row, upsert
from tests.support.builders import AVRO, INSTANT_TIME, SCHEMA, avro_content, avro_schema, block
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, Failure, Hook, HookedStorage, ProcessDied, fail_at
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.selection import ALL
from tests.support.written_tables import written_table

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
    """The calls of some work on a table. `share`: (which, of how many); tests on several tables have each a part.
    `each`: every call, also in a usual run."""

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
        """Copies on which something else happened just before a call, and the error that the work said then. A usual
        run takes the first call of each kind behind each other kind: what was seen before it matters too."""
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


def died_or_ended(origin: Path, do: Work, share: tuple[int, int] = (0, 1)) -> Iterator[Path]:
    """Copies of a table on which `do` died before a call that changes something, at last one on which it ended.
    `share`: see `Faults`."""
    for _, path in Faults.of(origin, do, share=share).deaths():
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


# What a writer that was killed leaves in a table, made by hand: of our kind, or of Hudi's.


_ROW = avro_schema(("a", "int"))


@dataclass(frozen=True, kw_only=True)
class DeadWrite:
    """A pending delta commit: `logs` and `bases` it placed, relative to the table."""

    instant: Instant
    logs: tuple[str, ...]
    bases: tuple[str, ...]


def leave_dead_write(
    path: Path, *, begun_by: Process | None = None, age_s: float = 3600.0, markers: bool = True
) -> DeadWrite:
    """A delta commit placed a log file on every slice and a new base file a partition, and marked one it never made.
    `begun_by`: the process in its heartbeat, by default one that is gone. `age_s`: of everything it left."""
    table = open_table(path)
    storage, layout = table.storage, table.layout
    view = table.load_view()
    time_ = next_time(table.now(), view.timeline.used_times())
    instant = Instant(requested_time=time_, action="deltacommit", state=State.INFLIGHT)
    before = set(path.rglob("*"))
    storage.put_if_absent(table.instant_path(instant.at(State.REQUESTED)), b"")
    storage.put_if_absent(table.instant_path(instant), b"")
    logs, bases = [], []
    for group in view.groups:
        if not group.slices:  # another dead writer's
            continue
        slice_ = group.slices[-1]
        shared = layout.slicing is Slicing.BY_BASE_INSTANT
        versions = [log.name.version for log in slice_.logs if log.name.instant == slice_.base_instant]
        name = LogFileName(
            file_id=group.file_id,
            instant=slice_.base_instant if shared else time_,
            version=max(versions, default=0) + 1 if shared else 1,
            token="0-77-777",
        )
        logs.append((group.partition, str(name)))
    for number, partition in enumerate(table.partitions()):
        base = BaseFileName(file_id=f"{number:08d}-0000-4000-8000-000000000000-0", token="0-77-777", instant=time_)
        bases.append((partition, str(base)))
    never = ("never-made", str(BaseFileName(file_id="f-0", token="0-77-778", instant=time_)))
    if markers:
        marked = [(p, n, log_marker_kind(layout)) for p, n in logs]
        marked += [(p, n, MarkerKind.CREATE) for p, n in (*bases, never)]
        for partition, file, kind in marked:
            make_marker(storage, time_, Marker(partition=partition, file=file, kind=kind))
    content = block(AVRO, {INSTANT_TIME: time_, SCHEMA: _ROW}, avro_content(_ROW, [{"a": 1}]))
    placed_logs = tuple(_join(*log) for log in logs)
    placed_bases = tuple(_join(*base) for base in bases)
    for file in (*placed_logs, *placed_bases):
        storage.put_if_absent(file, content)
    storage.put_if_absent(f"{staged_folder(time_)}/0-abc.log", content)
    owner = begun_by or replace(Process.current(), started=1)
    storage.overwrite(heartbeat_path(time_), b"phantombase\n" + json.dumps(asdict(owner)).encode())
    make_old({p for p in path.rglob("*") if p.is_file()} - before, age_s)
    return DeadWrite(instant=instant, logs=placed_logs, bases=placed_bases)


def kill_newest(table: Table) -> Instant:
    """Makes the newest delta commit one whose writer died just before completing it: its markers are there again."""
    timeline = table.load_timeline()
    done = timeline.completed_writes[timeline.latest_completed]
    for partition, stats in table.commit_metadata(done).partition_to_write_stats.items():
        for stat in stats:
            assert stat.path is not None
            file = stat.path.rpartition("/")[2]
            kind = log_marker_kind(table.layout) if ".log." in file else MarkerKind.CREATE
            make_marker(table.storage, done.requested_time, Marker(partition=partition, file=file, kind=kind))
    assert list_markers(table.storage, done.requested_time)
    table.storage.delete(table.instant_path(done))
    return done.at(State.INFLIGHT)


def make_old(files: set[Path], age_s: float) -> None:
    """Sets the modification times of files back."""
    then = time.time() - age_s
    for file in files:
        os.utime(file, (then, then))


def _join(partition: str, name: str) -> str:
    return f"{partition}/{name}" if partition else name


def pending_write(path: Path, version: int, time: str) -> Path:
    folder = path / ".hoodie" if version == 6 else path / ".hoodie" / "timeline"
    (folder / f"{time}.deltacommit.requested").touch()
    inflight = folder / f"{time}.deltacommit.inflight"
    inflight.touch()
    return inflight


# A table lock that a process loses in the middle of a section.


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
    plan = traces_of_all(table.with_timeline(timeline), [write])[write]
    rollback = PendingRollback(instant=table.with_timeline(timeline).next_time(), plan=plan)
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
