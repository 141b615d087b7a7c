"""Who works on a simulated table: writers, a scheduler, compactors, and Hudi's own compactor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.clustering.cancel import settle_dead_clusterings
from phantombase.compactor_daemon.daemon.dispatch import Rules
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.compaction import remove_leftovers
from phantombase.writer_hooks.commit.conflict import WriteSet
from phantombase.writer_hooks.commit.transaction import transaction
from tests.world.simulation import rows
from tests.world.simulation.fleet import WorldClaims, ZooKeeper
from tests.world.simulation.hudi import compact_as_hudi
from tests.world.simulation.rows import metadata, partition_of, place_log, stat
from tests.world.simulation.world import Host, World, WorldLock

OUTPUT = OutputOptions()
MINOR = ScheduleOptions(picking=Picking.UNIVERSAL, compaction_trigger=2)
RULES = Rules(max_concurrent=2, poll_s=0.1, sweep_s=0.2, once=True)
RETRY = RetryOptions(retries=1000, backoff_s=1.0, backoff_max_s=1.0)


@dataclass
class Cast:
    """One table's people. `outcomes`: what happened, how often; `parked`: what kept an instant from its end last.
    `closed`: nobody begins to write; `writing`: who does."""

    world: World
    lock: WorldLock
    attempt: AttemptOptions
    rest_s: float = 0.04
    outcomes: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=random.Random)
    parked: dict[str, str] = field(default_factory=dict)
    written: int = 0
    closed: bool = False
    clusters: bool = False
    writing: set[Host] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.zookeeper = ZooKeeper(self.world)

    def may_oversleep(self, host: Host, version: int) -> bool:
        """Whether a process may sleep until it counts as dead, right here. Not inside its section

        who unschedules on version 6: a writer that saw the plan may write a log on it before the plan is gone
        a writer that takes no lock: others see its commit, and build upon it, before it looks back"""
        unlocked = host.name.startswith("writer") and not self.lock.keeps_out
        risky = unlocked or (host.name.startswith("unscheduler") and version == 6)
        return not (risky and self.lock.is_inside(host))

    def doubt(self) -> bool:
        """Whether an answer of ZooKeeper gets lost."""
        return self.chance.random() < 0.02

    def rest(self) -> None:
        """Lets others work."""
        self.world.wait(None, self.rest_s)

    def table(self) -> Table:
        """The table as a process opens it."""
        return Table.on(self.world.storage)

    # --- writers -----------------------------------------------------------------------------------------------------

    def writer(self, writes: int, groups: Callable[[], str]) -> None:
        """Writes a row into a file group, some times; rolls dead writers back before each."""
        me = self.world.me.host
        for _ in range(writes):
            if self.closed:
                self.world.wait(lambda: not self.closed, None)
            self.written += 1
            row = f"row-{self.written}"
            self.writing.add(me)
            try:
                self.write(row, groups)
                self.outcomes["written"] += 1
            except PhantombaseError as error:
                self.outcomes[f"write: {error.what}"] += 1
            finally:
                self.writing.discard(me)

    def write(self, row: str, groups: Callable[[], str]) -> None:
        """One delta commit of one row, by the rules for writers."""
        table = self.table()
        self.roll_back(table)
        with transaction(table, self.lock, 30.0) as begun:
            file_id = groups()
            path, data = place_log(begun.table, begun.instant, row, file_id)
            mine = WriteSet(
                appended=frozenset({(partition_of(file_id), file_id)}),
                rewritten=frozenset(),
                buckets=frozenset(),
                inserts=frozenset(),
                looked_up=False,
            )
            begun.complete(mine, metadata([stat(file_id, path, len(data))], rows={row: file_id}))
        if self.clusters:
            remove_leftovers(self.table())

    def roll_back(self, table: Table) -> None:
        """Rolls dead writers back, and with them clusterings of dead processes where the table has clusterings."""
        roll_back_dead_writers(table, self.lock, lazy=False, now_ms=partial(storage_ms, table.storage), expiry_s=120.0)
        if self.clusters:
            settle_dead_clusterings(table.snapshot(), self.lock)

    # --- schedulers and compactors -----------------------------------------------------------------------------------

    def scheduler(self, times: int, *, minor: float = 0.0) -> None:
        """Requests compactions; with the chance `minor` of log files alone, where those are of about equal size."""
        for _ in range(times):
            self.rest()
            options = MINOR if minor and self.chance.random() < minor else PLAN_NOW
            try:
                done = schedule_compaction(self.table(), self.lock, options)
                self.outcomes["scheduled" if done.instant else "nothing to schedule"] += 1
                self.outcomes["log files alone"] += sum(r.plan.merges_logs for r in done.requested)
            except PhantombaseError as error:
                self.outcomes[f"schedule: {error.what}"] += 1

    def service(self) -> None:
        """Requests a compaction and executes it."""
        self.scheduler(1)
        self.compactor(1)

    def compactor(self, rounds: int) -> None:
        """What `compactor-daemon compact` does, some times, without a claim."""
        for _ in range(rounds):
            self.rest()
            try:
                table = self.table()
                with self._parking():
                    finish_completed(table, self.lock)
                pending = pending_instants(table)
            except PhantombaseError as error:
                self.outcomes[f"compact: {error.what}"] += 1
                continue
            for instant in pending:
                self.compact(instant)

    @contextmanager
    def _parking(self) -> Iterator[None]:
        """What fails keeps nothing else from being done."""
        try:
            yield
        except PhantombaseError as error:
            self.outcomes[f"finish: {error.what}"] += 1

    def compact(self, instant: str) -> None:
        """One instant."""
        try:
            compact_instant(
                self.table(),
                instant,
                lock=self.lock,
                runner=rows.run_tasks,
                progress=lambda done, total: None,
                output=OUTPUT,
                options=self.attempt,
            )
            self.outcomes["compacted"] += 1
            self.parked.pop(instant, None)
        except PhantombaseError as error:
            self.parked[instant] = error.what
            self.outcomes[f"compact: {error.what}"] += 1

    def daemon(self, rounds: int) -> None:
        """`compactor-daemon run`, some times until nothing is left to do; the fleet shares one ZooKeeper."""
        world = self.world
        for _ in range(rounds):
            self.rest()
            table = TableOnStorage(
                "t", WorldClaims(self.zookeeper, self.doubt), self.lock, rows.run_tasks, self._settings()
            )
            daemon = Daemon({"t": table}, RULES, RETRY, chance=self.chance)
            world.me.host.woken = daemon.session_changed
            try:
                done = daemon.run()
            finally:
                world.me.host.woken = lambda: None
            self.outcomes["compacted by a fleet"] += len(done.done)
            for _, _, what in done.failed:
                self.outcomes[f"daemon: {what.partition(';')[0]}"] += 1
            for what in done.problems.values():
                self.outcomes[f"daemon's table: {what.partition(';')[0]}"] += 1

    def _settings(self) -> DaemonSettings:
        return DaemonSettings(
            who="", output=OUTPUT, attempt=self.attempt, retry=RETRY, order=DaemonOrder.EARLIEST, clusters=True
        )

    def unscheduler(self, times: int) -> None:
        """Takes plans back."""
        for _ in range(times):
            self.rest()
            try:
                pending = pending_instants(self.table())
                if pending:
                    self.unschedule(self.chance.choice(pending))
            except PhantombaseError as error:
                self.outcomes[f"unschedule: {error.what}"] += 1

    def unschedule(self, instant: str) -> None:
        """One plan."""
        done = unschedule(self.table(), instant, self.lock, self.attempt)
        self.outcomes["unscheduled"] += 1
        if not done.kept:
            self.parked.pop(instant, None)

    def hudi(self, rounds: int) -> None:
        """Hudi's compactor, some times."""
        for _ in range(rounds):
            self.rest()
            host = self.world.me.host
            host.names_made += 1
            try:
                done = compact_as_hudi(self.world.storage, f"0-{host.number}-{host.names_made}")
                self.outcomes["Hudi compacted"] += done is not None
            except PhantombaseError as error:
                self.outcomes[error.what] += 1
