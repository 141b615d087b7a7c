"""A shared table that keeps Hudi's metadata table: what that says is judged with every look at the rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.timeline.format.file_name import COMPACTOR, parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.folders import METADATA_FOLDER
from tests.hudi.cases.rows import DECIMAL, same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import METADATA_TABLE
from tests.hudi.judge.java_client import run_java
from tests.support.selection import ALL

__all__ = ["ALL_INDEXES", "CONDITIONS", "SKIPPING", "IndexedTable", "condition", "placed_by_us", "stored_files"]
_INDEX = "hoodie.metadata.index"
ALL_INDEXES: dict[str, object] = {
    **METADATA_TABLE,
    f"{_INDEX}.column.stats.enable": "true",
    f"{_INDEX}.bloom.filter.enable": "true",
}
"""Statistics of columns are Hudi 1.2.0's default and not Hudi 0.15's; key filters are nobody's."""
SKIPPING: dict[str, object] = {**METADATA_TABLE, "hoodie.enable.data.skipping": "true"}
"""How a query leaves out files by their statistics."""
CONDITIONS = 3 if ALL else 1
"""So many random conditions are asked for when both read a table."""
_REVOKED = 1
"""The size Hudi 0.15 notes of log files whose writer it rolls back; it saves itself asking for the true one."""


@dataclass(frozen=True, kw_only=True)
class IndexedTable(SharedTable):
    """`options` turn the metadata table on; `random` picks the `conditions` of queries, so many a snapshot. `halves`:
    compactions of ours may be half done, and files placed by them are not listed yet."""

    random: random.Random = field(default_factory=lambda: random.Random(0))
    conditions: int = CONDITIONS
    halves: bool = False

    def agree(self) -> pa.Table:
        """So do Hudi's readers through the metadata table, its listing is that of storage, and queries miss no row."""
        rows = super().agree()
        same(self.judge.read(self.path, options=SKIPPING), rows)
        self.check_listing()
        if self.conditions:
            self.check_skipping([condition(rows, self.random) for _ in range(self.conditions)])
        return rows

    def check_listing(self) -> None:
        """The metadata table lists the data files that are there, with their sizes; a restore of ours drops it."""
        if not self.open().config.metadata_partitions:
            return
        listed, stored = self.judge.listed_files(self.path), stored_files(self.path)
        listed |= {file: stored[file] for file, size in listed.items() if size == _REVOKED and file in stored}
        if self.halves:
            stored = {file: size for file, size in stored.items() if file in listed or not placed_by_us(file)}
        assert listed == stored, (
            f"not there: {sorted(listed.keys() - stored.keys())}, not listed: {sorted(stored.keys() - listed.keys())}, "
            f"other sizes: {sorted(f for f in listed.keys() & stored.keys() if listed[f] != stored[f])}"
        )

    def check_skipping(self, conditions: Sequence[str]) -> None:
        """Queries that skip files find what a full scan finds."""
        scanned = self.judge.select(self.path, ["id", *(f"coalesce({text}, false)" for text in conditions)]).rows
        for number, text in enumerate(conditions, start=1):
            expected = sorted(row[0] for row in scanned if row[number])
            found = sorted(row[0] for row in self.judge.select(self.path, ["id"], where=text, options=SKIPPING).rows)
            missing = sorted(set(expected) - set(found))
            assert found == expected, f"where {text}: {len(found)} of {len(expected)} rows, missing {missing[:5]}"


def placed_by_us(file: str) -> bool:
    """Whether a compaction of ours has made a file: by its token."""
    return f"-{COMPACTOR}_" in file


def stored_files(path: Path) -> dict[str, int]:
    """Size in bytes of each data file in storage, by its path below the table."""
    return {
        str(file.relative_to(path)): file.stat().st_size
        for file in path.rglob("*")
        if ".hoodie" not in file.relative_to(path).parts and parse_data_file(file.name) is not None
    }


def condition(rows: pa.Table, pick: random.Random) -> str:
    """A random condition of SQL about values that the rows have."""
    text = " and ".join(_about(rows, column, pick) for column in pick.sample(_columns(rows), pick.choice((1, 1, 2))))
    return f"({text})"


def _columns(rows: pa.Table) -> list[str]:
    return [name for name in _LITERALS if name.partition(".")[0] in rows.schema.names]


def _about(rows: pa.Table, column: str, pick: random.Random) -> str:
    outer, _, inner = column.partition(".")
    values = pc.struct_field(rows[outer], inner) if inner else rows[outer]
    values = values.drop_null().to_pylist()
    tests: list[str] = ["{c} is null", "{c} is not null"]
    if values:
        tests += ["{c} = {a}", "{c} > {a}", "{c} <= {a}", "{c} in ({a}, {b})", "{c} between {a} and {b}"] * 2
    a, b = (_LITERALS[column](pick.choice(values)) if values else "" for _ in "ab")
    return pick.choice(tests).format(c=column, a=a, b=b)


def _quoted(value: Any) -> str:
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


_LITERALS: dict[str, Callable[[Any], str]] = {
    "id": _quoted,
    "p": _quoted,
    "text": _quoted,
    "ts": str,
    "number": str,
    "open": str,
    DECIMAL: str,
    "day": lambda value: f"date'{value}'",
    "place.x": str,
    "place.label": _quoted,
    "seen": lambda value: f"timestamp'{value:%Y-%m-%d %H:%M:%S.%f}'",
}
"""Columns that conditions are about, and how a value of theirs is written in SQL.

Not floating point: of a file with NaN Hudi notes no range, and its queries then leave the file out.
"""
HUDI = {6: "0.15.0", 8: "1.2.0", 9: "1.2.0"}
"""Which real Hudi judges a table version."""
# The metadata table as real Hudi keeps and reads it.


AT_ONCE = MetadataOptions(max_delta_commits=1)


def compact(table: IndexedTable) -> set[str]:
    """The metadata table's compactions by phantombase, one that was pending included; their instants."""
    done = serve_metadata(table.open(), AT_ONCE, ProcessLock("x")).compactions
    assert done
    assert all(one.log_files > 0 for one in done)
    return {one.instant for one in done}


def slices_of_hudi(version: int, path: Path) -> list[str]:
    return sorted(run_java(HUDI[version], "slices", path / METADATA_FOLDER, "files"))
