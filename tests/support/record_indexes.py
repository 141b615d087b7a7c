"""What a record index says, and where the rows are."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from phantombase import writer
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.metadata_table.records.entries import entry_keys
from phantombase.timeline.metadata_table.records.keys import RowIndex
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import Writer
from tests.hudi.cases.rows import partition
from tests.hudi.judge.client import METADATA_TABLE, Judge

Places: TypeAlias = dict[str, tuple[str, str]]
"""Partition and file id by key."""
_COLUMNS = ("partitionName", "fileIdHighBits", "fileIdLowBits", "fileIndex", "fileId", "fileIdEncoding")


def true_places(path: Path) -> Places:
    """Where a snapshot reader finds each key; one that is there twice is an error."""
    rows = read_table(Table.open(path, reading=True)).select(
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


def secondary_entries(path: Path, partition: str) -> set[str]:
    """The keys of the entries of a secondary index."""
    return {key for key, _ in read_entries(Table.open(path, reading=True), partition)}


def true_secondary(path: Path, column: str) -> set[str]:
    """What they must be, by the rows."""
    found = read_table(Table.open(path, reading=True)).select(["_hoodie_record_key", column])
    key, value = (found.column(number).combine_chunks() for number in range(2))
    return set(entry_keys(RowIndex(partition="", column=column), key, value).to_pylist())


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


# Rows under a global index, and a model of where they lie.


EVENT, COMMIT = MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME
Row = tuple[str, str, int, str]
"""Key, partition, ordering value, text; the text DELETE marks a row that deletes."""
DELETE = "delete"
Placed = dict[str, tuple[str, Row]]
"""The table: by key its folder and row."""


def batch(*rows: Row) -> pa.Table:
    """Rows to write."""
    names = {"id": pa.string(), "p": pa.string(), "ts": pa.int64(), "v": pa.string(), "_hoodie_is_deleted": pa.bool_()}
    data = [[r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows]]
    return pa.table([*data, [r[3] == DELETE for r in rows]], schema=pa.schema(list(names.items())))


@dataclass(kw_only=True)
class World:
    """A table and what it must hold."""

    path: Path
    version: int = 9
    mode: MergeMode = EVENT
    move: bool = True
    buckets: int | None = None
    rows: Placed = field(default_factory=dict)

    def writer(self, rows: pa.Table) -> Writer:
        """A write of these rows."""
        made = writer(rows).table("t", version=self.version).key("id").partition("p").ordering("ts")
        made = made.merge_mode(self.mode).global_keys(move=self.move)
        return made if self.buckets is None else made.buckets(self.buckets)

    def upsert(self, *rows: Row) -> None:
        """Also into the model."""
        self.writer(batch(*rows)).upsert(str(self.path))
        best: dict[str, Row] = {}
        for row in rows:
            if row[0] not in best or row[2] >= best[row[0]][2]:
                best[row[0]] = row
        for key, row in best.items():
            self.met(key, row)

    def met(self, key: str, row: Row) -> None:
        folder, old = self.rows.get(key, (None, None))
        wins = old is None or self.mode is COMMIT or row[2] >= old[2]
        if wins and row[3] == DELETE:
            self.rows.pop(key, None)
        elif wins:
            self.rows[key] = (row[1] if self.move or folder is None else folder, row)

    def delete(self, *rows: Row) -> None:
        """By keys; their partitions do not matter."""
        self.writer(batch(*rows)).delete(str(self.path))
        for row in rows:
            self.rows.pop(row[0], None)

    def check(self) -> None:
        """The table holds every key once, where it must be."""
        found = read_table(Table.open(str(self.path))).to_pylist()
        seen = sorted((r["id"], r["_hoodie_partition_path"], r["p"], r["ts"], r["v"]) for r in found)
        assert seen == sorted((key, folder, *row[1:]) for key, (folder, row) in self.rows.items())


def some_rows(chance: random.Random, world: World, times: Iterator[int]) -> list[Row]:
    """Rows for a table; `times`: ordering values that are later than all before. Late rows only for keys that are
    there: one behind a delete could bring the base file's row back. On version 6 a late row that deletes loses against
    a row in a log file, and wins against one in a base file."""
    rows = list[Row]()
    for key in chance.sample([f"{p}{n}" for p in "abc" for n in range(12)], 8):
        late = key in world.rows and chance.random() < 0.4
        texts = ["x", "y"] if late and world.version == 6 else ["x", "y", DELETE]
        rows.append((key, chance.choice("abcd"), chance.randrange(100) if late else next(times), chance.choice(texts)))
    return rows
