"""Savepoints (`savepoint`), and the commands that undo: `rollback` and `restore` of completed writes, `release` of a
parked compaction or an unreadable decision, `repair` of a compaction's unreadable completed file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.pause import user_name
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, StorageOption, Tries
from phantombase.timeline.terminal.text_table import Column, RowsTable, first_rows, numbers, plain, plural

from ..attempt.compact_or_resume import pending_instants
from ..attempt.failures import CLUSTERING, release_failures
from ..services.options import kept_attempt_options
from ..undo.repair import TakenBack, cancel_unreadable_attempt, write_anew
from ..undo.restore import restore_table
from ..undo.rollback import roll_back_newest
from ..undo.savepoint import KeptSavepoint, create_savepoint, delete_savepoint, savepoints
from . import render_status as status_render
from .option_flags import TableChange, TablePath, offers

savepoint_app = typer.Typer(
    name="savepoint",
    add_completion=False,
    help="Keep the state of a table at a write: cleaners leave its files, and archivers stop before it, until it is "
    "deleted. Hudi and phantombase respect each other's savepoints.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_CLEANERS = "A cleaner that works concurrently without the same lock may remove files of the savepoint."


@savepoint_app.command()
@offers
def create(
    at: TableChange,
    instant: Annotated[
        str | None,
        typer.Option(metavar="INSTANT", help="the write whose state is kept [default: the newest completed one]"),
    ] = None,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="why it is kept")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="who keeps it [default: the user of this process]")] = "",
) -> CommandResult:
    """Keep the state at a write. An existing savepoint is not changed.

    Refused if files of that state may have been cleaned, or while a clean is pending.

    Example: `compactor-daemon savepoint create lake/orders --comment "before the backfill" --sole-writer`"""
    table, lock = at.open("a savepoint", _CLEANERS)
    kept = create_savepoint(table, lock, instant, user=user or user_name(), comment=comment, dry_run=at.dry_run)
    return CommandResult(at.row(_savepoint_row(kept)), _render_created)


@savepoint_app.command()
@offers
def delete(
    at: TableChange, instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the savepoint")]
) -> CommandResult:
    """Delete a savepoint: the next clean may remove its files.

    Example: `compactor-daemon savepoint delete lake/orders 20260101120000000 --sole-writer`"""
    delete_savepoint(*at.open("a savepoint", _CLEANERS), instant, dry_run=at.dry_run)
    return CommandResult(at.row({"deleted": instant}), _render_deleted)


@savepoint_app.command("list")
@offers
def list_(table: TablePath, storage_option: StorageOption = None) -> CommandResult:
    """The savepoints of a table, earliest first.

    Example: `compactor-daemon savepoint list lake/orders`"""
    kept = savepoints(Table.open(table, parse_pairs(storage_option)).snapshot(cached=False))
    return CommandResult({"table": table, "savepoints": [_savepoint_row(one) for one in kept]}, _render_savepoints)


def _savepoint_row(kept: KeptSavepoint) -> dict[str, Any]:
    made, files = kept.savepoint, kept.savepoint.files
    by = {"instant": kept.instant, "user": made.user, "comment": made.comment, "made_ms": made.made_ms}
    return {**by, "partitions": len(files), "files": sum(map(len, files.values()))}


def _render_created(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    where = f"{plural(data['files'], 'file')} in {plural(data['partitions'], 'partition')}"
    verb = "would be" if data["dry_run"] else "are"
    yield f"savepoint {data['instant']}: {where} {verb} kept until it is deleted"


def _render_deleted(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    verb = "would be" if data["dry_run"] else "is"
    yield f"savepoint {data['deleted']} {verb} deleted: the next clean may remove its files"


def _render_savepoints(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["savepoints"]:
        yield "no savepoints"
        return
    columns = (Column("savepoint", plain("instant")), Column("by", plain("user")), numbers("files"), "comment")
    yield RowsTable("savepoints", columns, data["savepoints"])


_TODO = "What another process writes concurrently without the same lock may be lost. Stop all writers and compactors."


@offers
def restore_command(
    at: Annotated[TableChange, Tries("change nothing; show what would be undone")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="INSTANT", help="the write, or savepoint, whose state comes back")
    ] = None,
) -> CommandResult:
    """Restore the state at a write: everything written after it is undone, the newest write first.

    What a read as of that instant shows is then what every read shows. Stop all writers and compactors first: a process
    that is at work is an error, and so is a later savepoint, or a pin of a reader. A metadata table is dropped; the
    next Hudi writer builds it again. What is undone cannot be brought back.

    If a run is killed, the table stays readable, and nothing may be written until the next run, without `--to`, or
    Hudi's restore to the same instant, has finished.

    Examples: `compactor-daemon restore lake/orders --to 20260101120000000 --dry-run`,
    `compactor-daemon restore lake/orders --to 20260101120000000 --sole-writer`"""
    table, lock = at.open("a restore", _TODO)
    expiry_s = kept_attempt_options(table.storage).heartbeat_expiry_s
    done = restore_table(table, lock, to, dry_run=at.dry_run, expiry_s=expiry_s)
    undone = [{"instant": time, "action": action} for time, action in done.undone]
    return CommandResult({**at.row(done), "undone": undone}, _render_restored)


@offers
def rollback_command(
    at: TableChange, instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the newest completed write")]
) -> CommandResult:
    """Roll back the newest completed write. For more than one write, and for compactions: `restore`.

    phantombase's clustering counts as a write: the files that it joined are visible again.

    Refused if anything came after it: a write, a plan, a savepoint, a reader that holds its state. If a run is killed
    before the write is hidden, run it again: writers of other machines wait for that. Behind that the next writer
    finishes it. A rollback of this write that Hudi began is finished.

    Example: `compactor-daemon rollback lake/orders 20260101120000000 --sole-writer`"""
    table, lock = at.open("a rollback", _TODO)
    return CommandResult(at.row(roll_back_newest(table, lock, instant, dry_run=at.dry_run)), _render_rolled_back)


@offers
def repair_command(
    at: TableChange,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="a completed compaction, as the error names it")],
) -> CommandResult:
    """Rewrite the unreadable completed file of a compaction: all reads and writes fail until then.

    Hudi leaves it empty or torn when it is killed while it writes it on a local disk. All base files are written by
    then. So each planned file group is merged again, in this process, and its base file must have just these rows. What
    the file says follows from that, and nothing else is changed.

    Example: `compactor-daemon repair lake/orders 20260101120000000 --sole-writer`"""
    table, lock = at.open("a repair", _TODO)
    return CommandResult(at.row(write_anew(table, instant, lock, dry_run=at.dry_run)), _render_repaired)


_BE = {True: "would be", False: "is"}
"""By whether it is a dry run."""


def _render_repaired(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield (
        f"{data['path']} {_BE[data['dry_run']]} rewritten: {plural(data['file_groups'], 'file group')}, "
        f"{plural(data['rows'], 'row')}, the same as their inputs give"
    )


def _render_restored(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    rows = data["undone"]
    if data["dead"]:
        verb = "would be rolled back first" if data["dry_run"] else "rolled back first"
        yield f"{verb}: {plural(len(data['dead']), 'pending write')} of dead writers: {', '.join(data['dead'])}"
    if rows:
        yield first_rows("would be undone" if data["dry_run"] else "undone", ("instant", "action"), rows)
    elif not data["finished"]:
        yield f"nothing to undo: {data['target']} is the newest write"
        return
    if data["finished"]:
        yield "this restore is in progress" if data["dry_run"] else "finished a restore that was in progress"
    yield f"the state at {data['target']} {_BE[data['dry_run']]} restored: {plural(data['files'], 'file')} removed"
    yield from _dropped(data)


def _dropped(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if data["metadata_dropped"]:
        yield f"the metadata table {_BE[data['dry_run']]} dropped: the next Hudi writer builds it again"


def _render_rolled_back(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    would = data["dry_run"] and not data["rollback"]
    what = "" if data["files"] is None else "clustering "
    by = f" by rollback {data['rollback']}" if data["rollback"] else ""
    files = f": {plural(data['files'], 'file')} that it joined are visible again" if data["files"] else ""
    yield f"{what}{data['instant']} {_BE[would]} rolled back{by}{files}"
    yield from _dropped({**data, "dry_run": would})


@offers
def release(
    at: TableChange,
    instant: Annotated[
        str,
        typer.Argument(
            metavar="INSTANT",
            help="a pending compaction or clustering, as `status` prints it; `clustering`: those that daemons plan",
        ),
    ],
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="also remove an unreadable decision; no process may be at work on it")
    ] = False,
) -> CommandResult:
    """Remove the recorded failures of a pending compaction or clustering, so that a parked one is tried again.

    With `--unreadable`, also remove a decision whose record is damaged: the files that it may have published are
    removed, and it can be decided again. No process may be at work on it, not even a stalled one: stop the daemons
    first.

    Example: `compactor-daemon release lake/orders 20261121091052663`"""
    if unreadable:
        table, lock = at.open(
            "release --unreadable", "An unknown write or compactor may change the same files. --dry-run needs neither."
        )
        taken = cancel_unreadable_attempt(table, instant, lock, kept_attempt_options(table.storage), dry_run=at.dry_run)
    else:
        table, taken = at.opened(), TakenBack(attempt=None)
        if at.lock is not None or at.sole_writer:
            raise UsageError("only --unreadable needs a lock", todo="Leave out --lock and --sole-writer.")
        if instant != CLUSTERING:
            pending_instants(table, instant, clusterings=True)
    removed = release_failures(table.storage, instant, dry_run=at.dry_run)
    return CommandResult({**at.row(taken), "instant": instant, "failures": removed}, status_render.released)
