"""Copies the row groups of small files into one as bytes, and says where that cannot be done.

    reencode  rows are decoded, and encoded into large row groups
    try       a new file is copied if no row group in it is small, and no file has an obstacle, see `copy_rules`
    force     it is copied, however small its row groups are

The keys, and what else identifies a row, are decoded all the same: for the key filter, the key range and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.copied_file import CopiedFile
from phantombase.timeline.codec.copy_rules import Obstacle, why_not_copied
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_footer import Footer, read_footer
from phantombase.timeline.codec.parquet_write import HudiFooter
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import FileSlice

from .choice import ClusteringWindow
from .options import Copy
from .rows_in import RowsIn

LEAST_GROUP_BYTES = 8 << 20
"""Row groups below it are not copied by `try`: a file of them takes longer to read, each time."""


def why_encoded(storage: Storage, slices: Sequence[FileSlice], schema: pa.Schema, copy: Copy) -> Obstacle | None:
    """Why the base files of these slices are not copied into one; None: they are.

    `schema`: the table's. Errors: as in any read of the files.
    """
    least = 0 if copy is Copy.FORCE else LEAST_GROUP_BYTES
    for one in slices:
        if one.base_bytes < least:  # its footer need not be read
            return Obstacle(
                why="small row groups",
                path=_path(one),
                expected=f"row groups of {least} bytes at least",
                found=f"a file of {one.base_bytes} bytes",
            )
    return why_not_copied(_footers(storage, slices), schema, least)


def _footers(storage: Storage, slices: Sequence[FileSlice]) -> Iterator[Footer]:
    for one in slices:
        with storage.open_input(_path(one), whole=False) as source:
            footer = read_footer(source, _path(one))
        yield footer


def _path(one: FileSlice) -> str:
    assert one.base is not None, "only slices with a base file are clustered"
    return one.base.path


def cannot_copy(obstacle: Obstacle, where: str) -> UnsupportedError:
    """The error of `force`. `where`: the table."""
    return UnsupportedError(
        f"files that are to be clustered cannot be copied as bytes: {obstacle.why}",
        path=f"{where}/{obstacle.path}",
        expected=obstacle.expected,
        found=obstacle.found,
        todo="Use --copy try, which encodes the rows of such files anew, or leave --copy out.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What of the windows of a run is copied. Each is looked at once: its files never change."""

    storage: Storage
    copy: Copy
    _seen: dict[ClusteringWindow, Obstacle | None] = field(default_factory=dict)

    def obstacles(self, windows: Sequence[ClusteringWindow], schema: pa.Schema) -> list[Obstacle | None]:
        """For each window what is in the way, None: it is copied. UnsupportedError: it must be, and cannot."""
        for one in windows:
            if one not in self._seen:
                self._seen[one] = why_encoded(self.storage, one.slices, schema, self.copy)
        found = [self._seen[one] for one in windows]
        for obstacle in found if self.copy is Copy.FORCE else ():
            if obstacle is not None:
                raise cannot_copy(obstacle, self.storage.base_path)
        return found


def write_copied(
    storage: Storage,
    file: IO[bytes],
    rows_in: RowsIn,
    *,
    name: str,
    schema: pa.Schema,
    text: str,
    output: OutputOptions,
) -> CopiedFile:
    """Writes the base file, of inputs that have no obstacle. `name`: its final name; `text`: the Avro schema.

    Memory: a batch of keys, the key filter, and 4 MiB.
    """
    has_keys = RECORD_KEY in schema.names
    pairs = HudiFooter(text, output.bloom, has_keys=has_keys)
    copied: CopiedFile | None = None
    for path, source in rows_in.opened():
        with source:
            footer = read_footer(source, path)
            for keys in rows_in.keys_of(path, source):
                if has_keys:
                    pairs.add(keys.column(RECORD_KEY))
            copied = copied or CopiedFile(file, footer, name=name, codec=output.codec.value)
            copied.add(source, footer)
    assert copied is not None, "a window has files"
    copied.finish(pairs.key_values())
    return copied
