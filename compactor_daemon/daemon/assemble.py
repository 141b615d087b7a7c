"""Builds a daemon of tables, claims and an executor. Everything that can be refused is refused before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.table_lock import TableLock, table_lock
from phantombase.timeline.metadata_table.update import check_keepable
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table

from ..claims.claims import Claims, table_id
from ..claims.table_claims import TableClaims
from ..claims.zookeeper_claims import ZooKeeperClaims
from ..execution.executor_choice import check_memory
from ..execution.machine import this_machine
from ..execution.open_runner import ChosenRunner, open_runner
from ..execution.runners import Runner, SparkRunner, all_storage_options
from ..options import ExecuteOptions
from ..zookeeper.session import ZooKeeperOptions, ZooKeeperSession, zookeeper_session
from .dispatch import Rules
from .loop import Daemon
from .observer import Observer
from .table_on_storage import ServedTable, Settings


@contextmanager
def open_daemon(
    paths: Sequence[str],
    *,
    rules: Rules,
    settings: Settings,
    execute: ExecuteOptions,
    zookeeper: ZooKeeperOptions | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    observer: Observer | None = None,
    runner: Runner | None = None,
) -> Iterator[Daemon]:
    """A daemon for some tables, ready to `run`. Errors of the tree: a table, ZooKeeper or the lock cannot be used.

    `zookeeper` None: a single daemon. `lock`: the table lock as for `table_lock`; `{name}` in it is replaced by each
    table's name. `sole_writer`: no other process writes to the tables. `runner`: a runner that is open already.
    """
    given = all_storage_options(paths, settings.storage_options, execute, runner)
    settings = replace(settings, storage_options=given)
    if runner is None and not execute.on_cluster:
        check_memory(settings.output.memory_limit, this_machine())
    storages = [open_storage(path, given) for path in paths]
    if len({storage.location for storage in storages}) < len(storages):
        raise UsageError("a table is named twice", found=" ".join(paths))
    tables = {storage.base_path: Table.open(path, given) for storage, path in zip(storages, paths, strict=True)}
    for table in tables.values():
        check_keepable(table, moves_rows=False)
    daemons: list[Daemon] = []

    def notify(event: Callable[[Daemon], None]) -> None:
        for daemon in daemons:  # none while the daemon is being built
            event(daemon)

    with ExitStack() as stack:
        session = None
        if zookeeper is not None:
            session = stack.enter_context(zookeeper_session(zookeeper, lambda: notify(Daemon.session_changed)))
        served: dict[str, ServedTable] = {}
        # The executor starts while tables are opened; it is stopped if one of them is refused.
        running = runner or stack.enter_context(open_runner(execute))
        for path, table in tables.items():
            wake = partial(notify, partial(Daemon.claims_changed, table=path))
            claims = _claims(session, table, settings.who, wake)
            served[path] = ServedTable(path, claims, _lock(table, lock, sole_writer), running, settings)
            served[path].open()
        daemon = Daemon(served, rules, settings.retry, observer=observer, spark_is_gone=partial(_is_gone, running))
        daemons.append(daemon)
        if session is not None:
            daemon.session_changed()
        for path, one in served.items():
            if isinstance(one.claims, ZooKeeperClaims):
                one.claims.wake_on_request(partial(daemon.wake, path))
        yield daemon


def _claims(session: ZooKeeperSession | None, table: Table, who: str, wake: Callable[[], None]) -> Claims:
    if session is None:
        return TableClaims(table, who)
    return ZooKeeperClaims(session, table_id(table.storage), who, wake)


def _lock(table: Table, given: str | None, sole_writer: bool) -> TableLock:
    named = None if given is None else given.replace("{name}", table.config.name)
    return table_lock(table.storage, named, sole_writer=sole_writer)


def _is_gone(runner: Runner) -> bool:
    return isinstance(runner, SparkRunner | ChosenRunner) and runner.is_gone
