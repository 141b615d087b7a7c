"""The `demo` command, and its table: a small MERGE_ON_READ table that real Hudi wrote, shipped with the package.

Origin: `demo_table.zip` is the golden table v9_two_pending, written by Apache Hudi 1.2.0 on Spark 3.5 (table version
9; record key `id`, partition `p`, ordering field `ts`): 120 rows, two pending compactions on different
file groups, writes between and after.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.avro.schema import COMMIT_SEQNO, FILE_NAME, RECORD_KEY
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.boundary import EXIT_FAILED
from phantombase.timeline.terminal.console import configure_logging, emit
from phantombase.timeline.terminal.local_path import local_path
from phantombase.timeline.terminal.plain import plural

from ..attempt.compact_instant import pending_instants
from ..options import ExecuteOptions
from ..run.pending import run_compactions
from .compact import compacting, render_compacted
from .option_flags import Only, offers
from .parameters import ATTEMPT, EXECUTE, OUTPUT, Json

_TABLE = "two_pending"


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
    configure_logging(json)
    with tempfile.TemporaryDirectory(prefix="phantombase-demo-") as temporary:
        path = str(unpack_demo_table(keep or Path(temporary)))
        table = Table.open(path)
        pending = pending_instants(table)
        before, before_base = _both_reads(path)
        if not json:
            start = {"pending": pending, "rows": before.num_rows, "current": current_rows(before_base, before)}
            emit(start, json, _render_start)
        with compacting() as progress:
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
    yield from render_compacted(data)
    same = "the same before and after" if data["snapshot_unchanged"] else "CHANGED: this is a bug, please report it"
    yield Text(f"snapshot: {plural(data['snapshot_rows'], 'row')}, {same}")
    yield Text(
        _current(data["rows_current_in_base_files_after"], data["snapshot_rows"])
        + "; the rest was written after the compactions were requested and waits in newer logs"
    )


def _current(current: int, rows: int) -> str:
    return f"base files alone hold the newest version of {current:,} of {plural(rows, 'row')}"


def unpack_demo_table(into: Path) -> Path:
    """Writes the demo table below `into` and returns its base path."""
    data = files(__package__).joinpath("demo_table.zip").read_bytes()
    with ZipFile(BytesIO(data), metadata_encoding="utf-8") as archive:
        archive.extractall(into, [n for n in archive.namelist() if n.startswith(f"{_TABLE}/")])
    return into / _TABLE


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """Whether two reads hold the same rows, in any order and in any file."""

    def ordered(rows: pa.Table) -> pa.Table:
        return rows.drop_columns([FILE_NAME]).sort_by(RECORD_KEY).combine_chunks()

    return bool(ordered(left).equals(ordered(right)))


def current_rows(base_files: pa.Table, snapshot: pa.Table) -> int:
    """How many rows of the snapshot have their newest version in the base files."""
    newest = pc.is_in(snapshot.column(COMMIT_SEQNO), base_files.column(COMMIT_SEQNO))
    return int(pc.sum(newest).as_py() or 0)
