"""`compactor-daemon archive`: moves old instants into the archive, or shows which would go, and why the others stay."""

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

from ...archiving.archive import archive_table
from ...archiving.choice import ArchiveOptions
from ..option_flags import CLOCK, Json, Lock, SoleWriter, StorageOption, TablePath, offers, open_to_change

_ARCHIVE = ArchiveOptions()
_SHOWN = 40
"""The most instants shown of each kind; JSON has all."""


@offers
def archive_command(
    table: TablePath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="change nothing; show which instants would go, and why the others stay")
    ] = False,
    options: ArchiveOptions = _ARCHIVE,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Move the oldest completed instants from the active timeline into the archive, as Hudi does after commits.

    Every read and write lists the active timeline, so it must not grow without end. Archived instants count as before:
    no row changes, and no data file is touched.

    An instant stays while something needs it: a pending instant, a savepoint, replaced files that no clean has removed,
    a trigger of compactions, the metadata table (before its first compaction nothing is archived), a compaction that
    phantombase has not cleaned up behind. The output says what stopped it.

    It must not race with another process that archives, so one of these is needed: `--lock`, if all writers share that
    lock, or `--sole-writer`, if no other process writes. If a run is killed, the next one finishes its work.

    Examples: `compactor-daemon archive /data/orders --dry-run`,
    `compactor-daemon archive /data/orders --min-instants 50 --max-instants 60 --sole-writer`
    """
    configure_logging(json)
    opened, held = open_to_change(
        table,
        storage_option,
        lock,
        sole_writer,
        "archive needs to know which other processes write to the table",
        "Two processes that archive at once could lose instants of the archive. --dry-run needs neither.",
        clock=clock,
        dry_run=dry_run,
    )
    done = archive_table(opened, options, held, dry_run=dry_run)
    data = {
        "table": table,
        "dry_run": dry_run,
        "instants": len(done.archived),
        "files": sum(one.files for one in done.archived),
        "bytes": sum(one.bytes for one in done.archived),
        **asdict(done),
    }
    emit(data, json, _render)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if data["finished"]:
        count = plural(len(data["finished"]), "archived instant")
        did = "an earlier run would be finished" if data["dry_run"] else "finished an earlier run"
        yield Text(f"{did}: {count} removed")
    if not data["archived"]:
        yield Text(f"nothing to archive: {data['why']}")
    else:
        verb = "would be archived" if data["dry_run"] else "archived"
        yield RowsTable(
            title=_title(verb, data["archived"]),
            columns=(
                Column(title="instant", cell=lambda r: r["instant"]),
                Column(title="action", cell=lambda r: r["action"]),
                Column(title="files", cell=lambda r: str(r["files"]), right=True),
                Column(title="bytes", cell=lambda r: human_bytes(r["bytes"]), right=True),
            ),
            rows=data["archived"][:_SHOWN],
        )
    others = [one for one in data["kept"] if one["why"] != data["why"]]
    if data["dry_run"] and data["kept"] and (data["archived"] or others):
        yield RowsTable(
            title=_title("would stay", data["kept"]),
            columns=(
                Column(title="instant", cell=lambda r: r["instant"]),
                Column(title="action", cell=lambda r: r["action"]),
                Column(title="why", cell=lambda r: r["why"]),
            ),
            rows=data["kept"][:_SHOWN],
        )
    if data["archived"]:
        yield Text(
            f"{plural(data['instants'], 'instant')}, {plural(data['files'], 'file')} of the active timeline, "
            f"{human_bytes(data['bytes'])}"
        )


def _title(what: str, rows: list[Any]) -> str:
    more = f", {_SHOWN} of them shown (--json has all)" if len(rows) > _SHOWN else ""
    return f"{what}: {plural(len(rows), 'instant')}{more}"
