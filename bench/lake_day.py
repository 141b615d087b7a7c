"""A day of a lake in minutes: many tables on local disk, a simulated clock, daemons of one fleet, and what goes wrong.

    python -m bench.lake_day [--tables 200] [--hours 24] [--record]

Real: tables and their files, delta commits, plans, compactions, cleans, archives, verdicts, history, and the daemons'
loops and decisions. Simulated: the clock, the sessions with ZooKeeper, and how long a compaction takes: 30 s and a
second for each 10 KB of a file slice that it reads, on a slot. See `lake_world`.

A twentieth of the tables is written to each 20 minutes or so, and has a goal of freshness of 30 minutes; a quarter
each two hours, the rest each six hours, with a goal of an hour. A fifth of them has three partitions. At 3/8, 1/2 and
3/4 of the day half of the tables get two more batches within five minutes. A batch upserts 20 of 400 keys, one in ten
of the rows is late and loses; each tenth one deletes five keys. At 5/12 of the day a log file of one table turns into
random bytes; at 5/8 it is restored, and what is parked is released. Soon after the burst of noon one of three daemons,
with work in its slots, is lost for ever.

At the end every table must read as the model says, snapshot and read-optimized, and the files must be well.
`--record` keeps the result, and makes docs/lake.md's figures and picture.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shlex
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from bench.day_page import clock, record_lake
from bench.lake_world import LakeWorld, Sessions, simulated
from bench.report import Goal, Report
from phantombase import read, writer
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.compact_or_resume import Compacted
from phantombase.compactor_daemon.attempt.failures import RetryOptions, release_failures
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, Tasks, compact_slice
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.daemon.assemble import Discovery, LazyTable, _of_pool
from phantombase.compactor_daemon.daemon.control import Served
from phantombase.compactor_daemon.daemon.dispatch import Rules, Stop
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.daemon.work import Observer
from phantombase.compactor_daemon.fleet.catalog import Catalog, FolderListing, Members
from phantombase.compactor_daemon.fleet.pools import Pool, Pools
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.services.options import ServiceOptions
from phantombase.compactor_daemon.status.catalog import catalog_rows
from phantombase.compactor_daemon.status.check import CheckMeans, check_table
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.verdict import CheckOptions, Freshness, Health
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table
from tests.support.interleaving import SerialPool
from tests.world.simulation.fleet import WorldClaims
from tests.world.simulation.world import START_MS, Host

_HOT, _USUAL, _QUIET = ("hot", 1200, 1800), ("usual", 7200, 3600), ("quiet", 21600, 3600)
"""Kinds of tables: how often they are written to, and their goals of freshness, in seconds."""
_KEYS, _BATCH, _DELETED, _REGIONS = 400, 20, 5, 3
_BURSTS, _LOST, _SICK, _MENDED = (3 / 8, 1 / 2, 3 / 4), 1 / 2, 5 / 12, 5 / 8
_SLOTS, _DAEMONS, _SESSION_S, _SAMPLE_S = 2, 3, 30.0, 900.0
_STARTS_S, _BYTES_S = 30.0, 10_000
_ON_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class LakeTable:
    name: str
    path: str
    every_s: int
    goal_s: int
    regions: int

    def rows(self, keys: Mapping[int, tuple[int, float]]) -> pa.Table:
        """Rows by their keys."""
        ids = sorted(keys)
        columns: dict[str, list[Any]] = {
            "id": [f"{i:04}" for i in ids], "ts": [keys[i][0] for i in ids], "fare": [keys[i][1] for i in ids],
        }  # fmt: skip
        return pa.table(columns | ({"region": [self.region(i) for i in ids]} if self.regions else {}))

    def region(self, key: int) -> str:
        return f"r{key % self.regions}" if self.regions else ""


@dataclass(kw_only=True)
class Seen(Observer):
    """What a daemon of this name did. `whys`: why tables were near their goals, or over them, and how often seen."""

    lake: Lake
    host: Host

    def finished(self, table: str, compacted: Compacted | None) -> None:
        """See `Observer`."""
        if compacted is not None:
            self.lake.compacted(table, compacted, self.host)

    def freshness(self, table: str, found: Freshness | None) -> None:
        """See `Observer`."""
        if found is not None and found.why is not None:
            words = "".join("N" if c.isdigit() else c for c in found.why)
            self.lake.whys[table].setdefault(words, found.why)

    def failed(self, table: str) -> None:
        """See `Observer`."""
        self.lake.failures[table].append(self.lake.world.now_ms)


class Lake:
    """The tables of a root, their model, who works on them, and what was seen."""

    def __init__(self, root: Path, tables: int, hours: float, seed: int, poll_s: float, slices: Executor) -> None:
        self.root, self.day_s, self.poll_s, self.slices = root, hours * 3600, poll_s, slices
        self.chance, self.world = random.Random(seed), LakeWorld()
        self.tables: dict[str, LakeTable] = {}
        for number in range(tables):
            word, every_s, goal_s = _HOT if number % 20 == 0 else _USUAL if number % 20 < 6 else _QUIET
            name, regions = f"{word}_{number:03}", _REGIONS if number % 5 == 1 else 0
            path = str(root / name)
            self.tables[path] = LakeTable(name=name, path=path, every_s=every_s, goal_s=goal_s, regions=regions)
        self.sick = self.tables[str(root / "usual_001")]
        schedule = ScheduleOptions(freshness_s=_USUAL[2])
        self.pools = Pools(
            pools=(Pool(match="hot_*", schedule=replace(schedule, freshness_s=_HOT[2])),),
            others=Pool(schedule=schedule),
        )
        self.model: dict[str, dict[int, tuple[int, float]]] = {path: {} for path in self.tables}
        self.waiting = defaultdict[tuple[str, str], list[tuple[str, int]]](list)
        """By table and partition, the writes that no base file holds: instants, and when they were made."""
        self.groups = defaultdict[tuple[str, str], set[str]](set)
        """By table and instant, the partitions that a compaction takes in."""
        self.claims = {path: Sessions(self.world) for path in self.tables}
        self.living: dict[str, Fleetmate] = {}
        self.lags: list[tuple[int, LakeTable, float]] = []
        self.samples: list[dict[str, float]] = []
        self.whys, self.failures = defaultdict[str, dict[str, str]](dict), defaultdict[str, list[int]](list)
        self.counts, self.story = Counter[str](), list[tuple[float, str]]()
        self.wrong_lag_s, self.by = 0.0, Counter[str]()
        self.taken_over: dict[tuple[str, str], float | None] = {}
        self.unwell = Counter[tuple[str, str]]()
        self.lost, self.lost_s, self.found_s, self.ended = "", 0.0, 0.0, False

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Seconds of the day."""
        return (self.world.now_ms - START_MS) / 1000

    def until(self, at_s: float) -> None:
        self.world.wait(None, max(0.0, at_s - self.now_s))

    def tell(self, what: str) -> None:
        self.story.append((round(self.now_s), what))
        print(f"bench.lake_day: {clock(self.now_s)} {what}", file=sys.stderr, flush=True)

    # --- writers -------------------------------------------------------------------------------------------------

    def plan(self) -> list[tuple[float, LakeTable]]:
        """Who is written to when."""
        found = list[tuple[float, LakeTable]]()
        for table in self.tables.values():
            at = self.chance.uniform(0, table.every_s)
            while at < self.day_s:
                found.append((at, table))
                at += table.every_s * self.chance.uniform(0.7, 1.3)
        for burst in _BURSTS:
            for table in self.chance.sample(list(self.tables.values()), len(self.tables) // 2):
                found += [(burst * self.day_s + self.chance.uniform(0, 300), table) for _ in range(2)]
        return sorted(found, key=lambda one: (one[0], one[1].name))

    def write_all(self) -> None:
        for at, table in self.plan():
            self.until(at)
            self.write(table)

    def write(self, table: LakeTable) -> None:
        """One batch, also in the model."""
        rows, chance = self.model[table.path], self.chance
        self.counts["writes"] += 1
        number = self.counts["writes"]
        how = writer if rows else partial(_new, table)
        if rows and self.chance.random() < 0.1 and len(rows) > _KEYS // 2:
            gone = chance.sample(sorted(rows), _DELETED)
            done = how(table.rows(dict.fromkeys(gone, (number * 10, 0.0)))).buckets(1).delete(table.path)
            for key in gone:
                del rows[key]
            keys = gone
        else:
            keys = chance.sample(range(_KEYS), _KEYS // 2 if not rows else _BATCH)
            batch = {key: (number * 10, float(number)) for key in keys}
            late = [key for key in keys if key in rows and chance.random() < 0.1]
            done = how(table.rows(batch | {k: (rows[k][0] - 1, -1.0) for k in late})).buckets(1).upsert(table.path)
            rows |= {key: row for key, row in batch.items() if key not in late}
        self.counts["rows"] += len(keys)
        for region in {table.region(key) for key in keys}:
            self.waiting[table.path, region].append((done.instant, self.world.now_ms))

    # --- daemons -------------------------------------------------------------------------------------------------

    def run_tasks(self, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        """A `Runner`: each slice takes its time."""
        found = list[SliceDone]()
        self.groups[storage.base_path, tasks[0].instant] |= {task.slice.partition for task in tasks}
        for number, task in enumerate(tasks, 1):
            made, seconds = self.slices.submit(compact_slice, storage, task), _STARTS_S + task.read_bytes / _BYTES_S
            self.world.wait(None, seconds)
            found.append(replace(made.result(), seconds=seconds))
            progress(number, len(tasks))
        return found

    def compacted(self, path: str, done: Compacted, host: Host) -> None:
        """A daemon has completed a compaction: what was written before its plan is in base files."""
        self.by[host.name] += 1
        if self.taken_over.get((path, done.instant), 0.0) is None:
            self.taken_over[path, done.instant] = self.now_s
            self.tell(f"{host.name} has completed {self.tables[path].name}, which {self.lost} had begun")
        for region in self.groups.pop((path, done.instant)):
            waiting = self.waiting[path, region]
            for instant, at_ms in waiting:
                if instant < done.instant:
                    self.lags.append((at_ms, self.tables[path], (self.world.now_ms - at_ms) / 1000))
            self.waiting[path, region] = [one for one in waiting if one[0] >= done.instant]

    def lag_s(self, path: str) -> float:
        """By the model."""
        oldest = min((ones[0][1] for (of, _), ones in self.waiting.items() if of == path and ones), default=None)
        return 0.0 if oldest is None else (self.world.now_ms - oldest) / 1000

    # --- what happens --------------------------------------------------------------------------------------------

    def lose_one(self) -> None:
        """The daemon with most work, some minutes into the burst."""
        self.until(_LOST * self.day_s + 300)

        def busiest() -> Fleetmate:
            return max(self.living.values(), key=lambda one: len(one.daemon.at_work))

        for least, most_s in ((_SLOTS, 600), (1, 3600)):
            if self.world.wait(partial(lambda least: len(busiest().daemon.at_work) >= least, least), most_s):
                break
        mate = busiest()
        self.lost, works = mate.host.name, mate.daemon.at_work
        served = len(mate.daemon.paths)
        self.world.lose(mate.host)
        self.lost_s = self.now_s
        self.taken_over = dict.fromkeys(works)
        self.tell(f"{self.lost} is lost, which serves {served} tables and has {len(works)} compactions in progress")
        self.world.wait(None, _SESSION_S)
        mate.host.session += 1
        del self.living[self.lost]
        for one in self.living.values():
            one.members_changed = True
            for path, _ in works:
                if path in one.daemon.paths:
                    one.daemon.claims_changed(path)

    def make_sick(self) -> None:
        """One log file becomes random bytes, and is restored hours later."""
        sick = self.sick
        self.until(_SICK * self.day_s)
        self.write(sick)
        log = max(Path(sick.path).rglob(".*.log.*"), key=lambda path: path.stat().st_mtime_ns)
        good = log.read_bytes()
        log.write_bytes(self.chance.randbytes(len(good)))
        began_s = self.now_s
        self.tell(f"a log file of {sick.name} has become random bytes")
        while (found := self.check(sick)).verdict.health is Health.WELL:
            self.world.wait(None, 60.0)
        first = found.verdict.findings[0]
        self.found_s = self.now_s - began_s
        self.tell(f"`check` calls {sick.name} {found.verdict.health.value}: {first.name}: {self.shown(first.what)}")
        self.until(_MENDED * self.day_s)
        found = self.check(sick)
        self.sick_findings = [f"{one.name}: {self.shown(one.what)}" for one in found.verdict.findings]
        self.sick_whys = [self.shown(why) for why in self.whys[sick.path].values()]
        self.sick_tries = sum(at >= began_s * 1000 + START_MS for at in self.failures[sick.path])
        log.write_bytes(good)
        table = Table.open(sick.path)
        pending = (one.requested_time for one in table.load_timeline().pending_merges)
        released = sum(release_failures(table.storage, instant) > 0 for instant in pending)
        self.tell(f"the file is restored, {released} compactions released, after {self.sick_tries} failed tries")
        self.world.wait(lambda: self.lag_s(sick.path) <= sick.goal_s, 6 * 3600)
        self.tell(f"{sick.name} is fresh again")

    def shown(self, text: str) -> str:
        return text.replace(f"{self.root}/", "")

    def check(self, table: LakeTable) -> Any:
        means = CheckMeans(trigger=cast(ScheduleOptions, self.pools.of(table.name).schedule))
        return check_table(table.name, table.path, CheckOptions(), means)

    def watch(self) -> None:
        """Samples, and each twelfth time the verdict on all tables; the product's lag against the model's."""
        number, began = 0, time.monotonic()
        while not self.ended:
            parts = {path: self.lag_s(path) / one.goal_s for path, one in self.tables.items()}
            ill = parts.pop(self.sick.path)
            known = [one.daemon.freshness_of(path) for one in self.living.values() for path in one.daemon.paths]
            self.samples.append(
                {
                    "at_h": round(self.now_s / 3600, 3),
                    "lag": round(max(parts.values()), 3),
                    "sick": round(ill, 3),
                    "said": round(max((one.lag_s / one.goal_s for one in known if one and one.goal_s), default=0.0), 3),
                    "running": sum(len(one.daemon.at_work) for one in self.living.values()),
                    "done": len(self.lags),
                }
            )
            if number % 12 == 0:
                self.check_all()
                print(f"bench.lake_day: {clock(self.now_s)}, {time.monotonic() - began:.0f} s", file=sys.stderr)
            number += 1
            self.world.wait(lambda: self.ended, _SAMPLE_S)

    def check_all(self) -> None:
        names = {one.name: path for path, one in self.tables.items() if self.model[path]}
        for row in catalog_rows(names, self.pools):
            wrong = abs((row.read_optimized_lag_s or 0.0) - self.lag_s(row.table))
            self.wrong_lag_s = max(self.wrong_lag_s, wrong if row.table != self.sick.path else 0.0)
            if row.verdict.health is not Health.WELL:
                self.unwell[row.name, self.shown(row.verdict.findings[0].name)] += 1

    # --- the day -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """The day, and as long after it as the last rows take."""
        with simulated(self.world):
            self.world.start("first rows", self._begin)
            try:
                self.world.run()
                self.verify()
            finally:
                self.world.close()

    def _begin(self) -> None:
        for table in self.tables.values():
            self.write(table)
        self.waiting.clear()  # into base files
        for number in range(1, _DAEMONS + 1):
            Fleetmate(self, f"c{number}").start()
        writers = self.world.start("writers", self.write_all)
        self.world.start("night", self.lose_one)
        self.world.start("sickness", self.make_sick)
        self.world.start("watch", self.watch)
        self.world.wait(lambda: self.world.is_over(writers), None)
        self.tell("the last batch is written")
        self.world.wait(lambda: not any(self.waiting.values()), 6 * 3600)
        self.tell("all rows are in base files")
        self.check_all()
        self.ended = True
        for mate in self.living.values():
            mate.daemon.stop(Stop.FINISH)

    def verify(self) -> None:
        """Every table reads as the model says: nothing is lost, and nothing doubled."""
        for path, table in self.tables.items():
            expected = table.rows(self.model[path])
            for query in ("snapshot", "read-optimized"):
                rows = read(path, expected.column_names, query=query).to_arrow().sort_by("id")
                if not rows.cast(expected.schema).equals(expected):
                    raise RuntimeError(f"{table.name} reads {rows.num_rows} rows ({query}), not {expected.num_rows}")
            self.counts["verified"] += 1


class Fleetmate:
    """A daemon of the fleet, a process of its own on a machine of its own. It plays its own `Members`, too."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake, self.me, self.members_changed = lake, name, False

    def start(self) -> None:
        self.host = self.lake.world.start(self.me, self.run)
        self.lake.living[self.me] = self

    def run(self) -> None:
        """Until it is stopped."""
        lake = self.lake
        rules = Rules(max_concurrent=_SLOTS, poll_s=lake.poll_s, sweep_s=3600.0, services=True, services_s=14_400.0)
        self.daemon = Daemon(
            {}, rules, RetryOptions(), pools=lake.pools, observer=Seen(lake=lake, host=self.host),
            chance=random.Random(self.me),
        )  # fmt: skip
        self.discovery = Discovery(
            catalog=Catalog(listing=FolderListing(str(lake.root), StorageOptions()), pools=lake.pools),
            daemon=self.daemon,
            open_lazily=self.lazy,
            members=cast(Members, self),
        )
        self.discovery.round()
        lake.world.spawn("discovery", self.host, self.discover)
        self.daemon.run()

    def snapshot(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """See `Members`."""
        return frozenset(self.lake.living)

    def discover(self) -> None:
        while not self.lake.ended:
            self.lake.world.wait(lambda: self.members_changed or self.lake.ended, self.lake.poll_s)
            self.members_changed = False
            self.discovery.round()

    def lazy(self, path: str, pool: Pool) -> LazyTable:
        return LazyTable(path, partial(self.opened, path, pool), partial(Table.open, path, reading=True))

    def opened(self, path: str, pool: Pool) -> Served:
        settings = DaemonSettings(
            who=self.me,
            output=OutputOptions(),
            attempt=AttemptOptions(),
            retry=RetryOptions(),
            order=DaemonOrder.EARLIEST,
            schedule=ScheduleOptions(),
            services=ServiceOptions.of(clean=CleanOptions(), archive=ArchiveOptions()),
        )
        lake, chosen = self.lake, partial(table_lock, given=None)
        claims = WorldClaims(lake.claims[path], lambda: False)
        lock = chosen(open_storage(path, None))
        found = TableOnStorage(path, claims, lock, lake.run_tasks, _of_pool(settings, pool), chosen)
        found.open()
        return found


def _new(table: LakeTable, batch: pa.Table) -> Any:
    made = writer(batch).table(table.name).key("id").ordering("ts")
    return made.partition("region") if table.regions else made


def play(
    tables: int, hours: float, *, seed: int = 46, poll_s: float = 300.0, slices: Executor | None = None
) -> tuple[Lake, pa.Table]:
    """A lake after its day, and the history of its tables. `slices`: where the files of compactions are made."""
    with tempfile.TemporaryDirectory(prefix="lake-", dir=_ON_MEMORY if _ON_MEMORY.is_dir() else None) as made:
        lake = Lake(Path(made), tables, hours, seed, poll_s, slices or cast(Executor, SerialPool(1)))
        lake.play()
        history = [read(f"phantombase:history:{path}").to_arrow() for path in lake.tables]
        return lake, pa.concat_tables(history)


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--hours", type=float, default=24.0, help="how long the day is")
    parser.add_argument("--record", action="store_true", help="keep the result, and make the figures of docs/lake.md")
    parser.add_argument("--quick", action="store_true", help="two hours of six tables")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tables, arguments.hours = 6, 2.0
    report = Report(bench="lake_day")
    report.facts["command"] = shlex.join(["python", "-m", "bench.lake_day", *sys.argv[1:]])
    report.facts["load_before"] = round(os.getloadavg()[0], 1)
    began = time.monotonic()
    with ProcessPoolExecutor(1, get_context("spawn")) as slices:
        lake, history = play(arguments.tables, arguments.hours, slices=slices)
    figures(report, lake, history)
    for name, value, limit in (
        ("real_s", time.monotonic() - began, 600.0),
        ("cpu_s", sum(os.times()[:4]), 1200.0),
        ("peak_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 2048.0),
    ):
        report.figure(name, value, Goal(figure=name, limit=limit, at_least=False))
    if arguments.record:
        record_lake(report.document())
    return report.finish()


def figures(report: Report, lake: Lake, history: pa.Table) -> None:
    """What the day shows. Lags are parts of the goals; those of the sick table stand apart."""
    report.facts |= {"tables": len(lake.tables), "hours": round(lake.day_s / 3600, 1)}
    lags = [(at, table, lag / table.goal_s) for at, table, lag in lake.lags if table is not lake.sick]
    cuts = quantiles([lag for _, _, lag in lags], n=20, method="inclusive")
    over = Counter(table.path for _, table, lag in lags if lag > 1)
    report.figure("lag_p50", cuts[9])
    report.figure("lag_p95", cuts[18])
    report.figure("lag_max", max(lag for _, _, lag in lags), Goal(figure="lag_max", limit=1.0, at_least=False))
    report.figure("lag_max_sick", max((lag / t.goal_s for _, t, lag in lake.lags if t is lake.sick), default=0.0))
    report.figure("late_tables", len(over), Goal(figure="late_tables", limit=0, at_least=False))
    report.figure("verified", lake.counts["verified"])
    report.figure("wrong_lag_s", lake.wrong_lag_s, Goal(figure="wrong_lag_s", limit=1.0, at_least=False))
    report.figure("taken_over_s", max(at or lake.now_s for at in lake.taken_over.values()) - lake.lost_s)
    report.figure("sick_found_s", lake.found_s)
    kinds = history.group_by("kind").aggregate(
        [("core_seconds", "sum"), ("bytes_read", "sum"), ("bytes_written", "sum"), ("kind", "count")]
    )
    failed = Counter(history.filter(pc.equal(history["outcome"], "failed"))["kind"].to_pylist())
    report.facts |= {
        "writes": lake.counts["writes"],
        "rows": lake.counts["rows"],
        "late_writes": sum(over.values()),
        "compactions": dict(sorted(lake.by.items())),
        "history": {
            row["kind"]: {
                "units": row["kind_count"],
                "failed": failed[row["kind"]],
                "core_s": round(row["core_seconds_sum"]),
                "mb_read": round((row["bytes_read_sum"] or 0) / 1e6, 1),
                "mb_written": round((row["bytes_written_sum"] or 0) / 1e6, 1),
            }
            for row in sorted(kinds.to_pylist(), key=lambda row: -row["kind_count"])
        },
        "story": lake.story,
        "sick": {"findings": lake.sick_findings, "whys": lake.sick_whys, "tries": lake.sick_tries},
        "late_whys": {lake.tables[path].name: sorted(lake.whys[path].values()) for path in over},
        "unwell": [[*what, times] for what, times in sorted(lake.unwell.items())],
        "samples": lake.samples,
    }


if __name__ == "__main__":
    sys.exit(main())
