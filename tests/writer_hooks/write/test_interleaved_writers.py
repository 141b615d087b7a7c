"""Writers, a scheduler, a compactor and a reader on one table, interleaved at every storage call by a seed."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.codec.output_options import Bloom, OutputOptions
from phantombase.timeline.errors import BarrierError, ConflictError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call
from tests.support.interleaving import Actor, FleetInfo
from tests.support.places import SEED
from tests.support.selection import ALL, deep
from tests.support.trips import rows
from tests.support.written_tables import Rows, as_rows, check_nothing_left, read_rows, seed_note, written_table

CHAOS = int(os.environ.get("PHANTOMBASE_CHAOS", "8" if ALL else "5"))
"""How many runs for each table version, index and kind of trouble."""

KEYS = 24
OUTPUT = OutputOptions(bloom=Bloom.OFF)


@dataclass
class Change:
    """One write. `seen`: how many commits there were when it loaded the timeline; a delete finds no later keys."""

    rows: Rows = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    seen: int | None = None
    began: bool = False


class Story:
    """One run: who does what, and what the table must read."""

    def __init__(self, path: Path, seed: int, version: int, index: str, trouble: str) -> None:
        self.path, self.version, self.trouble = path, version, trouble
        self.pick = random.Random(seed)
        # Event time without deletes: what a stale row finds after one is another matter
        # (docs/internals/hudi-format.md 6.3).
        self.mode = self.pick.choice((MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME))
        self.fleet_info = FleetInfo(str(path), seed, self.observe)
        self.options = WriteOptions(
            output=OUTPUT,
            buckets=self.pick.choice((1, 2)) if index == "buckets" else None,
            small_file_bytes=self.pick.choice((0, 100 << 20)),
            slots=1,
            lazy_rollback=False,
        )
        self.commits: list[Change] = []
        self.writing: dict[Actor, Change] = {}
        self.outcomes: Counter[str] = Counter()
        self.ts = 0
        # Without deaths every write ends, so that the barrier may wait for it.
        self.attempt = AttemptOptions(barrier_s=1e9 if trouble == "none" else 0.0, barrier_poll_s=0.0)

    def observe(self, actor: Actor, call: Call, result: Any) -> None:
        """A write is visible from the call on that makes its completed file."""
        change = self.writing.get(actor)
        if change is None:
            return
        if call.name == "put_if_absent" and call.path.endswith(".inflight") and ".rollback." not in call.path:
            change.began = True
        elif call.name == "put_if_absent" and call.path.endswith("deltacommit") and result:
            self.commits.append(change)
        elif call.name == "list" and change.began and change.seen is None and call.path == self.timeline_folder:
            change.seen = len(self.commits)

    @property
    def timeline_folder(self) -> str:
        """Where completed files lie."""
        return ".hoodie" if self.version == 6 else ".hoodie/timeline"

    def state(self, count: int | None = None) -> Rows:
        """What the table reads after so many commits."""
        live: Rows = {}
        for change in self.commits[:count]:
            for key in change.deleted & self.state(change.seen).keys() if change.deleted else ():
                live.pop(key, None)
            for key, row in change.rows.items():
                if self.mode is MergeMode.COMMIT_TIME or key not in live or live[key] <= row:
                    live[key] = row
        return live

    # --- who does what -----------------------------------------------------------------------------------------------

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Everybody at once, then what is left, then the books."""
        change, batch = self.batch(self.some_keys())
        written_table(self.path, self.version, batch, self.options, self.mode)
        self.commits.append(change)
        self.fleet_info.play(monkeypatch)
        try:
            for number in (0, 1):
                self.fleet_info.start(f"writer {number}", lambda actor: self.writer(actor, 4))
            self.fleet_info.start("compactor", self.compactor)
            self.fleet_info.start("reader", self.reader)
            while self.fleet_info.step():
                self.disturb()
            for actor in self.fleet_info.actors:
                self.fleet_info.presume_dead(actor)
            self.fleet_info.start("last", lambda _: self.finish())
            while self.fleet_info.step():
                pass
        finally:
            self.fleet_info.end()

    def disturb(self) -> None:
        """Now and then somebody dies, and another takes his place; or a writer is taken for dead."""
        if self.trouble == "none" or self.fleet_info.pick.random() > 1 / 300:
            return
        alive = [a for a in self.fleet_info.actors if not (a.done or a.dead or a.name == "reader")]
        if not alive:
            return
        actor = self.fleet_info.pick.choice(alive)
        self.outcomes[self.trouble] += 1
        if self.trouble == "taken for dead":
            self.fleet_info.presume_dead(actor)
            return
        self.fleet_info.kill(actor)
        self.fleet_info.start(actor.name, self.compactor if actor.name == "compactor" else lambda a: self.writer(a, 2))

    def writer(self, actor: Actor, count: int) -> None:
        for _ in range(count):
            actor.rest(self.pick.randrange(100))
            self.writing.pop(actor, None)
            deletes = self.mode is MergeMode.COMMIT_TIME and self.pick.random() < 0.3
            change, batch = self.batch(self.some_keys(), deletes=deletes)
            self.writing[actor] = change
            operation = Operation.DELETE if deletes else Operation.UPSERT
            try:
                write(
                    open_table(self.path, actor.storage),
                    LocalEngine(batch, slots=1),
                    Write(operation=operation, options=self.options),
                )
                outcome = "written"
            except ConflictError:
                outcome = "lost"
            assert (outcome == "written") == any(c is change for c in self.commits), f"{outcome}, but visible or not"
            self.outcomes[outcome] += 1

    def some_keys(self) -> list[int]:
        """Some keys of all; often only of one part of them, so that writers do not meet."""
        some = self.pick.choice((range(KEYS // 4), range(KEYS), range(0, KEYS, 3), range(1, KEYS, 3)))
        return self.pick.sample(some, self.pick.randint(1, 4))

    def batch(self, keys: list[int], *, deletes: bool = False) -> tuple[Change, pa.Table]:
        """Rows of these keys, with a ts greater than every one before."""
        self.ts += 1
        batch = rows(*((n, self.ts, self.pick.random()) for n in keys))
        if deletes:
            return Change(deleted=frozenset(batch.column("id").to_pylist())), batch
        return Change(rows=as_pairs(batch)), batch

    def compactor(self, actor: Actor) -> None:
        while any(not a.done and a.name.startswith("writer") for a in self.fleet_info.actors):
            actor.rest(self.pick.randrange(50))
            table = open_table(self.path, actor.storage)
            if schedule_compaction(table, self.fleet_info).instant is not None:
                self.outcomes["scheduled"] += 1
            finish_completed(table, ProcessLock("finish"))
            for instant in pending_instants(table):
                self.compact(actor, instant)

    def compact(self, actor: Actor, instant: str) -> None:
        try:
            compact_instant(
                open_table(self.path, actor.storage),
                instant,
                lock=self.fleet_info,
                runner=LocalRunner(1),
                progress=lambda done, total: None,
                output=OUTPUT,
                options=self.attempt,
            )
            self.outcomes["compacted"] += 1
        except BarrierError:
            self.outcomes["barrier"] += 1

    def reader(self, actor: Actor) -> None:
        while sum(not a.done for a in self.fleet_info.actors) > 1:
            actor.rest(self.pick.randrange(50))
            first = len(self.commits)
            found = as_rows(read_table(open_table(self.path, actor.storage)))
            states = [self.state(n) for n in range(first, len(self.commits) + 1)]
            assert found in states, f"read {found}, possible {states}"
            self.outcomes["read"] += 1

    def finish(self) -> None:
        """A last write rolls back who is dead, the plans are executed, and the books must balance."""
        change, batch = self.batch([KEYS])
        write(
            open_table(self.path), LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=self.options)
        )
        self.commits.append(change)
        table = open_table(self.path)
        for _ in range(2):
            assert read_rows(self.path) == self.state()
            run_all(table)
            assert read_rows(self.path) == self.state()
            schedule_compaction(table, ProcessLock("finish"))
        run_all(table)
        assert read_rows(self.path) == self.state()
        for instant in audited_instants(table):
            found = audit(table, instant)
            assert found.good, found
        if self.trouble != "taken for dead":
            check_nothing_left(self.path)


def as_pairs(batch: pa.Table) -> Rows:
    """Rows of a batch by key."""
    columns = [batch.column(name).to_pylist() for name in ("id", "ts", "fare")]
    return {key: (ts, fare) for key, ts, fare in zip(*columns, strict=True)}


KINDS = [*product((6, 9), ("buckets", "keys"), ("none", "dies", "taken for dead"))]
USUAL = [(6, "buckets", "dies"), (9, "keys", "taken for dead"), (6, "keys", "none")]
"""Each trouble, each version and each index, not all of them together."""


@pytest.mark.parametrize(
    ("version", "index", "trouble"),
    [kind if kind in USUAL else deep(*kind) for kind in KINDS],
    ids=["-".join(map(str, kind)) for kind in KINDS],
)
def test_everybody_at_once(version: int, index: str, trouble: str, tmp_path: Path) -> None:
    seeds = range(SEED, SEED + max(1, CHAOS // 4))
    total = play(seeds, version, index, trouble, tmp_path / "trips")
    print(f"seeds {seeds}: {dict(total)}")


def play(seeds: Iterable[int], version: int, index: str, trouble: str, path: Path) -> Counter[str]:
    """One run a seed; how often what happened."""
    total: Counter[str] = Counter()
    for seed in seeds:
        with seed_note(seed), pytest.MonkeyPatch.context() as patch:
            story = Story(path, seed, version, index, trouble)
            story.run(patch)
            total += story.outcomes
            shutil.rmtree(path)
    return total
