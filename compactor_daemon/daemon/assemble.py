"""Builds a daemon of tables, claims and an executor. A setting with which no table could be served is refused first.

The tables of a catalog are found while the daemon runs. A round lists the tables, joins the fleet, and assigns this
daemon's part. Rounds come every poll, and at once when a daemon joins or leaves. After a failed listing the tables
are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import PhantombaseError, UnknownStateError, UnsupportedError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import ProcessLock, table_lock
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.planning.options import Pace
from phantombase.timeline.planning.schedule import Scheduled
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table

from ..attempt.attempt import WaitScope
from ..attempt.compact_or_resume import Compacted
from ..attempt.slice_record import SliceDone
from ..attempt.slice_task import Runner
from ..execution.runners import ChosenRunner, SparkRunner, all_storage_options, check_memory, open_runner, this_machine
from ..fleet.budget import WaitingWork
from ..fleet.catalog import Catalog, FleetTables, Members, Taken, fleet_of, serves, warn_of_empty_pools
from ..fleet.claims import Claims, HeldClaim, NoClaims, TableClaims, table_id
from ..fleet.pools import Pool, Pools
from ..fleet.wakes import WakeOptions, listening
from ..fleet.zookeeper_claims import ZooKeeperClaims
from ..fleet.zookeeper_session import ZooKeeperOptions, ZooKeeperSession, zookeeper_session
from ..options import ExecuteOptions
from ..services.serve import ServiceDone
from ..unit_of_work import Limit
from .control import Assigned, Served
from .dispatch import Rules
from .loop import Daemon
from .served_table import DaemonSettings, TableOnStorage
from .table_state import Pending, SeenTable, TableState, in_order
from .work import Observer

"""How many tables are looked at concurrently."""
_log = get_logger()


@dataclass(slots=True, kw_only=True)
class Discovery:
    """See the module. `open_lazily`: makes the served table of a path; `members` None: this daemon is alone."""

    catalog: Catalog
    daemon: Daemon
    open_lazily: Callable[[str, Pool], Served]
    members: Members | None = None
    observer: Observer = field(default_factory=Observer)
    trouble: str | None = None
    """Why the last listing failed."""
    taken: Taken | None = None
    """The result of the last listing."""
    _tables: dict[str, Assigned] = field(default_factory=dict)
    _due: threading.Event = field(default_factory=threading.Event)
    _ended: bool = False

    def round(self) -> None:
        """One round. Errors of the tree: the tables cannot be listed."""
        taken = self.catalog.taken()
        if self.taken is None or taken.oddities != self.taken.oddities:
            taken.warn(self.catalog.listing.shown)
        self.taken, paths = taken, taken.tables
        members: frozenset[str] = frozenset()
        if self.members is not None:
            members = self.members.snapshot(
                {
                    "tables": len(self._tables),
                    "of_tables": len(paths),
                    "troubled": len(self.daemon.summary.problems),
                    "pages": self.daemon.pages,
                    "pools": [asdict(one) for one in self.daemon.pools],
                }
            )
        names = {path: name for name, path in paths.items()}
        self.daemon.fleet = FleetTables(names=names, members=members, pools=self.catalog.pools)
        found = {}
        for name, path in paths.items():
            pool = self.catalog.pools.of(name)
            if self.members is None or serves(self.members.me, members, name, pool.daemons):
                found[path] = self._tables.get(path) or Assigned(served=self.open_lazily(path, pool), pool=pool)
        if found.keys() != self._tables.keys():
            added, removed = len(found.keys() - self._tables.keys()), len(self._tables.keys() - found.keys())
            _log.info(
                "tables", serving=len(found), of=len(paths), added=added, removed=removed, daemons=max(1, len(members))
            )
        self._tables = found
        self.daemon.assign(dict(found), max(1, len(members)))

    def run_now(self) -> None:
        """Starts a round at once: the members have changed."""
        self._due.set()

    @contextmanager
    def running(self, every_s: float) -> Iterator[None]:
        """Rounds in a thread, from entry to exit. The first one has been made."""
        thread = threading.Thread(target=self._run, args=(every_s,), name="discovery", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            self._due.set()
            thread.join()

    def _run(self, every_s: float) -> None:
        while True:
            self._due.wait(every_s)
            self._due.clear()
            if self._ended:
                return
            before, self.trouble = self.trouble, None
            try:
                self.round()
            except PhantombaseError as error:
                self.trouble = str(error)
                if self.trouble != before:
                    _log.warning("tables_not_listed", listing=self.catalog.listing.shown, error=self.trouble)
            except Exception as error:
                self.trouble = f"internal error: {error}"
                _log.exception("internal_error")
            self.observer.listed(self.trouble)


@contextmanager
def open_daemon(
    paths: Sequence[str],
    *,
    rules: Rules,
    settings: DaemonSettings,
    execute: ExecuteOptions,
    catalog: Catalog | None = None,
    pools: Pools | None = None,
    zookeeper: ZooKeeperOptions | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    observer: Observer | None = None,
    runner: Runner | None = None,
    events: Path | None = None,
    wakes: WakeOptions | None = None,
) -> Iterator[Daemon]:
    """A daemon for some tables, or for those of a `catalog`, ready to `run`. Errors of the tree: ZooKeeper, or every
    named table, cannot be used. A table that cannot be used is tried again. `zookeeper` None: a single daemon. `lock`:
    as for `table_lock`. `sole_writer`: no other process writes to the tables. `runner`: a runner that is open
    already. `events`: see `Daemon`. `wakes`: what else wakes it."""
    given = all_storage_options(paths, settings.storage_options, execute, runner)
    settings = replace(settings, storage_options=given, clusters=lock is not None or sole_writer)
    if runner is None:
        check_memory(settings.output.memory_limit, execute, this_machine())
    storages = [open_storage(path, given) for path in paths]
    if len({storage.location for storage in storages}) < len(storages):
        raise UsageError("a table is named twice", found=" ".join(paths), todo="Name it once.")
    pools = catalog.pools if catalog is not None else pools or Pools()
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

        def opened(path: str, pool: Pool) -> Served:
            table = Table.open(path, given)
            check_keepable(table, moves_rows=False)
            claims: Claims = TableClaims(table, settings.who)
            if session is not None:
                wake = partial(notify, partial(Daemon.claims_changed, table=path))
                claims = ZooKeeperClaims(session, table_id(table.storage), settings.who, wake)
            chosen = partial(table_lock, given=lock, sole_writer=sole_writer)
            served = TableOnStorage(path, claims, chosen(table.storage), running, _of_pool(settings, pool), chosen)
            served.open()
            if isinstance(claims, ZooKeeperClaims):
                claims.wake_on_request(partial(notify, lambda daemon: daemon.wake(path)))
            return served

        def lazy(path: str, pool: Pool) -> LazyTable:
            return LazyTable(path, partial(opened, path, pool), partial(Table.open, path, given, reading=True))

        named = {storage.base_path: lazy(storage.base_path, pools.of(storage.base_path)) for storage in storages}
        _open_some(named)
        if named and (empty := pools.empty(named)):
            warn_of_empty_pools(" ".join(named), empty)
        daemon = Daemon(
            named,
            rules,
            settings.retry,
            pools=pools,
            observer=observer,
            spark_is_gone=partial(_is_gone, running),
            events=events,
        )
        daemons.append(daemon)
        if session is not None:
            daemon.session_changed()
        if catalog is not None:
            heard = observer or Observer()
            stack.enter_context(_discovered(catalog, daemon, lazy, session, settings.who, rules, heard))
        stack.enter_context(listening(wakes or WakeOptions(), daemon, catalog, session, given))
        yield daemon


def open_to_look(path: str, pool: Pool, settings: DaemonSettings) -> Served:
    """A table whose snapshots are those of a daemon, and that can do nothing else: no claim can be taken."""
    found = _of_pool(settings, pool)
    lock = ProcessLock(open_storage(path, settings.storage_options).location)
    return TableOnStorage(path, NoClaims(available=True), lock, _nothing, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWork:
    """`problems`: by table, why it could not be read."""

    works: tuple[WaitingWork, ...]
    problems: Mapping[str, str]


def works_of(tables: Mapping[str, tuple[str, Pool]], settings: DaemonSettings) -> FoundWork:
    """What a daemon with these settings could begin on tables now, by name, and nothing is changed. `tables`: path and
    pool. COPY_ON_WRITE tables have no work."""
    problems, found = dict[str, str](), list[WaitingWork]()

    def look(name: str) -> tuple[WaitingWork, ...] | str:
        path, pool = tables[name]
        try:
            seen = open_to_look(path, pool, settings).snapshot()
        except UnsupportedError:
            if not Table.open(path, settings.storage_options, reading=True).config.has_logs:
                return ()
            raise
        now = clock_ms()
        state = TableState(pool=pool, costs=seen.costs).after_snapshot(seen.pending, seen.claimed, now, 0)
        state = state.with_lag(seen.lag)
        plan = () if seen.plan is None else (Pending(instant="", gain=seen.plan),)
        ones = (*in_order(state, now, settings.order), *plan)
        return tuple(state.work(name, one, now, now) for one in ones)

    def looked(name: str) -> tuple[WaitingWork, ...] | str:
        try:
            return look(name)
        except PhantombaseError as error:
            return str(error)

    for name, of in zip(tables, at_once(tables, looked), strict=True):
        if isinstance(of, str):
            problems[name] = of
        else:
            found += of
    return FoundWork(works=tuple(found), problems=problems)


def _nothing(storage: Storage, tasks: list[Any], progress: Callable[[int, int], None]) -> list[SliceDone]:
    raise UnknownStateError("the table was opened to look at it")


def _open_some(tables: Mapping[str, LazyTable]) -> None:
    """Opens tables; one that cannot be opened is tried again later. Errors of the tree: none can be opened."""
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
    catalog: Catalog,
    daemon: Daemon,
    lazy: Callable[[str, Pool], LazyTable],
    session: ZooKeeperSession | None,
    who: str,
    rules: Rules,
    observer: Observer,
) -> Iterator[None]:
    """The first round is made at entry, so that a wrong root is an error at the start; others in a thread."""
    discovery = Discovery(catalog=catalog, daemon=daemon, open_lazily=lazy, observer=observer)
    if session is not None:
        discovery.members = Members(session, fleet_of(catalog.listing.shown), who, discovery.run_now)
    discovery.round()
    observer.listed(None)
    if rules.once:
        if discovery.taken is not None and not discovery.taken.tables:
            raise UsageError(
                "there is no table to serve",
                path=catalog.listing.shown,
                expected="a table that --include takes, if it is given, and --exclude leaves",
                found=f"{discovery.taken.listed} tables, and none of them is taken",
                todo="`compactor-daemon status` lists the tables, by the same options. Without --once the daemon waits "
                "for one.",
            )
        yield
        return
    with discovery.running(rules.poll_s):
        yield


def _of_pool(settings: DaemonSettings, pool: Pool) -> DaemonSettings:
    """How a table of a pool is served; a daemon that requests no plans requests none in any pool."""
    schedule = settings.schedule if pool.schedule is None or settings.schedule is None else pool.schedule
    gains = settings.gains or pool.budget is not None
    return replace(settings, schedule=schedule, sizes=pool.bytes_per_hour is not None, gains=gains)


def _is_gone(runner: Runner) -> bool:
    return isinstance(runner, SparkRunner | ChosenRunner) and runner.is_gone


class LazyTable:
    """A table that is opened at its first snapshot, which is tried at each one until it succeeds. A COPY_ON_WRITE table
    has nothing to serve: `read_it` opens it, and it is left aside as long as it is one."""

    def __init__(self, path: str, open_it: Callable[[], Served], read_it: Callable[[], Table]) -> None:
        self.path = path
        self._open_it, self._read_it = open_it, read_it
        self._aside: Timeline | None = None
        self._opening = threading.Lock()
        self._served: Served | None = None
        self._closed = False

    @property
    def claims(self) -> Claims:
        return NoClaims(available=self._aside is not None) if self._served is None else self._served.claims

    @property
    def timeline(self) -> Timeline | None:
        return self._aside if self._served is None else self._served.timeline

    def open(self) -> Served:
        """The table. Errors of the tree: it cannot be opened now."""
        with self._opening:
            if self._served is None:
                self._served = self._open_it()
                if self._closed:
                    self._served.close()
            return self._served

    def snapshot(self) -> SeenTable:
        try:
            served = self.open()
        except UnsupportedError:
            table = self._read_it()
            if table.config.has_logs:
                raise
            self._aside = table.load_timeline()
            return SeenTable(pending=(), claimed=frozenset(), due=False, oldest_s=None)
        return served.snapshot()

    def request(self, pace: Pace | None = None) -> Scheduled:
        return self.open().request(pace)

    def sweep(self) -> None:
        if self._aside is None or self._served is not None:
            self.open().sweep()

    def serve(
        self, every_s: float, stopping: Callable[[], bool], handing_over: Callable[[], bool] = lambda: False
    ) -> tuple[ServiceDone, ...]:
        if self._aside is not None and self._served is None:
            return ()
        return self.open().serve(every_s, stopping, handing_over)

    def done_among(self, instant: str, near: Iterable[str] = ()) -> frozenset[str]:
        return self.open().done_among(instant, near)

    def execute(self, instant: str, held: HeldClaim, limit: Limit, wait_scope: WaitScope) -> Compacted | None:
        return self.open().execute(instant, held, limit, wait_scope)

    def failed(self, instant: str, error: Exception) -> None:
        self.open().failed(instant, error)

    def close(self) -> None:
        self._closed = True
        if self._served is not None:
            self._served.close()
