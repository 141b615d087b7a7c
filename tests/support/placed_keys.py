"""Rows under a global index, and a model of where they lie."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from phantombase import writer
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import Writer

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
    """Rows for a table; `times`: ordering values that are later than all before.

    Late rows only for keys that are there: one behind a delete could bring the base file's row back. On version 6 a
    late row that deletes loses against a row in a log file, and wins against one in a base file.
    """
    rows = list[Row]()
    for key in chance.sample([f"{p}{n}" for p in "abc" for n in range(12)], 8):
        late = key in world.rows and chance.random() < 0.4
        texts = ["x", "y"] if late and world.version == 6 else ["x", "y", DELETE]
        rows.append((key, chance.choice("abcd"), chance.randrange(100) if late else next(times), chance.choice(texts)))
    return rows
