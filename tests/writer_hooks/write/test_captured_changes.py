"""Tables with change data capture: statistics of writes name what Hudi's CDC query compares; others are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.format.commit_metadata import WriteStat
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.view.view import FileSlice, latest_slice
from tests.support.compaction_steps import open_table, run_one
from tests.support.refused_tables import digest, schedule
from tests.support.restored_tables import capture_changes
from tests.support.tables import one_of


def trips(version: int, numbers: list[int], ts: int, *, marked: bool = False, by: MergeMode | None = None) -> Writer:
    """A write of rows with these numbers; `marked`: with the column of deleted rows."""
    rows = pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "day": ["mon"] * len(numbers),
            "ts": [ts] * len(numbers),
            **({"_hoodie_is_deleted": [False] * len(numbers)} if marked else {}),
        }
    )
    described = writer(rows).table("trips", version=version).key("id").partition("day").ordering("ts")
    return described if by is None else described.merge_mode(by)


def captured(path: Path, version: int) -> str:
    """A table with change data capture: one base file of ten rows."""
    trips(version, list(range(10)), 1, by=MergeMode.EVENT_TIME).upsert(str(path))
    capture_changes(path)
    return str(path)


def newest_stats(path: Path) -> list[WriteStat]:
    """The statistics of the newest write."""
    table = open_table(path)
    timeline = table.load_timeline()
    metadata = table.commit_metadata(timeline.completed_writes[timeline.latest_completed])
    return [stat for of in metadata.partition_to_write_stats.values() for stat in of]


def merged(path: Path) -> FileSlice:
    """What a reader merges of the only file group."""
    (group,) = open_table(path).load_view().groups
    found = latest_slice(group)
    assert found is not None
    return found


@one_of("version", 9, 8, 6)
def test_the_statistics_of_a_log_file_name_what_readers_merge(version: int, tmp_path: Path) -> None:
    """The log file itself comes last; under a pending plan, too."""
    path = captured(tmp_path / "t", version)

    def check() -> None:
        (stat,), slice_ = newest_stats(tmp_path / "t"), merged(tmp_path / "t")
        assert slice_.base is not None
        assert stat.base_file == str(slice_.base.name)
        assert stat.log_files == tuple(str(log.name) for log in slice_.logs)
        assert str(stat.path).endswith(f"/{stat.log_files[-1]}")

    trips(version, [1, 2], 2).upsert(path)
    check()
    trips(version, [2, 3], 3).delete(path)
    check()
    instant = schedule(tmp_path / "t").instant
    assert instant is not None
    trips(version, [1, 4], 4).upsert(path)
    check()
    assert len(merged(tmp_path / "t").logs) == 3
    run_one(open_table(tmp_path / "t"), instant)
    trips(version, [1, 5], 5).upsert(path)
    check()
    assert len(merged(tmp_path / "t").logs) == 2


@one_of("version", 6, 9, 8)
@pytest.mark.parametrize("step", [Writer.upsert, Writer.insert, Writer.bulk_insert], ids=lambda step: step.__name__)
def test_new_keys_go_into_new_base_files(step: Callable[[Writer, str], object], version: int, tmp_path: Path) -> None:
    """A base file written anew would need a file of changes."""
    path = captured(tmp_path / "t", version)
    step(trips(version, [20, 21], 2), path)
    (stat,) = newest_stats(tmp_path / "t")
    assert (stat.prev_commit, stat.num_writes, stat.num_inserts, stat.num_update_writes) == ("null", 2, 2, 0)


MARKED = "merging rows with the column _hoodie_is_deleted by event time"
STEPS: dict[str, Callable[[int, str], object]] = {
    "setting some columns": lambda version, path: trips(version, [1], 2).merge_into(path, update=["ts"]),
    f"{MARKED}.*Give": lambda version, path: trips(version, [1], 2, marked=True).upsert(path),
}


@one_of("version", 9, 8)
@pytest.mark.parametrize("what", STEPS)
def test_a_write_that_the_query_does_not_show_exactly_is_refused(what: str, version: int, tmp_path: Path) -> None:
    """Before anything is changed."""
    path = captured(tmp_path / "t", version)
    there = digest(tmp_path / "t")
    with pytest.raises(UnsupportedError, match=what):
        STEPS[what](version, path)
    assert digest(tmp_path / "t") == there


def with_payload(path: Path, payload: str) -> None:
    """Another payload class."""
    properties = path / HOODIE / "hoodie.properties"
    name = "hoodie.compaction.payload.class"
    lines = [line for line in properties.read_text().splitlines() if not line.startswith(name)]
    properties.write_text("\n".join([*lines, f"{name}=org.apache.hudi.common.model.{payload}", ""]))


def test_on_version_6_upserts_by_overwrite_with_latest_are_refused(tmp_path: Path) -> None:
    """Deletes and inserts are not: they compare no ordering values. Under a bucket index inserts do."""
    path = captured(tmp_path / "t", 6)
    with_payload(tmp_path / "t", "OverwriteWithLatestAvroPayload")
    there = digest(tmp_path / "t")
    for refused in (trips(6, [1], 2).upsert, trips(6, [1], 2).buckets(2).insert):
        with pytest.raises(UnsupportedError, match="upserts by this payload class"):
            refused(path)
    assert digest(tmp_path / "t") == there
    trips(6, [1], 2).delete(path)
    trips(6, [30], 2).insert(path)


@pytest.mark.parametrize("step", [Writer.insert_overwrite, Writer.insert_overwrite_table, Writer.delete_partition])
def test_on_version_6_overwrites_are_refused(step: Callable[[Writer, str], object], tmp_path: Path) -> None:
    path = captured(tmp_path / "t", 6)
    there = digest(tmp_path / "t")
    with pytest.raises(UnsupportedError, match="replacing partitions of a version 6 table"):
        step(trips(6, [1], 2), path)
    assert digest(tmp_path / "t") == there


def test_partial_updates_by_payload_class_are_refused(tmp_path: Path) -> None:
    path = captured(tmp_path / "t", 6)
    with_payload(tmp_path / "t", "PartialUpdateAvroPayload")
    for refused in (trips(6, [1], 2).upsert, trips(6, [1], 2).insert):
        with pytest.raises(UnsupportedError, match="writing, by this payload class"):
            refused(path)


def test_an_overwrite_waits_for_a_compaction(tmp_path: Path) -> None:
    """The query reads the rows that it replaced from the newest base file."""
    path = captured(tmp_path / "t", 9)
    trips(9, [1], 2).upsert(path)
    instant = schedule(tmp_path / "t").instant
    assert instant is not None
    with pytest.raises(ConflictError, match="pending compaction"):
        trips(9, [1], 3).insert_overwrite(path)
    run_one(open_table(tmp_path / "t"), instant)
    assert trips(9, [1], 3).insert_overwrite(path).replaced == 1


@pytest.mark.parametrize("step", [Writer.upsert, Writer.insert_overwrite], ids=lambda step: step.__name__)
def test_a_file_group_without_a_base_file_is_refused(step: Callable[[Writer, str], object], tmp_path: Path) -> None:
    """As Flink makes them: there the query fails."""
    path = tmp_path / "t"
    trips(9, [1, 2], 1, by=MergeMode.EVENT_TIME).buckets(1).upsert(str(path))
    trips(9, [1], 2).buckets(1).upsert(str(path))
    for base in path.glob("mon/*.parquet"):
        base.unlink()
    table = open_table(path)
    (path / table.instant_path(table.load_timeline().completed[0])).write_bytes(b"")  # which names the base file
    capture_changes(path)
    with pytest.raises(UnsupportedError, match="without a base file"):
        step(trips(9, [1], 3).buckets(1), str(path))
