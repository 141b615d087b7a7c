"""The `compactor-daemon` command: requests compactions and executes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.access.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.console import EXIT_FAILED, configure_logging, emit, reporting, run
from phantombase.timeline.terminal.local_path import local_path
from phantombase.timeline.terminal.plain import human_bytes, human_duration, plural
from phantombase.timeline.terminal.text_table import Column, RowsTable

from ..attempt.compact_instant import pending_instants
from ..options import AttemptOptions, ExecuteOptions
from ..run.pending import InstantProgress, run_compactions
from .archive import archive_command
from .clean import clean_command
from .demo import current_rows, same_rows, unpack_demo_table
from .metadata import metadata_command
from .option_flags import Only, offers
from .parameters import ATTEMPT, CLOCK, EXECUTE, OUTPUT, Json, Lock, StorageOption, TablePath
from .run import run_daemon
from .savepoint import app as savepoint
from .schedule import schedule
from .status import claims, release, status
from .undo import restore_command, rollback_command
from .unschedule import unschedule_command

app = typer.Typer(
    name="compactor-daemon",
    help="Compacts Apache Hudi MERGE_ON_READ tables without a Hudi JVM.\n\n"
    "A compaction is first *requested* (schedule): a plan on the table's timeline names the file groups and their "
    "log files. Then it is *executed* (compact): base file and logs of each file group become a new base file.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command()
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
    configure_logging(json, verbose=False)
    with _progress() as progress:
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
    emit({"table": table, "compacted": [asdict(r) for r in results.done]}, json, _render_compacted)


@contextmanager
def _progress() -> Iterator[InstantProgress]:
    with reporting() as report:
        yield lambda instant, done, total: report(f"compacting {instant}", done, total)


def _render_compacted(data: Mapping[str, Any]) -> Iterable[RenderableType]:
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


app.command()(schedule)
app.command("run")(run_daemon)
app.command()(status)
app.command()(claims)
app.command()(release)
app.command("unschedule")(unschedule_command)
app.command("clean")(clean_command)
app.command("archive")(archive_command)
app.command("restore")(restore_command)
app.command("rollback")(rollback_command)
app.command("metadata")(metadata_command)
app.add_typer(savepoint)


@app.command()
@offers
def demo(
    execute: Annotated[ExecuteOptions, Only("executor")] = EXECUTE,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", parser=local_path, help="unpack the table here and keep it [default: a temporary folder]"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compact a small table that real Apache Hudi 1.2.0 wrote.

    Shows the pending compactions, executes them, and checks that every row reads the same as before.
    """
    configure_logging(json, verbose=False)
    with tempfile.TemporaryDirectory(prefix="phantombase-demo-") as temporary:
        path = str(unpack_demo_table(keep or Path(temporary)))
        table = Table.open(path)
        pending = pending_instants(table)
        before, before_base = _both_reads(path)
        if not json:
            start = {"pending": pending, "rows": before.num_rows, "current": current_rows(before_base, before)}
            emit(start, json, _render_start)
        with _progress() as progress:
            results = run_compactions(path, output=OUTPUT, execute=execute, attempt=ATTEMPT, progress=progress)
        after, after_base = _both_reads(path)
        data = {
            "table": path if keep else None,
            "pending": list(pending),
            "compacted": [asdict(r) for r in results.done],
            "snapshot_rows": after.num_rows,
            "snapshot_unchanged": same_rows(before, after),
            "rows_current_in_base_files_before": current_rows(before_base, before),
            "rows_current_in_base_files_after": current_rows(after_base, after),
        }
        emit(data, json, _render_demo)
        if not data["snapshot_unchanged"]:
            raise typer.Exit(EXIT_FAILED)


def _both_reads(path: str) -> tuple[pa.Table, pa.Table]:
    """The snapshot and the read-optimized rows of a table."""
    table = Table.open(path)
    return read_table(table), read_table(table, ReadOptions(query=Query.READ_OPTIMIZED))


def _render_start(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield Text("a table written by Apache Hudi 1.2.0 (MERGE_ON_READ, table version 9)")
    for instant in data["pending"]:
        yield Text(f"pending compaction {instant}")
    yield Text(_current(data["current"], data["rows"]))


def _render_demo(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield from _render_compacted(data)
    same = "the same before and after" if data["snapshot_unchanged"] else "CHANGED: this is a bug, please report it"
    yield Text(f"snapshot: {plural(data['snapshot_rows'], 'row')}, {same}")
    yield Text(
        _current(data["rows_current_in_base_files_after"], data["snapshot_rows"])
        + "; the rest was written after the compactions were requested and waits in newer logs"
    )


def _current(current: int, rows: int) -> str:
    return f"base files alone hold the newest version of {current:,} of {plural(rows, 'row')}"


def main() -> None:
    """Console script."""
    run(app)


if __name__ == "__main__":
    main()
