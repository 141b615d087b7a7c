"""Writers and readers, each in a process of its own; nothing is done to them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from ctypes import c_bool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError
from phantombase.timeline.instants.reserved_times import COMMITTED, attempts, recorded_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.pins import PinOptions, pinned
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import CompactionOptions, Mode, Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.written_tables import as_rows
from tests.world.chaos.child import begin
from tests.world.chaos.journal import Changes, Journal, Model

DAYS = ("mon", "tue", "wed", "thu")
WRITERS = 2
KEYS = [f"k{n:04d}" for n in range(128)]
_MARK = "_hoodie_is_deleted"
SCHEMA = pa.schema(
    [("id", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("fare", pa.float64()), (_MARK, pa.bool_())]
)
_LOOK_EVERY = 8
_GATE_S = 5.0
_READ_EVERY_S = 0.1
_PINNED_READS, _PINNED_EVERY_S = 8, 0.5


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A table of the test, and how it is written."""

    path: Path
    options: WriteOptions

    @property
    def name(self) -> str:
        """Of the table."""
        return self.path.name


def batch_of(changes: Mapping[str, Any], ts: int) -> pa.Table:
    """Changes as a batch; rows that are to go are marked."""
    rows = []
    for key, row in changes.items():
        when, fare = row or (ts, 0.0)
        rows.append({"id": key, "day": _day(key), "ts": when, "fare": fare, _MARK: row is None})
    return pa.Table.from_pylist(rows, SCHEMA)


def _day(key: str) -> str:
    return DAYS[int(key[1:]) // WRITERS % len(DAYS)]


class Writer:
    """Writer `number` of WRITERS; keys of its own, in all days."""

    def __init__(self, number: int, seed: int, subjects: list[Subject], journal: Path, fleet: str) -> None:
        self._pick = random.Random(seed * 10 + number)
        self._keys = KEYS[number::WRITERS]
        self._subjects = subjects
        self._fleet = ZooKeeperOptions(hosts=fleet, connect_timeout_s=2.0)
        self._journal = Journal(journal.open("a"))
        self._ts = 0

    def run(self, stop: c_bool) -> None:
        """Writes until it is stopped."""
        while not stop.value:
            self._step(self._pick.choice(self._subjects))
            time.sleep(self._pick.uniform(0.0, 0.3))

    def _step(self, subject: Subject) -> None:
        days = self._pick.sample(DAYS, self._pick.choice((1, 1, 2)))
        keys = [k for k in self._keys if _day(k) in days]
        keys = self._pick.sample(keys, self._pick.randint(1, len(keys)))
        gone: Changes = dict.fromkeys(keys)
        kind = self._pick.choice(("rows", "rows", "rows", "marks", "keys"))
        changes = self._rows(keys) if kind == "rows" else gone
        operation = Operation.DELETE if kind == "keys" else Operation.UPSERT
        write_changes(subject, changes, self._journal, self._options(subject), operation, self._ts + 1)
        self._ts += 1

    def _rows(self, keys: list[str]) -> Changes:
        self._ts += 1
        return {key: (self._ts, round(self._pick.random(), 3)) for key in keys}

    def _options(self, subject: Subject) -> WriteOptions:
        plan = ScheduleOptions(
            strategy=TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST, max_delta_commits=2, gate_s=_GATE_S
        )
        return replace(
            subject.options,
            small_file_bytes=self._pick.choice((0, 100 << 20)),
            compaction=CompactionOptions(mode=Mode.SCHEDULE, schedule=plan, fleet=self._fleet),
        )


def write_changes(
    subject: Subject,
    changes: Changes,
    journal: Journal,
    options: WriteOptions,
    operation: Operation = Operation.UPSERT,
    ts: int = 0,
) -> None:
    """One write, in the journal before and after."""
    journal.begin(subject.name, changes)
    try:
        write(
            Table.open(str(subject.path)),
            LocalEngine(batch_of(changes, ts), slots=1),
            Write(operation=operation, options=options),
        )
    except (ConflictError, LockError) as error:
        print(f"not written: {error}", flush=True)
        journal.end(False)
    else:
        journal.end(True)


def run_writer(log: Path, stop: c_bool, writer: tuple[Any, ...]) -> None:
    """A process."""
    begin(log)
    Writer(*writer).run(stop)


def run_reader(log: Path, stop: c_bool, subjects: list[Subject], journals: list[Path]) -> None:
    """A process that reads until it is stopped, and ends with an error when a read is wrong."""
    begin(log)
    model, reads = Model(journals), 0
    while not stop.value:
        for subject in subjects:
            watch = model.watch(subject.name)
            model.check(watch, as_rows(read_table(Table.open(str(subject.path)))))
            reads += 1
            if reads % _LOOK_EVERY == 0:
                look_at_decisions(subject.path)
            time.sleep(_READ_EVERY_S)
    print(f"reads {reads}", flush=True)


def run_pinned_reader(log: Path, stop: c_bool, subjects: list[Subject]) -> None:
    """A process that reads one state again and again under a pin: nothing that it needs goes."""
    begin(log)
    states = late = 0
    while not stop.value:
        for subject in subjects:
            table = Table.open(str(subject.path))
            options = ReadOptions(as_of=_settled(table.load_timeline()))
            with pinned(partial(table.snapshot, cached=False), options, PinOptions(name="soak", for_s=20)):
                try:
                    first = as_rows(read_table(table.snapshot(cached=False), options))
                except PhantombaseError as error:  # a clean was planned before the pin
                    print(f"late: {error}", flush=True)
                    late += 1
                    continue
                states += 1
                for _ in range(_PINNED_READS):
                    time.sleep(_PINNED_EVERY_S)
                    again = as_rows(read_table(table.snapshot(cached=False), options))
                    assert again == first, f"{subject.name}: another state at {options.as_of}"
    print(f"states {states}", flush=True)
    assert states > late, "hardly any state could be read under a pin"


def _settled(timeline: Timeline) -> str:
    """The newest write below all that pend: no write that completes from now on belongs to the state at it."""
    pending = min((i.requested_time for i in timeline.inflight_writers), default="9")
    return max(time for time in timeline.completed_writes if time < pending)


def look_at_decisions(path: Path) -> None:
    """At every moment: one completion an instant, one decision at most."""
    table = Table.open(str(path))
    times = Counter(i.requested_time for i in table.files.completed_commits())
    twice = [time for time, count in times.items() if count > 1]
    assert not twice, f"{path.name}: completed twice: {twice}"
    for instant in recorded_instants(table.storage):
        outcomes = [read_outcome(table.storage, instant, number) for number in attempts(table.storage, instant)]
        kinds = [outcome.kind for outcome in outcomes if outcome is not None]
        assert kinds.count(COMMITTED) <= 1, f"{path.name} {instant}: {kinds}"
