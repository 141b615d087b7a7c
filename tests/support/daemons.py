"""Daemons of tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phantombase.compactor_daemon.daemon.assemble import open_daemon
from phantombase.compactor_daemon.daemon.dispatch import Order, Rules, Stop
from phantombase.compactor_daemon.daemon.loop import Daemon, Summary
from phantombase.compactor_daemon.daemon.table_on_storage import Settings
from phantombase.compactor_daemon.execution.runners import LocalRunner, Runner
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.records.failures import RetryOptions
from phantombase.compactor_daemon.zookeeper.session import ZooKeeperOptions
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.planning.options import ScheduleOptions
from tests.support.servers.zookeeper_server import ZooKeeper

WAIT_S = 120.0
SESSION_S = 30.0
"""No daemon here is to lose its session, also when the machine stands still for some seconds."""


@contextmanager
def daemon_on(
    *paths: Path,
    zookeeper: ZooKeeper | None,
    runner: Runner | None = None,
    who: str = "daemon",
    once: bool = True,
    poll_s: float = 600.0,
    order: Order = Order.EARLIEST,
    schedule: ScheduleOptions | None = None,
    max_concurrent: int = 1,
) -> Iterator[Daemon]:
    """A daemon over tables, in this process."""
    retry = RetryOptions(retries=1, backoff_s=0.2)
    settings = Settings(
        who=who,
        output=OutputOptions(),
        attempt=AttemptOptions(barrier_s=0.5, barrier_poll_s=0.05),
        retry=retry,
        order=order,
        schedule=schedule,
    )
    with open_daemon(
        [str(p) for p in paths],
        rules=Rules(once=once, poll_s=poll_s, order=order, max_concurrent=max_concurrent),
        settings=settings,
        execute=ExecuteOptions(executor=Executor.LOCAL),
        zookeeper=ZooKeeperOptions(hosts=zookeeper.hosts, session_timeout_s=SESSION_S) if zookeeper else None,
        runner=runner or LocalRunner(1),
    ) as daemon:
        yield daemon


@contextmanager
def at_work(daemon: Daemon, how: Stop = Stop.FINISH) -> Iterator[list[Summary]]:
    """The daemon in a thread; stopped at the end, then its summary is in the list."""
    summaries: list[Summary] = []
    thread = threading.Thread(target=lambda: summaries.append(daemon.run()), daemon=True)
    thread.start()
    try:
        yield summaries
    finally:
        daemon.stop(how)
        thread.join(WAIT_S)
    assert summaries, "the daemon did not end"
