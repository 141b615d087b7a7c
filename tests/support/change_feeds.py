"""Change feeds as tests check them: replayed over the state at the begin they give the state at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.format.commit_metadata import SERVICE_OPERATIONS, encode
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.windows.retained import earliest_whole
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden

META = {"_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"}
State: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""Rows by partition and key, without what a log compaction or the place of a row changes."""


def state(table: Table, moment: str) -> State:
    """The table at a moment, by an incremental read of everything before it."""
    if not moment:
        return {}
    rows = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin="earliest", end=moment)).to_pylist()
    found = {key(row): plain(row) for row in rows}
    assert len(found) == len(rows)
    return found


def key(row: dict[str, Any]) -> tuple[str, str]:
    """Partition and key."""
    return row["_hoodie_partition_path"], row["_hoodie_record_key"]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row as `State` has it."""
    return {name: repr(value) for name, value in row.items() if name not in META}


def feed(table: Table, begin: str, end: str | None = None, **more: Any) -> list[dict[str, Any]]:
    """The changes of a window; `begin`: "" is before everything."""
    options = ReadOptions(query=Query.CHANGES, begin=begin or "earliest", end=end, **more)
    return plan(table, options).to_table().to_pylist()  # type: ignore[no-any-return]


def replay(changes: list[dict[str, Any]], at: State) -> State:
    """The state after the changes; each must fit what it meets."""
    now = dict(at)
    for change in changes:
        before, after = change["before"], change["after"]
        assert (before is None, after is None) == {"i": (True, False), "u": (False, False), "d": (False, True)}[
            change["op"]
        ]
        if before is not None:
            assert now.pop(key(before)) == plain(before)
        if after is not None:
            assert key(after) not in now
            now[key(after)] = plain(after)
    return now


def moments_of(table: Table) -> list[str]:
    """The moments of a table whose states are whole, earliest first."""
    timeline = table.load_timeline(archived=True)
    earliest = earliest_whole(table, timeline)
    found = sorted({timeline.moment_of(w) for w in timeline.completed} | ({earliest} if earliest else set()))
    return ([] if earliest else [""]) + [m for m in found if m >= earliest]


def services_of(table: Table) -> set[str]:
    """Requested times of the table services that are not archived."""
    done = table.load_timeline().completed
    return {w.requested_time for w in done if table.commit_metadata(w).operation_type in SERVICE_OPERATIONS}


def check_window(table: Table, begin: str, end: str, states: dict[str, State], same: int = 0) -> None:
    """Write by write and net: the same end, no change by a service, and net each key once.

    `same`: how many times at most the window's writes have put a row in the place of an equal one.
    """
    services = services_of(table)
    for net in (False, True):
        changes = feed(table, begin, end, net=net)
        assert replay(changes, states[begin]) == states[end]
        assert not services & {change["instant"] for change in changes}
        updates = [change for change in changes if change["op"] == "u"]
        assert sum(plain(change["before"]) == plain(change["after"]) for change in updates) <= same
        if net:
            keys = Counter(key(change["after"] or change["before"]) for change in changes)
            assert set(keys.values()) <= {1}


def restamped_by_clustering(folder: Path) -> Table:
    """As with hoodie.clustering.preserve.commit.metadata=false: all its rows carry the time of the clustering."""
    path = unzip_golden("v9_clustered", folder)
    table = open_table(path)
    (clustering,) = services_of(table)
    for made in path.rglob(f"*_{clustering}.parquet"):
        rows = pq.read_table(made)
        at = rows.schema.get_field_index("_hoodie_commit_time")
        stamped = rows.set_column(at, rows.schema.field(at), pa.array([clustering] * rows.num_rows))
        pq.write_table(stamped, made)
        sizes = {str(made.relative_to(path)): made.stat().st_size}
        write = table.load_timeline().completed_writes[clustering]
        metadata = table.commit_metadata(write)
        stats = {
            partition: tuple(replace(s, file_size_in_bytes=sizes.get(str(s.path), s.file_size_in_bytes)) for s in of)
            for partition, of in metadata.partition_to_write_stats.items()
        }
        metadata = replace(metadata, partition_to_write_stats=stats)
        (path / table.instant_path(write)).write_bytes(encode(metadata, table.layout.encoding))
    return table
