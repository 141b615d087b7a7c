"""`compactor-daemon maintain`: all that is due on tables, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import check_writers_known
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, Each
from phantombase.timeline.terminal.console import Report, reporting
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import labelled

from ..attempt.slice_task import Runner
from ..execution.runners import all_storage_options, check_memory, open_runner, this_machine
from ..options import AttemptOptions, ExecuteOptions
from ..services.maintain import MaintainStep, Maintenance, maintain_table
from ..services.options import Service, ServiceOptions, parse_services, read_policies, usual_services
from .fleet_flags import CatalogFlags
from .option_flags import (
    DryRun,
    Lock,
    SoleWriter,
    StorageOption,
    check_idle,
    check_reachable,
    given_names,
    name_idle,
    offers,
    typed_names,
)

_OPEN = "open"


@offers
def maintain_command(
    ctx: typer.Context,
    of_services: Annotated[dict[str, Any], Each({service.value: service.kind for service in Service})],
    *,
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="base paths of the tables")] = None,
    catalog: Annotated[CatalogFlags, Only("root", "catalog", "include", "exclude")],
    services: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"only these services, of {','.join(s.value for s in Service)} [default: all but orphans, and sync "
            "where a catalog is named]",
        ),
    ] = None,
    requests: ScheduleOptions,
    dry_run: DryRun = False,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    execute: ExecuteOptions,
    output: OutputOptions,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s", "barrier_s", "claim_wait_s")],
    clock: ClockOptions,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Do all that is due on tables, once: compactions, metadata table, clustering, cleaning, catalogs, archiving.

    For each table, in this order: a compaction is requested if one is due, pending ones are executed, then each service
    does what is due, as a daemon with `--schedule --services` does. Orphan files are removed only if `--services` names
    them. One line a step says what was done, or why there was nothing to do.

    A step that fails holds back no other one, and no other table; the exit code is 1 then. If a run is killed, the next
    one finishes its work.

    Examples: `compactor-daemon maintain lake/orders --sole-writer`,
    `compactor-daemon maintain --root s3://bucket/warehouse --lock storage --dry-run`"""
    sync = of_services[Service.SYNC.value]
    chosen = usual_services(sync.to) if services is None else parse_services(services)
    check_idle(ctx, chosen, of_services, requests, schedule=True)
    if Service.SYNC in chosen:
        sync.check_named("--sync-to")
    name_idle(requests, counts_commits=Service.ARCHIVE in chosen)
    execute.refuse_idle(typed_names(ctx, execute.idle))
    if not dry_run or (lock is not None and sole_writer):
        check_writers_known(
            lock,
            sole_writer,
            "maintain",
            "A plan made while an unknown write is running would lose that write's rows. --dry-run needs neither.",
        )
        check_reachable(lock)
    options = parse_pairs(storage_option)
    found = catalog.found(list(tables or ()), catalog.pools(ctx.params.get("config"), requests), options)
    paths = {one: full_path(one) for one in tables or ()}
    if found is not None:
        taken = found.taken()
        taken.warn(found.listing.shown)
        paths = dict(taken.tables)
    if not dry_run:
        check_memory(output.memory_limit, execute, this_machine())
    how = Maintenance(
        services=ServiceOptions(
            chosen={service: of_services[service.value] for service in chosen},
            counted_commits=requests.max_delta_commits,
        ),
        requests=requests,
        output=output,
        attempt=attempt,
        lock=lock,
        sole_writer=sole_writer,
        dry_run=dry_run,
    )
    stores = all_storage_options(paths.values(), options, execute, None)
    rows = []
    alone, own = found is None and len(paths) == 1, given_names(ctx)
    with reporting() as report, open_runner(execute) as runner:
        for name, path in paths.items():
            steps = list(_steps(name, path, stores, clock, how, runner, report, alone, own, services is not None))
            rows.append({"name": name, "table": path, "steps": [as_json(asdict(one)) for one in steps]})
    data = {"tables": rows, "listing": None if found is None else found.listing.shown, "dry_run": dry_run}
    return CommandResult(data, _render, failed=any(step["failed"] for row in rows for step in row["steps"]))


def _steps(
    name: str,
    path: str,
    options: Any,
    clock: ClockOptions,
    how: Maintenance,
    runner: Runner,
    report: Report,
    alone: bool,
    given: frozenset[str],
    named: bool,
) -> Iterable[MaintainStep]:
    """What was done on a table; an error before the first step is a step of its own, unless the table is `alone`."""
    begun = 0

    def begins(step: str) -> None:
        nonlocal begun
        report(f"{name}: {step}", begun, len(how.steps))
        begun += 1

    try:
        if not Table.open(path, options, reading=True).config.has_logs:
            yield MaintainStep(step=_OPEN, what="nothing to do: a COPY_ON_WRITE table, which is only read here")
            return
        table = Table.open(path, options).with_clock(clock)
        how = how.over(read_policies(table.storage), given, named=named)
        progress = lambda instant, done, total: report(f"{name}: compacting {instant}", done, total)  # noqa: E731
        yield from maintain_table(table, how, runner, begins=begins, progress=progress)
    except PhantombaseError as error:
        if alone:
            raise
        yield MaintainStep(step=_OPEN, what=str(error), failed=True)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["tables"]:
        yield f"no table: {data['listing']}"
    for row in data["tables"]:
        if len(data["tables"]) > 1 or data["listing"] is not None:
            yield Text(row["name"], "bold")
        for step in row["steps"]:
            yield labelled(step["step"], "bold red" if step["failed"] else "cyan", step["what"])
