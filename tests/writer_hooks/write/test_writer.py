"""Writes through the public API, in this process, against a model in plain Python."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.timeline.codec.avro_container import write_record
from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import decode, encode
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.log_block import BlockKind, scan_blocks
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.spilled_merge import LogSpill
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.facts import HASHING_METADATA
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.options import Operation
from phantombase.writer_hooks.write import write as write_module
from phantombase.writer_hooks.write.write import retry_pauses
from tests.support.archived_tables import archive, cluster
from tests.support.clock import sleeps
from tests.support.evolved_tables import contents
from tests.support.golden_tables import golden_metadata, one_of, unzip_golden
from tests.support.selection import deep
from tests.support.trips import Model, read, rows, trips

_MODE = "hoodie.write.record.merge.mode"


@pytest.mark.parametrize("log_format", list(LogFormat), ids=lambda f: f.value)
@pytest.mark.parametrize("buckets", [None, 4], ids=["key index", "buckets"])
@one_of("version", 9, 8, 6)
def test_a_table_is_made_and_written(version: int, buckets: int | None, log_format: LogFormat, tmp_path: Path) -> None:
    path = tmp_path / "trips"

    def write(table: pa.Table) -> Writer:
        return trips(table, version, buckets).option(log_format=log_format)

    first = write(rows(*((n, 10, 1.0) for n in range(60)))).upsert(str(path))
    assert (first.inserts, first.deletes) == (60, 0)
    assert len(read(path)) == 60
    write(rows((1, 11, 2.0), (2, 9, 2.0), (100, 10, 2.0), (1, 10, 3.0))).upsert(str(path))
    after = read(path)
    assert (after["k0001"], after["k0002"], after["k0100"], len(after)) == (2.0, 1.0, 2.0, 61)
    write(rows((1, 0, 0.0), (999, 0, 0.0)).select(["id", "day"])).delete(str(path))
    assert "k0001" not in read(path)
    write(rows((2, 12, 0.0), (998, 12, 0.0), deleted=True)).upsert(str(path))
    assert set(read(path)) == {f"k{n:04d}" for n in (*range(60), 100)} - {"k0001", "k0002"}


@pytest.mark.parametrize("seed", [0, *map(deep, range(1, 6))])
@pytest.mark.parametrize("buckets", [None, 3], ids=["key index", "buckets"])
@one_of("version", 6, 9)
def test_random_batches_read_as_the_model_says(version: int, buckets: int | None, seed: int, tmp_path: Path) -> None:
    """Times only rise from batch to batch, where merging before and after a compaction is the same thing."""
    pick, path, model = random.Random(seed), tmp_path / "trips", Model()
    for step in range(12):
        numbers = [pick.randrange(80) for _ in range(pick.randint(1, 40))]
        batch = rows(
            *((n, step * 10 + pick.randrange(10), pick.random()) for n in numbers), deleted=pick.random() < 0.2
        )
        small = trips(batch, version, buckets).option(small_file_bytes=pick.choice((0, 100 << 20)))
        if step and pick.random() < 0.2:
            small.delete(str(path))
            model.delete(batch)
        else:
            small.upsert(str(path))
            model.upsert(batch)
        assert read(path) == model.fares(), f"seed {seed}, step {step}"


def test_an_existing_table_needs_nothing_said(tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    trips(rows((1, 1, 1.0)), 9).upsert(path)
    writer(rows((1, 2, 2.0))).upsert(path)
    assert read(tmp_path / "trips") == {"k0001": 2.0}
    with pytest.raises(UsageError, match=r"another table is at this path.*record key fields"):
        writer(rows((1, 2, 2.0))).key("fare").upsert(path)


@pytest.mark.parametrize(("old", "new"), [(pa.int32(), pa.int64()), (pa.float32(), pa.float64())], ids=str)
def test_an_ordering_column_keeps_its_type(old: pa.DataType, new: pa.DataType, tmp_path: Path) -> None:
    """A late delete in a log has a value of the old type, and wins over each row of another type: k0000 was gone."""

    def batch(number: int, ts: int, kind: pa.DataType, *, deleted: bool = False) -> pa.Table:
        return rows((number, ts, 1.0), deleted=deleted).set_column(2, "ts", pa.array([ts]).cast(kind))

    path = str(tmp_path / "trips")
    trips(batch(0, 10, old), 9).upsert(path)
    trips(batch(0, 5, old, deleted=True), 9).upsert(path)
    with pytest.raises(UsageError, match=r"the type of an ordering column.*Cast the column"):
        trips(batch(3, 11, new), 9).upsert(path)
    assert read(tmp_path / "trips") == {"k0000": 1.0}
    by_commit_time = (
        writer(batch(0, 1, old)).table("other").key("id").ordering("ts").conf({_MODE: "COMMIT_TIME_ORDERING"})
    )
    by_commit_time.upsert(str(tmp_path / "other"))
    writer(batch(0, 2, new)).upsert(str(tmp_path / "other"))
    assert read(tmp_path / "other") == {"k0000": 1.0}


@one_of("version", 9, 6)
def test_partitions_may_begin_with_a_dot(version: int, tmp_path: Path) -> None:
    """Hudi looks into every folder but its own."""
    path = tmp_path / "trips"
    days = pa.array([".x", ".hoodie_x", ".y/z"])
    for ts in (1, 2):
        batch = rows(*((n, ts, float(ts)) for n in range(3))).set_column(1, "day", days)
        done = trips(batch, version).option(small_file_bytes=0).compact_inline(max_delta_commits=1).upsert(str(path))
    assert done.updates == 3
    assert done.after.compacted
    assert read(path) == {f"k000{n}": 2.0 for n in range(3)}


def test_duplicates_of_an_insert_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    trips(rows((1, 1, 1.0), (1, 2, 2.0)), 9).insert(path)
    trips(rows((1, 1, 3.0)), 9).insert(path)
    trips(rows((1, 1, 4.0)), 9).bulk_insert(path)
    assert sorted(read_table(Table.open(path)).column("fare").to_pylist()) == [1.0, 2.0, 3.0, 4.0]


@one_of("version", 9, 6)
def test_inserted_rows_that_ask_for_their_deletion_are_left_out(version: int, tmp_path: Path) -> None:
    """In new files and in small ones alike, as in Hudi."""
    path = str(tmp_path / "trips")
    for numbers in ((1, 4), (7, 10)):
        kept, gone = ((n, 1, 1.0) for n in numbers)
        marked = pa.concat_tables([rows(kept), rows(gone, deleted=True)])
        assert trips(marked, version).insert(path).inserts == 1
    assert set(read(tmp_path / "trips")) == {"k0001", "k0007"}


@pytest.mark.parametrize("version", [6, 8, 9])
def test_every_write_says_what_the_table_does_not_store_of_its_partition_times(version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    table = pa.table({"id": ["a", "b"], "at": [0, 40 * 86_400]})
    times = {"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy-MM", "timezone": "UTC"}
    described = writer(table).table("trips", version=version).key("id").partition("at")
    for _ in range(2):
        described.key_generator("TIMESTAMP", **times).upsert(path)
    assert sorted(read_table(Table.open(path)).column("_hoodie_partition_path").to_pylist()) == ["1970-01", "1970-02"]
    if version == 6:
        with pytest.raises(UsageError, match=r"timestamp\.type"):
            writer(table).upsert(path)
    else:
        writer(table).upsert(path)


@pytest.mark.parametrize("small_file_bytes", [0, 100 << 20], ids=["new files", "small files"])
def test_an_insert_that_combines_keeps_one_row_a_key_of_its_batch(small_file_bytes: int, tmp_path: Path) -> None:
    """And does not look at the table's rows, as in Hudi."""
    path = str(tmp_path / "trips")
    trips(rows((1, 1, 1.0)), 9).insert(path)
    doubled = trips(rows((1, 3, 3.0), (1, 2, 2.0), (4, 2, 2.0), (4, 2, 4.0)), 9)
    doubled = doubled.option(combine=True, small_file_bytes=small_file_bytes, batch_bytes=1)
    doubled.insert(path)
    assert sorted(read_table(Table.open(path)).column("fare").to_pylist()) == [1.0, 3.0, 4.0]
    doubled.bulk_insert(path)
    assert sorted(read_table(Table.open(path)).column("fare").to_pylist()) == [1.0, 3.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize("buckets", [None, 1])
def test_a_batch_orders_decimals_by_number(buckets: int | None, tmp_path: Path) -> None:
    """Hudi 0.15.0, too: only entries of its log files compare as bytes, by which negative ones are the greatest."""
    path, kind = str(tmp_path), pa.decimal128(6, 2)
    given = pa.table({"id": ["a", "a"], "at": pa.array([Decimal("0.02"), Decimal("-0.01")], kind), "n": [2, 1]})
    for _ in range(2):
        described = writer(given).table("t", version=6).key("id").ordering("at").merge_mode("EVENT_TIME")
        described.option(buckets=buckets, small_file_bytes=0).upsert(path)
    assert read_table(Table.open(path)).column("n").to_pylist() == [2]


def test_an_upsert_without_combining_still_updates_small_files(tmp_path: Path) -> None:
    """A file that is written anew has one row a key, as in Hudi."""
    path = str(tmp_path / "trips")
    trips(rows((1, 1, 1.0), (4, 1, 1.0)), 9).insert(path)
    marked = rows((10, 3, 3.0), deleted=True)
    batch = pa.concat_tables([rows((1, 2, 2.0), (7, 2, 2.0)), marked, rows((10, 2, 2.0))])
    trips(batch, 9).option(combine=False).upsert(path)
    assert read(tmp_path / "trips") == {"k0001": 2.0, "k0004": 1.0, "k0007": 2.0}


def test_small_files_take_inserts(tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    trips(rows(*((3 * n, 1, 1.0) for n in range(10))), 9).upsert(path)
    second = trips(rows(*((3 * n, 1, 2.0) for n in range(5, 20))), 9).upsert(path)
    assert (second.files, second.inserts, second.updates) == (1, 10, 5)
    groups = Table.open(path).load_view().groups
    assert [len(g.slices) for g in groups] == [2]
    assert len(read(tmp_path / "trips")) == 20


def test_modes_of_compaction(tmp_path: Path) -> None:
    """Write-only does nothing, schedule requests when due, inline executes too and leaves what the limit forbids."""
    path = str(tmp_path / "trips")
    described = trips(rows((1, 1, 1.0)), 6, 2)
    assert described.upsert(path).after.why == ""
    done = [trips(rows((1, 2 + n, 1.0)), 6, 2).schedule(max_delta_commits=3).upsert(path).after for n in range(3)]
    assert [d.scheduled is not None for d in done] == [False, True, False]
    assert done[0].why.startswith("not due: 2 of 3 delta commits")
    left = trips(rows((1, 9, 9.0)), 6, 2).compact_inline(limit_s=0, max_delta_commits=3).upsert(path).after
    assert left.left == (done[1].scheduled,)
    ran = trips(rows((1, 10, 10.0)), 6, 2).compact_inline(max_delta_commits=99).upsert(path).after
    assert [c.instant for c in ran.compacted] == [done[1].scheduled]
    assert read(tmp_path / "trips") == {"k0001": 10.0}


def test_what_fails_after_the_commit_does_not_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise LockError("could not take the table lock to schedule a compaction")

    monkeypatch.setattr("phantombase.writer_hooks.commit.compaction.schedule_compaction", failing)
    done = trips(rows((1, 1, 1.0)), 9).schedule().upsert(str(tmp_path / "trips"))
    assert done.after.error is not None
    assert read(tmp_path / "trips") == {"k0001": 1.0}


def test_retries_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comes at once; what keeps the write out for longer, as a rollback does, has time to end."""
    pauses: list[float] = []
    tried = write_module._attempt

    def conflicting(*args: Any) -> Any:
        if len(pauses) < 4:
            raise ConflictError("a rollback is under way")
        return tried(*args)

    monkeypatch.setattr(write_module, "_attempt", conflicting)
    sleeps(monkeypatch, pauses.append)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    trips(rows((1, 1, 1.0)), 9).option(retries=4).upsert(str(tmp_path / "trips"))
    assert pauses == [0, 0.5, 1, 2]
    assert list(islice(retry_pauses(), 10)) == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_batch_of_a_stream_is_written_once(tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    sink = trips(rows(), 9).foreach_batch(path, stream="s")
    sink(rows((1, 1, 1.0)), 0)
    sink(rows((1, 2, 2.0)), 1)
    sink(rows((1, 9, 9.0)), 1)
    assert read(tmp_path / "trips") == {"k0001": 2.0}
    with pytest.raises(UsageError, match="a later batch of this stream is written already"):
        sink(rows((1, 9, 9.0)), 0)
    trips(rows(), 9).foreach_batch(path, stream="another")(rows((2, 1, 1.0)), 0)
    assert len(read(tmp_path / "trips")) == 2


def test_a_batch_that_another_sink_has_written_is_known_by_its_commit(tmp_path: Path) -> None:
    """Hudi's sink leaves no record of ours: the last one may be older than what the table holds."""
    path = tmp_path / "trips"
    sink = trips(rows(), 9).foreach_batch(str(path), stream="s", operation=Operation.INSERT)
    for number in range(3):
        before = Table.open(str(path)).storage.read(StreamBatch(name="s", number=0).path) if number else b""
        sink(rows((number, 1, 1.0)), number)
    Table.open(str(path)).storage.overwrite(StreamBatch(name="s", number=0).path, before)
    sink(rows((2, 1, 1.0)), 2)
    assert len(read(path)) == 3


@pytest.mark.parametrize("where", ["wait_while_wanted", "place_all"])
def test_of_two_tries_of_a_batch_one_is_written(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one wakes up when the second and a later batch are done: once before it has begun, once after."""
    path, real = tmp_path / "trips", getattr(write_module, where)
    sink = trips(rows(), 9).option(small_file_bytes=0).foreach_batch(str(path), stream="s", operation=Operation.INSERT)
    sink(rows((0, 1, 1.0)), 0)

    def behind_another(*given: Any) -> Any:
        monkeypatch.setattr(write_module, where, real)
        sink(rows((1, 1, 1.0)), 1)
        sink(rows((2, 1, 1.0)), 2)
        return real(*given)

    monkeypatch.setattr(write_module, where, behind_another)
    with pytest.raises((ConflictError, UsageError)):
        sink(rows((1, 1, 1.0)), 1)
    assert read(path) == {"k0000": 1.0, "k0001": 1.0, "k0002": 1.0}


@one_of("version", 6, 9)
def test_a_key_deleted_under_a_plan_comes_back_once(version: int, tmp_path: Path) -> None:
    """The compaction takes it out of its base file: were it in the log on top, no later look-up would find it."""
    path = tmp_path / "trips"

    def write(*given: tuple[int, int, float]) -> Writer:
        return trips(rows(*given), version).option(small_file_bytes=0)

    write(*((n, 1, 1.0) for n in range(9))).upsert(str(path))
    write((3, 2, 0.0)).delete(str(path))
    done = write((4, 2, 2.0)).schedule(max_delta_commits=1).upsert(str(path))
    assert done.after.scheduled is not None
    write((3, 3, 3.0)).upsert(str(path))
    assert read(path)["k0003"] == 3.0
    assert write((5, 4, 4.0)).compact_inline(max_delta_commits=99).upsert(str(path)).after.compacted
    write((3, 5, 5.0)).upsert(str(path))
    assert read(path)["k0003"] == 5.0
    assert len(read(path)) == 9


def test_two_writes_that_change_the_schema_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file groups of their own: the one that completes later would take the other's column back."""
    path = str(tmp_path / "trips")
    trips(rows((0, 1, 1.0), (1, 1, 1.0)), 9, 1).upsert(path)

    def with_column(name: str, number: int) -> Writer:
        return trips(rows((number, 2, 2.0)).append_column(name, pa.array([7], pa.int32())), 9, 1)

    def placed_behind_another(*given: Any) -> Any:
        monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", place_all)
        with_column("b", 1).upsert(path)
        return place_all(*given)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", placed_behind_another)
    with pytest.raises(ConflictError, match="the table's schema"):
        with_column("a", 0).upsert(path)
    with_column("a", 0).upsert(path)
    assert {"a", "b"} <= set(read_table(Table.open(path)).column_names)


@pytest.mark.parametrize(("version", "action"), [(6, "replacecommit"), (9, "clustering")])
def test_a_clustering_requested_meanwhile_conflicts(
    version: int, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not have the log that is about to come, and replaces the file group it lies on."""
    path = tmp_path / "trips"
    trips(rows((0, 1, 1.0)), version, 1).upsert(str(path))
    (group,) = Table.open(str(path)).load_view().groups
    golden = golden_metadata(f"v{version}_clustered").items()
    data = next(d for p, d in golden if p.endswith(f".{action}.requested"))
    reader: Any = fastavro.reader(io.BytesIO(data))
    record = next(reader)
    record["clusteringPlan"]["inputGroups"][0]["slices"][0] |= {"partitionPath": "mon", "fileId": group.file_id}

    def placed_under_a_clustering(table: Table, *given: Any) -> Any:
        requested = table.snapshot().next_time(())
        plan = write_record(record, reader.writer_schema)
        table.storage.put_if_absent(f"{table.config.timeline_folder}/{requested}.{action}.requested", plan)
        return place_all(table, *given)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", placed_under_a_clustering)
    with pytest.raises(ConflictError, match="clustering of file group"):
        trips(rows((0, 2, 2.0)), version, 1).option(clustering_wait_s=0).upsert(str(path))
    assert read(path) == {"k0000": 1.0}


@one_of("version", 9, 6)
def test_a_batch_beyond_the_memory_limit_reads_the_same(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is folded in parts, by key, from disk."""
    monkeypatch.setattr(SliceRules, "fold_bytes", property(lambda _: 2000.0))
    spilled: list[int] = []
    inner = LogSpill.__init__

    def counted(self: LogSpill, *given: Any) -> None:
        spilled.append(1)
        inner(self, *given)

    monkeypatch.setattr(LogSpill, "__init__", counted)
    pick, path, model = random.Random(version), tmp_path / "trips", Model()
    for step in range(4):
        given = [(pick.randrange(80), step * 10 + pick.randrange(10), pick.random()) for _ in range(300)]
        batch = pa.concat_tables([rows(*given[:200]), rows(*given[200:], deleted=True)])
        trips(batch, version, 2).upsert(str(path))
        model.upsert(batch)
        assert read(path) == model.fares()
    assert len(spilled) > 4


def test_small_files_do_not_tell_how_large_a_row_is(tmp_path: Path) -> None:
    """Most of a file of one row is its key filter: many rows after it went into a file for every 276 of them."""
    trips(rows((0, 1, 1.0)), 9).insert(str(tmp_path / "t"))
    many = trips(rows(*((n, 1, 1.0) for n in range(3, 30_000, 3))), 9).option(small_file_bytes=0)
    assert many.insert(str(tmp_path / "t")).files == 1


# What a write refuses leaves no trace: not a byte of the table changes, and no table appears where there was none.


ROW = rows((1, 1, 1.0))


def put(name: str, values: list[object], kind: pa.DataType) -> pa.Table:
    """The row with another column."""
    return ROW.set_column(ROW.schema.get_field_index(name), name, pa.array(values, kind))


REFUSED: dict[str, tuple[Callable[[], Writer], str]] = {
    "null key": (lambda: trips(put("id", [None], pa.string()), 9), "rows without a record key"),
    "empty key": (lambda: trips(put("id", [""], pa.string()), 9), "rows without a record key"),
    "no key column": (lambda: trips(ROW.drop_columns(["id"]), 9), "lack columns that the table needs"),
    "no partition column": (lambda: trips(ROW.drop_columns(["day"]), 9), "lack columns that the table needs"),
    "no ordering column": (lambda: trips(ROW.drop_columns(["ts"]), 9), "lack columns that the table needs"),
    "null ordering value": (lambda: trips(put("ts", [None], pa.int64()), 9), "rows without an ordering value"),
    "other type": (lambda: trips(put("fare", ["x"], pa.string()), 9), "fare"),
    "other name": (lambda: trips(ROW, 9).table("rides"), "another table is at this path"),
    "other key": (lambda: trips(ROW, 9).key("fare"), "another table is at this path"),
    "no rows at all": (lambda: writer([1, 2]), "not rows"),
    "unknown lock": (lambda: trips(ROW, 9).option(lock="etcd:x"), "lock provider"),
    "path out of the table": (lambda: trips(put("day", ["../x"], pa.string()), 9), "partition"),
}


@one_of("version", 9, 6)
@pytest.mark.parametrize("buckets", [5, 8])
def test_more_buckets_than_the_table_has(version: int, buckets: int, tmp_path: Path) -> None:
    """Keys would be looked for in other buckets than they lie in."""
    path = tmp_path / "trips"
    many = rows(*((n, 1, 1.0) for n in range(60)))
    trips(many, version, 4).upsert(str(path))
    with pytest.raises(UsageError, match="not the table's bucket index"):
        trips(many, version, buckets).upsert(str(path))
    assert trips(many, version, 4).upsert(str(path)).updates is None  # no key was looked for
    assert trips(many, version, 4).delete(str(path)).deletes is None


@one_of("version", 9, 6)
def test_counts_are_true_or_absent(version: int, tmp_path: Path) -> None:
    """A key that only a log has deleted is no update, nor a second delete."""
    path, plain = str(tmp_path / "trips"), pa.table({"id": ["a"], "ts": [1]})  # without a column that marks deletes
    made = writer(plain).table("trips", version=version).key("id").ordering("ts")
    counts = [(done.inserts, done.updates, done.deletes) for done in (made.upsert(path), made.upsert(path))]
    counts += [(done.inserts, done.updates, done.deletes) for done in (made.delete(path), made.upsert(path))]
    assert counts == [(1, 0, 0), (0, 1, 0), (0, 0, 1), (None, None, None)]


@one_of("version", 6, 9)
@pytest.mark.parametrize(
    ("alone", "moves", "archived"),
    [(True, False, False), (False, False, False), (False, True, False), (False, False, True), (False, True, True)],
)
def test_new_keys_in_logs(alone: bool, moves: bool, archived: bool, version: int, tmp_path: Path) -> None:
    """As Flink's state index puts them there, `alone` or, after a compaction, on top of a base file: an upsert would
    double these rows, or those that Flink writes next. A delete finds them. Once the writes are `archived`, nobody
    knows whether the keys are new: so the logs are looked into."""
    path = tmp_path / "trips"
    for key in (1, 4):
        trips(rows((key, 1, 1.0)), version, 1).upsert(str(path))
    for file in path.glob("tue/.0*.log.*" if alone else "tue/*0*-0_*"):
        file.rename(file.with_name(file.name.replace("00000000", "abcdefab", 1)))
    for commit in sorted(path.glob(".hoodie/**/*.deltacommit"), key=lambda f: f.name)[1 if alone else 0 :]:
        metadata, was = decode(commit.read_bytes().replace(b"00000000-", b"abcdefab-"), ""), ".log."
        stats = {
            p: tuple(replace(s, num_inserts=int(was in str(s.path))) for s in of)
            for p, of in metadata.partition_to_write_stats.items()
        }
        changed = replace(metadata, partition_to_write_stats=stats)
        commit.write_bytes(encode(changed, Layout.of(version).encoding))

    def write(table: pa.Table) -> Writer:
        return trips(table, version).global_keys() if moves else trips(table, version)

    if archived:
        for ts in range(3):
            trips(rows((2, ts, 1.0)), version).upsert(str(path))
        archive(path)
        write(rows((4, 9, 9.0))).upsert(str(path))
        assert read(path) == {"k0001": 1.0, "k0002": 1.0, "k0004": 9.0}
        return
    with pytest.raises(UnsupportedError, match="puts new keys into log files"):
        write(rows((7, 1, 1.0))).upsert(str(path))
    with pytest.raises(UnsupportedError, match="cannot be clustered"):
        cluster(path)
    write(rows((4, 1, 1.0)).select(["id", "day"])).delete(str(path))
    assert set(read(path)) == {"k0001"}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_without_a_trace(case: str, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    trips(ROW, 9).upsert(str(path))
    before = contents(path)
    make, said = REFUSED[case]
    with pytest.raises(PhantombaseError, match=said) as caught:
        make().upsert(str(path))
    assert "\n" not in str(caught.value)
    assert contents(path) == before


@pytest.mark.parametrize("case", [c for c in REFUSED if not c.startswith(("other", "unknown", "path"))])
def test_no_table_is_made_for_what_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    make, said = REFUSED[case]
    if "null" in case or "empty" in case:
        # Whether a key is null is known once the rows are read: a table without rows may be there then.
        with pytest.raises(PhantombaseError, match=said):
            make().upsert(str(path))
        assert not list(path.rglob("*.deltacommit*"))
        return
    with pytest.raises(PhantombaseError, match=said):
        make().upsert(str(path))
    assert not path.exists()


def test_too_little_said_of_a_new_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the description of a new one is incomplete; at .*; expected a name"):
        writer(ROW).key("id").upsert(str(tmp_path / "trips"))
    with pytest.raises(PhantombaseError):
        writer(ROW).delete(str(tmp_path / "trips"))
    assert not (tmp_path / "trips").exists()


_BY_NAME: dict[str, Any] = {"hoodie.table.name": "trips"}


@one_of("by_name", True, False)
def test_the_advice_for_a_new_table_follows_how_it_was_asked_for(by_name: bool, tmp_path: Path) -> None:
    """Keys by Hudi's names, or by methods; a keyless table only where its writes could be done, and then it is made."""
    path = str(tmp_path / "trips")
    described = writer(ROW).conf(_BY_NAME) if by_name else writer(ROW).table("trips")
    with pytest.raises(UsageError, match="expected a record key") as error:
        described.upsert(path)
    said = error.value.todo or ""
    assert ("hoodie.datasource.write.recordkey.field=COLUMN" in said, ".key(" in said) == (by_name, not by_name)
    assert "keyless" not in said
    with pytest.raises(UsageError, match="for a keyless table") as error:
        described.insert(path)
    said = error.value.todo or ""
    assert ("recordkey.field= (empty)" in said, ".key() without columns" in said) == (by_name, not by_name)
    keyless = described.conf({"hoodie.datasource.write.recordkey.field": ""}) if by_name else described.key()
    assert keyless.insert(path).writes == ROW.num_rows


NEVER_USED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("max_delta_seconds", {"max_delta_seconds": 9}),
    ("max_delta_commits", {"strategy": "time-elapsed", "max_delta_commits": 9}),
    ("gate_s", {"strategy": "always", "gate_s": 9}),
    ("compaction_trigger", {"compaction_trigger": 9}),
)


def test_options_of_a_method_that_are_never_used_are_refused() -> None:
    for name, options in NEVER_USED:
        for method in (writer().schedule, writer().compact_inline):
            with pytest.raises(UsageError, match=f"{name} means nothing here"):
                method(**options)
    for action in ("fail", "go-on"):
        with pytest.raises(UsageError, match="wait_s means nothing here"):
            writer().back_pressure(action=action, wait_s=9)


def test_an_unknown_index_is_refused_or_dropped(tmp_path: Path) -> None:
    table = unzip_golden("v9_with_metadata_table", tmp_path)
    properties = table / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.metadata.partitions=files,vector_index\n")
    batch = pa.table({"id": ["k1"], "p": ["north"], "ts": [10**6]})
    before = contents(table)
    with pytest.raises(UnsupportedError, match="vector_index"):
        writer(batch).upsert(str(table))
    assert contents(table) == before
    assert writer(batch).option(drop_metadata_table=True).upsert(str(table)).writes == 1
    assert not (table / ".hoodie/metadata").exists()


def test_a_bucketed_table_is_recognised(tmp_path: Path) -> None:
    path, keyed = str(tmp_path / "trips"), str(tmp_path / "keyed")
    trips(ROW, 9, 4).upsert(path)
    trips(ROW, 9).upsert(keyed)
    before = contents(tmp_path)
    for operation in (
        "upsert",
        "bulk_insert",
        "insert",
        "delete",
        "insert_overwrite",
        "insert_overwrite_table",
    ):  # the latter looks up no keys, but its files are of no bucket
        with pytest.raises(UsageError, match="this table has a bucket index"):
            getattr(trips(ROW, 9), operation)(path)
    with pytest.raises(UsageError, match="this is not the table's bucket index"):
        trips(ROW, 9, 1).upsert(path)
    with pytest.raises(UsageError, match="not a table with this bucket index"):
        trips(ROW, 9, 1).upsert(keyed)
    assert contents(tmp_path) == before


@one_of("version", 9, 6)
def test_consistent_hashing_buckets(version: int, tmp_path: Path) -> None:
    """Only Hudi knows which bucket a key belongs to."""
    path = tmp_path / "trips"
    trips(ROW, version).upsert(str(path))
    (path / HASHING_METADATA / "1").mkdir(parents=True)
    before = contents(path)
    with pytest.raises(UnsupportedError, match="writing a table with the consistent-hashing bucket index"):
        trips(ROW, version).upsert(str(path))
    assert contents(path) == before


@pytest.mark.parametrize("of_bytes", [True, deep(False)])
def test_decimals_of_bytes_are_written_as_avro_on_version_6(of_bytes: bool, tmp_path: Path) -> None:
    """As clients of Kafka and Debezium have them. Hudi 0.15.0 fails at such a column in a Parquet block (seen)."""
    batch = pa.table({"id": ["a"], "ts": [1], "price": pa.array([Decimal("-1.50")], pa.decimal128(30, 4))})
    writer(batch).table("t", version=6).key("id").ordering("ts").upsert(str(tmp_path))
    (commit,) = (tmp_path / ".hoodie").glob("*.deltacommit")
    said = json.loads(commit.read_text())
    schema = json.loads(said["extraMetadata"]["schema"])
    if of_bytes:
        schema["fields"][-1]["type"][1] = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}
    said["extraMetadata"]["schema"] = json.dumps(schema)
    commit.write_text(json.dumps(said))
    writer(batch).upsert(str(tmp_path))
    (log,) = tmp_path.glob(".*.log.*")
    with log.open("rb") as file:
        kinds = [block.kind for block in scan_blocks(pa.PythonFile(file), log.name)]
    assert kinds == [BlockKind.AVRO_DATA if of_bytes else BlockKind.PARQUET_DATA]
    assert read_table(Table.open(str(tmp_path)))["price"].to_pylist() == [Decimal("-1.50")]
