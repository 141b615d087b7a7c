"""The `unschedule` command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.console import configure_logging, emit
from phantombase.timeline.terminal.plain import plural

from ..removal.unschedule import unschedule
from .parameters import Json, Lock, SoleWriter, TablePath, check_writers_known


def unschedule_command(
    table: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the pending compaction")],
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    json: Json = False,
) -> None:
    """Take a requested compaction back.

    Refused while it is published, where Hudi may be at work on it, and where rows written since would be lost or
    doubled without it: then it is to be executed. Its file groups are free for the next plan. A plan that cannot be
    read is taken back where nothing rests on it.

    Example: `compactor-daemon unschedule /data/orders 20260101120000000 --sole-writer`
    """
    configure_logging(json, verbose=False)
    check_writers_known(
        lock,
        sole_writer,
        "unscheduling needs to know who else writes to the table",
        "An unseen write may be about to write logs on the plan: without it they would be lost.",
    )
    opened = Table.open(table)
    done = unschedule(opened, instant, table_lock(opened.storage, lock))
    emit({"table": table, **asdict(done)}, json, _render)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    ended = f"; {plural(len(data['attempts']), 'attempt')} ended" if data["attempts"] else ""
    groups = plural(data["file_groups"], "file group")
    yield Text(f"unscheduled compaction {data['instant']}: {groups} free for the next plan{ended}")
