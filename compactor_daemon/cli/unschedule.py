"""The `unschedule` command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.storage.access.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.console import configure_logging, emit
from phantombase.timeline.terminal.plain import plural

from ..removal.unschedule import unschedule
from .parameters import Json, Lock, SoleWriter, StorageOption, TablePath, check_writers_known


def unschedule_command(
    table: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the pending compaction")],
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Take back a requested compaction; its file groups are then free for the next plan.

    Refused while the compaction is being published, while Hudi may be at work on it, and if rows written since would be
    lost or doubled without the plan: then it must be executed. An unreadable plan is taken back if nothing depends on
    it.

    Example: `compactor-daemon unschedule /data/orders 20260101120000000 --sole-writer`
    """
    configure_logging(json, verbose=False)
    check_writers_known(
        lock,
        sole_writer,
        "unschedule needs to know which other processes write to the table",
        "An unknown write may be about to write logs on the plan's slices: without the plan they would be lost.",
    )
    opened = Table.open(table, parse_pairs(storage_option))
    done = unschedule(opened, instant, table_lock(opened.storage, lock, sole_writer=sole_writer))
    emit({"table": table, **asdict(done)}, json, _render)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    ended = f"; {plural(len(data['attempts']), 'attempt')} ended" if data["attempts"] else ""
    groups = plural(data["file_groups"], "file group")
    yield Text(f"unscheduled compaction {data['instant']}: {groups} free for the next plan{ended}")
