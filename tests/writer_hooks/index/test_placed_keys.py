"""Keys that are unique over all partitions, under a global index: they move, or stay where they are."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantombase import schedule, writer
from phantombase.timeline.errors import ConflictError, UnsupportedError, UsageError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.index.placed_keys import place_keys
from phantombase.writer_hooks.options import MovedKeys, Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table, run_all
from tests.support.faults import Faults
from tests.support.interleaving import serial_pools
from tests.support.placed_keys import COMMIT, DELETE, EVENT, World, batch, some_rows
from tests.support.seed import SEED
from tests.support.selection import deep
from tests.support.written_tables import impatient

KINDS = [(9, EVENT, None), (9, COMMIT, None), (6, EVENT, None), (9, EVENT, 2)]
MORE = [(8, EVENT, None), (9, COMMIT, 2), (6, EVENT, 2)]


@pytest.fixture(params=[True, False], ids=["move", "stay"])
def move(request: pytest.FixtureRequest) -> bool:
    """Whether keys move."""
    return bool(request.param)


@pytest.fixture(
    params=[*KINDS, *(deep(kind) for kind in MORE)], ids=lambda kind: f"v{kind[0]}-{kind[1].name}-{kind[2]}"
)
def world(request: pytest.FixtureRequest, move: bool, tmp_path: Path) -> World:
    """A table with keys in three partitions, one of them deleted."""
    version, mode, buckets = request.param
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
    for _ in range(8):
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


@pytest.mark.parametrize("theirs", ["a", "b", "c"])
@pytest.mark.parametrize("ours", ["a", "b", "c"])
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

    faults = Faults.of(origin.path, write_on, share=(int(move), 6))  # writes of all tables make such calls
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


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"hoodie.index.type": "GLOBAL_SIMPLE"}, MovedKeys.MOVE),
        ({"hoodie.index.type": "global_bloom"}, MovedKeys.MOVE),
        (
            {"hoodie.index.type": "GLOBAL_BLOOM", "hoodie.bloom.index.update.partition.path": "false"},
            MovedKeys.STAY,
        ),
        ({"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.bloom.index.update.partition.path": "false"}, MovedKeys.MOVE),
        ({"hoodie.simple.index.update.partition.path": "false"}, None),
        ({"hoodie.index.type": "RECORD_INDEX"}, MovedKeys.STAY),
        (
            {"hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX", "hoodie.record.index.update.partition.path": "true"},
            MovedKeys.MOVE,
        ),
        ({"hoodie.index.type": "RECORD_LEVEL_INDEX"}, None),
        ({"hoodie.index.type": "BLOOM"}, None),
    ],
)
def test_hudis_names(conf: Mapping[str, str], expected: MovedKeys | None) -> None:
    """With Hudi's defaults."""
    assert writer().conf(conf).options.moved_keys is expected


def test_hudis_names_with_wrong_values() -> None:
    """They are refused."""
    with pytest.raises(UsageError, match="not a value of hoodie"):
        writer().conf({"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "perhaps"})
