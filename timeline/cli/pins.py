"""`timeline pins`: what readers hold, for how long still, and a way to let go of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from ..errors import UsageError
from ..pins.pins import pins as all_pins
from ..pins.pins import release_pin
from ..storage.access.storage_options import parse_pairs
from ..storage.server_clock import storage_ms
from ..table.table import Table
from ..terminal.console import emit
from ..terminal.plain import Row, human_duration, plural
from ..terminal.text_table import Column, RowsTable
from .parameters import Json, StorageOption, TablePath


def pins(
    path: TablePath,
    release: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove this pin: what it holds may be cleaned then.")
    ] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """The pins of a table: what its readers hold, so that no cleaner of phantombase removes it.

    A stream or a long read leaves a [b]pin[/b]: a moment, from which on the states of the table must stay whole. It
    expires by itself when its reader is gone. Hudi's own cleaner does not know pins.

    [b]Examples[/b]
      timeline pins /data/trips
      timeline pins /data/trips --release nightly-export
    """
    table = Table.open(path, parse_pairs(storage_option))
    if release is not None and not release_pin(table.storage, release):
        raise UsageError("no such pin", path=table.storage.base_path, found=release)
    emit(_report(table, release), json, _render)


def _report(table: Table, released: str | None) -> Row:
    found = all_pins(table.storage)
    now_ms = storage_ms(table.storage) if found else 0
    return {
        "table": table.storage.base_path,
        "released": released,
        "pins": [
            {
                "name": one.pin.name,
                "from": one.pin.moment,
                "axis": one.pin.axis,
                "holder": one.pin.holder,
                "left_s": (one.expires_ms() - now_ms) / 1000,
                "expired": not one.is_live(now_ms),
            }
            for one in found
        ],
    }


_COLUMNS = (
    Column(title="pin", cell=lambda r: r["name"]),
    Column(title="from", cell=lambda r: r["from"]),
    Column(title="time is", cell=lambda r: r["axis"]),
    Column(title="holder", cell=lambda r: r["holder"]),
    Column(title="left", cell=lambda r: "expired" if r["expired"] else human_duration(r["left_s"]), right=True),
)


def _render(data: Row) -> Iterator[RenderableType]:
    if data["released"]:
        yield Text(f"released: {data['released']}")
    if data["pins"]:
        yield RowsTable(title=plural(len(data["pins"]), "pin"), columns=_COLUMNS, rows=data["pins"])
    else:
        yield Text("No reader holds anything.")
