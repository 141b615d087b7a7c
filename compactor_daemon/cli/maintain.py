"""`compactor-daemon maintain`: all that is due on tables, once; and `metadata`: serves the metadata table of a table,
builds it, or builds it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import check_writers_known
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, Each, StorageOption, Tries
from phantombase.timeline.terminal.console import Report, reporting
from phantombase.timeline.terminal.option_group import Only, names_of
from phantombase.timeline.terminal.text_table import Column, RowsTable, human_bytes, labelled, numbers, plural, sizes

from ..attempt.slice_task import Runner
from ..execution.runners import all_storage_options, check_memory, open_runner, this_machine
from ..metadata_services.build import build_metadata
from ..metadata_services.chosen import BuildOptions
from ..metadata_services.due import MetadataOptions
from ..metadata_services.serve import serve_metadata
from ..options import AttemptOptions, ExecuteOptions
from ..services.maintain import MaintainStep, Maintenance, maintain_table
from ..services.options import Service, ServiceOptions, parse_services, read_policies, usual_services
from .fleet_flags import CatalogFlags
from .option_flags import (
    DryRun,
    Lock,
    SoleWriter,
    TableChange,
    check_idle,
    check_reachable,
    given_names,
    name_idle,
    offers,
    typed_names,
    typed_options,
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


@offers
def metadata_command(
    ctx: typer.Context,
    at: Annotated[TableChange, Tries("show what is due or would be built, change nothing")],
    *,
    create: Annotated[
        bool, typer.Option("--create", help="build the partitions of the metadata table that the table lacks")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="take partitions out, all by default, and build them again")
    ] = False,
    options: MetadataOptions,
    building: BuildOptions,
) -> CommandResult:
    """Compact, clean and archive Hudi's metadata table, if it has one and that is due; or build it.

    The metadata table lists the files of the table for Hudi's readers. Each write adds a log file to each of its
    partitions; its compaction merges them into base files, so that readers need not; its clean removes old files: two
    slices of each file group stay. Instants that the table itself has archived are then archived here too. Hudi's
    writers do the same in passing, writers of phantombase where they are asked to. What a dead process left is
    finished first.

    `--create` builds it from the files of a table that has none, or adds `--indexes` to it. `--rebuild` is for one that
    is damaged: its partitions are taken out first, so that readers and writers list the storage, then built again; on
    version 6, and with the partition `files`, all of it. Rows are written meanwhile: what completes is added before the
    partitions become visible, and the lock is held only then. The end waits for pending actions of Hudi's writers.
    Hudi's writers must have the metadata table enabled from then on: one with `hoodie.metadata.enable=false` drops it
    at its next write. Stop such a writer, and its inline table services, before. Run again if a run was killed. The
    table may be COPY_ON_WRITE.

    Examples: `compactor-daemon metadata lake/orders --sole-writer`,
    `compactor-daemon metadata lake/orders --create --indexes files,column_stats --lock LOCK`,
    `compactor-daemon metadata lake/orders --rebuild --dry-run`"""
    if create and rebuild:
        raise UsageError("--create and --rebuild cannot be combined", todo="Leave one of them out.")
    builds = create or rebuild
    if idle := typed_options(ctx, names_of(MetadataOptions if builds else BuildOptions)):
        found, todo = ", ".join(idle), f"Leave them out, or run with{'out' if builds else ''} --create or --rebuild."
        raise UsageError("options are given that have no effect", found=found, todo=todo)
    table, lock = at.open(
        "metadata",
        "Without the same lock another process may write to the metadata table meanwhile. --dry-run needs neither.",
        service=Service.METADATA,
        any_type=True,
    )
    if not builds:
        served = serve_metadata(table, options, lock, dry_run=at.dry_run)
        return CommandResult(at.served(table, Service.METADATA, served), _render_served)
    with reporting() as report:
        done = build_metadata(table, building, lock, again=rebuild, dry_run=at.dry_run, progress=report)
    return CommandResult(at.row(asdict(done)), _render_built)


def _render_built(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["built"]:
        yield f"nothing to build: {data['why']}"
        return
    of = f"{plural(data['files'], 'file')} in {plural(data['partitions'], 'partition')}"
    did, about = ("would build", "about ") if data["dry_run"] else ("built", "")
    yield f"{did} {', '.join(data['built'])} of {of}: {about}{human_bytes(data['bytes'])}"
    if data["dropped"]:
        left = "would be dropped" if data["dry_run"] else "dropped"
        yield f"{left}, since only Hudi builds them: {', '.join(data['dropped'])}"


def _render_served(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    for instant in data["forgotten"]:
        did = "would forget" if data["dry_run"] else "forgot"
        yield f"{did} instant {instant} of the metadata table, which a dead process left unfinished"
    for one in data["cleans"]:
        did = "would remove" if data["dry_run"] else "removed"
        of = "" if one["finished"] else f", {human_bytes(one['bytes'])}"
        earlier = " of a clean of an earlier run" if one["finished"] else ""
        yield f"{did} {plural(one['files'], 'file')}{of}{earlier}: {data['why_clean']}"
    did = data["cleans"] or data["compactions"] or data["archived"]["instants"]
    if not did and data["why"] == data["why_clean"] == data["archived"]["why"]:
        yield f"nothing to do: {data['why']}"
        return
    if not data["cleans"]:
        yield f"nothing to clean: {data['why_clean']}"
    archived = data["archived"]
    if number := len(archived["instants"]):
        did = "would archive" if data["dry_run"] else "archived"
        yield f"{did} {plural(number, 'instant')}, then stopped: {archived['why']}"
    else:
        yield f"nothing to archive: {archived['why']}"
    if not data["compactions"]:
        yield f"nothing to compact: {data['why']}"
        return
    files = (numbers("base files", "files"), numbers("log files"), sizes("of", "log_bytes"))
    earlier_run = Column("", lambda r: "left by an earlier run" if r["finished"] else "")
    columns = ("instant", *files, sizes("written", "bytes_written"), earlier_run)
    title = "compactions of the metadata table that are due" if data["dry_run"] else "compacted the metadata table"
    yield RowsTable(title, columns, data["compactions"])
    yield data["why"]
