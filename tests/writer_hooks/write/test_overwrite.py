"""Overwrites and deleted partitions through the public API: what they replace, what they keep, and what they refuse."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.timeline.avro.container import any_record, write_record
from phantombase.timeline.errors import ConflictError, UsageError
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.triggers import TriggerStrategy
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.commit.replacing import matching
from phantombase.writer_hooks.write import write as write_module
from tests.support.compaction_steps import open_table, run_one
from tests.support.golden_tables import golden_metadata, unzip_golden
from tests.support.selection import deep
from tests.support.tables import one_of

VERSIONS = pytest.mark.parametrize("version", [deep(6), 9])
FIRST = [("k1", "mon", 1.0), ("k2", "mon", 1.0), ("k3", "tue", 1.0), ("k4", "a/b", 1.0)]
Row = tuple[str, str, float]


def batch(*given: Row) -> pa.Table:
    """(key, day, fare) as rows."""
    schema = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
    return pa.Table.from_pylist([{"id": k, "day": d, "ts": 1, "fare": f} for k, d, f in given], schema)


def trips(version: int, *given: Row, buckets: int | None = None) -> Writer:
    """A write of these rows."""
    described = writer(batch(*given)).table("trips", version=version).key("id").partition("day").ordering("ts")
    return described.buckets(buckets) if buckets else described


def read(path: Path) -> list[Row]:
    """The snapshot, sorted."""
    rows = read_table(Table.open(str(path))).select(["id", "day", "fare"]).to_pylist()
    return sorted((r["id"], r["day"], r["fare"]) for r in rows)


def made(path: Path, version: int, buckets: int | None = None) -> str:
    """A table with log files in one file group."""
    trips(version, *FIRST, buckets=buckets).upsert(str(path))
    trips(version, ("k1", "mon", 2.0), buckets=buckets).upsert(str(path))
    return str(path)


@pytest.fixture(params=[(6, None), deep((8, None)), (9, None), deep((6, 2)), (9, 2)], ids=str)
def kind(request: pytest.FixtureRequest) -> tuple[int, int | None]:
    """Version and buckets."""
    found: tuple[int, int | None] = request.param
    return found


def test_insert_overwrite_replaces_the_partitions_of_its_rows(kind: tuple[int, int | None], tmp_path: Path) -> None:
    """Duplicates stay, as in Hudi; the other partitions stay; later writes find the new rows."""
    version, buckets = kind
    path = made(tmp_path / "t", version, buckets)
    news = (("k1", "mon", 5.0), ("k7", "mon", 5.0), ("k7", "mon", 6.0), ("k8", "new", 5.0))
    done = trips(version, *news, buckets=buckets).insert_overwrite(path)
    assert done.inserts == 4
    assert read(tmp_path / "t") == sorted([*news, *FIRST[2:]])
    trips(version, ("k7", "mon", 7.0), ("k2", "mon", 7.0), buckets=buckets).upsert(path)
    assert max(fare for key, _, fare in read(tmp_path / "t") if key == "k7") == 7.0
    assert ("k2", "mon", 7.0) in read(tmp_path / "t")


def test_insert_overwrite_combines_when_told_so_by_an_option(tmp_path: Path) -> None:
    path = made(tmp_path / "t", 9)
    described = trips(9, ("k7", "mon", 5.0), ("k7", "mon", 6.0))
    described.conf({"hoodie.combine.before.insert": "true"}).insert_overwrite(path)
    assert [row for row in read(tmp_path / "t") if row[1] == "mon"] == [("k7", "mon", 6.0)]


def test_insert_overwrite_table_replaces_everything(kind: tuple[int, int | None], tmp_path: Path) -> None:
    """Without rows it empties the table, and the table takes rows again."""
    version, buckets = kind
    path = made(tmp_path / "t", version, buckets)
    assert trips(version, ("k9", "sun", 1.0), buckets=buckets).insert_overwrite_table(path).replaced >= 3
    assert read(tmp_path / "t") == [("k9", "sun", 1.0)]
    assert trips(version, buckets=buckets).insert_overwrite_table(path).replaced == 1
    assert read(tmp_path / "t") == []
    made(tmp_path / "t", version, buckets)
    assert len(read(tmp_path / "t")) == len(FIRST)


def test_delete_partition(kind: tuple[int, int | None], tmp_path: Path) -> None:
    """By name, by pattern, or the partitions of the rows; one that is not there counts as deleted."""
    version, buckets = kind
    path = made(tmp_path / "t", version, buckets)
    bare = writer().buckets(buckets) if buckets else writer()
    assert bare.delete_partition(path, ["a/*", "never"]).replaced == 1
    assert read(tmp_path / "t") == [("k1", "mon", 2.0), *FIRST[1:3]]
    trips(version, ("k0", "tue", 1.0), buckets=buckets).delete_partition(path)
    assert read(tmp_path / "t") == [("k1", "mon", 2.0), FIRST[1]]
    assert bare.delete_partition(path, ["never"]).replaced == 0
    trips(version, ("k3", "tue", 4.0), buckets=buckets).upsert(path)
    assert ("k3", "tue", 4.0) in read(tmp_path / "t")


def test_hudis_names(tmp_path: Path) -> None:
    """`write` does what hoodie.datasource.write.operation says."""
    path, name = made(tmp_path / "t", 9), "hoodie.datasource.write.operation"
    trips(9, ("k5", "tue", 1.0)).conf({name: "upsert"}).write(path)
    assert len(read(tmp_path / "t")) == 5
    trips(9, ("k6", "tue", 1.0)).conf({name: "insert_overwrite"}).write(path)
    assert [key for key, day, _ in read(tmp_path / "t") if day == "tue"] == ["k6"]
    gone = {name: "delete_partition", "hoodie.datasource.write.partitions.to.delete": "tue, a/b"}
    writer().conf(gone).write(path)
    assert {day for _, day, _ in read(tmp_path / "t")} == {"mon"}
    trips(9, ("k9", "sun", 1.0)).conf({name: "INSERT_OVERWRITE_TABLE"}).write(path)
    assert read(tmp_path / "t") == [("k9", "sun", 1.0)]
    with pytest.raises(UsageError, match=r"not a value of hoodie\.datasource\.write\.operation"):
        trips(9).conf({name: "overwrite"})


@pytest.mark.parametrize("wrong", ["mon", [], [""]])
def test_no_partition_goes_by_mistake(tmp_path: Path, wrong: Any) -> None:
    path = made(tmp_path / "t", 9)
    with pytest.raises(UsageError, match="not a list of partitions"):
        writer().delete_partition(path, wrong)


def test_patterns_are_hudis() -> None:
    """A star stands for any text, also over levels; all else stands for itself."""
    paths = ["2024/01", "2024/02", "2024x01", "day=1", "2024"]
    assert matching(["2024/*"], paths) == {"2024/01", "2024/02"}
    assert matching(["2024.01", "*=1"], paths) == {"day=1"}
    assert matching(["2024"], paths) == {"2024"}


def test_another_index_is_refused(tmp_path: Path) -> None:
    """The partition would have files that the table's own writers cannot find."""
    path = made(tmp_path / "t", 9, 2)
    with pytest.raises(UsageError, match="bucket index"):
        trips(9, ("k1", "mon", 5.0)).insert_overwrite(path)
    with pytest.raises(UsageError, match="bucket index"):
        trips(9, ("k1", "mon", 5.0), buckets=3).insert_overwrite(path)


@one_of("golden", "v9_replaced", "v8_replaced", "v6_replaced")
def test_the_instant_is_hudis(tmp_path: Path, golden: str) -> None:
    """Same action, same fields and same nulls as in the replacecommits of real Hudi."""
    version, theirs = int(golden[1]), unzip_golden(golden, tmp_path)
    path = made(tmp_path / "t", version)
    trips(version, ("k1", "mon", 5.0)).insert_overwrite(path)
    writer().delete_partition(path, ["tue"])
    for kind, names in _shapes(tmp_path / "t").items():
        assert names == _shapes(theirs)[kind], kind


def _shapes(path: Path) -> dict[tuple[str, str], Any]:
    """By operation and state of the file: its fields, with null where they are null."""
    found: dict[tuple[str, str], Any] = {}
    groups: dict[str, dict[str, bytes]] = {}
    for file in (path / ".hoodie").rglob("*replacecommit*"):
        time, _, state = file.name.partition(".")
        groups.setdefault(time[:17], {})[state] = file.read_bytes()
    for states in groups.values():
        records = {s: any_record(d, s) if d.startswith(b"Obj") else json.loads(d) for s, d in states.items()}
        operation = records["replacecommit"]["operationType"]
        for state, record in records.items():
            found[operation, state] = _shape(record)
    return found


def _shape(record: dict[str, Any]) -> Any:
    stats = record.get("partitionToWriteStats") or {}
    plain = {name: value for name, value in record.items() if not isinstance(value, dict)}
    return plain, {n: _nulls(s[0]) for n, s in zip("a", stats.values(), strict=False)}


def _nulls(stat: dict[str, Any]) -> dict[str, bool]:
    return {name: value is None for name, value in stat.items() if name != "runtimeStats"}


# --- beside compactions ----------------------------------------------------------------------------------------------


def planned(path: str) -> str:
    """A pending compaction of all file groups with logs."""
    table = open_table(Path(path))
    at_once = ScheduleOptions(strategy=TriggerStrategy.ALWAYS)
    done = schedule_compaction(table, table_lock(table.storage, None), at_once)
    assert done.instant is not None
    return done.instant


@one_of("version", 6, 9)
def test_a_plan_of_replaced_file_groups(tmp_path: Path, version: int) -> None:
    """A compaction behind the overwrite revives no row; neither does one before it."""
    path = made(tmp_path / "t", version)
    instant = planned(path)
    trips(version, ("k5", "mon", 5.0)).insert_overwrite(path)
    expected = sorted([("k5", "mon", 5.0), *FIRST[2:]])
    assert read(tmp_path / "t") == expected
    run_one(open_table(tmp_path / "t"), instant)
    assert read(tmp_path / "t") == expected
    trips(version, ("k5", "mon", 6.0)).upsert(path)
    run_one(open_table(tmp_path / "t"), planned(path))
    trips(version, ("k6", "mon", 5.0)).insert_overwrite(path)
    assert read(tmp_path / "t") == sorted([("k6", "mon", 5.0), *FIRST[2:]])


@VERSIONS
def test_a_planned_partition_is_not_deleted(tmp_path: Path, version: int) -> None:
    """As in Hudi; other partitions can be, and the same one once the plan is executed."""
    path = made(tmp_path / "t", version)
    instant = planned(path)
    with pytest.raises(ConflictError, match="pending compaction"):
        writer().delete_partition(path, ["mon"])
    writer().delete_partition(path, ["tue"])
    run_one(open_table(tmp_path / "t"), instant)
    writer().delete_partition(path, ["mon"])
    assert read(tmp_path / "t") == [FIRST[3]]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_clustered_file_group_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, when: str
) -> None:
    """Requested before the overwrite or meanwhile: it would bring the old rows back in a new file group."""
    path = made(tmp_path / "t", version)
    if when == "before":
        _request_clustering(tmp_path / "t", version)
    else:
        _beside(monkeypatch, lambda: _request_clustering(tmp_path / "t", version))
    with pytest.raises(ConflictError, match="clustering"):
        trips(version, ("k5", "mon", 5.0)).insert_overwrite(path)
    trips(version, ("k5", "tue", 5.0)).insert_overwrite(path)
    assert read(tmp_path / "t") == sorted([("k1", "mon", 2.0), FIRST[1], FIRST[3], ("k5", "tue", 5.0)])


def _request_clustering(path: Path, version: int) -> None:
    """A pending clustering of the file group of `mon`, as Hudi requests it."""
    table, action = open_table(path), "clustering" if version > 6 else "replacecommit"
    (file_id,) = [g.file_id for g in table.load_view().groups if g.partition == "mon"]
    found = golden_metadata(f"v{version}_clustered").items()
    data = next(d for p, d in found if p.endswith(f".{action}.requested"))
    reader: Any = fastavro.reader(io.BytesIO(data))
    record = next(reader)
    record["clusteringPlan"]["inputGroups"][0]["slices"][0] |= {"partitionPath": "mon", "fileId": file_id}
    requested = table.next_time(table.load_timeline())
    content = write_record(record, reader.writer_schema)
    table.storage.put_if_absent(f"{table.config.timeline_folder}/{requested}.{action}.requested", content)


def test_a_plan_meanwhile_keeps_a_partition_from_being_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On version 6 there is no plan while a write pends; on the others it is found in the lock."""
    path = made(tmp_path / "t", 9)
    _beside(monkeypatch, lambda: planned(path))
    with pytest.raises(ConflictError, match="pending compaction"):
        writer().option(lock=f"file:{tmp_path}/lock").delete_partition(path, ["mon"])
    assert len(read(tmp_path / "t")) == len(FIRST)


# --- beside other writers --------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("late", ["upsert", deep("insert"), "insert_overwrite"])
def test_a_write_meanwhile_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, late: str) -> None:
    """Of two writes of one partition at once, one of which overwrites it, the second to complete fails."""
    path = made(tmp_path / "t", version)
    other = trips(version, ("k9", "mon", 9.0)).option(lock=f"file:{tmp_path}/lock")
    _beside(monkeypatch, lambda: getattr(other, late)(path))
    with pytest.raises(ConflictError, match=r"is overwritten|file group"):
        trips(version, ("k5", "mon", 5.0)).option(lock=f"file:{tmp_path}/lock").insert_overwrite(path)
    assert not any(key == "k5" for key, _, _ in read(tmp_path / "t"))
    assert any(key == "k9" for key, _, _ in read(tmp_path / "t"))


@VERSIONS
def test_an_overwrite_meanwhile_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """The rows of an insert that began before it would be neither replaced nor written after it."""
    path = made(tmp_path / "t", version)
    other = writer().option(lock=f"file:{tmp_path}/lock")
    _beside(monkeypatch, lambda: other.delete_partition(path, ["tue"]))
    with pytest.raises(ConflictError, match="is overwritten"):
        trips(version, ("k5", "tue", 5.0)).option(lock=f"file:{tmp_path}/lock", small_file_bytes=0).insert(path)
    assert [day for _, day, _ in read(tmp_path / "t")] == ["mon", "mon", "a/b"]


@VERSIONS
def test_a_new_partition_beside_a_whole_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = made(tmp_path / "t", version)
    other = trips(version, ("k9", "new", 9.0)).option(lock=f"file:{tmp_path}/lock")
    _beside(monkeypatch, lambda: other.upsert(path))
    described = trips(version, ("k5", "mon", 5.0)).option(lock=f"file:{tmp_path}/lock")
    with pytest.raises(ConflictError, match="'new', which is overwritten"):
        described.insert_overwrite_table(path)
    described.insert_overwrite_table(path)
    assert read(tmp_path / "t") == [("k5", "mon", 5.0)]


def _beside(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    """Calls `other` once, when the next write has begun and staged its files."""
    real, calls = place_all, Counter[str]()

    def place(*given: Any) -> Any:
        calls["place"] += 1
        if calls["place"] == 1:
            other()
        return real(*given)

    monkeypatch.setattr(write_module, "place_all", place)
