"""`timeline read`: rows of a table, to the terminal, into a file, or as a stream; `timeline pins`: who holds what.

Neither changes anything but pins (`--pin`, `--release`)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from ..codec.columns import as_json
from ..errors import UsageError
from ..read.changes import plan
from ..read.export import check_output, export_file, export_stream
from ..read.pins import PIN_FOR, PinOptions, all_pins, pinned
from ..read.pins import release as release_pins
from ..read.table_read import SHOWN_ROWS, ReadOptions
from ..read.windows import Window
from ..storage.server_clock import storage_ms
from ..storage.storage_options import parse_pairs
from ..table.table import Table, from_one_snapshot
from ..terminal.boundary import local_path
from ..terminal.command import CommandResult, StorageOption, command
from ..terminal.console import reporting
from ..terminal.text_table import Row
from . import render
from .render import CLOCK, ListedBy, Listing, TablePath, Timezone


@command
def pins(
    path: TablePath,
    release: Annotated[
        str | None,
        typer.Option("--release", metavar="NAME", help="Remove the pins of this name: its reader has ended."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --release: change nothing, only count them.")
    ] = False,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Which readers hold old states of a table, and until when.

    A [b]pin[/b] names the earliest moment whose state its reader needs. Cleaners of phantombase keep that state and all
    later ones until the pin is removed or expires; Hudi's own cleaner knows no pins. Moments are completion times, on
    version 6 requested times. A reader whose pin was released continues without it.

    [b]Examples[/b]
      timeline pins /data/trips
      timeline pins /data/trips --release nightly-copy"""
    if dry_run and release is None:
        raise UsageError("nothing to try: pins are only shown", found="--dry-run", todo="Give --release, too.")
    table = Table.open(path, parse_pairs(storage_option))
    released = None if release is None else release_pins(table.storage, release, dry_run=dry_run)
    return CommandResult(_report(table, released, dry_run), render.pins)


def _report(table: Table, released: int | None, dry_run: bool) -> Row:
    found = all_pins(table.storage)
    now_ms = storage_ms(table.storage) if found else 0
    rows = [
        {
            "name": pin.name,
            "holds": pin.holds or "earliest",
            "holder": pin.holder,
            "expires_in_s": (pin.expires_ms - now_ms) / 1000,
            "live": pin.is_live(now_ms),
        }
        for pin in found
    ]
    return {"table": table.storage.base_path, "dry_run": dry_run, "released": released, "pins": rows}


STDOUT = Path("-")


def _shown(table: Table, options: ReadOptions) -> CommandResult:
    limit = SHOWN_ROWS if options.limit is None else options.limit
    # One row more tells whether there are more.
    asked = replace(options, limit=limit if options.limit is not None else limit + 1)

    def load() -> tuple[Window | None, pa.Table]:
        scan = plan(table.snapshot(cached=False), asked)
        return scan.window, scan.to_table()

    window, found = from_one_snapshot(load)
    data: Row = {
        "table": table.storage.base_path,
        "window": _window(window),
        "columns": found.schema.names,
        "more": found.num_rows > limit,
        "rows": _plain_rows(found.slice(0, limit)),
    }
    return CommandResult(data, partial(render.rows, every_column=options.columns is not None))


def _plain_rows(rows: pa.Table) -> list[Row]:
    found = pa.Table.from_arrays([as_json(one) for one in rows.columns], names=rows.schema.names).to_pylist()
    return [{name: _plain_value(value) for name, value in row.items()} for row in found]


def _plain_value(value: Any) -> Any:
    """A value as JSON has it: bytes as hex digits, floats without a number as text; for others see `as_json`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    return str(value)


def _window(window: Window | None) -> Row | None:
    """The window of an incremental read; its end is the begin of the next."""
    return None if window is None else {"begin": window.begin, "end": window.end}


def _stream(open_table: Callable[[], Table], options: ReadOptions, json: bool) -> None:
    if json:
        raise UsageError("stdout carries the rows, not a report", todo="Leave out --json, or write to a file.")
    if sys.stdout.isatty():
        raise UsageError("rows in binary form to a terminal", todo="Pipe them into a program, or leave out --output.")
    export_stream(from_one_snapshot(lambda: plan(open_table(), options)), sys.stdout.buffer)


def _exported(open_table: Callable[[], Table], options: ReadOptions, output: Path, overwrite: bool) -> CommandResult:
    table = open_table()
    check_output(table, output, overwrite)
    started = time.monotonic()
    with reporting() as report:

        def show(slices: int, total: int, rows: int) -> None:
            report("reading slices", slices, total, rows=rows)

        done = from_one_snapshot(lambda: export_file(open_table(), options, output, show))
    data = {
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
    return CommandResult(data, render.read)


@command
def read(
    ctx: typer.Context,
    path: TablePath,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            parser=local_path,
            help="Write FILE: .parquet, .arrow, .csv or .json (a row a line); - is stdout, as Arrow IPC.",
        ),
    ] = None,
    chosen: ReadOptions,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these columns, in the table's order.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--filter", metavar="CONDITION", help="Only rows for which it is true.")
    ] = None,
    pin: Annotated[str | None, typer.Option(metavar="NAME", help="Hold what is read by a pin of this name.")] = None,
    pin_for: Annotated[
        str | None,
        typer.Option(metavar="DURATION", show_default=PIN_FOR, help="How long the pin holds if it is not renewed."),
    ] = None,
    listing: Listing = ListedBy.STORAGE,
    timezone: Timezone = CLOCK.timezone,
    storage_option: StorageOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
) -> Iterator[CommandResult]:
    """Read a table: rows to the terminal, or all of them into one file.

    [b]snapshot[/b]: everything committed so far; base files merged with their logs, also while compactions are
    pending. [b]read-optimized[/b]: base files only; faster, without rows that are only in logs.
    [b]incremental[/b]: rows that the writes after `--begin`, up to and with `--end`, have written, as they were at the
    end. Both are completion times, on version 6 requested times. Deletes are not reported. The next `--begin` is the
    `end` that this read prints with `--json`.
    [b]changes[/b]: what each write of such a window did: `op` (i, u or d), `instant`, and the row `before` and `after`.
    `--filter` is a condition as in SQL's WHERE. `--as-of` is a time in the zone of the table's instants.
    FILE appears when everything is read: a failed read leaves no file. If a writer removes a file that is still to
    be read, reading starts over. On stdout (an Arrow IPC stream) a failed read ends inside a message.

    [b]Examples[/b]
      timeline read /data/trips --filter "fare > 10 and zone = 'a'" --limit 5
      timeline read /data/trips --output trips.parquet
      timeline read /data/trips --query read-optimized --output fares.arrow
      timeline read /data/trips --as-of '2026-11-21 09:00:00' --output then.parquet
      timeline read /data/trips --query incremental --begin 20261121090000000"""
    if overwrite and output in (None, STDOUT):
        raise UsageError("--overwrite replaces a file", todo="Give --output FILE, or leave it out.")
    held = PinOptions.asked(pin, pin_for)
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    options = replace(chosen, columns=names, filter=where)
    opened = partial(listing.open, path, timezone, parse_pairs(storage_option))
    with pinned(opened, options, held):
        if output is None:
            yield _shown(opened(), options)
        elif output == STDOUT:
            _stream(opened, options, ctx.params["json"])
        else:
            yield _exported(opened, options, output, overwrite)
