"""Overwrites and deleted partitions through the public API: what they replace, what they keep, and what they refuse."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.codec.avro_container import any_record, write_record
from phantombase.timeline.errors import ConflictError, UsageError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import ProcessLock, table_lock
from phantombase.timeline.metadata_table.records.keys import FILES, RECORD_INDEX
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import matching, place_all
from phantombase.writer_hooks.write import write as write_module
from phantombase.writer_hooks.write.write import Written
from tests.support.change_feeds import check_window, feed, moments_of, state
from tests.support.compaction_steps import open_table, run_one
from tests.support.golden_tables import golden_metadata, one_of, unzip_golden
from tests.support.record_indexes import set_partitions
from tests.support.selection import ALL, deep
from tests.support.trips import DAYS, Model, rows
from tests.support.trips import read as read_fares
from tests.support.trips import trips as some_trips

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


@pytest.fixture(params=[(6, None), deep((8, None)), deep((9, None)), deep((6, 2)), (9, 2)], ids=str)
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


@pytest.mark.parametrize("golden", ["v9_replaced", "v6_replaced", deep("v8_replaced")])
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
        trips(version, ("k5", "mon", 5.0)).option(clustering_wait_s=0).insert_overwrite(path)
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
    (group, *_) = record["clusteringPlan"]["inputGroups"]
    group["slices"] = [group["slices"][0] | {"partitionPath": "mon", "fileId": file_id}]
    requested = table.snapshot().next_time()
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


# Overwrites among other writes and services; what a metadata table and windows of readers say of them.


@pytest.mark.parametrize("seed", [0, deep(1), deep(2), deep(3), deep(4), deep(5)])
@pytest.mark.parametrize(("version", "buckets"), [(6, None), deep(6, 2), deep(9, None), (9, 2)])
def test_random_histories(version: int, buckets: int | None, seed: int, tmp_path: Path) -> None:
    """Nothing that was replaced comes back, whichever service follows."""
    pick, path, model = random.Random(seed), tmp_path / "trips", Model()
    for step in range(20 if ALL else 12):
        numbers = sorted(pick.sample(range(40), pick.randint(0, 12)))
        batch = rows(*((n, step, pick.random()) for n in numbers))
        write = some_trips(batch, version, buckets).option(small_file_bytes=pick.choice((0, 100 << 20)))
        kind = pick.choices(["upsert", "delete", "over", "all", "gone"], [5, 1, 3, 1, 1])[0] if step else "upsert"
        if pick.random() < 0.6 and kind != "gone":
            write = write.compact_inline(max_delta_commits=1)
        if pick.random() < 0.4:
            write = write.clean(retain=1, floor_s=0)
        if pick.random() < 0.4:
            write = write.archive(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
        done = _apply(write, kind, str(path), pick, model, batch)
        assert done.after.error is None, f"seed {seed}, step {step}: {done.after.error}"
        assert read_fares(path) == model.fares(), f"seed {seed}, step {step}, {kind}"


def _apply(write: Writer, kind: str, path: str, pick: random.Random, model: Model, batch: pa.Table) -> Written:
    """The write, in the table and in the model."""
    if kind == "upsert":
        model.upsert(batch)
        return write.upsert(path)
    if kind == "delete":
        model.delete(batch)
        return write.delete(path)
    days, at_random = {*batch["day"].to_pylist()}, pick.choice(DAYS)
    gone = {"over": days, "all": {*DAYS}, "gone": {at_random}}[kind]
    for key in [key for key in model.live if DAYS[int(key[1:]) % 3] in gone]:
        del model.live[key]
    if kind == "gone":
        return write.delete_partition(path, [at_random])
    model.upsert(batch)
    return write.insert_overwrite(path) if kind == "over" else write.insert_overwrite_table(path)


@one_of("version", 9, 6)
def test_windows_over_an_overwrite(version: int, tmp_path: Path) -> None:
    """Every row of what was replaced is deleted, then the new ones are inserted; all windows replay."""
    path = str(tmp_path / "trips")
    some_trips(rows(*((n, 1, 1.0) for n in range(9))), version).upsert(path)
    some_trips(rows((0, 2, 2.0), (9, 2, 2.0)), version).upsert(path)
    over = some_trips(rows((3, 3, 3.0), (12, 3, 3.0)), version).insert_overwrite(path)
    gone = writer().delete_partition(path, ["tue"])
    some_trips(rows((1, 5, 5.0)), version).upsert(path)
    some_trips(rows((2, 6, 6.0)), version).insert_overwrite_table(path)
    table = open_table(tmp_path / "trips")
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    for begin, end in [*pairwise(moments), (moments[0], moments[-1])]:
        check_window(table, begin, end, states)
    ops = {i: [c["op"] for c in feed(table, "earliest") if c["instant"] == i] for i in (over.instant, gone.instant)}
    assert ops == {over.instant: ["d"] * 4 + ["i"] * 2, gone.instant: ["d"] * 3}


@one_of("version", 6, 9)
def test_an_overwrite_is_taken_back(version: int, tmp_path: Path) -> None:
    """What it replaced is there again."""
    path = tmp_path / "trips"
    some_trips(rows((0, 1, 1.0), (1, 1, 1.0)), version).upsert(str(path))
    done = some_trips(rows((3, 2, 2.0)), version).insert_overwrite_table(str(path))
    roll_back_newest(open_table(path), ProcessLock(str(path)), done.instant)
    assert read_fares(path) == {"k0000": 1.0, "k0001": 1.0}
    some_trips(rows((3, 3, 3.0)), version).upsert(str(path))
    assert read_fares(path) == {"k0000": 1.0, "k0001": 1.0, "k0003": 3.0}


@one_of("name", "v9_with_metadata_table", "v8_with_metadata_table", "v6_with_metadata_table")
def test_the_metadata_table_follows(name: str, tmp_path: Path) -> None:
    """It lists the new files, and the old ones until they are cleaned; without any new file it stays true too."""
    path = unzip_golden(name, tmp_path)
    before = read_table(open_table(path))
    partitions = sorted(set(before["_hoodie_partition_path"].to_pylist()))
    own = before.select([n for n in before.schema.names if not n.startswith("_hoodie")])
    writer(own).insert_overwrite_table(str(path))
    assert open_table(path).config.metadata_partitions
    assert sorted(read_table(open_table(path))["id"].to_pylist()) == sorted(own["id"].to_pylist())
    assert not validate(open_table(path)).differences
    writer().clean(retain=1, floor_s=0).delete_partition(str(path), partitions[:1])
    assert set(read_table(open_table(path))["_hoodie_partition_path"].to_pylist()) == set(partitions[1:])
    assert not validate(open_table(path)).differences


def test_a_record_index_is_taken_out(tmp_path: Path) -> None:
    """It would name the keys that were replaced; a Hudi writer builds it again."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    set_partitions(path, ",".join((*open_table(path).config.built_metadata_partitions, RECORD_INDEX)))
    rows_there = read_table(open_table(path)).slice(0, 1)
    own = rows_there.select([n for n in rows_there.schema.names if not n.startswith("_hoodie")])
    writer(own).insert_overwrite(str(path))
    kept = open_table(path).config.metadata_partitions
    assert RECORD_INDEX not in kept
    assert FILES in kept
