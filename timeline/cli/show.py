"""The commands that show a table. They change nothing.

Each command computes plain data (`timeline.cli.report`), then renders it (`timeline.cli.render`). If a writer moves a
file between two calls, the command reads everything again, table settings included."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import MissingFileError, UsageError
from ..format.compaction_plan import planned_paths
from ..format.instant import MERGES
from ..instants.timeline import Timeline
from ..report.overview import overview
from ..report.values import as_json
from ..storage.storage_options import parse_pairs
from ..table.table import Table, from_one_snapshot
from ..terminal.command import CommandResult
from ..terminal.text_table import Row
from . import render
from .parameters import CLOCK, ListedBy, Listing, Partition, StorageOption, TablePath, Timezone, reports
from .report import plan_report, slices_report


@reports
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
      timeline show /data/trips --archived --json
    """
    options = parse_pairs(storage_option)
    data = from_one_snapshot(
        lambda: overview(ListedBy.STORAGE.open(path, timezone, options), archived=archived, pending_only=pending)
    )
    return CommandResult(as_json(data), render.show)


@reports
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
      timeline slices /data/trips --json | jq '.totals.log_bytes'
    """
    options = parse_pairs(storage_option)
    data = from_one_snapshot(lambda: _slices(listing.open(path, timezone, options), partition))
    return CommandResult(data, render.slices)


def _slices(table: Table, partition: str | None) -> Row:
    return slices_report(table.load_view(partition), table.storage.base_path)


@reports
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
      timeline plan /data/trips 20261121091052663 --json | jq .recommended_executors
    """
    options = parse_pairs(storage_option)
    data = from_one_snapshot(lambda: _plan(Table.open(path, options, reading=True), instant))
    return CommandResult(data, render.plan)


def _plan(table: Table, time: str) -> Row:
    timeline = table.load_timeline()
    instant = timeline.find(time, "commit") or timeline.find(time, "deltacommit")
    if instant is None:
        raise _no_compaction(timeline, time, "no such instant in the active timeline")
    try:
        compaction = table.compaction_plan(time)
    except MissingFileError:
        if instant.action in MERGES and not instant.completed:
            raise
        raise _no_compaction(timeline, time, f"a {instant.action} without a plan") from None
    found = {path: table.storage.find(path) for path in planned_paths(compaction)}
    sizes = {path: None if entry is None else entry.size for path, entry in found.items()}
    return plan_report(compaction, instant, sizes, table.storage.base_path)


def _no_compaction(timeline: Timeline, time: str, found: str) -> UsageError:
    pending = ", ".join(i.requested_time for i in timeline.pending_merges)
    return UsageError(
        "not a compaction", instant=time, expected=f"one of the pending: {pending}" if pending else None, found=found
    )
