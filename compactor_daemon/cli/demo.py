"""The demo table: a small MERGE_ON_READ table that real Hudi wrote, shipped with the package.

Origin: `demo_table.zip` is the golden table v9_two_pending, written by Apache Hudi 1.2.0 on Spark 3.5 (table version
9; record key `id`, partition `p`, ordering field `ts`): 120 rows, two pending compactions on different
file groups, writes between and after.
"""

from __future__ import annotations

from importlib.resources import files
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.avro.schema import COMMIT_SEQNO, FILE_NAME, RECORD_KEY

_TABLE = "two_pending"


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
