"""The commands that show tables: `status` of one or a catalog, `check` for what needs care, `claims`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.dashboard.overview import Clock, as_json
from phantombase.timeline.dashboard.verdict import CheckOptions, Health, health_word
from phantombase.timeline.errors import NotATableError, PhantombaseError, UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.boundary import seconds
from phantombase.timeline.terminal.command import CommandResult, StorageOption
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import (
    SHOWN,
    Column,
    Row,
    RowsTable,
    duration,
    human_duration,
    labelled,
    numbers,
    plain,
    plural,
    sizes,
)

from ..attempt.failures import RetryOptions
from ..fleet.zookeeper_claims import held_claims
from ..fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from ..options import AttemptOptions
from ..status.check import CheckMeans, TableCheck, examine, examined_or_why, full_status
from ..status.pending import Claimed, StatusOptions
from ..status.status import TableStatus, claim_rows, table_status, work_rows
from . import render_status as status_render
from .fleet_flags import CATALOG, ZOOKEEPER, CatalogFlags, Fleet, ZooKeeperFlags
from .option_flags import ATTEMPT, CLOCK, given_names, name_idle, named_first, offers, typed_options

if TYPE_CHECKING:
    from ..fleet.catalog import Catalog


def catalog_report(catalog: Catalog, means: CheckMeans, zookeeper: ZooKeeperOptions | None) -> Row:
    """All tables of the catalog, and the daemons of its fleet. Errors of the tree: the tables cannot be listed."""
    from ..fleet.catalog import fleet_of, members_in, servers  # late: most commands name a table
    from ..status.catalog import catalog_rows

    taken = catalog.taken()
    taken.warn(catalog.listing.shown)
    rows = as_json(catalog_rows(taken.tables, catalog.pools, means))
    daemons: list[Row] | None = None
    problem = None
    if zookeeper is not None:
        try:
            with zookeeper_session(zookeeper) as session:
                daemons = [dict(one) for one in members_in(session, fleet_of(catalog.listing.shown))]
            who = {one["id"]: one.get("who") for one in daemons}
            for row in rows:
                row["served_by"] = [
                    who[one] for one in servers(who, row["name"], catalog.pools.of(row["name"]).daemons)
                ]
        except PhantombaseError as error:
            problem = str(error)
    return {
        "listing": catalog.listing.shown,
        "brief": means.brief,
        "tables": rows,
        "patterns_without_table": [*taken.unmatched],
        "pools_without_table": [*taken.empty_pools],
        "daemons": daemons,
        "daemons_problem": problem,
    }


def render_catalog(data: Row) -> Iterator[RenderableType]:
    rows = data["tables"]
    pending = sum(row["pending"] or 0 for row in rows)
    bad = [row for row in rows if health_word(row) != Health.WELL.value]
    counts = [plural(len(rows), "table"), f"{pending:,} pending", status_render.health_counts(rows)]
    columns = (*_COLUMNS, *((_POOL,) if any(row["pool"] != "*" for row in rows) else ()))
    yield RowsTable(", ".join(counts), columns, rows[:SHOWN])
    if data["brief"]:
        yield Text("--brief: no partition was listed, and no file was looked into", "dim")
    if len(rows) > SHOWN:
        yield Text(f"and {len(rows) - SHOWN:,} more, none of them worse; --json has all", "dim")
    for row in bad[:SHOWN]:
        yield labelled(row["name"], status_render.HEALTH[row["health"]], row["reason"])
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
    return Text(health_word(row), status_render.HEALTH[row["health"]])


def _lag(row: Mapping[str, Any]) -> Text | None:
    """How old the oldest row in no base file is; nothing where all are."""
    lag_s, goal_s = row["read_optimized_lag_s"], row["freshness_goal_s"]
    return Text(human_duration(lag_s), "bold red" if goal_s and lag_s > goal_s else "") if lag_s else None


_POOL = "pool"
_COLUMNS = (
    Column("table", plain("name"), shorten=True),
    Column("state", _state),
    numbers("pending"),
    Column("oldest", duration("oldest_s"), right=True),
    numbers("logs", "log_files"),
    sizes("log size", "log_bytes"),
    Column("lag", _lag, right=True),
    Column("compacted", duration("last_compaction_s"), right=True),
    Column("written", duration("last_write_s"), right=True),
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
TablePaths = Annotated[list[str] | None, typer.Argument(metavar="[TABLE...]", help="base paths of tables")]


@offers
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
        bool, typer.Option("--brief", help="leave out what needs the files: backlog, cleaning, damaged ones")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(parser=seconds(0.1), metavar="SECONDS", help="show it again at this interval, until Ctrl-C"),
    ] = None,
    trigger: Annotated[
        TriggerOptions, Only("strategy", "max_delta_commits", "max_delta_seconds", "freshness_s")
    ] = TRIGGER,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
) -> Iterator[CommandResult]:
    """Show a table's pending compactions: which process works on each, its progress, and why the others wait.

    First comes the verdict of `check`. Also shows when the next plan is due, the log files that no plan holds yet, the
    last compaction, and what a clean could remove. Without `--zookeeper` only storage is read: heartbeats show which
    processes work, as of the last beat (every 30 s). Exit code 1: ZooKeeper did not answer, or the table cannot be read
    now. `--retries`, `--backoff` and `--foreign-grace` are those of the daemons.

    With `--root` or `--catalog`: one row for each table, the worst first, and with `--zookeeper` the daemons that serve
    them and what their pools use. `lag` is the age of the oldest row that is in no base file. `--brief` lists no
    partitions, which takes most of the time.

    Examples: `compactor-daemon status lake/orders --slo 3600 --watch 5`,
    `compactor-daemon status --root s3://bucket/warehouse --slo 3600`"""
    storage = parse_pairs(storage_option)
    outlooks = ("trigger", "max_delta_commits", "max_delta_seconds", "freshness")
    named, catalog = named_first(ctx, [table] if table else [], catalog)
    if table is None and len(named) == 1:
        (table,) = named
    elif len(named) > 1:
        todo = "Name one of them; `compactor-daemon check` shows all."
        raise UsageError("a status is that of one table", path=ctx.params["config"], found=", ".join(named), todo=todo)
    of_catalog = table is None or catalog != CATALOG
    without = outlooks if brief and not of_catalog else ()
    if idle := typed_options(ctx, without):
        raise UsageError(f"{', '.join(idle)} means nothing in a status with --brief", todo="Leave it out.")
    name_idle(trigger)
    means = CheckMeans(
        storage=storage,
        trigger=trigger,
        clock=clock,
        status=StatusOptions(slo_s=slo, attempt=attempt, retry=retry, recent=0 if of_catalog else _RECENT),
        claims=(lambda _: None) if of_catalog else partial(_claimed, zookeeper),
        brief=brief,
        given=given_names(ctx),
    )
    if of_catalog:
        requests = ScheduleOptions(**asdict(trigger))
        pools = replace(catalog, slo_s=slo).pools(ctx.params.get("config"), requests)
        found = replace(catalog, slo_s=slo).found([table] if table else [], pools, storage)
        assert found is not None
        return _watched(partial(catalog_report, found, means, zookeeper.options()), render_catalog, watch)
    assert table is not None
    path = full_path(table)

    def one() -> Row:
        try:  # first: a path without a table is refused before ZooKeeper is asked
            opened = Table.open(path, storage, reading=True)
            if opened.config.has_logs:
                row: Row = as_json(full_status(opened, means))
                return row
            return {"table": opened.storage.base_path, **as_json(examine(opened, CHECK, means, slo).verdict)}
        except (NotATableError, UsageError):
            raise
        except PhantombaseError as error:
            found = as_json(examined_or_why(path, CHECK, means, slo).verdict)
            return {"table": path, **found, "unreadable": as_json(error)}

    return _watched(one, status_render.status, watch)


@offers
def check(
    ctx: typer.Context,
    tables: TablePaths = None,
    catalog: Annotated[CatalogFlags, Only("root", "catalog", "include", "exclude")] = CATALOG,
    options: CheckOptions = CHECK,
    trigger: Annotated[
        TriggerOptions, Only("strategy", "max_delta_commits", "max_delta_seconds", "freshness_s")
    ] = TRIGGER,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s")] = ATTEMPT,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Show what needs care on tables, and the command that mends it.

    Files that are lost or damaged, a metadata table that names others, file groups that no compaction can merge,
    compactions that are due and not requested, not executed, or parked, a missed goal of freshness, dead writers,
    actions that were left off, services that failed, a long timeline, clocks, and signs of Hudi that endanger the
    table. Nothing is changed.

    Exit code 0: all is well. 1: something needs care. 2: something is broken, or cannot be read.

    Examples: `compactor-daemon check lake/orders`, `compactor-daemon check --root s3://bucket/warehouse --json`"""
    from ..status.catalog import check_tables, unlisted, worst  # late: `status` of a table starts without the fleet

    storage, named = parse_pairs(storage_option), list(tables or ())
    name_idle(trigger)
    named, catalog = named_first(ctx, named, catalog)
    pools = catalog.pools(ctx.params.get("config"), ScheduleOptions(**asdict(trigger)))
    found = catalog.found(named, pools, storage)
    paths, lost = {one: full_path(one) for one in named}, list[TableCheck]()
    if found is not None:
        try:
            taken = found.taken()
        except UsageError:
            raise
        except PhantombaseError as error:
            lost = [unlisted(found.listing.shown, error)]
        else:
            taken.warn(found.listing.shown)
            paths = dict(taken.tables)
    status, given = StatusOptions(attempt=attempt), given_names(ctx)
    means = CheckMeans(storage=storage, trigger=trigger, clock=clock, status=status, given=given)
    rows = lost + check_tables(paths, options, means, pools)
    data = {"tables": as_json(rows), "listing": None if found is None else found.listing.shown}
    return CommandResult(data, status_render.checked, failed=worst(rows))


def _watched(
    report: Callable[[], Row], render: Callable[[Row], Iterator[RenderableType]], watch: float | None
) -> Iterator[CommandResult]:
    """A report, and again at each interval until Ctrl-C. It has failed if ZooKeeper did not answer."""
    data = report()
    while True:
        problems = ("claims_problem", "daemons_problem", "unreadable")
        yield CommandResult(data, render, failed=any(data.get(one) for one in problems))
        if watch is None:
            return
        try:
            time.sleep(watch)
            data = report()
        except KeyboardInterrupt:
            raise typer.Exit from None


@offers
def claims(
    ctx: typer.Context,
    tables: TablePaths = None,
    catalog: Annotated[CatalogFlags, Only("root", "catalog", "include", "exclude")] = CATALOG,
    zookeeper: Fleet = ZOOKEEPER,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Show which process works on which compaction, since when, and its progress. COPY_ON_WRITE tables have none.

    With `--zookeeper` the claims of a fleet are shown, without it the heartbeats in storage.

    Example: `compactor-daemon claims --zookeeper zk1:2181,zk2:2181 lake/orders lake/rides`"""
    options, storage, named = zookeeper.options(), parse_pairs(storage_option), list(tables or ())
    named, catalog = named_first(ctx, named, catalog)
    listed = catalog.found(named, catalog.pools(None, ScheduleOptions()), storage)
    paths = named if listed is None else listed.taken().tables.values()
    every = [Table.open(path, storage, reading=True) for path in paths]
    opened = [replace(table, reading=False) for table in every if table.config.has_logs]
    if options is None:
        rows = [row for table in opened for row in work_rows(_status(table))]
    else:
        with zookeeper_session(options) as session:
            found = [(table, held_claims(session, table)) for table in opened]
        rows = [row for table, held in found for row in claim_rows(table.storage.base_path, held, Clock.of(table))]
    return CommandResult({"claims": as_json(rows)}, status_render.claims)


def _status(table: Table, claimed: Claimed = None, options: StatusOptions = _OPTIONS) -> TableStatus:
    return from_one_snapshot(lambda: table_status(table.snapshot(), claimed, options))


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
