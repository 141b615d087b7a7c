"""The commands that show a table. They change nothing.

Each command computes plain data, then renders it (`timeline.cli.render`). Sizes are bytes, instants are digit strings
as on disk; None means unknown or not applicable. If a writer moves a file between two calls, the command reads
everything again, table settings included."""

from __future__ import annotations

from typing import Annotated

import typer

from ..dashboard.compactions import plan_facts
from ..dashboard.overview import as_json, overview
from ..errors import UsageError
from ..storage.storage_options import parse_pairs
from ..table.table import Table, from_one_snapshot
from ..terminal.command import CommandResult, StorageOption, command
from ..terminal.text_table import Row
from ..view.view import FileGroup, FileSlice, TableView, slice_before
from . import render
from .render import CLOCK, ListedBy, Listing, Partition, TablePath, Timezone


@command
def show(
    path: TablePath,
    archived: Annotated[bool, typer.Option("--archived", help="Also instants in the archive.")] = False,
    pending: Annotated[bool, typer.Option("--pending", help="Only instants that are not completed.")] = False,
    timezone: Timezone = CLOCK.timezone,
    storage_option: StorageOption = None,
) -> CommandResult:
    """What happened to a table, and what has been pending since when.

    A pending compaction shows the size of its plan. A pending write shows its writer's [b]heartbeat[/b]: fresh
    (the writer lives), stale (silent for over two minutes), or none (many writers make none).
    Version 6 tables do not record when an instant completed.

    [b]Examples[/b]
      timeline show /data/trips
      timeline show /data/trips --pending
      timeline show /data/trips --archived --json"""
    if archived and pending:
        raise UsageError(
            "instants in the archive are completed", found="--archived --pending", todo="Give one of them."
        )
    options = parse_pairs(storage_option)
    data = from_one_snapshot(
        lambda: overview(ListedBy.STORAGE.open(path, timezone, options), archived=archived, pending_only=pending)
    )
    return CommandResult(as_json(data), render.show)


@command
def slices(
    path: TablePath,
    partition: Partition = None,
    listing: Listing = ListedBy.STORAGE,
    timezone: Timezone = CLOCK.timezone,
    storage_option: StorageOption = None,
) -> CommandResult:
    """The table's file slices: base file, log files, and the pending plan that contains them.

    base: the base file's size; [b]phantom[/b]: a pending compaction will make it; a dash: log files only.
    outcome: [b]in plan I[/b]: the pending compaction I will merge this slice; [b]replaced I[/b]: readers ignore the
    slice since instant I (an insert overwrite or a clustering), and a cleaner removes it later.

    [b]Examples[/b]
      timeline slices /data/trips
      timeline slices /data/trips --partition year=2026/month=11
      timeline slices /data/trips --json | jq '.totals.log_bytes'"""
    options = parse_pairs(storage_option)
    data = from_one_snapshot(lambda: _slices(listing.open(path, timezone, options), partition))
    return CommandResult(data, render.slices)


def _slices(table: Table, partition: str | None) -> Row:
    """Every visible file slice, replaced ones included, with totals."""
    view = table.load_view(partition)
    rows = [_slice_row(s, g, view) for g in view.groups for s in g.slices]
    totals = {
        "file_groups": len(view.groups),
        "slices": len(rows),
        "phantom_slices": sum(row["base"] == "phantom" for row in rows),
        "base_bytes": sum(row["base_bytes"] or 0 for row in rows),
        "log_files": sum(row["log_files"] for row in rows),
        "log_bytes": sum(row["log_bytes"] for row in rows),
    }
    return {"table": table.storage.base_path, "slices": rows, "totals": totals}


def _slice_row(slice_: FileSlice, group: FileGroup, view: TableView) -> Row:
    pending = group.pending_compaction
    planned = slice_before(group, pending) if pending else None
    phantom = slice_.base is None and slice_.base_instant == pending
    return {
        "partition": slice_.partition,
        "file_id": slice_.file_id,
        "base_instant": slice_.base_instant,
        "base": "file" if slice_.base else "phantom" if phantom else "none",
        "base_file": str(slice_.base.name) if slice_.base else None,
        "base_bytes": slice_.base.size if slice_.base else None,
        "log_files": len(slice_.logs),
        "log_bytes": slice_.log_bytes,
        "pending_plan": pending if slice_ == planned else None,
        "replaced_by": view.facts.replaced.get(slice_.key),
    }


@command
def plan(
    path: TablePath,
    instant: Annotated[
        str, typer.Argument(metavar="INSTANT", help="Requested time of the compaction, as `timeline show` prints it.")
    ],
    storage_option: StorageOption = None,
) -> CommandResult:
    """What a compaction will merge, and how many executors are useful.

    An [b]operation[/b] is one file slice: its base file and the log files that the plan names. Sizes are the current
    sizes of the files; a planned file that is missing is an error. One slice is one task, so the compaction takes at
    least as long as its largest slice: executors beyond total / largest only wait.

    [b]Examples[/b]
      timeline show /data/trips --pending
      timeline plan /data/trips 20261121091052663
      timeline plan /data/trips 20261121091052663 --json | jq .recommended_executors"""
    options = parse_pairs(storage_option)
    data = from_one_snapshot(lambda: plan_facts(Table.open(path, options, reading=True), instant))
    return CommandResult(data, render.plan)
