"""Keys of a table with a global record index stay in one partition, whatever a write asks for."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.column_stats.index_definitions import INDEX_DEFINITIONS
from phantombase.timeline.metadata_table.drop import drop_metadata_table
from phantombase.timeline.metadata_table.record_index import GLOBAL_KEYS_MARK
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.recovery.dead_writers import roll_back_dead_writers
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import place_all
from tests.support.golden_tables import unzip_golden
from tests.support.record_indexes import set_partitions
from tests.support.refused_tables import contents
from tests.support.selection import deep
from tests.support.tables import one_of
from tests.support.trips import rows as trip_rows
from tests.support.trips import trips
from tests.support.written_tables import check_nothing_left

TS = 10**6
REFUSED = "move keys to another partition"


def rows(*given: tuple[str, str]) -> pa.Table:
    """Keys with their partitions."""
    return pa.table({"id": [k for k, _ in given], "p": [p for _, p in given], "ts": [TS] * len(given)})


def places(path: Path) -> dict[str, str]:
    """Key to partition; a key twice is an error."""
    table = read_table(Table.open(str(path)))
    keys = table["_hoodie_record_key"].to_pylist()
    assert max(Counter(keys).values()) == 1, "doubled rows"
    return dict(zip(keys, table["_hoodie_partition_path"].to_pylist(), strict=True))


def define(path: Path, partitioned: str) -> None:
    """The record index in Hudi 1.2.0's definitions."""
    file = path / INDEX_DEFINITIONS
    definitions = json.loads(file.read_bytes())
    definitions["indexDefinitions"]["record_index"] = {
        "indexName": "record_index",
        "indexType": "record_index",
        "sourceFields": [],
        "indexOptions": {"isPartitioned": partitioned},
        "version": "V1",
    }
    file.write_text(json.dumps(definitions))


@pytest.fixture(params=["v9", deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table whose metadata table has a record index, so far as writers look at it."""
    path = unzip_golden(f"{request.param}_with_metadata_table", tmp_path)
    set_partitions(path, ",".join((*Table.open(str(path)).config.built_metadata_partitions, "record_index")))
    folder = path / ".hoodie/metadata/record_index"
    folder.mkdir()
    (folder / ".hoodie_partition_metadata").touch()
    if request.param == "v9":
        define(path, "false")
    return path


def of(path: Path, partition: str) -> list[str]:
    """Keys in a partition."""
    return sorted(k for k, p in places(path).items() if p == partition)


@pytest.mark.parametrize("operation", ["upsert", "delete"])
def test_rows_that_move_keys_are_refused_without_a_trace(path: Path, operation: str) -> None:
    """Hudi would update or delete them where they lie."""
    north, south = of(path, "north"), of(path, "south")
    before = contents(path)
    given = rows((north[0], "south"), (north[1], "south"), (north[2], "north"), (south[0], "south"), ("new", "east"))
    with pytest.raises(UnsupportedError, match=REFUSED) as refused:
        getattr(writer(given), operation)(str(path))
    assert f"2 of them, such as '{north[0]}' in partition 'south': the table has it in 'north'" in str(refused.value)
    assert contents(path) == before


@one_of("path", "v6", "v9", indirect=True)
def test_a_batch_with_one_key_in_two_partitions_is_refused(path: Path) -> None:
    """The table does not have it yet."""
    before = contents(path)
    with pytest.raises(UnsupportedError, match=r"1 of them, such as 'new' .* other rows of the batch"):
        writer(rows(("new", "south"), ("other", "south"), ("new", "north"))).upsert(str(path))
    assert contents(path) == before
    assert writer(rows(("new", "south"), ("new", "north"))).delete(str(path)).deletes == 0


def test_keys_that_stay_are_written_and_the_next_write_looks_again(path: Path) -> None:
    """Though the first one has taken the index out of the settings."""
    north = of(path, "north")
    done = writer(rows((north[0], "north"), ("new", "south"))).upsert(str(path))
    assert (done.updates, done.inserts) == (1, 1)
    assert "record_index" not in Table.open(str(path)).config.metadata_partitions
    with pytest.raises(UnsupportedError, match=REFUSED):
        writer(rows(("new", "north"))).upsert(str(path))
    assert places(path)["new"] == "south"


def test_a_key_that_was_deleted_may_be_written_elsewhere(path: Path) -> None:
    """Its base file still has it, below a log that deletes."""
    first, second = of(path, "north")[:2]
    writer(rows((first, "north"))).delete(str(path))
    with pytest.raises(UnsupportedError, match=rf"1 of them, such as '{second}'"):
        writer(rows((first, "south"), (second, "south"))).upsert(str(path))
    writer(rows((first, "south"))).upsert(str(path))
    assert places(path)[first] == "south"


@one_of("path", "v6", "v9", indirect=True)
def test_without_the_metadata_table_the_mark_tells(path: Path) -> None:
    """Until Hudi has built a metadata table without the index."""
    north = of(path, "north")
    drop_metadata_table(Table.open(str(path)), ProcessLock(str(path)))
    with pytest.raises(UnsupportedError, match=REFUSED):
        writer(rows((north[0], "south"))).upsert(str(path))
    assert (path / GLOBAL_KEYS_MARK).exists()


def test_where_hudi_has_dropped_the_index_keys_may_be_in_several_partitions(path: Path) -> None:
    """It removes the folder, and leaves the definition."""
    north = of(path, "north")
    set_partitions(path, "files")
    shutil.rmtree(path / ".hoodie/metadata/record_index")
    assert writer(rows((north[0], "south"))).upsert(str(path)).inserts == 1


@pytest.mark.parametrize("path", ["v9", "v6"], indirect=True)
def test_a_partitioned_record_index_keeps_partitions_apart(path: Path) -> None:
    """Since Hudi 1.1; one key in two partitions is two rows."""
    north = of(path, "north")
    if Table.open(str(path)).config.version == 6:
        assert not (path / INDEX_DEFINITIONS).exists()
        return
    define(path, "true")
    assert writer(rows((north[0], "south"))).upsert(str(path)).inserts == 1


def test_what_is_completed_before_the_write_begins_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look was before it, and conflicts are looked for after it."""
    path = tmp_path / "trips"
    trips(trip_rows(*((n, 1, 1.0) for n in range(30))), 9).upsert(str(path))
    (path / GLOBAL_KEYS_MARK).touch()
    once = iter([True])

    def another_write(*args: Any, **kwargs: Any) -> Any:
        if next(once, False):
            trips(moved(100, "tue"), 9).upsert(str(path))
        return roll_back_dead_writers(*args, **kwargs)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.roll_back_dead_writers", another_write)
    with pytest.raises(UnsupportedError, match=REFUSED):
        trips(moved(100, "mon"), 9).upsert(str(path))
    assert places(path)["k0100"] == "tue"
    check_nothing_left(path)


@pytest.mark.parametrize("buckets", [None, 2])
def test_what_is_completed_while_the_write_runs_is_a_conflict(
    buckets: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may have put one key into a partition of their own."""
    path = tmp_path / "trips"
    trips(trip_rows(*((n, 1, 1.0) for n in range(30))), 9, buckets).upsert(str(path))
    (path / GLOBAL_KEYS_MARK).touch()
    once = iter([True])

    def another_write(*args: Any) -> Any:
        if next(once, False):
            trips(moved(100, "tue"), 9, buckets).upsert(str(path))
        return place_all(*args)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", another_write)
    with pytest.raises(ConflictError, match="unique over all partitions"):
        trips(moved(100, "mon"), 9, buckets).upsert(str(path))
    assert places(path)["k0100"] == "tue"


def moved(number: int, day: str) -> pa.Table:
    """A trip on any day."""
    made = trip_rows((number, 9, 9.0))
    return made.set_column(1, made.schema.field(1), pa.array([day]))


def test_keys_in_the_logs_of_a_bucket_index_are_found(tmp_path: Path) -> None:
    """No base file has them."""
    path = tmp_path / "trips"
    for numbers in (range(30), range(30, 60)):
        trips(trip_rows(*((n, 1, 1.0) for n in numbers)), 9, 2).upsert(str(path))
    (path / GLOBAL_KEYS_MARK).touch()
    for number in (3, 33):
        with pytest.raises(UnsupportedError, match=rf"'k00{number:02d}' in partition 'tue': the table has it in 'mon'"):
            trips(moved(number, "tue"), 9, 2).upsert(str(path))
    assert len(places(path)) == 60
    assert trips(moved(99, "tue"), 9, 2).upsert(str(path)).writes == 1
