"""What `timeline read` does with the rows: to the terminal, into a file, or as a stream to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from ..pins.pin import PinOptions
from ..read.changes import ChangeScan, plan
from ..read.export import check_output, export_file, export_stream
from ..read.held_moment import pinned
from ..read.table_read import ReadOptions, Scan
from ..table.table import Table, consistent
from ..terminal.console import emit, reporting
from ..terminal.plain import Row
from ..windows.window import Window
from . import render
from .rows import plain_rows, shown_columns

STDOUT = Path("-")
SHOWN_ROWS = 20
"""Rows that the terminal shows unless a limit is given."""


def read_to(
    open_table: Callable[[], Table],
    options: ReadOptions,
    output: Path | None,
    *,
    pin: PinOptions | None,
    overwrite: bool,
    json: bool,
) -> None:
    """`output`: a file, STDOUT, or None for the terminal. `pin`: held while rows are read."""
    with pinned(open_table, options, pin):
        if output is None:
            _show(open_table(), options, json)
        elif output == STDOUT:
            _stream(open_table, options, json)
        else:
            _export(open_table, options, output, overwrite, json)


def _show(table: Table, options: ReadOptions, json: bool) -> None:
    limit = SHOWN_ROWS if options.limit is None else options.limit
    # One row more tells whether there are more.
    asked = limit if options.limit is not None else limit + 1
    scan, found = consistent(lambda: _read(table.reload(), replace(options, limit=asked)))
    rows = found.slice(0, limit)
    chosen = rows if options.columns is not None or json else rows.select(shown_columns(rows.schema.names))
    data: Row = {
        "table": table.storage.base_path,
        "window": _window(scan.window),
        "columns": chosen.schema.names,
        "more": found.num_rows > limit,
        "rows": plain_rows(chosen),
    }
    emit(data, json, render.rows)


def _read(table: Table, options: ReadOptions) -> tuple[Scan | ChangeScan, pa.Table]:
    scan = plan(table, options)
    return scan, scan.to_table()


def _window(window: Window | None) -> Row | None:
    """The window of an incremental read; its end is the begin of the next."""
    return None if window is None else {"begin": window.begin, "end": window.end}


def _stream(open_table: Callable[[], Table], options: ReadOptions, json: bool) -> None:
    if json:
        raise UsageError("stdout carries the rows, not a report", todo="Leave out --json, or write to a file.")
    if sys.stdout.isatty():
        raise UsageError("rows in binary form to a terminal", todo="Pipe them into a program, or leave out --output.")
    export_stream(consistent(lambda: plan(open_table(), options)), sys.stdout.buffer)


def _export(open_table: Callable[[], Table], options: ReadOptions, output: Path, overwrite: bool, json: bool) -> None:
    table = open_table()
    check_output(table, output, overwrite)
    started = time.monotonic()
    with reporting() as report:

        def show(slices: int, total: int, rows: int) -> None:
            report("reading slices", slices, total, rows=rows)

        done = consistent(lambda: export_file(open_table(), options, output, show))
    data: dict[str, Any] = {
        "table": table.storage.base_path,
        "query": options.query.value,
        "as_of": done.as_of,
        "window": _window(done.window),
        "partition": options.partition,
        "filter": options.filter,
        "limit": options.limit,
        "output": str(output),
        "columns": list(done.columns),
        "slices": done.slices,
        "rows": done.rows,
        "bytes": done.bytes,
        "seconds": round(time.monotonic() - started, 3),
    }
    emit(data, json, render.read)
