"""The `compact` command: executes pending compactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.storage.access.storage_options import parse_pairs
from phantombase.timeline.terminal.console import configure_logging, emit, reporting
from phantombase.timeline.terminal.plain import human_bytes, human_duration
from phantombase.timeline.terminal.text_table import Column, RowsTable

from ..options import AttemptOptions, ExecuteOptions
from ..run.pending import InstantProgress, run_compactions
from .option_flags import Only, offers
from .parameters import ATTEMPT, CLOCK, EXECUTE, OUTPUT, Json, Lock, StorageOption, TablePath


@offers
def compact(
    table: TablePath,
    instant: Annotated[
        str | None, typer.Option(help="only this pending compaction; default: all, earliest first")
    ] = None,
    lock: Lock = None,
    drop_metadata_table_: Annotated[
        bool,
        typer.Option(
            "--drop-metadata-table",
            help="first turn off Hudi's metadata table, if it is on; the next Hudi writer with "
            "hoodie.metadata.enable=true builds it again. Without this option the metadata table is kept up to date",
        ),
    ] = False,
    execute: ExecuteOptions = EXECUTE,
    output: OutputOptions = OUTPUT,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s", "barrier_s", "claim_wait_s", "properties")] = ATTEMPT,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Execute the pending compactions of a table.

    Each file slice is one task of the executor: it merges base file and log files into a new base file under Hudi's
    rules.
    When the ledger of every file group balances, one decision makes all files of the compaction visible. If a run is
    killed, the next one finishes its work.

    Example: `compactor-daemon compact /data/orders`
    """
    configure_logging(json)
    with compacting() as progress:
        results = run_compactions(
            table,
            instant=instant,
            lock=lock,
            drop_metadata=drop_metadata_table_,
            output=output,
            execute=execute,
            attempt=attempt,
            clock=clock,
            storage_options=parse_pairs(storage_option),
            progress=progress,
        )
    emit({"table": table, "compacted": [asdict(r) for r in results.done]}, json, render_compacted)


@contextmanager
def compacting() -> Iterator[InstantProgress]:
    """Shows the progress of compactions."""
    with reporting() as report:
        yield lambda instant, done, total: report(f"compacting {instant}", done, total)


def render_compacted(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    """A table of completed compactions."""
    if not data["compacted"]:
        yield Text("nothing to do: no compaction is pending")
        return
    columns = (
        Column(title="instant", cell=lambda r: r["instant"]),
        Column(title="file groups", cell=lambda r: f"{r['file_groups']:,}", right=True),
        Column(title="rows", cell=lambda r: f"{r['rows']:,}", right=True),
        Column(title="written", cell=lambda r: human_bytes(r["bytes_written"]), right=True),
        Column(title="time", cell=lambda r: human_duration(r["seconds"]), right=True),
        Column(title="", cell=lambda r: "finished an earlier run" if r["resumed"] else ""),
    )
    yield RowsTable(title="compacted", columns=columns, rows=data["compacted"])
