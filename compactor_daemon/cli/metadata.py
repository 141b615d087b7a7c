"""The command `metadata`: serves the metadata table of a table, builds it, or builds it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.errors import UsageError
from phantombase.timeline.terminal.command import CommandResult, Tries
from phantombase.timeline.terminal.console import reporting
from phantombase.timeline.terminal.option_group import names_of
from phantombase.timeline.terminal.text_table import Column, RowsTable, human_bytes, numbers, plural, sizes

from ..metadata_services.build import build_metadata
from ..metadata_services.chosen import BuildOptions
from ..metadata_services.due import MetadataOptions
from ..metadata_services.serve import serve_metadata
from ..services.options import Service
from .option_flags import TableChange, offers, typed_options


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
    at its next write. Stop such a writer, and its inline table services, before. Run again if a run was killed.

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
    )
    if not builds:
        return CommandResult(at.row(serve_metadata(table, options, lock, dry_run=at.dry_run)), _render_served)
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
