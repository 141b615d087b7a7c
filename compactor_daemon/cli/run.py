"""`compactor-daemon run`: the daemon."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.errors import UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import check_writers_known
from phantombase.timeline.option import help_of, option
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.service.run import ServeOptions, read_token
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.history import PriceOptions
from phantombase.timeline.terminal.command import CommandResult, Each, StorageOption
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import SHOWN, human_duration, plural

from ..attempt.failures import RetryOptions
from ..daemon.assemble import open_daemon, works_of
from ..daemon.dispatch import Rules, Stop
from ..daemon.http_service import Reports, service_of
from ..daemon.loop import Daemon
from ..daemon.metrics import DaemonHealth, Metrics, serve
from ..daemon.served_table import DaemonSettings
from ..daemon.work import Summary
from ..fleet.budget import Budget, rank
from ..fleet.catalog import Catalog
from ..fleet.pools import Pools
from ..fleet.wakes import WakeOptions
from ..options import AttemptOptions, BenefitOptions, ExecuteOptions
from ..services.options import Service, ServiceOptions, parse_services
from .fleet_flags import CatalogFlags, ZooKeeperFlags
from .option_flags import Lock, check_idle, check_reachable, given_names, name_idle, offers, typed_names, typed_options

_KILLED = 128
_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Http:
    """What a daemon answers over HTTP: its metrics, and as a timeline service."""

    metrics_port: int | None = option(
        None, "port for /metrics (Prometheus), /healthz and /readyz", metavar="PORT", least=0, most=65535
    )
    metrics_host: str = option(
        "", "where --metrics-port listens, without a token [default: everywhere]", metavar="ADDRESS"
    )
    serve_port: int | None = option(
        None,
        "also run the timeline service, with its pages, on this port",
        flag="serve",
        metavar="PORT",
        least=0,
        most=65535,
    )
    serve_host: str = option(
        ServeOptions().host, "where --serve listens; beyond this machine it needs a token", metavar="ADDRESS"
    )
    serve_token_file: Path | None = option(
        None, "a file with the token that the pages of --serve ask for", metavar="FILE"
    )
    serve_hudi_clients: tuple[str, ...] = option(
        (), "networks whose Hudi clients --serve answers; they can send no token", metavar="CIDR"
    )
    serve_allow_actions: bool = option(False, "buttons on the pages of --serve; needs a token and a lock")


@partial(
    offers,
    json=Annotated[
        bool, typer.Option("--json", help="log lines as JSON on stderr; at the end one JSON document on stdout")
    ],
    quiet=False,
)
def run_command(
    ctx: typer.Context,
    of_services: Annotated[dict[str, Any], Each({service.value: service.kind for service in Service})],
    *,
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="base paths of the tables")] = None,
    catalog: CatalogFlags,
    zookeeper: ZooKeeperFlags,
    wakes: WakeOptions,
    once: Annotated[bool, typer.Option("--once", help=help_of(Rules, "once"))] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print in which order a --budget lets work begin, and why; change nothing")
    ] = False,
    rules: Annotated[Rules, Only("max_concurrent", "order", "budget", "poll_s", "services_s")],
    on_term: Annotated[
        Stop, typer.Option(help="on SIGTERM or SIGINT: finish the instants at work, or leave them to other daemons")
    ] = Stop.FINISH,
    retry: Annotated[RetryOptions, Only("retries", "backoff_s")],
    benefit: BenefitOptions,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="also request compactions that are due; needs --lock or --sole-writer")
    ] = False,
    sole_writer: Annotated[
        bool, typer.Option(help="with --schedule or --services: only phantombase's own processes write to the tables")
    ] = False,
    requests: ScheduleOptions,
    services: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"also run these services, of {','.join(s.value for s in Service)}; needs --lock or --sole-writer",
        ),
    ] = None,
    lock: Lock = None,
    execute: ExecuteOptions,
    output: OutputOptions,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s", "barrier_s")],
    clock: ClockOptions,
    storage_option: StorageOption = None,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="add each event and decision of the daemon to a file, for a bug report"),
    ] = None,
    http: _Http,
    prices: PriceOptions,
) -> CommandResult:
    """Serve tables: execute their compactions as they are requested, until stopped.

    The daemon works alone, or with `--zookeeper` as one of many daemons on machines that share the tables' file system.
    One of them executes each pending instant; if it dies, another one adopts its finished file slices. A daemon that
    was paused or cut off cannot harm a table later: storage decides which attempt wins, not ZooKeeper.

    With `--services` it also runs table services, as Hudi's writers do after commits: it removes file slices that no
    reader needs, moves old instants into the archive, does the same for the metadata table and compacts it, and
    joins small files that were appended (`cluster`). Leave this to Hudi's writers where they do it already.

    SIGTERM or SIGINT stops the daemon gracefully (`--on-term`); a second signal ends it at once.

    With `--budget` work begins in the order of its benefit for its cost, and waits where an hour's budget is used up;
    what would miss its goal of freshness comes first. `--dry-run` prints that order.

    With `--serve PORT` the daemon also is a timeline service: a browser shows how its tables are, which process works
    on what, and what can be done.

    With `--root` or `--catalog` the tables are found, and searched again at each poll; the daemons of a fleet share
    them. A table that cannot be served is tried again, less and less often, and the others are served. Rules for the
    tables of a pattern are in the configuration file, see the guide to fleets.

    Examples: `compactor-daemon run lake/orders lake/rides --zookeeper zk1:2181,zk2:2181,zk3:2181`,
    `compactor-daemon run --root s3://bucket/warehouse --include orders --schedule --lock storage`,
    `compactor-daemon run --root s3://bucket/warehouse --budget 2core-hours --dry-run`"""
    chosen = parse_services(services) if services is not None else frozenset[Service]()
    check_idle(ctx, chosen, of_services, requests, schedule=schedule)
    if Service.SYNC in chosen:
        of_services[Service.SYNC.value].check_named("--sync-to")
    if schedule:
        name_idle(requests, counts_commits=Service.ARCHIVE in chosen)
    serve_options = ("serve_host", "serve_token_file", "serve_hudi_clients")
    for needed, given, names in (
        ("--services NAMES", services, ("services_interval",)),
        ("--serve PORT", http.serve_port, serve_options),
        ("--zookeeper HOSTS", zookeeper.hosts, ("zookeeper_session",)),
        ("--metrics-port PORT", http.metrics_port, ("metrics_host",)),
    ):
        if given is None and (idle := typed_options(ctx, names)):
            raise UsageError(f"{', '.join(idle)} without {needed.split()[0]} has no effect", todo=f"Add {needed}.")
    if once and (idle := (*typed_options(ctx, ("services_interval",)), *wakes.given)):
        raise UsageError(f"{', '.join(idle)} with --once has no effect: all is done once", todo="Leave it out.")
    execute.refuse_idle(typed_names(ctx, execute.idle))
    if schedule or services is not None or (lock is not None and sole_writer):
        check_writers_known(
            lock,
            sole_writer,
            "--schedule" if schedule else "--services" if services is not None else "run",
            "A plan made while an unknown write is running would lose that write's rows.",
        )
    if http.serve_allow_actions and http.serve_port is None:
        raise UsageError("--serve-allow-actions is given without --serve", todo="Add --serve PORT.")
    lock = zookeeper.on_lock(lock)
    check_reachable(lock)
    named, options = tables or [], parse_pairs(storage_option)
    pools = catalog.pools(ctx.params.get("config"), requests)
    has_budget = rules.budget is not None or any(pool.budget is not None for pool in pools.all)
    if not has_budget and (idle := typed_options(ctx, ("reads_per_hour",))):
        raise UsageError(f"{', '.join(idle)} without --budget has no effect", todo="Add --budget.")
    found = catalog.found(named, pools, options)
    settings = DaemonSettings(
        who=process_name(),
        output=output,
        attempt=attempt,
        retry=retry,
        order=rules.order,
        benefit=benefit,
        gains=has_budget,
        schedule=requests if schedule else None,
        services=ServiceOptions(
            chosen={service: of_services[service.value] for service in chosen},
            counted_commits=requests.max_delta_commits if schedule else 0,
        ),
        clock=clock,
        storage_options=options,
        given=given_names(ctx),
    )
    if dry_run:
        return _ranking(rules, found, named, pools, replace(settings, clusters=lock is not None or sole_writer))
    with ExitStack() as stack:
        servers = stack.enter_context(zookeeper.running())
        reports = Reports(settings)
        watched = http.metrics_port is not None or http.serve_port is not None
        metrics = Metrics(reports if watched else None, prices)
        daemon = stack.enter_context(
            open_daemon(
                named,
                catalog=found,
                pools=pools,
                rules=replace(rules, once=once, services=services is not None),
                settings=settings,
                execute=execute,
                zookeeper=servers,
                lock=lock,
                sole_writer=sole_writer,
                observer=metrics,
                events=events,
                wakes=wakes,
            )
        )
        if http.metrics_port is not None:
            stack.enter_context(serve(http.metrics_port, metrics, lambda: _health(daemon), host=http.metrics_host))
        if http.serve_port is not None:
            address = stack.enter_context(
                service_of(
                    daemon,
                    settings,
                    ServeOptions(port=http.serve_port, host=http.serve_host, hudi_clients=http.serve_hudi_clients),
                    token=None if http.serve_token_file is None else read_token(http.serve_token_file),
                    zookeeper=servers,
                    reports=reports,
                    registry=metrics.registry,
                    commands=CommandSettings(lock=lock, sole_writer=sole_writer, timezone=clock.timezone),
                    allow_actions=http.serve_allow_actions,
                    listing=None if found is None else found.listing.shown,
                )
            )
            _log.info("timeline service", address=address)
        stack.enter_context(_signals(daemon, on_term))
        _log.info(
            "serving",
            version=version("phantombase"),
            tables=len(named) if found is None else found.listing.shown,
            poll_s=rules.poll_s,
            executor=execute.executor.value,
            requests=schedule,
            services=services,
            fleet=servers is not None,
            metrics_port=http.metrics_port,
        )
        summary = daemon.run()
    failed = bool(summary.failed or summary.problems or any(done.failed for _, done in summary.services))
    return CommandResult(_data(summary), partial(_render, requests=schedule), failed)


def _ranking(
    rules: Rules, catalog: Catalog | None, named: Sequence[str], pools: Pools, settings: DaemonSettings
) -> CommandResult:
    """`--dry-run`. UsageError: there is no budget. A table that cannot be read is named, with the reason."""
    budgets = {one.match: one.budget for one in pools.all} | {"": rules.budget}
    parsed = {name: Budget.parse(text) for name, text in budgets.items() if text is not None}
    if not parsed:
        raise UsageError("--dry-run prints the order of work under a budget", todo="Add --budget, like 2core-hours.")
    paths = {full_path(path): path for path in named} if catalog is None else catalog.taken().tables
    paid = {name: {of: parsed[of] for of in (pools.of(name).match, "") if of in parsed} for name in paths}
    tables = {name: (path, pools.of(name)) for name, path in paths.items() if paid[name]}
    found = works_of(tables, replace(settings, plans=True))
    rows = rank(found.works, paid.__getitem__)
    budget = parsed.get("")
    data = {
        "budget": None if budget is None else {"of_an_hour": budget.most, "is_bytes": budget.is_bytes},
        "tables": len(tables),
        "work": as_json(rows),
        "problems": found.problems,
    }
    return CommandResult(data, _render_ranking, failed=bool(found.problems))


def _render_ranking(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    rows = data["work"]
    costs = {unit: sum(row["cost"] for row in rows if row["is_bytes"] is unit) for unit in (False, True)}
    whole = " and ".join(Budget(most=1.0, is_bytes=unit).words(cost) for unit, cost in costs.items() if cost)
    yield f"{plural(len(rows), 'unit')} of work on {plural(data['tables'], 'table')}: {whole or 'nothing'} in all"
    for number, row in enumerate(rows[:SHOWN], 1):
        begins = "now" if row["begins_s"] < 1 else f"in {human_duration(row['begins_s'])}"
        what = row["instant"] or "a plan that is due"
        yield Text(f"{number:>3}. {row['table']}, {what}, {begins}: {row['why']}", no_wrap=True)
    if len(rows) > SHOWN:
        yield Text(f"and {len(rows) - SHOWN:,} more; --json has all", "dim")
    for table, problem in data["problems"].items():
        yield Text(f"not read: {table}: {problem}", no_wrap=True)


def _health(daemon: Daemon) -> DaemonHealth:
    return DaemonHealth(silent_s=daemon.silent_s, trouble=daemon.trouble)


@contextmanager
def _signals(daemon: Daemon, on_term: Stop) -> Iterator[None]:
    """The first SIGTERM or SIGINT stops the daemon; the second ends the process at once."""
    heard = 0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard > 1:
            os._exit(_KILLED + number)
        daemon.stop(on_term)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _data(summary: Summary) -> dict[str, Any]:
    return {
        "compacted": [{"table": table, **as_json(done)} for table, done in summary.done],
        "failed": [{"table": t, "instant": i, "error": e} for t, i, e in summary.failed],
        "services": [{"table": table, **as_json(done)} for table, done in summary.services],
        "problems": summary.problems,
        "left": {table: list(instants) for table, instants in summary.left.items()},
    }


def _render(data: Mapping[str, Any], *, requests: bool) -> Iterable[RenderableType]:
    left = sum(len(instants) for instants in data["left"].values())
    yield f"{plural(len(data['compacted']), 'compaction')} done, {len(data['failed'])} failed, {left} left pending"
    if not requests and not data["compacted"] and not left:
        yield "no plan was pending, and a run without --schedule requests none: add it, or let writers request"
    tries = Counter((one["table"], one["instant"], one["error"]) for one in data["failed"])
    for (table, instant, error), times in tries.items():
        often = f" ({times} times)" if times > 1 else ""
        yield Text(f"failed{often}: {table} {instant}: {error}", no_wrap=True)
    for one in data["services"]:
        yield f"{one['service']}{' failed' if one['failed'] else ''}: {one['table']}: {one['what']}"
    for table, problem in data["problems"].items():
        yield Text(f"not served: {table}: {problem}", no_wrap=True)
