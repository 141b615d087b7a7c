"""The `metadata` command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.terminal.console import configure_logging, emit
from phantombase.timeline.terminal.text_table import Column, RowsTable, human_bytes, plural

from ...metadata_services.due import METADATA, MetadataOptions
from ...metadata_services.serve import serve_metadata
from ..option_flags import CLOCK, Json, Lock, SoleWriter, StorageOption, TablePath, offers, open_to_change


@offers
def metadata_command(
    table: TablePath,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what is due, change nothing")] = False,
    options: MetadataOptions = METADATA,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Compact, clean and archive Hudi's metadata table, if it has one and that is due.

    The metadata table lists the files of the table for Hudi's readers. Each write adds a log file to each of its
    partitions; its compaction merges them into base files, so that readers need not; its clean removes old files: two
    slices of each file group stay. Instants that the table itself has archived are then archived here too. Hudi's
    writers do the same in passing, writers of phantombase where they are asked to. What a dead process left is
    finished first.

    Example: `compactor-daemon metadata /data/orders --sole-writer`
    """
    configure_logging(json)
    opened, held = open_to_change(
        table,
        storage_option,
        lock,
        sole_writer,
        "the metadata table is changed under the lock of the table's writers",
        "Without the same lock another process may write to the metadata table meanwhile. --dry-run needs neither.",
        clock=clock,
        dry_run=dry_run,
    )
    served = serve_metadata(opened, options, held, dry_run=dry_run)
    emit({"table": table, "dry_run": dry_run, **asdict(served)}, json, _render)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    for instant in data["forgotten"]:
        did = "would forget" if data["dry_run"] else "forgot"
        yield Text(f"{did} instant {instant} of the metadata table, which a dead process left half-way")
    for one in data["cleans"]:
        did = "would remove" if data["dry_run"] else "removed"
        of = "" if one["finished"] else f", {human_bytes(one['bytes'])}"
        earlier = " of a clean of an earlier run" if one["finished"] else ""
        yield Text(f"{did} {plural(one['files'], 'file')}{of}{earlier}: {data['why_clean']}")
    did = data["cleans"] or data["compactions"] or data["archived"]["instants"]
    if not did and data["why"] == data["why_clean"] == data["archived"]["why"]:
        yield Text(f"nothing to do: {data['why']}")
        return
    if not data["cleans"]:
        yield Text(f"nothing to clean: {data['why_clean']}")
    archived = data["archived"]
    if count := len(archived["instants"]):
        did = "would archive" if data["dry_run"] else "archived"
        yield Text(f"{did} {plural(count, 'instant')}, then stopped: {archived['why']}")
    else:
        yield Text(f"nothing to archive: {archived['why']}")
    if not data["compactions"]:
        yield Text(f"nothing to compact: {data['why']}")
        return
    columns = (
        Column(title="instant", cell=lambda r: r["instant"]),
        Column(title="base files", cell=lambda r: f"{r['files']:,}", right=True),
        Column(title="log files", cell=lambda r: f"{r['log_files']:,}", right=True),
        Column(title="of", cell=lambda r: human_bytes(r["log_bytes"]), right=True),
        Column(title="written", cell=lambda r: human_bytes(r["bytes_written"]), right=True),
        Column(title="", cell=lambda r: "left by an earlier run" if r["finished"] else ""),
    )
    title = "compactions of the metadata table that are due" if data["dry_run"] else "compacted the metadata table"
    yield RowsTable(title=title, columns=columns, rows=data["compactions"])
    yield Text(data["why"])
