"""Trino finds by name what only phantombase wrote and synced, and reads the same rows."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.catalogs.options import SyncOptions
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.hudi.sync.cases import ALL_TYPES, rows
from tests.support.compaction_steps import open_table, run_one
from tests.support.golden_tables import LOCK
from tests.support.servers.debian import NotInstalledError
from tests.support.servers.hive_metastore import HiveMetastore
from tests.support.servers.trino_server import Trino, TrinoError, running_trino

pytestmark = pytest.mark.deep
TYPES = ALL_TYPES.drop(["local"])  # which version 6 has not
COLUMNS = tuple(TYPES.column_names)


@pytest.fixture
def trino(hive_metastore: HiveMetastore, tmp_path: Path) -> Iterator[Trino]:
    try:
        with running_trino(tmp_path / "trino", hive_metastore.port) as server:
            yield server
    except NotInstalledError as error:
        pytest.skip(str(error))


def put(path: Path, table: pa.Table, version: int = 6) -> None:
    made = writer(table).table(path.name).key("id").partition("p").ordering("ts")
    made.conf({"hoodie.write.table.version": version}).upsert(str(path))


def ours(path: Path, query: Query, *columns: str) -> list[list[Any]]:
    found = read_table(open_table(path), ReadOptions(query=query)).select(columns).to_pylist()
    return sorted([as_json(row[name]) for name in columns] for row in found)


def as_json(value: Any) -> Any:
    """As Trino writes it."""
    match value:
        case Decimal() | date() if not isinstance(value, datetime):
            return str(value)
        case datetime():
            return (value - datetime(1970, 1, 1, tzinfo=UTC)) // value.resolution
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return [as_json(one) for one in value.values()]
        case [(str(), _), *_]:
            return {key: as_json(one) for key, one in value}
        case list():
            return [as_json(one) for one in value]
    return value


def test_trino_reads_the_rows_of_base_files(trino: Trino, hive_metastore: HiveMetastore, tmp_path: Path) -> None:
    """Of a MERGE_ON_READ table before and after a compaction, and of a COPY_ON_WRITE table; all types of columns. Of
    version 6: those of 8 and 9 it refuses."""
    path, to = tmp_path / "t", SyncOptions(to=f"hive:127.0.0.1:{hive_metastore.port}")
    cow = tmp_path / "c"
    put(path, TYPES)
    put(cow, TYPES)
    file = cow / PROPERTIES
    file.write_text(file.read_text().replace("MERGE_ON_READ", "COPY_ON_WRITE"))
    for one in (path, cow):
        assert sync_table(Table.open(str(one), reading=True), to).changed

    def trinos(name: str) -> list[list[Any]]:
        return sorted(trino.rows(f"select {', '.join(COLUMNS)} from hudi.default.{name}"))

    assert trinos("c") == trinos("t_ro") == ours(path, Query.READ_OPTIMIZED, *COLUMNS)
    newer = TYPES.set_column(1, "ts", pa.array([3, 4], pa.int64()))
    put(path, newer)
    put(path, TYPES.set_column(0, "id", pa.array(["c", "d"])).set_column(2, "p", pa.array(["x", "new"])))
    sync_table(open_table(path), to)
    before = ours(path, Query.READ_OPTIMIZED, *COLUMNS)
    assert trinos("t_ro") == trinos("t_rt") == before != ours(path, Query.SNAPSHOT, *COLUMNS)  # it reads no log file
    instant = schedule_compaction(open_table(path), LOCK).instant
    run_one(open_table(path), str(instant))
    assert trinos("t_ro") == trinos("t") == ours(path, Query.SNAPSHOT, *COLUMNS)
    new = tmp_path / "n"
    put(new, rows(1, "x"), 9)
    sync_table(open_table(new), to)
    with pytest.raises(TrinoError, match="history does not exist"):  # so it is with each table whose archive is empty
        trino.rows("select id from hudi.default.n_ro")
