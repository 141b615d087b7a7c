"""What a record index says, and where the rows are."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import partition
from tests.hudi.judge.client import METADATA_TABLE, Judge

Places: TypeAlias = dict[str, tuple[str, str]]
"""Partition and file id by key."""
_COLUMNS = ("partitionName", "fileIdHighBits", "fileIdLowBits", "fileIndex", "fileId", "fileIdEncoding")


def true_places(path: Path) -> Places:
    """Where a snapshot reader finds each key; one that is there twice is an error."""
    rows = read_table(Table.open(str(path))).select(
        ["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]
    )
    found = {
        key: (partition, name.split("_")[0]) for key, partition, name in zip(*rows.to_pydict().values(), strict=True)
    }
    assert len(found) == rows.num_rows, "doubled rows"
    return found


def indexed_places(path: Path) -> Places:
    """What the record index says, as phantombase reads it."""
    entries = read_entries(Table.open(str(path)), "record_index")
    return {key: _place(record["recordIndexMetadata"]) for key, record in entries}


def hudi_places(judge: Judge, path: Path) -> Places:
    """The same, as Hudi reads the metadata table."""
    columns = ["key", *(f"recordIndexMetadata.{name}" for name in _COLUMNS)]
    found = judge.select(path / ".hoodie/metadata", columns, where="type = 5", options=METADATA_TABLE).rows
    assert len({row[0] for row in found}) == len(found), "a key twice"
    return {row[0]: _place(dict(zip(_COLUMNS, row[1:], strict=True))) for row in found}


def _place(info: Mapping[str, Any]) -> tuple[str, str]:
    if info["fileIdEncoding"] == 1:
        return info["partitionName"], info["fileId"]
    high, low = (info[name] & (2**64 - 1) for name in ("fileIdHighBits", "fileIdLowBits"))
    number = "" if info["fileIndex"] == -1 else f"-{info['fileIndex']}"
    return info["partitionName"], f"{uuid.UUID(int=high << 64 | low)}{number}"


def check_index(path: Path) -> Places:
    """The index is there, and says where every key is, and nothing else."""
    assert "record_index" in Table.open(str(path)).config.built_metadata_partitions, "it was taken out"
    expected = true_places(path)
    assert indexed_places(path) == expected
    return expected


def rows(numbers: object, ts: int, **columns: object) -> pa.Table:
    """Keys in the partitions that are theirs."""
    given = list(numbers)  # type: ignore[call-overload]
    return pa.table(
        {"id": [f"{n:05d}" for n in given], "p": [partition(n) for n in given], "ts": [ts] * len(given), **columns}
    )


def keys(*numbers: int) -> set[str]:
    return {f"{n:05d}" for n in numbers}


def set_partitions(path: Path, names: str) -> None:
    """The metadata table's partitions as hoodie.properties names them."""
    properties = path / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + f"\nhoodie.table.metadata.partitions={names}\n".encode())
