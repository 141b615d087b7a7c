"""The `savepoint` commands."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.recovery.savepoint import KeptSavepoint, create_savepoint, delete_savepoint, savepoints
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.console import configure_logging, emit
from phantombase.timeline.terminal.plain import plural
from phantombase.timeline.terminal.text_table import Column, RowsTable

from .option_flags import offers
from .parameters import CLOCK, DryRun, Json, Lock, SoleWriter, StorageOption, TablePath, open_to_change

app = typer.Typer(
    name="savepoint",
    add_completion=False,
    help="Keep the state of a table at a write: cleaners leave its files, and archivers stop before it, until it is "
    "deleted. Hudi and phantombase respect each other's savepoints.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_WHAT = "a savepoint needs to know which other processes write to the table"
_TODO = "A cleaner that works meanwhile without the same lock may remove files of the savepoint."


@app.command()
@offers
def create(
    table: TablePath,
    instant: Annotated[
        str | None,
        typer.Option(metavar="INSTANT", help="the write whose state is kept [default: the newest completed one]"),
    ] = None,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="why it is kept")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="who keeps it [default: the user of this process]")] = "",
    dry_run: DryRun = False,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Keep the state at a write. A savepoint that is there already stays as it is.

    Refused if files of that state may have been cleaned, or while a clean is pending.

    Example: `compactor-daemon savepoint create /data/orders --comment "before the backfill" --sole-writer`
    """
    configure_logging(json)
    opened, held = open_to_change(table, storage_option, lock, sole_writer, _WHAT, _TODO, clock=clock, dry_run=dry_run)
    kept = create_savepoint(opened, held, instant, user=user or _user(), comment=comment, dry_run=dry_run)
    emit({"table": table, "dry_run": dry_run, **_row(kept)}, json, _render_created)


@app.command()
def delete(
    table: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the savepoint")],
    dry_run: DryRun = False,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Let the files of a savepoint go: the next clean may remove them.

    Example: `compactor-daemon savepoint delete /data/orders 20260101120000000 --sole-writer`
    """
    configure_logging(json)
    opened, held = open_to_change(table, storage_option, lock, sole_writer, _WHAT, _TODO, dry_run=dry_run)
    delete_savepoint(opened, held, instant, dry_run=dry_run)
    emit({"table": table, "dry_run": dry_run, "deleted": instant}, json, _render_deleted)


@app.command("list")
def list_(table: TablePath, storage_option: StorageOption = None, json: Json = False) -> None:
    """The savepoints of a table, earliest first.

    Example: `compactor-daemon savepoint list /data/orders`
    """
    opened = Table.open(table, parse_pairs(storage_option))
    emit({"table": table, "savepoints": [_row(kept) for kept in savepoints(opened)]}, json, _render_list)


def _user() -> str:
    """Hudi's own is empty, too, where none is given."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user on this machine, as in some containers
        return ""


def _row(kept: KeptSavepoint) -> dict[str, Any]:
    made, files = kept.savepoint, kept.savepoint.files
    return {
        "instant": kept.instant,
        "user": made.user,
        "comment": made.comment,
        "made_ms": made.made_ms,
        "partitions": len(files),
        "files": sum(map(len, files.values())),
    }


def _render_created(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    where = f"{plural(data['files'], 'file')} in {plural(data['partitions'], 'partition')}"
    verb = "would be" if data["dry_run"] else "are"
    yield Text(f"savepoint {data['instant']}: {where} {verb} kept until it is deleted")


def _render_deleted(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    verb = "would be" if data["dry_run"] else "is"
    yield Text(f"savepoint {data['deleted']} {verb} deleted: the next clean may remove its files")


def _render_list(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["savepoints"]:
        yield Text("no savepoints")
        return
    columns = (
        Column(title="savepoint", cell=lambda r: r["instant"]),
        Column(title="by", cell=lambda r: r["user"]),
        Column(title="files", cell=lambda r: f"{r['files']:,}", right=True),
        Column(title="comment", cell=lambda r: r["comment"]),
    )
    yield RowsTable(title="savepoints", columns=columns, rows=data["savepoints"])
