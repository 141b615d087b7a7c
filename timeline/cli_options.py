"""Arguments and options that commands about one table share."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer

from timeline.metadata_table.listing import MetadataListing
from timeline.table import Table


class ListedBy(Enum):
    """What names a table's partitions and files."""

    STORAGE = "storage"
    METADATA = "metadata"

    def open(self, path: str) -> Table:
        """The table, listed that way."""
        table = Table.open(path)
        return table if self is ListedBy.STORAGE else replace(table, listing=MetadataListing())


TablePath = Annotated[str, typer.Argument(metavar="TABLE", help="Base path: the folder that holds .hoodie.")]
Partition = Annotated[
    str | None,
    typer.Option("--partition", metavar="P", help="Only partitions at or under this path, e.g. year=2026."),
]
Listing = Annotated[
    ListedBy,
    typer.Option(
        "--listing", help="What names partitions and files: folders, or Hudi's metadata table where it is on."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document: sizes in bytes, times in seconds.")]
