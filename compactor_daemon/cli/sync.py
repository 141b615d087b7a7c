"""`compactor-daemon sync`: a catalog shows a table as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.locks.pause import refuse_paused
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult
from phantombase.timeline.terminal.text_table import Column, RowsTable, numbers, plain

from ..catalogs.options import SyncOptions
from ..catalogs.sync import sync_table
from ..services.options import Service
from .option_flags import StorageOption, TablePath, offers


@offers
def sync_command(
    *,
    table: TablePath,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only ask the catalog; show what would change")] = False,
    options: SyncOptions,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Make a Hive Metastore or AWS Glue show the table as it is now: its names there, columns and partitions.

    Engines that find tables in a catalog then find this one: Spark SQL, Hive, Trino, Athena. What is made is what
    Hudi's own sync makes, so both may sync one table. Only what has changed since the last sync is sent: the tables of
    the catalog say up to which write they were synced.

    To an Iceberg catalog the read-optimized view is published, as fresh as the last compaction: the same data files,
    and one snapshot for all that has changed. Options that are about Hive are refused there.

    No lock is needed: the table itself is only read, and syncs may run concurrently. As a service, `run --services
    sync`, or after each commit of a writer, it runs by itself.

    Examples: `compactor-daemon sync /data/orders --to hive:metastore:9083 --database sales`,
    `compactor-daemon sync /data/orders --to glue:eu-west-1 --dry-run`
    """
    opened = Table.open(table, parse_pairs(storage_option), reading=True)
    if not dry_run:
        refuse_paused(opened.storage, Service.SYNC.value)
    done = sync_table(opened, options, dry_run=dry_run)
    return CommandResult({"table": table, "dry_run": dry_run, **asdict(done)}, _render_synced)


def _render_synced(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    where = f"{data['catalog']} {data['database']}"
    if data["why"]:
        yield f"nothing to sync: {data['why']}"
        return
    changed = [one for one in data["tables"] if _is_changed(one)]
    if not changed:
        yield f"up to date: {where}: {', '.join(one['name'] for one in data['tables'])}"
        return
    columns = (
        Column("name", plain("name")),
        Column("", lambda r: "new" if r["created"] else "altered" if r["altered"] else ""),
        Column("columns", lambda r: ", ".join(r["columns"]), shorten=True),
        *(numbers(f"{changed[0]['of']}s {did}", did) for did in ("added", "moved", "dropped")),
    )
    yield RowsTable(f"{'would be synced' if data['dry_run'] else 'synced'} in {where}", columns, changed)


def _is_changed(one: Mapping[str, Any]) -> bool:
    return any(one[what] for what in ("created", "altered", "added", "moved", "dropped"))
