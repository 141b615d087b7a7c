"""Builds a daemon of tables, claims and an executor. What no table could be served with is refused before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.locks.table_lock import table_lock
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
from ..lake.lake import Lake
from ..lake.lanes import Lane, Lanes
from ..lake.members import Members, fleet_of
from ..options import ExecuteOptions
from ..zookeeper.session import ZooKeeperOptions, ZooKeeperSession, zookeeper_session
from .discovery import Discovery
from .dispatch import Rules
from .loop import Daemon
from .observer import Observer
from .opened_late import OpenedLate
from .served_table import Served
from .table_on_storage import ServedTable, Settings


@contextmanager
def open_daemon(
    paths: Sequence[str],
    *,
    rules: Rules,
    settings: Settings,
    execute: ExecuteOptions,
    lake: Lake | None = None,
    lanes: Lanes | None = None,
    zookeeper: ZooKeeperOptions | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    observer: Observer | None = None,
    runner: Runner | None = None,
) -> Iterator[Daemon]:
    """A daemon for some tables, or for those of a `lake`, ready to `run`.

    Errors of the tree: ZooKeeper cannot be used, or none of the named tables; a table that cannot is tried again.

    `zookeeper` None: a single daemon. `lock`: as for `table_lock`. `sole_writer`: no other process writes to the
    tables. `runner`: a runner that is open already.
    """
    given = all_storage_options(paths, settings.storage_options, execute, runner)
    settings = replace(settings, storage_options=given)
    if runner is None and not execute.on_cluster:
        check_memory(settings.output.memory_limit, this_machine())
    storages = [open_storage(path, given) for path in paths]
    if len({storage.location for storage in storages}) < len(storages):
        raise UsageError("a table is named twice", found=" ".join(paths))
    lanes = lake.lanes if lake is not None else lanes or Lanes()
    daemons: list[Daemon] = []

    def notify(event: Callable[[Daemon], None]) -> None:
        for daemon in daemons:  # none while the daemon is being built
            event(daemon)

    with ExitStack() as stack:
        session = None
        if zookeeper is not None:
            session = stack.enter_context(zookeeper_session(zookeeper, lambda: notify(Daemon.session_changed)))
        # The executor starts while tables are opened; it is stopped if all of them are refused.
        running = runner or stack.enter_context(open_runner(execute))

        def opened(path: str, lane: Lane) -> Served:
            table = Table.open(path, given)
            check_keepable(table, moves_rows=False)
            wake = partial(notify, partial(Daemon.claims_changed, table=path))
            claims = _claims(session, table, settings.who, wake)
            held = table_lock(table.storage, lock, sole_writer=sole_writer)
            served = ServedTable(path, claims, held, running, _of_lane(settings, lane))
            served.open()
            if isinstance(claims, ZooKeeperClaims):
                claims.wake_on_request(partial(notify, lambda daemon: daemon.wake(path)))
            return served

        def late(path: str, lane: Lane) -> OpenedLate:
            return OpenedLate(path, partial(opened, path, lane))

        named = {storage.base_path: late(storage.base_path, lanes.of(storage.base_path)) for storage in storages}
        _open_some(named)
        daemon = Daemon(
            named, rules, settings.retry, lanes=lanes, observer=observer, spark_is_gone=partial(_is_gone, running)
        )
        daemons.append(daemon)
        if session is not None:
            daemon.session_changed()
        if lake is not None:
            stack.enter_context(_discovered(lake, daemon, late, session, settings.who, rules))
        yield daemon


def _open_some(tables: Mapping[str, OpenedLate]) -> None:
    """Opens tables; one that cannot be opened is tried again later. Errors of the tree: none can."""
    errors: list[PhantombaseError] = []
    for table in tables.values():
        try:
            table.open()
        except PhantombaseError as error:
            errors.append(error)
    if errors and len(errors) == len(tables):
        raise errors[0]


@contextmanager
def _discovered(
    lake: Lake,
    daemon: Daemon,
    late: Callable[[str, Lane], OpenedLate],
    session: ZooKeeperSession | None,
    who: str,
    rules: Rules,
) -> Iterator[None]:
    """The first round is made at entry, so that a wrong root is an error at the start; then rounds go on."""
    discovery = Discovery(listing=lake.listing, lanes=lake.lanes, daemon=daemon, open_late=late)
    if session is not None:
        discovery.members = Members(session, fleet_of(lake.listing.shown), who, discovery.look_now)
    discovery.round()
    if rules.once:
        yield
        return
    with discovery.running(rules.poll_s):
        yield


def _of_lane(settings: Settings, lane: Lane) -> Settings:
    """How a table of a lane is served; a daemon that requests no plans requests none in any lane."""
    schedule = settings.schedule if lane.schedule is None or settings.schedule is None else lane.schedule
    return replace(settings, schedule=schedule, sizes=lane.bytes_per_hour is not None)


def _claims(session: ZooKeeperSession | None, table: Table, who: str, wake: Callable[[], None]) -> Claims:
    if session is None:
        return TableClaims(table, who)
    return ZooKeeperClaims(session, table_id(table.storage), who, wake)


def _is_gone(runner: Runner) -> bool:
    return isinstance(runner, SparkRunner | ChosenRunner) and runner.is_gone
