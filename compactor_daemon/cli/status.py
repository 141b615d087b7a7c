"""The commands that show tables: `status` of one or a catalog, `check` for what needs care, `claims`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.dashboard.overview import Clock, as_json
from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import StorageOptions, parse_pairs
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.boundary import seconds
from phantombase.timeline.terminal.command import CommandResult
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import (
    SHOWN,
    Column,
    Row,
    RowsTable,
    duration,
    labelled,
    numbers,
    plain,
    plural,
)

from ..attempt.failures import RetryOptions
from ..cleaning.choice import CleanOptions
from ..fleet.catalog import Catalog, fleet_of, members_in
from ..fleet.zookeeper_claims import held_claims
from ..fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from ..options import AttemptOptions
from ..status.check import CheckMeans, CheckOptions, check_tables
from ..status.coexistence import Finding, coexistence, find_hudi_signs, in_the_future
from ..status.pending import Claimed, StatusOptions
from ..status.status import TableStatus, catalog_rows, claim_rows, outlook, table_status, work_rows
from . import render_status as status_render
from .fleet_flags import CATALOG, ZOOKEEPER, CatalogFlags, Fleet, ZooKeeperFlags
from .option_flags import ATTEMPT, CLOCK, StorageOption, name_idle, offers, typed_options


def catalog_report(
    catalog: Catalog,
    options: StorageOptions,
    *,
    clock: ClockOptions,
    retry: RetryOptions,
    zookeeper: ZooKeeperOptions | None,
) -> Row:
    """All tables of the catalog, and the daemons of its fleet. Errors of the tree: the tables cannot be listed."""
    taken = catalog.taken()
    taken.warn(catalog.listing.shown)
    rows = as_json(catalog_rows(taken.tables, catalog.pools, options, clock, retry))
    daemons: list[Row] | None = None
    problem = None
    if zookeeper is not None:
        try:
            with zookeeper_session(zookeeper) as session:
                daemons = [dict(one) for one in members_in(session, fleet_of(catalog.listing.shown))]
        except PhantombaseError as error:
            problem = str(error)
    return {
        "listing": catalog.listing.shown,
        "tables": rows,
        "patterns_without_table": [*taken.unmatched],
        "pools_without_table": [*taken.empty_pools],
        "daemons": daemons,
        "daemons_problem": problem,
    }


def render_catalog(data: Row) -> Iterator[RenderableType]:
    rows = data["tables"]
    pending = sum(row["pending"] or 0 for row in rows)
    late, bad = sum(row["late"] for row in rows), [row for row in rows if row["problem"]]
    counts = [plural(len(rows), "table"), f"{pending:,} pending", f"{late:,} late", f"{len(bad):,} in trouble"]
    columns = (*_COLUMNS, *((_POOL,) if any(row["pool"] != "*" for row in rows) else ()))
    yield RowsTable(", ".join(counts), columns, rows[:SHOWN])
    if len(rows) > SHOWN:
        yield Text(f"and {len(rows) - SHOWN:,} more, none of them worse; --json has all", "dim")
    for row in bad[:SHOWN]:
        yield labelled(row["name"], "bold red", row["problem"])
    for what in ("patterns", "pools"):
        if data[f"{what}_without_table"]:
            yield labelled(f"{what} without a table", "yellow", ", ".join(data[f"{what}_without_table"]))
    if data["daemons_problem"]:
        yield labelled("daemons unknown", "bold red", data["daemons_problem"])
    if data["daemons"] is not None:
        yield ""
        yield from _daemons(data["daemons"])


def _daemons(daemons: list[Row]) -> Iterator[RenderableType]:
    if not daemons:
        yield "No daemon serves these tables."
        return
    yield RowsTable(plural(len(daemons), "daemon"), _DAEMON_COLUMNS, daemons)
    pools = [{**pool, "who": one["who"]} for one in daemons for pool in one.get("pools", ())]
    if len({pool["pool"] for pool in pools}) > 1:
        yield ""
        yield RowsTable("pools, over the last minutes", _USE_COLUMNS, pools)


def _state(row: Mapping[str, Any]) -> Text:
    if row["problem"]:
        return Text("trouble", "bold red")
    if row["parked"]:
        return Text("parked", "bold red")
    if row["late"]:
        return Text("late", "red")
    if row["backing_off"]:
        return Text("backing off", "yellow")
    return Text("waiting", "cyan") if row["pending"] else Text("ok", "green")


_POOL = "pool"
_COLUMNS = (
    Column("table", plain("name"), shorten=True),
    Column("state", _state),
    numbers("pending"),
    Column("oldest", duration("oldest_s"), right=True),
)
_DAEMON_COLUMNS = (
    Column("daemon", plain("who")),
    Column("tables", lambda r: f"{r.get('tables', 0):,} of {r.get('of_tables', 0):,}", right=True),
    Column("in trouble", lambda r: f"{r.get('troubled', 0):,}", right=True),
)
_USE_COLUMNS = (
    "pool",
    Column("daemon", plain("who"), shorten=True),
    numbers("running"),
    Column("of its slots", lambda r: f"{r['occupancy']:.0%}", right=True),
    Column("waits because", lambda r: r["why_not"] or None),
)


_RECENT = 5
_TABLE = "base path of the table: the folder that holds .hoodie"
_OPTIONS = StatusOptions()
RETRY, TRIGGER, CHECK = RetryOptions(), TriggerOptions(), CheckOptions()
TablePaths = Annotated[list[str], typer.Argument(metavar="TABLE...", help="base paths of tables")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document: sizes in bytes, times in seconds")]
reports = partial(offers, json=Json)


@reports
def status(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help=_TABLE)] = None,
    catalog: Annotated[CatalogFlags, Only("root", "catalog", "include", "exclude")] = CATALOG,
    zookeeper: Fleet = ZOOKEEPER,
    slo: Annotated[
        float | None,
        typer.Option(parser=seconds(0), metavar="SECONDS", help="a compaction that is pending for longer is overdue"),
    ] = None,
    retry: Annotated[RetryOptions, Only("retries", "backoff_s")] = RETRY,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s")] = ATTEMPT,
    brief: Annotated[
        bool, typer.Option("--brief", help="leave out backlog and cleaning, for which every partition is listed")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(parser=seconds(0.1), metavar="SECONDS", help="show it again at this interval, until Ctrl-C"),
    ] = None,
    trigger: Annotated[TriggerOptions, Only("strategy", "max_delta_commits", "max_delta_seconds")] = TRIGGER,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
) -> Iterator[CommandResult]:
    """Show a table's pending compactions: which process works on each, its progress, and why the others wait.

    Also shows when the next plan is due, the log files that no plan holds yet, the last compaction, what a clean could
    remove, and signs of Hudi's own writers and compactors on the table. Without `--zookeeper` only storage is read:
    heartbeats show which processes work, as of the last beat (every 30 s). Exit code 1: ZooKeeper did not answer.
    `--retries`, `--backoff` and `--foreign-grace` are those of the daemons.

    With `--root` or `--catalog`: one row for each table, the worst first, and with `--zookeeper` the daemons that serve
    them and what their pools use.

    Examples: `compactor-daemon status /data/orders --slo 3600 --watch 5`,
    `compactor-daemon status --root s3://bucket/warehouse --slo 3600`
    """
    storage = parse_pairs(storage_option)
    outlooks = ("trigger", "max_delta_commits", "max_delta_seconds")
    of_catalog = table is None or catalog != CATALOG
    without = ("brief", "foreign_grace", *outlooks) if of_catalog else outlooks if brief else ()
    if idle := typed_options(ctx, without):
        where = "of all tables of a catalog" if of_catalog else "with --brief"
        raise UsageError(f"{', '.join(idle)} means nothing in a status {where}", todo="Leave it out.")
    name_idle(trigger)
    if table is None or catalog != CATALOG:
        pools = replace(catalog, slo_s=slo).pools(ctx.params.get("config"), ScheduleOptions())
        found = replace(catalog, slo_s=slo).found([table] if table else [], pools, storage)
        assert found is not None
        asked = zookeeper.options()
        report = partial(catalog_report, found, storage, clock=clock, retry=retry, zookeeper=asked)
        return _watched(report, render_catalog, watch)
    # First: a path without a table is refused before ZooKeeper is asked.
    opened = Table.open(table, storage).with_clock(clock)
    options = StatusOptions(slo_s=slo, attempt=attempt, retry=retry, recent=_RECENT)

    def one() -> Row:
        seen = _status(opened, _claimed(zookeeper, opened), options)
        ahead = None if brief else outlook(opened, trigger, CleanOptions())
        row: Row = as_json(replace(seen, coexistence=_findings(opened, attempt), outlook=ahead))
        return row

    return _watched(one, status_render.status, watch)


@reports
def check(
    ctx: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE...]", help="base paths of tables")] = None,
    catalog: Annotated[CatalogFlags, Only("root", "catalog", "include", "exclude")] = CATALOG,
    options: CheckOptions = CHECK,
    trigger: Annotated[TriggerOptions, Only("strategy", "max_delta_commits", "max_delta_seconds")] = TRIGGER,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s")] = ATTEMPT,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Show what needs care on tables, and the command that mends it.

    Files that are lost or damaged, a metadata table that names others, file groups that no compaction can merge,
    compactions that are due and not requested, not executed, or parked, dead writers, actions that were left off,
    services that failed, a long timeline, clocks, and signs of Hudi that endanger the table. Nothing is changed.

    Exit code 0: all is well. 1: something needs care. 2: something is broken, or cannot be read.

    Examples: `compactor-daemon check /data/orders`, `compactor-daemon check --root s3://bucket/warehouse --json`
    """
    storage, named = parse_pairs(storage_option), list(tables or ())
    found = catalog.found(named, catalog.pools(ctx.params.get("config"), ScheduleOptions()), storage)
    paths = {one: full_path(one) for one in named}
    if found is not None:
        taken = found.taken()
        taken.warn(found.listing.shown)
        paths = dict(taken.tables)
    means = CheckMeans(storage=storage, trigger=trigger, clock=clock, attempt=attempt)
    rows = check_tables(paths, options, means)
    data = {"tables": as_json(rows), "listing": None if found is None else found.listing.shown}
    return CommandResult(data, status_render.checked, failed=max((row.verdict.exit_code for row in rows), default=0))


def _watched(
    report: Callable[[], Row], render: Callable[[Row], Iterator[RenderableType]], watch: float | None
) -> Iterator[CommandResult]:
    """A report, and again at each interval until Ctrl-C. It has failed if ZooKeeper did not answer."""
    data = report()
    while True:
        yield CommandResult(data, render, failed=bool(data.get("claims_problem") or data.get("daemons_problem")))
        if watch is None:
            return
        try:
            time.sleep(watch)
            data = report()
        except KeyboardInterrupt:
            raise typer.Exit from None


@reports
def claims(tables: TablePaths, zookeeper: Fleet = ZOOKEEPER, storage_option: StorageOption = None) -> CommandResult:
    """Show which process works on which compaction, since when, and its progress.

    With `--zookeeper` the claims of a fleet are shown, without it the heartbeats in storage.

    Example: `compactor-daemon claims --zookeeper zk1:2181,zk2:2181 /data/orders /data/rides`
    """
    options = zookeeper.options()
    opened = [Table.open(path, parse_pairs(storage_option)) for path in tables]
    if options is None:
        rows = [row for table in opened for row in work_rows(_status(table))]
    else:
        with zookeeper_session(options) as session:
            found = [(table, held_claims(session, table)) for table in opened]
        rows = [row for table, held in found for row in claim_rows(table.storage.base_path, held, Clock.of(table))]
    return CommandResult({"claims": as_json(rows)}, status_render.claims)


def _status(table: Table, claimed: Claimed = None, options: StatusOptions = _OPTIONS) -> TableStatus:
    return from_one_snapshot(lambda: table_status(table.snapshot(), claimed, options))


def _findings(table: Table, attempt: AttemptOptions) -> tuple[Finding, ...]:
    signs = from_one_snapshot(lambda: find_hudi_signs(table.snapshot()))
    return (*in_the_future(table.with_timeline(signs.timeline)), *coexistence(signs, clock_ms(), attempt))


def _claimed(zookeeper: ZooKeeperFlags, table: Table) -> Claimed:
    try:
        options = zookeeper.options()
        if options is None:
            return None
        with zookeeper_session(options) as session:
            return held_claims(session, table)
    except UsageError:
        raise
    except PhantombaseError as error:
        return error
