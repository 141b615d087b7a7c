"""`compactor-daemon clean`: removes the files that no reader needs any more, or shows which would go, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.terminal.console import configure_logging, emit
from phantombase.timeline.terminal.text_table import Column, RowsTable, human_bytes, plural

from ...cleaning.choice import CleanOptions
from ...cleaning.clean import clean_table
from ..option_flags import CLOCK, Json, Lock, SoleWriter, StorageOption, TablePath, offers, open_to_change

_CLEAN = CleanOptions()
_SHOWN = 40
"""The most partitions shown; JSON has every file."""


@offers
def clean_command(
    table: TablePath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="change nothing; show what would go, and what keeps the rest")
    ] = False,
    options: CleanOptions = _CLEAN,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Remove old file slices and replaced file groups, which only reads of the past still need.

    The newest state always stays, and so does what a pending compaction, a savepoint, a pin of a reader, or a query
    that began less than `--floor` seconds ago needs. A read of the past, or an incremental read, whose state was
    removed ends with an error that names the earliest one that works. All file groups are looked at each time.

    It must not race with a process that makes savepoints or restores the table, so one of these is needed: `--lock`, if
    all writers share that lock, or `--sole-writer`. If a run is killed, the next one, or Hudi, finishes its work.

    Examples: `compactor-daemon clean /data/orders --dry-run`,
    `compactor-daemon clean /data/orders --policy hours --retain 48 --lock LOCK`
    """
    configure_logging(json)
    opened, held = open_to_change(
        table,
        storage_option,
        lock,
        sole_writer,
        "clean needs to know which other processes write to the table",
        "A savepoint that is made meanwhile without the same lock may lose files. --dry-run needs neither.",
        clock=clock,
        dry_run=dry_run,
    )
    done = clean_table(opened, options, held, dry_run=dry_run)
    emit({"table": table, "dry_run": dry_run, **asdict(done)}, json, _render)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    for one in data["finished"]:
        did = "would finish" if data["dry_run"] else "finished"
        yield Text(f"{did} clean {one['instant']} of an earlier run: {plural(one['files'], 'file')}")
    if not data["gone"]:
        yield Text(f"nothing to clean: {data['why']}")
    else:
        rows = _by_partition(data["gone"])
        shown = f", {_SHOWN} of {len(rows)} partitions shown (--json has all)" if len(rows) > _SHOWN else ""
        yield RowsTable(
            title=("would be removed" if data["dry_run"] else "removed") + shown,
            columns=(
                Column(title="partition", cell=lambda r: r["partition"] or "(none)"),
                Column(title="old slices", cell=lambda r: f"{r['old']:,}", right=True),
                Column(title="of replaced groups", cell=lambda r: f"{r['replaced']:,}", right=True),
                Column(title="files", cell=lambda r: f"{r['files']:,}", right=True),
                Column(title="bytes", cell=lambda r: human_bytes(r["bytes"]), right=True),
            ),
            rows=rows[:_SHOWN],
        )
        since = f"states from {data['retained']} on stay: {data['why']}" if data["retained"] else data["why"]
        yield Text(f"{plural(data['files'], 'file')}, {human_bytes(data['bytes'])}; {since}")
    for why, count in sorted(data["kept"].items()):
        yield Text(f"{plural(count, 'old slice')} stay: {why}")
    if data["left"]:
        yield Text(f"{plural(data['left'], 'file')} more: left to the next clean by --max-files or --max-partitions")


def _by_partition(gone: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"old": 0, "replaced": 0, "files": 0, "bytes": 0})
    for one in gone:
        row = found[one["partition"]]
        row[one["why"]] += 1
        row["files"] += len(one["files"])
        row["bytes"] += one["bytes"]
    return [{"partition": partition, **row} for partition, row in sorted(found.items())]
