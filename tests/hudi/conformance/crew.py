"""Writers, a compactor and readers of every kind on one table at the same time, in threads of one process.

The readers keep what they saw and when; `seen` compares it with the model when all is over."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

from phantombase import ExecuteOptions, Executor, compact, read, schedule, writer
from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.read.table_read import ReadOptions
from phantombase.timeline.table.table import Table
from pyspark_phantombase import DefaultSource
from tests.hudi.conformance.ask import BEFORE_ALL, Query, stream_batch
from tests.support.change_feeds import MERGE_LOGS

PARTS = {"first": ("east", "west"), "second": ("north",)}
"""The partitions of each writer."""
KEYS = 40
"""In each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A write that returned; `begun` and `ended` by this process's clock."""

    instant: str
    deletes: bool
    rows: pa.Table
    begun: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a reader saw. `net`: of a change feed."""

    query: Query
    rows: pa.Table
    begun: float
    ended: float


@dataclass(kw_only=True)
class Crew:
    """All that work on the table at `path` until `seconds` are over."""

    path: Path
    version: int
    seed: int
    seconds: float
    writes: list[Done] = field(default_factory=list)
    compactions: list[tuple[float, float]] = field(default_factory=list)
    """Of those of all file groups with logs: when each was requested, and when it was completed."""
    seen: list[Seen] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        """Raises the first error of a thread."""
        for name in self._writers():
            self._write(random.Random(self.seed), name, range(KEYS))
        self._until = time.monotonic() + self.seconds
        jobs: list[Callable[[random.Random], None]] = [self._compacts, self._streams]
        jobs += [lambda chance, name=name: self._writes(chance, name) for name in self._writers()]  # type: ignore[misc]
        jobs += [self._reads, self._reads]
        threads = [threading.Thread(target=self._guarded, args=(job, number)) for number, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, job: Callable[[random.Random], None], number: int) -> None:
        try:
            job(random.Random(self.seed + number))
        except BaseException as error:
            self.errors.append(error)

    def _goes_on(self) -> bool:
        return time.monotonic() < self._until and not self.errors

    # Writers. On version 6 one: its moments are requested times, which say nothing of which write was seen first.

    def _writers(self) -> list[str]:
        return list(PARTS) if self.version > 6 else ["first"]

    def _writes(self, chance: random.Random, name: str) -> None:
        while self._goes_on():
            self._write(chance, name, chance.sample(range(KEYS), chance.randint(1, 12)), chance.random() < 0.3)

    def _write(self, chance: random.Random, name: str, numbers: range | list[int], deletes: bool = False) -> None:
        ts = len(self.writes) + 1
        rows = [
            {"id": f"{part}-{n:02d}", "p": part, "ts": ts, "v": chance.randrange(10**6)}
            for part in PARTS[name]
            for n in numbers
        ]
        batch = pa.Table.from_pylist(rows)
        asked = writer(batch).table("crew", version=self.version).key("id").partition("p").ordering("ts").buckets(1)
        asked = asked.option(lock=self._lock)
        begun = time.monotonic()
        done = asked.delete(str(self.path)) if deletes else asked.upsert(str(self.path))
        ended = time.monotonic()
        self.writes.append(Done(instant=done.instant, deletes=deletes, rows=batch, begun=begun, ended=ended))

    @property
    def _lock(self) -> str:
        return f"file:{self.path.with_name('lock')}"

    # The compactor.

    def _compacts(self, chance: random.Random) -> None:
        while self._goes_on() or (not self.compactions and not self.errors and time.monotonic() < self._until + 60):
            asked, whole = time.monotonic(), not self.compactions or chance.random() < 0.6
            if not schedule(self.path, PLAN_NOW if whole else MERGE_LOGS, lock=self._lock).requested:
                continue
            time.sleep(chance.random() * 0.4)  # writes go behind the plan
            compact(self.path, lock=self._lock, execute=ExecuteOptions(executor=Executor.LOCAL, threads=1))
            if whole:
                self.compactions.append((asked, time.monotonic()))

    # Readers.

    def _reads(self, chance: random.Random) -> None:
        kinds = (self._snapshot, self._base_files, self._window, self._changes, self._travel)
        waiting = chance.sample(kinds, len(kinds))  # each once, however slow the machine is
        while waiting or self._goes_on():
            (waiting.pop() if waiting else chance.choice(kinds))(chance)

    def _saw(self, query: Query, give: Callable[[], pa.Table]) -> None:
        begun = time.monotonic()
        rows = give()
        self.seen.append(Seen(query=query, rows=rows, begun=begun, ended=time.monotonic()))

    def _snapshot(self, chance: random.Random) -> None:
        engine = chance.choice(("arrow", "stream", "polars", "pandas", "duckdb"))

        def give() -> pa.Table:
            rows = read(self.path)
            if engine == "polars":
                return rows.to_polars().to_arrow()
            if engine == "pandas":
                return pa.Table.from_pandas(rows.to_pandas(), preserve_index=False)
            if engine == "duckdb":
                # The default connection takes one thread at a time.
                return rows.to_duckdb(duckdb.connect()).to_arrow_table()
            return rows.to_arrow() if engine == "arrow" else pa.table(rows)

        self._saw(Query(kind="snapshot"), give)

    def _base_files(self, _: random.Random) -> None:
        self._saw(Query(kind="read-optimized"), lambda: read(self.path, query="read-optimized").to_arrow())

    def _window(self, chance: random.Random) -> None:
        begin = chance.choice([BEFORE_ALL, *self._moments()])
        rows = read(self.path, query="incremental", begin=begin)
        self._saw(Query(kind="incremental", begin=begin, end=rows.end), rows.to_arrow)

    def _changes(self, chance: random.Random) -> None:
        begin, end = sorted(chance.sample([BEFORE_ALL, *self._moments()], 2))
        options = ReadOptions(net=True)
        rows = read(self.path, query="changes", begin=begin, end=end, options=options)
        self._saw(Query(kind="changes", begin=begin, end=end), rows.to_arrow)

    def _travel(self, chance: random.Random) -> None:
        timeline = Table.open(str(self.path)).load_timeline()
        point = chance.choice([w.requested_time for w in timeline.completed_writes.values() if w.action != "commit"])
        try:
            self._saw(Query(kind="time travel", point=point), lambda: read(self.path, as_of=point).to_arrow())
        except UsageError as error:
            if "before the first pending write" not in str(error):
                raise

    def _moments(self) -> list[str]:
        timeline = Table.open(str(self.path)).load_timeline()
        return [timeline.moment_of(w) for w in timeline.completed_writes.values() if w.action != "commit"]

    def _streams(self, _: random.Random) -> None:
        source = DefaultSource({"path": str(self.path)})
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        while self._goes_on():
            begun = time.monotonic()
            found = stream_batch(reader, start)
            if found is None:
                time.sleep(0.05)
                continue
            start, query, rows = found
            self.seen.append(Seen(query=query, rows=rows, begun=begun, ended=time.monotonic()))
