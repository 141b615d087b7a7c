"""Tables with virtual keys: no meta columns, so keys are found by the key columns; what Hudi does not do is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import Writer, schedule, writer
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import ConflictError, UnsupportedError, UsageError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import IS_DELETED
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine, LocalPieces
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table, run_all
from tests.support.faults import Faults
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL, deep
from tests.support.trips import Model, rows
from tests.support.written_tables import check_nothing_left, impatient

VIRTUAL = {"hoodie.populate.meta.fields": "false"}


def trips(table: pa.Table, version: int, buckets: int | None = None) -> Writer:
    """A write of a table with virtual keys and event time."""
    described = writer(table).table("trips", version=version).key("id").partition("day").ordering("ts").conf(VIRTUAL)
    return described.buckets(buckets) if buckets else described


def read(path: Path) -> dict[str, float]:
    """Key to fare; a key twice is an error, and so is a meta column."""
    table = read_table(Table.open(str(path)))
    keys = table.column("id").to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    assert "_hoodie_record_key" not in table.column_names
    return dict(zip(keys, table.column("fare").to_pylist(), strict=True))


@pytest.mark.parametrize("seed", [0, *map(deep, range(1, 4))])
@pytest.mark.parametrize("buckets", [None, 3], ids=["key index", "buckets"])
@one_of("version", 9, 8, 6)
def test_random_batches_read_as_the_model_says(version: int, buckets: int | None, seed: int, tmp_path: Path) -> None:
    """Through small files that are written anew, logs, and pending plans."""
    pick, path, model = random.Random(seed), tmp_path / "trips", Model()
    for step in range(12 if ALL else 7):
        numbers = [pick.randrange(60) for _ in range(pick.randint(1, 30))]
        batch = rows(
            *((n, step * 10 + pick.randrange(10), pick.random()) for n in numbers), deleted=pick.random() < 0.2
        )
        small = trips(batch, version, buckets).option(small_file_bytes=pick.choice((0, 100 << 20)))
        small = (
            small.schedule(max_delta_commits=3) if pick.random() < 0.5 else small.compact_inline(max_delta_commits=3)
        )
        if step and pick.random() < 0.3:
            small.delete(str(path))
            model.delete(batch)
        else:
            small.upsert(str(path))
            model.upsert(batch)
        assert read(path) == model.fares(), f"seed {seed}, step {step}"


@one_of("version", 6, 9, 8)
def test_rows_are_added_and_replaced(version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    trips(rows((0, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0)), version).bulk_insert(path)
    trips(rows((3, 1, 1.0), (4, 1, 1.0)), version).insert(path)
    assert set(read(tmp_path / "trips")) == {f"k{n:04d}" for n in range(5)}
    trips(rows((0, 1, 2.0)), version).insert_overwrite(path)
    assert read(tmp_path / "trips") == {"k0000": 2.0, "k0001": 1.0, "k0002": 1.0, "k0004": 1.0}
    trips(rows((4, 2, 3.0)), version).upsert(path)
    assert read(tmp_path / "trips")["k0004"] == 3.0


@pytest.mark.parametrize("move", [True, False])
@one_of("version", 9, 8, 6)
def test_keys_that_are_unique_over_all_partitions(version: int, move: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    trips(rows((0, 1, 1.0), (1, 1, 1.0)), version).upsert(path)
    moved = rows((0, 2, 2.0)).set_column(1, "day", pa.array(["tue"]))
    trips(moved, version).global_keys(move=move).upsert(path)
    assert read(tmp_path / "trips") == {"k0000": 2.0, "k0001": 1.0}
    trips(rows((0, 3, 0.0), (1, 3, 0.0)), version).global_keys(move=move).delete(path)
    assert not read(tmp_path / "trips")


@one_of("version", 9, 8, 6)
def test_a_key_that_left_its_file_under_a_plan(version: int, tmp_path: Path) -> None:
    """Without the plan its next row would go to both files, and one of them has its old row again."""
    path, table = str(tmp_path / "trips"), partial(Table.open, str(tmp_path / "trips"))
    trips(rows((0, 1, 1.0), (3, 1, 1.0)), version).upsert(path)
    writer(rows((0, 1, 1.0))).delete(path)
    instant = str(schedule(path, sole_writer=True).instant)
    writer(rows((0, 2, 2.0))).upsert(path)
    with pytest.raises(ConflictError, match=r"now in another file group.*k0000"):
        unschedule(table(), instant, ProcessLock(path))
    run_all(table())
    writer(rows((0, 3, 3.0), (3, 3, 3.0))).upsert(path)
    assert read(tmp_path / "trips") == {"k0000": 3.0, "k0003": 3.0}


def test_footers_of_files_that_had_meta_columns_tell_nothing(tmp_path: Path) -> None:
    """Their key range and bloom filter may be of keys that were made otherwise."""
    path = str(tmp_path / "trips")
    batch = rows((0, 1, 1.0)).append_column("other", [["zz"]])
    writer(batch).table("trips").key("id").partition("day").ordering("ts").upsert(path)
    properties = tmp_path / "trips" / ".hoodie" / "hoodie.properties"
    text = properties.read_text().replace("recordkey.fields=id", "recordkey.fields=other")
    properties.write_text(text.replace("meta.fields=true", "meta.fields=false"))
    writer(rows((0, 2, 2.0)).append_column("other", [["zz"]])).option(small_file_bytes=0).upsert(path)
    assert read(tmp_path / "trips") == {"k0000": 2.0}


@one_of("name", "v6_virtual_keys", "v9_virtual_keys", "v8_virtual_keys")
def test_tables_of_hudi(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    before = read_table(Table.open(str(path)))
    writer(before).upsert(str(path))
    again = read_table(Table.open(str(path)))
    assert again.sort_by("id").equals(before.sort_by("id"))
    writer(before.slice(0, 3)).delete(str(path))
    after = read_table(Table.open(str(path)))
    assert set(after.column("id").to_pylist()) == set(before.column("id").to_pylist()[3:])
    assert after.num_rows == before.num_rows - 3


def test_what_hudi_does_not_do_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    batch = rows((0, 1, 1.0)).drop_columns([IS_DELETED])
    with pytest.raises(UsageError, match="virtual keys need key columns"):
        writer(batch).table("trips").key().partition("day").conf(VIRTUAL).insert(path)
    times = {"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy-MM", "timezone": "UTC"}
    timed = writer(batch).table("trips").key("id").partition("ts").key_generator("TIMESTAMP", **times).conf(VIRTUAL)
    with pytest.raises(UnsupportedError, match=r"virtual keys of this key generator.*SIMPLE or COMPLEX"):
        timed.upsert(path)
    assert not Path(path).exists()
    trips(batch, 9).upsert(path)
    with pytest.raises(UnsupportedError, match=r"setting some columns.*virtual keys"):
        writer(batch).merge_into(path, update=["ts", "fare"])
    with pytest.raises(UsageError, match=r"another table is at this path.*meta columns"):
        trips(batch, 9).conf({"hoodie.populate.meta.fields": "true"}).upsert(path)
    properties = tmp_path / "trips" / ".hoodie" / "hoodie.properties"
    plain = properties.read_text()
    for line, what in (
        ("metadata.partitions=files,record_index", "a record index"),
        ("cdc.enabled=true", "change data"),
    ):
        properties.write_text(f"{plain}\nhoodie.table.{line}\n")
        with pytest.raises(UnsupportedError, match=f"{what}.*virtual keys"):
            writer(batch).upsert(path)
    properties.write_text(plain)
    check_nothing_left(tmp_path / "trips")
    writer(rows((0, 2, 2.0))).table("trips").key("id").partition("day").ordering("ts").upsert(path)
    assert read(tmp_path / "trips") == {"k0000": 2.0}


TIMES = pa.timestamp("us", tz="UTC")
ALIKE = ((6, pa.string()), *((9, kind) for kind in (pa.string(), pa.int32(), pa.int64(), pa.bool_(), TIMES)))
KINDS = (*(kind for _, kind in ALIKE[1:]), pa.date32(), pa.decimal128(20, 2), pa.timestamp("us"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@one_of("version", 9, 6)
def test_key_columns_of_which_hudi_makes_two_texts_are_refused(version: int, kind: pa.DataType, tmp_path: Path) -> None:
    """Its writers and its readers make the text of a key in two ways."""
    path = str(tmp_path / "trips")
    values = pa.array(["1"]) if kind == pa.string() else pa.array([1]).cast(pa.bool_() if kind == pa.bool_() else "i4")
    values = values.cast(pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else values.cast(kind)
    given = writer(rows((0, 1, 1.0)).set_column(0, "id", values)).table("trips", version=version).key("id")
    given = given.partition("day").ordering("ts").conf(VIRTUAL)
    if (version, kind) in ALIKE:
        given.upsert(path)
        given.delete(path)
        assert not read_table(Table.open(path)).num_rows
        return
    with pytest.raises(UnsupportedError, match="not always make the same key"):
        given.upsert(path)
    assert not Path(path).exists()


def test_keys_of_a_generator_that_hudi_takes_in_two_ways(tmp_path: Path) -> None:
    """Rows are read and written as long as no log deletes."""
    path = str(tmp_path / "trips")
    trips(rows((0, 1, 1.0), (3, 1, 1.0)), 9).upsert(path)
    properties = tmp_path / "trips" / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("type=SIMPLE", "type=COMPLEX"))
    assert set(read(tmp_path / "trips")) == {"k0000", "k0003"}
    with pytest.raises(UnsupportedError, match="a COMPLEX key of one field in a table with virtual keys"):
        writer(rows((0, 2, 2.0))).upsert(path)
    properties.write_text(properties.read_text().replace("type=COMPLEX", "type=SIMPLE"))
    writer(rows((0, 2, 2.0))).delete(path)
    properties.write_text(properties.read_text().replace("type=SIMPLE", "type=COMPLEX"))
    with pytest.raises(UnsupportedError, match="deletes from a table with virtual keys of one field"):
        read(tmp_path / "trips")


@one_of("version", 9, 8, 6)
def test_keys_that_hudi_cannot_read_from_logs_are_refused(version: int, tmp_path: Path) -> None:
    path, batch = str(tmp_path / "trips"), rows((0, 1, 1.0)).append_column("other", [["x"]])
    for keys, what in ((("id", "other"), "several key columns"), (("day",), "a key column that is a partition column")):
        described = writer(batch).table("trips", version=version).key(*keys).partition("day").conf(VIRTUAL)
        with pytest.raises(UnsupportedError, match=f"{what} in a table"):
            described.upsert(path)
        assert not Path(path).exists()


def test_a_complex_key_of_one_column_on_version_6(tmp_path: Path) -> None:
    """Hudi uses it for several partition columns. Its encoding cannot be seen in rows that do not have their key."""
    path = str(tmp_path / "trips")
    for fare in (1.0, 2.0):
        batch = rows((0, 1, fare), (3, 1, fare)).append_column("zone", [["x", "y"]])
        given = writer(batch).table("trips", version=6).key("id").partition("day", "zone").ordering("ts").conf(VIRTUAL)
        given.upsert(path)
        assert read(tmp_path / "trips") == {"k0000": fare, "k0003": fare}
    writer(batch.slice(0, 1)).delete(path)
    assert read(tmp_path / "trips") == {"k0003": 2.0}


# Keyless tables: each row gets a key of its own, once; what needs key columns is refused.


BATCH = rows((0, 2, 2.0), (1, 2, 2.0), (1, 2, 2.0), (4, 2, 2.0))


def events(table: pa.Table, version: int = 9) -> Writer:
    """A write of a keyless table with partitions."""
    return writer(table).table("events", version=version).key().partition("day")


def held(path: Path) -> dict[str, tuple[str, float]]:
    """Key to number and fare; a key twice is an error, and so is one that does not begin with the row's commit."""
    table = read_table(Table.open(str(path)))
    keys, times = (table.column(f"_hoodie_{name}").to_pylist() for name in ("record_key", "commit_time"))
    assert len(set(keys)) == len(keys), "two rows have one key"
    assert all(key.startswith(f"{time}_") for key, time in zip(keys, times, strict=True))
    return dict(
        zip(keys, zip(table.column("id").to_pylist(), table.column("fare").to_pylist(), strict=True), strict=True)
    )


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_rows_get_keys_and_keep_them(version: int, operation: str, tmp_path: Path) -> None:
    """Equal rows are different rows; rows of a small file that is written anew keep their keys."""
    path = str(tmp_path / "events")
    seen = dict[str, tuple[str, float]]()
    for fare in (1.0, 2.0, 3.0):
        batch = rows(*((n, 1, fare) for n in (*range(200), 7, 7, 8)))
        done = getattr(events(batch, version).option(slots=3, batch_bytes=2000), operation)(path)
        assert done.inserts == batch.num_rows
        now = held(tmp_path / "events")
        assert seen.items() <= now.items()
        added = sorted(row for key, row in now.items() if key not in seen)
        assert added == sorted(zip(batch.column("id").to_pylist(), batch.column("fare").to_pylist(), strict=True))
        seen = now


@one_of("version", 6, 9, 8)
def test_partitions_are_replaced(version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    events(rows((0, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0)), version).insert(path)
    events(rows((0, 1, 2.0), (0, 1, 2.0)), version).insert_overwrite(path)
    assert sorted(held(tmp_path / "events").values()) == [
        ("k0000", 2.0), ("k0000", 2.0), ("k0001", 1.0), ("k0002", 1.0),
    ]  # fmt: skip
    events(rows(), version).delete_partition(path, ["mon", "tue"])
    assert list(held(tmp_path / "events").values()) == [("k0002", 1.0)]
    events(rows((3, 1, 3.0)), version).insert_overwrite_table(path)
    assert list(held(tmp_path / "events").values()) == [("k0003", 3.0)]


def test_a_table_without_partitions(tmp_path: Path) -> None:
    """The description of a new table says that it has no keys; without it that is not assumed."""
    path = str(tmp_path / "events")
    described = writer(BATCH).table("events").key()
    for _ in range(2):
        described.insert(path)
    assert len(held(tmp_path / "events")) == 2 * BATCH.num_rows
    assert Table.open(path).config.is_keyless
    assert "hoodie.table.recordkey.fields" not in Table.open(path).config.properties


@pytest.mark.parametrize(
    ("write_it", "what"),
    [
        (lambda asked, path: asked.upsert(path), "upsert needs key columns"),
        (lambda asked, path: asked.delete(path), "delete needs key columns"),
        (lambda asked, path: asked.merge_into(path, update=["fare"]), "merge_into needs key columns"),
        (lambda asked, path: asked.delete_partition(path), "delete_partition by the partitions of rows"),
        (lambda asked, path: asked.buckets(2).insert(path), "bucket index"),
        (lambda asked, path: asked.option(combine=True).insert(path), "combine"),
    ],
    ids=["upsert", "delete", "merge_into", "delete_partition", "buckets", "combine"],
)
def test_what_needs_key_columns_is_refused(write_it: Callable[[Writer, str], Any], what: str, tmp_path: Path) -> None:
    path, batch = str(tmp_path / "events"), BATCH.drop_columns([IS_DELETED])
    events(batch).insert(path)
    before = held(tmp_path / "events")
    with pytest.raises(UnsupportedError, match=what):
        write_it(writer(batch), path)
    assert held(tmp_path / "events") == before


@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_tasks_that_run_twice_give_each_row_one_key(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a retried or speculative task of Spark does: the files of one try count."""
    regroup = LocalPieces.regroup

    def twice(pieces: LocalPieces, step: Any) -> Any:
        regroup(pieces, step)
        return regroup(pieces, step)

    path = tmp_path / "events"
    events(BATCH).insert(str(path))
    monkeypatch.setattr(LocalPieces, "regroup", twice)
    getattr(events(BATCH), operation)(str(path))
    assert len(held(path)) == 2 * BATCH.num_rows


@one_of("version", 9, 6)
def test_a_death_at_every_storage_call(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are all there or none, and the next write adds its own: no row is doubled, none changes its key."""
    serial_pools(monkeypatch)
    origin, died = tmp_path / "origin", 0
    events(BATCH, version).option(slots=1).insert(str(origin))
    before = held(origin)
    what = Write(operation=Operation.INSERT, options=impatient(WriteOptions(slots=1, lazy_rollback=False)))

    def insert(storage: Storage) -> None:
        write(open_table(Path(storage.base_path), storage), LocalEngine(BATCH, slots=1), what)

    for _, path in Faults.of(origin, insert).deaths():
        seen = held(path)
        assert before.items() <= seen.items()
        assert len(seen) in (len(before), len(before) + BATCH.num_rows)
        insert(LocalStorage(str(path)))
        after = held(path)
        assert seen.items() <= after.items()
        assert len(after) == len(seen) + BATCH.num_rows
        check_nothing_left(path)
        died += 1
    assert died > 8
