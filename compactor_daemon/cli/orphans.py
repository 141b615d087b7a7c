"""The command `orphans`: files that nothing names, and why the others stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.terminal.command import CommandResult, Tries
from phantombase.timeline.terminal.text_table import Column, RowsTable, duration, human_bytes, plain, plural, size

from ..orphans.choice import OrphanOptions
from ..orphans.remove import remove_orphans
from .option_flags import TableChange, offers

_SHOWN = 40
"""The most rows shown; JSON has all."""


@offers
def orphans_command(
    at: Annotated[TableChange, Tries("change nothing, also with --remove")],
    options: OrphanOptions,
    remove: Annotated[bool, typer.Option("--remove", help="remove the files that are shown otherwise")] = False,
) -> CommandResult:
    """Show the files that no record of a table names, and remove them with --remove.

    Such files are left by writers that were killed, and by tasks that outlived the rollback of their write. No reader
    sees them, but archiving stops before their instant. A file stays while an instant on the timeline or in the
    archive, a plan, a savepoint, a pin, a heartbeat, a marker, the metadata table or a record of an attempt names it,
    and while it is younger than `--older-than`. Files with names of neither Hudi nor phantombase are only counted.

    Without `--remove` nothing changes, and no lock is taken: what is removed cannot be brought back, and only this
    service removes what no plan names. With `--remove` one of these is needed: `--lock`, if all writers share that
    lock, or `--sole-writer`. If a run is killed, the next one removes the rest.

    Examples: `compactor-daemon orphans /data/orders`,
    `compactor-daemon orphans /data/orders --older-than 7d --remove --lock LOCK`
    """
    at = replace(at, dry_run=at.dry_run or not remove)
    table, lock = at.open(
        "orphans --remove needs to know which other processes write to the table",
        "A process that undoes or completes a write meanwhile must share the lock. Without --remove neither is needed.",
    )
    return CommandResult(at.row(remove_orphans(table, options, lock, dry_run=at.dry_run)), _render_orphans)


def _render_orphans(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    rows = data["orphans"]
    if not rows:
        yield Text("no orphan files")
    else:
        shown = f", {_SHOWN} of {len(rows)} shown (--json has all)" if len(rows) > _SHOWN else ""
        yield RowsTable(
            title=("orphan files" if data["dry_run"] else "removed") + shown,
            columns=(
                Column(title="path", cell=plain("path")),
                Column(title="", cell=plain("kind")),
                Column(title="why", cell=plain("why")),
                Column(title="bytes", cell=size("bytes"), right=True),
                Column(title="age", cell=duration("age_s"), right=True),
            ),
            rows=rows[:_SHOWN],
        )
        todo = "; --remove removes them" if data["dry_run"] else ""
        yield Text(f"{plural(data['files'], 'file')}, {human_bytes(data['bytes'])}{todo}")
    if data["uploads"]:
        did = "would be aborted" if data["dry_run"] else "aborted"
        yield Text(f"{plural(data['uploads'], 'unfinished upload')} {did}")
    for why, count in sorted(data["reasons"].items()):
        yield Text(f"{plural(count, 'item')} kept: {why}")
    if data["foreign"]:
        yield Text(
            f"{plural(len(data['foreign']), 'file')} with names of neither Hudi nor phantombase kept, as "
            f"{data['foreign'][0]}"
        )
