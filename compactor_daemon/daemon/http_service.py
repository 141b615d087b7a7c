"""The timeline service inside a daemon: its pages show the daemon's tables, its fleet and its pending compactions."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from prometheus_client import CollectorRegistry

from phantombase.timeline.dashboard.actions import ActionApp, OrderRunner, installed
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.overview import Clock, as_json, next_plan
from phantombase.timeline.dashboard.people_app import LoginApp, PeopleApp
from phantombase.timeline.errors import PhantombaseError, UnknownStateError
from phantombase.timeline.instants.reserved_times import staged_files
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.service.access import Access
from phantombase.timeline.service.run import HttpService, ServeOptions
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import Row

from ..attempt.outcome import OK
from ..fleet.claims import Claim
from ..fleet.zookeeper_claims import held_claims
from ..fleet.zookeeper_session import ZooKeeperOptions, ZooKeeperSession, zookeeper_session
from ..status.pending import Claimed, StatusOptions
from ..status.status import claim_rows, table_status
from .loop import Daemon
from .served_table import DaemonSettings

_SHOWN = 3
_RECENT = 5
_USUAL = TriggerOptions()


class DaemonFleet:
    """See `phantombase.timeline.dashboard.health.FleetInfo`. `session`: of its own; None without ZooKeeper."""

    def __init__(self, daemon: Daemon, settings: DaemonSettings, session: ZooKeeperSession | None) -> None:
        self._daemon, self._settings, self._session = daemon, settings, session

    def about(self, table: Table, *, whole: bool = True) -> Row:
        """A row with the names of `compactor-daemon status --json`."""
        table = table.with_clock(self._settings.clock)
        claimed, path, settings = self._claimed(table), table.storage.base_path, self._settings
        recent = _RECENT if whole else 0
        options = StatusOptions(slo_s=self.slo_s(path), attempt=settings.attempt, retry=settings.retry, recent=recent)
        row: Row = as_json(from_one_snapshot(lambda: table_status(table.snapshot(), claimed, options)))
        if whole:
            trigger = self._daemon.pool_of(path).schedule or settings.schedule or _USUAL
            row["next_plan"] = as_json(next_plan(table.snapshot().load_timeline(), table.now(), trigger))
            row["requests"] = settings.schedule is not None
            for one in (*row["pending"], *row["clusterings"]):
                one["unfinished"] = _unfinished(table, one)
        return row

    def slo_s(self, path: str) -> float | None:
        """The SLO of the table's pool, or `--slo`."""
        return self._daemon.pool_of(path).slo_s

    def fleet(self) -> Row:
        """This daemon, and the claims on its tables; `problem`: why these are unknown."""
        me: Row = {
            "who": self._settings.who,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "tables": len(self._daemon.paths),
            "running": [f"{path} {instant}" for path, instant in self._daemon.at_work],
        }
        row: Row = {
            "zookeeper": None if self._session is None else self._session.connected,
            "daemons": [me],
            "pools": [{"pool": use.pool, "running": use.running} for use in self._daemon.pools],
            "claims": [],
        }
        for path in self._daemon.paths if self._session is not None else ():
            try:
                table = Table.open(path, self._settings.storage_options).with_clock(self._settings.clock)
                row["claims"] += as_json(claim_rows(path, self._held(table), Clock.of(table)))
            except PhantombaseError as error:
                row.setdefault("problem", str(error))
        row["daemons"] += _others(me["who"], row["claims"])
        return row

    def _claimed(self, table: Table) -> Claimed:
        try:
            return None if self._session is None else self._held(table)
        except PhantombaseError as error:
            return error

    def _held(self, table: Table) -> Mapping[str, Claim]:
        """The claims on a table. UnknownStateError at once without a connection: otherwise each table waits in turn."""
        assert self._session is not None
        if not self._session.connected:
            raise UnknownStateError("ZooKeeper does not answer", path=self._session.options.servers)
        return held_claims(self._session, table)


def _unfinished(table: Table, pending: Row) -> list[Row] | None:
    """The few unfinished file slices of a running compaction with most log bytes: an attempt without visible progress
    may work on these. None: it does not run, has just ended, or cannot be read."""
    if pending["state"] != "running":
        return None
    try:
        staged = staged_files(table.storage, pending["instant"], (OK,))
        operations = table.compaction_plan(pending["instant"]).operations
    except PhantombaseError:
        return None
    done = {path.rpartition("/")[2].removesuffix(OK) for path in staged}
    left = [(o.log_bytes or 0.0, o) for position, o in enumerate(operations) if str(position) not in done]
    largest = sorted(left, key=lambda one: -one[0])[:_SHOWN]
    return [{"partition": o.partition_path, "file_id": o.file_id, "log_bytes": round(size)} for size, o in largest]


def _others(me: str, claims: Iterable[Row]) -> list[Row]:
    """The other daemons that hold claims on these tables."""
    found: dict[str, Row] = {}
    for claim in claims:
        if claim["holder"] != me:
            one = {"who": claim["holder"], "host": claim["host"], "pid": claim["pid"], "tables": None, "running": []}
            found.setdefault(claim["holder"], one)["running"].append(f"{claim['table']} {claim['instant']}")
    return list(found.values())


@contextmanager
def service_of(
    daemon: Daemon,
    settings: DaemonSettings,
    options: ServeOptions,
    *,
    token: str | None,
    zookeeper: ZooKeeperOptions | None,
    registry: CollectorRegistry,
    commands: CommandSettings,
    allow_actions: bool,
) -> Iterator[str]:
    """Serves the daemon's tables from entry to exit, also those that it finds later; yields the address. `commands`:
    the options that commands about them need. `allow_actions`: pages have buttons for these commands. UsageError: the
    port is taken, or see `Access`. PhantombaseError: ZooKeeper does not answer."""
    with nullcontext() if zookeeper is None else zookeeper_session(zookeeper) as session:
        fleet_info = DaemonFleet(daemon, settings, session)

        def pages(tables: ServedTables, access: Access) -> tuple[PeopleApp, LoginApp]:
            runner = OrderRunner(installed(), settings.storage_options) if allow_actions else None
            actions = None if runner is None else ActionApp(access, runner, commands)
            people = PeopleApp(tables, fleet_info=fleet_info, registry=registry, settings=commands, actions=actions)
            return people, LoginApp(access)

        service = HttpService(
            paths=(),
            options=options,
            storage_options=settings.storage_options,
            token=token,
            pages=pages,
            found=lambda: daemon.paths,
            clock=settings.clock,
        )
        with service.in_thread() as address:
            yield address
