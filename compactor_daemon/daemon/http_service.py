"""The timeline service inside a daemon: its pages show the daemon's tables, its fleet and its pending compactions. The
reports of its tables are its metrics, too."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from phantombase.timeline.dashboard.actions import ActionApp, OrderRunner, installed
from phantombase.timeline.dashboard.look import Checked, activity_of, at_present, lag_s, look, of_metadata
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.overview import Clock, Kinds, as_json, metadata_commits, table_pauses
from phantombase.timeline.dashboard.people_app import LoginApp, PeopleApp
from phantombase.timeline.dashboard.table_rows import TablePlace, TableReport
from phantombase.timeline.dashboard.verdict import CheckOptions, Finding, TableFacts, TableVerdict, care_of, of_error
from phantombase.timeline.errors import PhantombaseError, UnknownStateError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.pause import silence
from phantombase.timeline.service.asgi import Access
from phantombase.timeline.service.loading import state_at
from phantombase.timeline.service.run import HttpService, ServeOptions
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.service.table_state import ServedState
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import Row
from phantombase.timeline.view.view import Lag

from ..attempt.failures import CLUSTERING, read_failures
from ..fleet.catalog import fleet_of, members_in
from ..fleet.claims import Claim
from ..fleet.pools import Pool
from ..fleet.zookeeper_claims import held_claims
from ..fleet.zookeeper_session import ZooKeeperOptions, ZooKeeperSession, zookeeper_session
from ..services.options import NO_POLICIES, Policies, read_policies
from ..status.catalog import pending_row
from ..status.check import fresh_fact, of_status, unfinished_of
from ..status.pending import Claimed, PendingCompaction, StatusOptions
from ..status.snapshot import ServiceRun, of_kept, of_service, service_runs
from ..status.status import claim_rows, table_status
from .loop import Daemon
from .served_table import DaemonSettings

_MEMBERS_S = 2.0
_FACTS = ("who", "host", "pid", "tables", "of_tables", "troubled", "pages")
_CHECKED = 64
"""How many file groups are looked into for one report; for the next one as many more."""
_USUAL, _CARE = TriggerOptions(), CheckOptions()


@dataclass(slots=True, kw_only=True)
class _Known:
    """What was read of a table. `state`: None if it was let go. `services`: the findings of what services last did;
    `kept`: of what holds old states, `metadata`: of its metadata table."""

    table: Table
    timeline: Timeline
    kinds: Kinds
    facts: TableFacts
    checked: Checked
    state: ServedState | None
    policies: Policies
    services: tuple[Finding, ...] = ()
    kept: tuple[Finding, ...] = ()
    metadata: tuple[Finding, ...] = ()


class Reports:
    """The reports of the daemon's tables. A table whose timeline is as at its last report, and on which nothing is
    pending, costs no request, or one if services run. `max_bytes`: of the states that are kept; a table without one is
    listed in full when it has changed."""

    def __init__(self, settings: DaemonSettings, max_bytes: int = 256 << 20) -> None:
        self._settings, self._max_bytes = settings, max_bytes
        self._known: dict[str, _Known] = {}

    def last_known(self, path: str) -> Row | None:
        """See `FleetInfo`."""
        known = self._known.get(path)
        return None if known is None else {"findings": as_json((*known.services, *known.kept))}

    def kept(self, path: str) -> tuple[Finding, ...]:
        """The findings of what holds old states of the table, as of its last look."""
        known = self._known.get(path)
        return () if known is None else known.kept

    def report(self, path: str, timeline: Timeline, pool: Pool) -> Row:
        """The report of a table as JSON. A table that cannot be read has a report, too. `timeline`: of its last
        snapshot."""
        made = TableReport(served_as=path, path=path, slo_s=pool.slo_s, verdict=TableVerdict.of((), path))
        try:
            found = from_one_snapshot(lambda: self._report(made, timeline, pool))
        except PhantombaseError as error:
            finding = of_error("unreadable", "the table cannot be read", error)
            found = replace(made, verdict=TableVerdict.of([finding], path, partial(self._silence, path)))
        row: Row = as_json(found)
        return row

    def _silence(self, path: str) -> str:
        return silence(lambda: open_storage(path, self._settings.storage_options))

    def silenced(self, path: str) -> bool:
        """Whether a person has said that the table is known to be bad. One request."""
        return bool(self._silence(path))

    def policies(self, path: str) -> Policies:
        """What the table kept when it was last looked at."""
        known = self._known.get(path)
        return NO_POLICIES if known is None else known.policies

    def forget(self, path: str) -> None:
        """The table is not served any more."""
        self._known.pop(path, None)

    def _report(self, made: TableReport, timeline: Timeline, pool: Pool) -> TableReport:
        settings, trigger = self._settings, pool.schedule or self._settings.schedule or _USUAL
        known = self._known.get(made.path)
        if known is None or known.timeline.instants != timeline.instants:
            known = self._looked(made.path, trigger, known)
        elif known.facts.unchecked and known.state is not None:
            facts, known.checked = look(known.table, known.state, trigger, known.checked, _CHECKED)
            known.facts = replace(known.facts, unmergeable=facts.unmergeable, unchecked=facts.unchecked)
        table, clock = known.table, Clock.of(known.table)
        trigger = known.policies.over(trigger, settings.given)
        facts = at_present(known.facts, known.timeline, clock.now, trigger)
        behind_s, works = lag_s(facts, clock), tuple[PendingCompaction, ...]()
        pending = [(i.action, i.requested_time) for i in known.timeline.instants if not i.completed]
        found, runs = [*known.kept, *known.metadata], tuple[ServiceRun, ...]()
        runs_services = bool(settings.services.services) and facts.has_logs
        if (pending and facts.has_logs) or (runs_services and read_failures(table.storage, CLUSTERING)):
            attempt = known.policies.over(settings.attempt, settings.given)
            options = StatusOptions(slo_s=pool.slo_s, attempt=attempt, retry=settings.retry)
            status = from_one_snapshot(lambda: table_status(table.snapshot(), None, options))
            facts = replace(facts, pending=tuple(unfinished_of(status)), paused=status.paused)
            found += of_status(status)
            runs, works = status.services, status.pending
        elif facts.due is not None or trigger.freshness_s is not None:
            facts = replace(facts, paused=tuple(table_pauses(table, clock)))
        if not runs and settings.services.services:
            runs = service_runs(table.storage, known.timeline, clock)
            found += (one for run in runs for one in of_service(run))
        known.services = tuple(one for run in runs for one in of_service(run))
        facts = replace(facts, freshness=fresh_fact(facts, behind_s, trigger.freshness_s, known.timeline, works))
        found += care_of(facts, _CARE, pool.slo_s)
        return replace(
            made,
            verdict=TableVerdict.of(found, made.path, partial(silence, lambda: table.storage)),
            read_optimized_lag_s=behind_s,
            file_groups_left_out=len(facts.flaws) + len(facts.unmergeable),
            file_groups_unchecked=facts.unchecked,
            debt=facts.debt,
            activity=activity_of(known.timeline, known.kinds, pending, clock),
        )

    def _looked(self, path: str, trigger: TriggerOptions, before: _Known | None) -> _Known:
        table = Table.open(path, self._settings.storage_options, reading=True).with_clock(self._settings.clock)
        if table.config.has_logs:
            table.config.check_changeable()
            table = replace(table, reading=False)
        seen, clock = table.snapshot(records=table.config.has_logs), Clock.of(table)
        list_ahead(seen.storage, ["", RECORDS] if table.config.has_logs else [""])
        state = state_at(seen, None if before is None else before.state)
        facts, checked = look(seen, state, trigger, {} if before is None else before.checked, _CHECKED)
        commits = metadata_commits(seen)
        metadata = tuple(of_metadata(table, seen, facts))
        problem = None if metadata else commits.problem
        facts = replace(facts, metadata_commits=commits.fact or 0, metadata_problem=problem)
        known = _Known(
            table=table,
            timeline=state.timeline,
            kinds=state.kinds,
            facts=facts,
            checked=checked,
            state=state,
            policies=read_policies(seen.storage),
            kept=tuple(of_kept(seen, clock, _CARE.patience_s)) if table.config.has_logs else (),
            metadata=metadata,
        )
        self._known.pop(path, None)
        self._known[path] = known
        self._let_go()
        return known

    def _let_go(self) -> None:
        """Drops the states that were loaded first, while all exceed `max_bytes`."""
        kept = [one for one in tuple(self._known.values()) if one.state is not None]
        total = sum(one.state.bytes for one in kept if one.state is not None)
        for one in kept:
            if total <= self._max_bytes:
                return
            total -= one.state.bytes if one.state is not None else 0
            one.state, one.checked = None, {}


class DaemonFleet:
    """See `phantombase.timeline.dashboard.table_rows.FleetInfo`. `session`: of its own; None without ZooKeeper."""

    def __init__(
        self,
        daemon: Daemon,
        settings: DaemonSettings,
        session: ZooKeeperSession | None,
        reports: Reports,
        listing: str | None = None,
    ) -> None:
        """`listing`: what the fleet shares, see `fleet_of`; None: tables that were named."""
        self._daemon, self._settings, self._session, self._listing = daemon, settings, session, listing
        self._reports = reports
        self._known: Mapping[str, Mapping[str, Any]] = {}
        self._asking, self._asked_s = threading.Lock(), -_MEMBERS_S
        self._unknown: str | None = None

    def about(self, table: Table, lag: Lag | None = None, *, whole: bool = True) -> Row:
        """A row with the names of `compactor-daemon status --json`."""
        table, settings = table.with_clock(self._settings.clock), self._settings
        options = StatusOptions(
            slo_s=self.slo_s(table.storage.base_path), attempt=settings.attempt, retry=settings.retry
        )
        row = pending_row(table, self._claimed(table), options, self.trigger(table), lag, whole=whole)
        row["findings"] += as_json(self._reports.kept(table.storage.base_path))
        if (freshness := self._daemon.freshness_of(table.storage.base_path)) is not None:
            row["freshness"] = as_json(freshness)
        return row | ({"requests": settings.schedule is not None} if whole else {})

    def last_known(self, table: Table) -> Row | None:
        return self._reports.last_known(table.storage.base_path)

    def trigger(self, table: Table) -> TriggerOptions:
        """Of the table's pool, or of --schedule, or the defaults; below them what the table keeps, once it is known."""
        path = table.storage.base_path
        options = self._daemon.pool_of(path).schedule or self._settings.schedule or _USUAL
        return self._reports.policies(path).over(options, self._settings.given)

    def slo_s(self, path: str) -> float | None:
        """The SLO of the table's pool, or `--slo`."""
        return self._daemon.pool_of(path).slo_s

    def paths(self) -> tuple[str, ...]:
        """The tables of the whole fleet."""
        fleet = self._daemon.fleet
        return self._daemon.paths if fleet is None else tuple(fleet.names)

    def name_of(self, path: str) -> str | None:
        """The name by which the fleet and `status` know a table; None: it was named by its path."""
        return None if self._daemon.fleet is None else self._daemon.fleet.names.get(path)

    def placed(self, path: str) -> TablePlace:
        """See `FleetInfo`."""
        own, fleet = path in self._daemon.paths, self._daemon.fleet
        who = [self._settings.who] if own else []
        if fleet is not None and fleet.members:
            known = self._members()
            who = [str(known[one].get("who")) for one in fleet.servers(path) if one in known]
        pool = None if fleet is None and not self._daemon.pools else self._daemon.pool_of(path).match
        return TablePlace(pool=pool, served_by=tuple(who), own=own)

    def fleet(self, busy: Sequence[str] = ()) -> Row:
        """See `FleetInfo`. `problem`: why other daemons or claims are unknown."""
        running = [{"table": path, "instant": instant} for path, instant in self._daemon.at_work]
        pools = [asdict(use) for use in self._daemon.pools]
        me: Row = {
            "who": self._settings.who,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "tables": len(self._daemon.paths),
            "of_tables": len(self.paths()),
            "troubled": len(self._daemon.summary.problems),
            "pages": self._daemon.pages,
            "running": running,
        }
        row: Row = {
            "zookeeper": None if self._session is None else self._session.connected,
            "daemons": [me],
            "pools": [{"who": me["who"], **one} for one in pools],
            "claims": [],
        }
        others = [one for one in self._members().values() if one.get("who") != me["who"]]
        row |= {"problem": self._unknown} if self._unknown else {}
        row["daemons"] += [{**{name: one.get(name) for name in _FACTS}, "running": []} for one in others]
        row["pools"] += [{"who": one.get("who"), **use} for one in others for use in one.get("pools", ())]
        paths = dict.fromkeys((*self._daemon.paths, *busy))
        for path in paths if self._session is not None else ():
            try:
                table = Table.open(path, self._settings.storage_options).with_clock(self._settings.clock)
                row["claims"] += as_json(claim_rows(path, self._held(table), Clock.of(table)))
            except PhantombaseError as error:
                row.setdefault("problem", str(error))
        known = {one["who"]: one for one in row["daemons"]}
        for one in _others(me["who"], row["claims"]):
            if one["who"] in known:
                known[one["who"]]["running"] = one["running"]
            else:
                row["daemons"].append(one)
        return row

    def _members(self) -> Mapping[str, Mapping[str, Any]]:
        """The daemons that share the tables by id, as `compactor-daemon status` has them; some seconds old at most.
        While ZooKeeper does not answer, those of its last answer, and `_unknown` says why."""
        session, listing = self._session, self._listing
        if session is None or listing is None:
            return {}
        with self._asking:  # threads of one page wait for one answer
            if time.monotonic() - self._asked_s >= _MEMBERS_S:
                try:
                    if not session.connected:
                        raise UnknownStateError("ZooKeeper does not answer", path=session.options.servers)
                    self._known = {str(one["id"]): one for one in members_in(session, fleet_of(listing))}
                    self._unknown = None
                except PhantombaseError as error:
                    self._unknown = str(error)
                self._asked_s = time.monotonic()
            return self._known

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


def _others(me: str, claims: Iterable[Row]) -> list[Row]:
    """The other daemons that hold claims on these tables."""
    found: dict[str, Row] = {}
    for claim in claims:
        if claim["holder"] != me:
            one: Row = {**dict.fromkeys(_FACTS), "running": []}
            one |= {"who": claim["holder"], "host": claim["host"], "pid": claim["pid"]}
            work = {name: claim[name] for name in ("table", "instant")}
            found.setdefault(claim["holder"], one)["running"].append(work)
    return list(found.values())


@contextmanager
def service_of(
    daemon: Daemon,
    settings: DaemonSettings,
    options: ServeOptions,
    *,
    token: str | None,
    zookeeper: ZooKeeperOptions | None,
    reports: Reports,
    registry: CollectorRegistry,
    commands: CommandSettings,
    allow_actions: bool,
    listing: str | None = None,
) -> Iterator[str]:
    """Serves the daemon's tables from entry to exit, also those that it finds later; yields the address. `commands`:
    the options that commands about them need. `listing`: the root or catalog where they are found. `allow_actions`:
    pages have buttons for these commands. UsageError: the port is taken, or see `Access`. PhantombaseError: ZooKeeper
    does not answer."""
    with nullcontext() if zookeeper is None else zookeeper_session(zookeeper) as session:
        fleet_info = DaemonFleet(daemon, settings, session, reports, listing)

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
            found=fleet_info.paths,
            clock=settings.clock,
            name_of=fleet_info.name_of,
        )
        with service.in_thread() as address:
            everywhere = options.host in ("0.0.0.0", "::")
            daemon.pages = address.replace(options.host, socket.getfqdn(), 1) if everywhere else address
            yield address
