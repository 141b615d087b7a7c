"""`timeline pins`: which readers hold what of a table."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from ..pins.pin import all_pins
from ..pins.pin import release as release_pins
from ..storage.server_clock import storage_ms
from ..storage.storage_options import parse_pairs
from ..table.table import Table
from ..terminal.console import emit
from ..terminal.text_table import Row
from . import render
from .parameters import Json, StorageOption, TablePath


def pins(
    path: TablePath,
    release: Annotated[
        str | None, typer.Option("--release", metavar="NAME", help="Remove the pins of this name: its reader is gone.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --release: change nothing, only count them.")
    ] = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Which readers hold old states of a table, and until when.

    A [b]pin[/b] names the earliest moment whose state its reader needs. Cleaners of phantombase keep that state and all
    later ones until the pin is removed or expires; Hudi's own cleaner knows no pins. Moments are completion times, on
    version 6 requested times. A reader whose pin was released goes on without it.

    [b]Examples[/b]
      timeline pins /data/trips
      timeline pins /data/trips --release nightly-copy
    """
    if dry_run and release is None:
        raise UsageError("nothing to try: pins are only shown", found="--dry-run", todo="Give --release, too.")
    table = Table.open(path, parse_pairs(storage_option))
    released = None if release is None else release_pins(table.storage, release, dry_run=dry_run)
    emit(_report(table, released, dry_run), json, render.pins)


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
