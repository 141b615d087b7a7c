"""Tables with change data capture: statistics of writes name what Hudi's CDC query compares; others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import Writer, read, writer
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.format.commit_metadata import LATEST_SCHEMA, WriteStat, decode, encode
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice, latest_slice
from phantombase.writer_hooks.commit import transaction
from phantombase.writer_hooks.write import write
from phantombase.writer_hooks.write.rows import stage_rows
from tests.support.archived_tables import capture_changes
from tests.support.compaction_steps import open_table, run_one
from tests.support.evolved_tables import Column, alter, columns_of, digest, renamed, schedule
from tests.support.golden_tables import one_of


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
    first, second = (path / table.instant_path(one) for one in table.load_timeline().completed)
    first.write_bytes(b"")  # it names the base file, and so does the statistics of the log file
    commit = decode(second.read_bytes(), str(second))
    stats = {
        at: tuple(replace(s, base_file=None) for s in all_) for at, all_ in commit.partition_to_write_stats.items()
    }
    second.write_bytes(encode(replace(commit, partition_to_write_stats=stats), table.layout.encoding))
    capture_changes(path)
    with pytest.raises(UnsupportedError, match="without a base file"):
        step(trips(9, [1], 3).buckets(1), str(path))


# Writes of tables whose columns evolve on read: rows in the columns of now, and the history of them carried on.


HISTORY = ".hoodie/.schema"


def made(path: Path, version: int) -> tuple[Table, list[Column]]:
    """Two rows in a base file and one of them in a log; then `city` becomes `town`, `n` goes and `note` comes."""
    rows = {"id": ["a", "b"], "city": ["x", "y"], "n": [1, 2], "ts": [1, 1]}
    first = writer(pa.table(rows)).table("t", version=version).key("id").ordering("ts")
    first.upsert(str(path))
    writer(pa.table({"id": ["b"], "city": ["z"], "n": [3], "ts": [2]})).upsert(str(path))
    table = open_table(path)
    columns = [one for one in renamed(columns_of(table), city="town") if one["name"] != "n"]
    columns.append({"id": 40, "name": "note", "avro": ["null", "string"]})
    alter(table, columns)
    return table, columns


def rows(path: Path) -> list[tuple[Any, ...]]:
    """The table's rows without Hudi's columns."""
    found = read(str(path), columns=["id", "town", "note", "ts"]).to_arrow().to_pylist()
    return sorted((row["id"], row["town"], row["note"], row["ts"]) for row in found)


def newest(path: Path) -> tuple[str, dict[str, str]]:
    """The time of the newest write, and what it records."""
    table = open_table(path)
    time, instant = max(table.load_timeline().completed_writes.items())
    return time, dict(table.commit_metadata(instant).extra_metadata)


def histories(path: Path) -> dict[str, Any]:
    """The histories of columns by the time of their write."""
    files = sorted((path / HISTORY).glob("*.schemacommit"))
    return {file.name.split("_")[0].split(".")[0]: json.loads(file.read_text()) for file in files}


@one_of("version", 9, 8, 6)
def test_a_write_carries_the_history_on(version: int, tmp_path: Path) -> None:
    """Its rows go to logs, and to small base files that are written anew; older files are read as before."""
    path = tmp_path / "t"
    made(path, version)
    changed, recorded = newest(path)
    history = histories(path)[changed]
    writer(pa.table({"id": ["b"], "town": ["B"], "note": ["log"], "ts": [3]})).upsert(str(path))
    assert rows(path) == [("a", "x", None, 1), ("b", "B", "log", 3)]
    writer(pa.table({"id": ["c"], "town": ["C"], "ts": [1]})).upsert(str(path))
    assert rows(path) == [("a", "x", None, 1), ("b", "B", "log", 3), ("c", "C", None, 1)]
    writer(pa.table({"id": ["a"]})).delete(str(path))
    assert rows(path) == [("b", "B", "log", 3), ("c", "C", None, 1)]
    time, now = newest(path)
    assert now[LATEST_SCHEMA] == recorded[LATEST_SCHEMA]
    assert histories(path)[time] == history


@one_of("version", 6, 9, 8)
def test_a_small_base_file_of_before_is_written_anew(version: int, tmp_path: Path) -> None:
    """Its columns have the names of then."""
    path = tmp_path / "t"
    first = writer(pa.table({"id": ["a"], "city": ["x"], "ts": [1]}))
    first.table("t", version=version).key("id").ordering("ts").upsert(str(path))
    table = open_table(path)
    alter(table, renamed(columns_of(table), city="town"))
    writer(pa.table({"id": ["b"], "town": ["new"], "ts": [1]})).upsert(str(path))
    assert len(list(path.glob("*.parquet"))) == 2
    found = read(str(path), columns=["id", "town"]).to_arrow().to_pylist()
    assert sorted(row["town"] for row in found) == ["new", "x"]
    writer(pa.table({"id": ["c"], "town": ["behind"], "ts": [1]})).insert(str(path))
    found = read(str(path), columns=["id", "town"]).to_arrow().to_pylist()
    assert sorted(row["town"] for row in found) == ["behind", "new", "x"]


def test_a_change_of_columns_meanwhile_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that leaves names and types as they are: a column that is dropped and added anew is another one."""
    path = tmp_path / "t"
    table, columns = made(path, 9)
    before = rows(path)

    def altered(*args: Any) -> Any:
        alter(table.snapshot(cached=False), [{**one, "id": 41} if one["name"] == "note" else one for one in columns])
        return stage_rows(*args)

    monkeypatch.setattr(write, "stage_rows", altered)
    with pytest.raises(ConflictError, match="the record of the table's columns"):
        writer(pa.table({"id": ["b"], "town": ["B"], "note": ["log"], "ts": [3]})).option(retries=0).upsert(str(path))
    assert rows(path) == before


def test_a_history_of_a_write_that_never_completed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies between the history and the commit: the next write rolls it back, and writes both."""
    path = tmp_path / "t"
    made(path, 9)
    before = rows(path)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    given = pa.table({"id": ["b"], "town": ["B"], "note": ["log"], "ts": [3]})
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "put_completed", dies)
        with pytest.raises(KeyboardInterrupt):
            writer(given).upsert(str(path))
    assert len(histories(path)) == 2
    assert rows(path) == before
    writer(given).upsert(str(path))
    assert rows(path) == [("a", "x", None, 1), ("b", "B", "log", 3)]
    assert max(histories(path)) == newest(path)[0]


def test_updates_of_some_columns_are_refused(tmp_path: Path) -> None:
    """As by Hudi."""
    path = tmp_path / "t"
    made(path, 9)
    with pytest.raises(UnsupportedError, match="this write of a table with schema evolution on read"):
        writer(pa.table({"id": ["b"], "town": ["B"], "ts": [3]})).merge_into(str(path), update=["town", "ts"])


def test_a_refused_write_keeps_the_metadata_table(tmp_path: Path) -> None:
    """Also where it is asked to drop it."""
    path = tmp_path / "t"
    first = writer(pa.table({"id": ["a"], "city": ["x"], "ts": [1]})).table("t").key("id").ordering("ts")
    first.conf({"hoodie.metadata.enable": "true"}).upsert(str(path))
    table = open_table(path)
    alter(table, columns_of(table))
    there = digest(path)
    more = writer(pa.table({"id": ["a"], "more": ["x"], "ts": [1]})).option(drop_metadata_table=True)
    with pytest.raises(UnsupportedError, match="rows that change the columns of a table with schema evolution on read"):
        more.upsert(str(path))
    assert digest(path) == there
