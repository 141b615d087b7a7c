"""Arguments and options that all commands for one table share."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Annotated

import typer

from ..instants.clock_check import ClockOptions
from ..option import help_of
from ..storage.storage_options import Given
from ..table.table import Table
from ..terminal.command import command

CLOCK = ClockOptions()


class ListedBy(Enum):
    """Where the names of a table's partitions and files come from."""

    STORAGE = "storage"
    METADATA = "metadata"

    def open(self, path: str, timezone: str = CLOCK.timezone, storage_options: Given = None) -> Table:
        table = Table.open(path, storage_options, reading=True).with_clock(ClockOptions(timezone=timezone))
        if self is ListedBy.STORAGE:
            return table
        from ..metadata_table.read import MetadataListing  # late: a start is shorter without

        return replace(table, listing=MetadataListing())


TablePath = Annotated[
    str, typer.Argument(metavar="TABLE", help="base path of the table: the folder that holds .hoodie")
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option", metavar="NAME=VALUE", help="An option of the object store, e.g. region=eu-west-1."
    ),
]
Partition = Annotated[
    str | None, typer.Option("--partition", metavar="P", help="Only partitions at or under this path, e.g. year=2026.")
]
Listing = Annotated[
    ListedBy,
    typer.Option(
        "--listing", help="What names partitions and files: folders, or Hudi's metadata table if the table has one."
    ),
]
Timezone = Annotated[str, typer.Option(metavar="ZONE", help=help_of(ClockOptions, "timezone"))]
Json = Annotated[bool, typer.Option("--json", help="One JSON document: sizes in bytes, times in seconds.")]
reports = partial(command, json=Json)
"""A command of this program that ends with a report, see `command`."""
