"""Keys that are unique over all partitions, under a global index: they move, or stay where they are."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import schedule, writer
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.timeline.errors import ConflictError, UnsupportedError, UsageError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.index_definitions import INDEX_DEFINITIONS
from phantombase.timeline.metadata_table.record_index import GLOBAL_KEYS_MARK
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.index.global_keys import place_keys
from phantombase.writer_hooks.options import MovedKeys, Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table, run_all
from tests.support.evolved_tables import contents
from tests.support.faults import Faults
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.places import SEED
from tests.support.record_indexes import COMMIT, DELETE, EVENT, World, batch, set_partitions, some_rows
from tests.support.selection import ALL, deep, for_each
from tests.support.trips import rows as trip_rows
from tests.support.trips import trips
from tests.support.written_tables import check_nothing_left, impatient

KINDS = [(9, EVENT, None), (9, COMMIT, None), (6, EVENT, None), (9, EVENT, 2)]
MORE = [(8, EVENT, None), (9, COMMIT, 2), (6, EVENT, 2)]
WORLDS = [(*kind, move) for kind in (*KINDS, *MORE) for move in (True, False)]
USUAL = [(*KINDS[0], True), (*KINDS[0], False), (*KINDS[1], True), (*KINDS[2], False), (*KINDS[3], True)]


@pytest.fixture(params=[True, False], ids=["move", "stay"])
def move(request: pytest.FixtureRequest) -> bool:
    """Whether keys move."""
    return bool(request.param)


@pytest.fixture(
    params=[kind if kind in USUAL else deep(kind) for kind in WORLDS],
    ids=lambda kind: f"v{kind[0]}-{kind[1].name}-{kind[2]}-{'move' if kind[3] else 'stay'}",
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A table with keys in three partitions, one of them deleted."""
    version, mode, buckets, move = request.param
    world = World(path=tmp_path / "t", version=version, mode=mode, move=move, buckets=buckets)
    world.upsert(*((f"{p}{n}", p, 10, "old") for p in "abc" for n in range(9)))
    world.delete(("a8", "a", 0, ""))
    return world


def test_where_rows_go(world: World) -> None:
    """As Hudi 1.2.0 under GLOBAL_SIMPLE, but for keys that stay: there it doubles them."""
    world.upsert(
        ("a0", "b", 20, "newer"),
        ("a1", "b", 5, "late"),
        ("a2", "b", 10, "tie"),
        ("a3", "b", 20, DELETE),
        ("a4", "b", 20, "once"),
        ("a4", "c", 30, "twice"),
        ("a5", "a", 20, "its own"),
        ("a8", "b", 20, "again"),
        ("n0", "b", 20, "new"),
        ("n1", "d", 20, "new"),
        ("n2", "d", 20, DELETE),
    )
    world.check()
    folder, row = world.rows["a4"]
    assert (folder, row[3]) == ("c" if world.move else "a", "twice")
    world.upsert(("a0", "a", 30, "back"), ("n1", "a", 30, "on"))
    world.check()
    world.delete(("a0", "c", 0, ""), ("b0", "a", 0, ""), ("n9", "a", 0, ""))
    world.check()


def test_random_histories(world: World) -> None:
    """Beside a model: with compactions that are pending for a while, too."""
    chance = random.Random(f"{SEED} {world.move} {world.version} {world.mode} {world.buckets}")
    times = iter(range(100, 1000))
    for _ in range(8 if ALL else 5):
        rows = some_rows(chance, world, times)
        step = chance.choice(["upsert", "upsert", "upsert", "delete", "plan", "compact"])
        if step == "upsert":
            world.upsert(*rows)
        elif step == "delete":
            world.delete(*rows[:3])
        elif step == "plan":
            schedule(str(world.path), sole_writer=True)
        else:
            run_all(Table.open(str(world.path)))
        world.check()


def test_a_doubled_key_is_mended_by_its_next_row(tmp_path: Path) -> None:
    """A writer without the option has put it into two partitions."""
    world = World(path=tmp_path / "t")
    world.upsert(("k", "a", 1, "old"))
    writer(batch(("k", "b", 2, "double"))).upsert(str(world.path))
    world.upsert(("k", "c", 3, "new"))
    world.check()


def test_replaced_file_groups_hold_no_key(move: bool, tmp_path: Path) -> None:
    """Their files are still there."""
    world = World(path=tmp_path / "t", move=move)
    world.upsert(("k", "a", 1, "old"), ("l", "b", 1, "old"))
    writer().delete_partition(str(world.path), ["a"])
    del world.rows["k"]
    world.upsert(("k", "b", 0, "new"))
    world.check()


def meanwhile(monkeypatch: pytest.MonkeyPatch, at: str, do: Callable[[], None]) -> None:
    """Another process does something before a step of the next write."""
    steps: dict[str, Callable[..., Any]] = {"write.place_all": place_all, "rows.place_keys": place_keys}
    step, once = steps[at], iter([do])

    def stepped(*args: Any) -> Any:
        for do in once:
            do()
        return step(*args)

    monkeypatch.setattr(f"phantombase.writer_hooks.write.{at}", stepped)


def test_what_another_write_inserts_meanwhile_is_a_conflict(
    move: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have put the key into another partition."""
    world = World(path=tmp_path / "t", move=move)
    world.upsert(("k", "a", 1, "old"))
    meanwhile(monkeypatch, "write.place_all", lambda: world.upsert(("n", "b", 1, "theirs")))
    with pytest.raises(ConflictError, match="unique over all partitions"):
        world.writer(batch(("n", "c", 2, "ours"))).upsert(str(world.path))
    world.check()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("a", "b"), ("a", "c"), *(deep(*pair) for pair in ("aa", "ba", "bb", "bc", "ca", "cb", "cc"))]
)
def test_a_deleted_key_that_two_writes_insert_is_a_conflict(
    ours: str, theirs: str, move: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base files of a and b hold it still, so a row in a log there counts as an update."""
    world = World(path=tmp_path / "t", move=move)
    world.upsert(("k", "a", 1, "old"), ("l", "b", 1, "old"), ("m", "c", 1, "old"))
    world.delete(("k", "", 0, ""))
    world.upsert(("k", "b", 2, "old"))
    world.delete(("k", "", 0, ""))
    meanwhile(monkeypatch, "write.place_all", lambda: world.upsert(("k", theirs, 5, "theirs")))
    with pytest.raises(ConflictError):
        world.writer(batch(("k", ours, 6, "ours"))).upsert(str(world.path))
    world.check()


def test_the_look_up_sees_the_table_of_the_begin(move: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that completes before it, but after the begin, is a conflict."""
    world = World(path=tmp_path / "t", move=move)
    world.upsert(("k", "a", 1, "old"), ("l", "b", 1, "old"))
    meanwhile(monkeypatch, "rows.place_keys", lambda: replace(world, move=True).upsert(("k", "b", 5, "theirs")))
    with pytest.raises(ConflictError):
        world.writer(batch(("k", "c", 6, "ours"))).upsert(str(world.path))
    world.check()


@pytest.mark.parametrize("mode", [EVENT, COMMIT])
def test_the_last_of_equal_rows_of_a_batch_counts(move: bool, mode: MergeMode, tmp_path: Path) -> None:
    """Whatever their partitions are, and which of these comes first in the batch."""
    world = World(path=tmp_path / "t", move=move, mode=mode)
    world.upsert(("z", "b", 1, "other"), ("k", "a", 1, "first"), ("k", "b", 1, "last"))
    world.check()
    assert world.rows["k"][1][3] == "last"


def test_a_key_that_another_write_moves_meanwhile_is_a_conflict(
    move: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both delete it, or update it, where it was."""
    world = World(path=tmp_path / "t", move=True)
    world.upsert(("k", "a", 1, "old"), ("l", "a", 1, "old"), ("m", "b", 1, "old"), ("m2", "c", 1, "old"))
    meanwhile(monkeypatch, "write.place_all", lambda: world.upsert(("k", "b", 2, "theirs")))
    world.move = move
    ours = world.writer(batch(("k", "c", 3, "ours")))
    world.move = True
    with pytest.raises(ConflictError):
        ours.upsert(str(world.path))
    world.check()


@one_of("move", True, False, indirect=True)
def test_deaths_and_errors_at_storage_calls(move: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is whole or not there: no key is lost between two partitions, or in both. The next one works."""
    serial_pools(monkeypatch)
    origin = World(path=tmp_path / "origin", move=move)
    origin.upsert(*((f"{p}{n}", p, 1, "old") for p in "abc" for n in range(3)))
    origin.upsert(("a0", "a", 2, "newer"), ("b0", "b", 2, "newer"))
    origin.delete(("c1", "c", 0, ""))
    news = [
        ("a0", "b", 3, "new"),
        ("a1", "c", 3, "new"),
        ("c1", "a", 3, "new"),
        ("b0", "b", 1, "late"),
        ("n", "a", 3, "n"),
    ]

    def write_on(storage: Storage) -> None:
        kind = MovedKeys.MOVE if move else MovedKeys.STAY
        options = impatient(WriteOptions(moved_keys=kind, slots=1, lazy_rollback=False))
        engine = LocalEngine(batch(*news), slots=1)
        write(open_table(Path(storage.base_path), storage), engine, Write(operation=Operation.UPSERT, options=options))

    after = replace(origin, path=Path(shutil.copytree(origin.path, tmp_path / "after")), rows=dict(origin.rows))
    write_on(LocalStorage(str(after.path)))
    for row in news:
        after.met(row[0], row)
    after.check()

    def check(path: Path) -> bool:
        found = {r["id"]: r["v"] for r in read_table(Table.open(str(path))).to_pylist()}
        world = replace(origin, path=path, rows=dict(after.rows if found["a0"] == "new" else origin.rows))
        world.check()
        write_on(LocalStorage(str(path)))
        replace(world, rows=dict(after.rows)).check()
        return bool(found["a0"] == "new")

    faults = Faults.of(origin.path, write_on, share=(int(move) + 1, 6))  # writes of all tables make such calls
    written = Counter(check(path) for _, path in faults.deaths())
    for _, _, path, error in faults.errors():
        assert check(path) == (error is None)
        written[error is None] += 1
    assert min(written[True], written[False]) > 1


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(UsageError, match="one row per key"):
        writer(batch()).option(combine=False).global_keys()
    path, plain = tmp_path / "t", ["id", "p", "ts", "v"]
    described = World(path=path, version=6).writer(batch(("k", "a", 1, "old")).select(plain))
    described.upsert(str(path))
    properties = path / ".hoodie/hoodie.properties"
    kind = "hoodie.compaction.payload.class=org.apache.hudi.common.model.PartialUpdateAvroPayload"
    kept = [line for line in properties.read_text().splitlines() if "payload.class" not in line]
    properties.write_text("\n".join([*kept, kind]) + "\n")
    before = sorted(path.rglob("*"))
    new = writer(batch(("k", "b", 2, "new")).select(plain))
    with pytest.raises(UnsupportedError, match="not merged with what the old row gives them"):
        new.global_keys().upsert(str(path))
    assert sorted(path.rglob("*")) == before
    new.global_keys(move=False).upsert(str(path))
    assert read_table(Table.open(str(path)))["_hoodie_partition_path"].to_pylist() == ["a"]


@for_each(
    [
        ({"hoodie.index.type": "GLOBAL_SIMPLE"}, MovedKeys.MOVE),
        ({"hoodie.index.type": "global_bloom"}, MovedKeys.MOVE),
        ({"hoodie.index.type": "GLOBAL_BLOOM", "hoodie.bloom.index.update.partition.path": "false"}, MovedKeys.STAY),
        ({"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.bloom.index.update.partition.path": "false"}, MovedKeys.MOVE),
        ({"hoodie.simple.index.update.partition.path": "false"}, None),
        ({"hoodie.index.type": "RECORD_INDEX"}, MovedKeys.STAY),
        (
            {"hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX", "hoodie.record.index.update.partition.path": "true"},
            MovedKeys.MOVE,
        ),
        ({"hoodie.index.type": "RECORD_LEVEL_INDEX"}, None),
        ({"hoodie.index.type": "BLOOM"}, None),
    ]
)
def test_hudis_names(conf: Mapping[str, str], expected: MovedKeys | None) -> None:
    """With Hudi's defaults."""
    assert writer().conf(conf).options.moved_keys is expected


def test_hudis_names_with_wrong_values() -> None:
    """They are refused."""
    with pytest.raises(UsageError, match="not a value of hoodie"):
        writer().conf({"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "perhaps"})


# Keys of a table with a global record index stay in one partition, whatever a write asks for.


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
    """The first snapshot was before it, and conflicts are looked for after it."""
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
