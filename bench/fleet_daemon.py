"""Daemons of a fleet as processes that begin together, for the benchmarks of claims and of the fleet."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from phantombase.compactor_daemon.attempt.attempt import WaitScope, keep_slot
from phantombase.compactor_daemon.attempt.compact_or_resume import Compacted
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.daemon.assemble import open_daemon
from phantombase.compactor_daemon.daemon.dispatch import Rules
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.daemon.work import Observer
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import HeldClaim, table_id
from phantombase.compactor_daemon.fleet.zookeeper_claims import ZooKeeperClaims
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.unit_of_work import Limit
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table

_WAIT_S = 300.0
_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRun:
    """What one daemon did: seconds from the common start, CPU seconds of its process from then on, and the moments
    (since the epoch) it began instants."""

    done: int
    seconds: float
    cpu_s: float
    begun: tuple[float, ...]
    duplicates: int
    problems: tuple[str, ...]


class Begun(Observer):
    """When instants were claimed, and how long after their request."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.latencies: list[float] = []

    def started(self, table: str, latency_s: float | None) -> None:
        """See `Observer`."""
        self.moments.append(time.time())
        self.latencies += [latency_s] if latency_s is not None else []


class NoOp(TableOnStorage):
    """Completes a claimed instant without any work: an empty commit, made once, or counted as a duplicate."""

    duplicates = 0
    opened: Table

    def execute(
        self, instant: str, held: HeldClaim, limit: Limit, wait_scope: WaitScope = keep_slot
    ) -> Compacted | None:
        """See `ServedTable`: what another daemon has completed is not done again."""
        table = self.opened
        if self.done_among(instant):
            return None
        done = Instant(
            requested_time=instant, action="commit", state=State.COMPLETED, completion_time=format_time(table.now())
        )
        try:
            for path in (audit_path(instant), table.instant_path(done)):
                os.close(os.open(os.path.join(self.path, path), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            self.duplicates += 1
        return Compacted(
            instant=instant,
            attempt=1,
            file_groups=0,
            rows=0,
            rows_read=0,
            bytes_read=0,
            bytes_written=0,
            seconds=0.0,
            resumed=False,
        )


def run_fleet(path: str, hosts: str, daemons: int, *, no_op: bool) -> list[DaemonRun]:
    """Runs daemons on a table until nothing pends; they begin when all of them are connected."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(daemons)
    pairs = [context.Pipe(duplex=False) for _ in range(daemons)]
    processes = [
        context.Process(target=_daemon, args=(path, hosts, no_op, barrier, sender), daemon=True) for _, sender in pairs
    ]
    for process in processes:
        process.start()
    try:
        return [_received(receiver) for receiver, _ in pairs]
    finally:
        for process in processes:
            process.join(10.0)
            process.kill()


def _received(receiver: Connection) -> DaemonRun:
    if not receiver.poll(_WAIT_S):
        raise RuntimeError("a daemon did not end")
    found = receiver.recv()
    assert isinstance(found, DaemonRun)
    return found


def _daemon(path: str, hosts: str, no_op: bool, barrier: Any, sender: Connection) -> None:
    begun = Begun()
    with ExitStack() as stack:
        table = None
        if no_op:
            daemon, table = stack.enter_context(_no_op_daemon(path, hosts, begun))
        else:
            daemon = stack.enter_context(real_daemon(path, hosts, begun, once=True))
        barrier.wait(_WAIT_S)
        started, cpu = time.perf_counter(), time.process_time()
        summary = daemon.run()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    sender.send(
        DaemonRun(
            done=len(summary.done),
            seconds=seconds,
            cpu_s=cpu,
            begun=tuple(begun.moments),
            duplicates=table.duplicates if table is not None else 0,
            problems=tuple([*summary.problems.values(), *(e for _, _, e in summary.failed)][:_TOLD]),
        )
    )


def settings() -> DaemonSettings:
    """One slice at a time, on this process's core."""
    return DaemonSettings(
        who=process_name(),
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=DaemonOrder.EARLIEST,
    )


@contextmanager
def _no_op_daemon(path: str, hosts: str, observer: Observer) -> Iterator[tuple[Daemon, NoOp]]:
    with zookeeper_session(ZooKeeperOptions(hosts=hosts)) as session:
        table = Table.open(path)
        claims = ZooKeeperClaims(session, table_id(table.storage), process_name())
        served = NoOp(path, claims, table_lock(open_storage(path), None), LocalRunner(1), settings())
        served.open()
        served.opened = table
        yield Daemon({path: served}, Rules(once=True), RetryOptions(), observer=observer), served


@contextmanager
def real_daemon(path: str, hosts: str, observer: Observer, *, once: bool) -> Iterator[Daemon]:
    """A daemon that compacts."""
    with open_daemon(
        [path],
        rules=Rules(once=once),
        settings=settings(),
        execute=ExecuteOptions(executor=Executor.LOCAL, threads=1),
        zookeeper=ZooKeeperOptions(hosts=hosts),
        observer=observer,
    ) as daemon:
        yield daemon
