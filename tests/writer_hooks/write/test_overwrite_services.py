"""Overwrites among other writes and services; what a metadata table and windows of readers say of them."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.records.partitions import FILES, RECORD_INDEX
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.writer_hooks.write.write import Written
from tests.support.change_feeds import check_window, feed, moments_of, state
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.record_indexes import set_partitions
from tests.support.selection import deep
from tests.support.tables import one_of
from tests.support.trips import DAYS, Model, read, rows, trips


@pytest.mark.parametrize("seed", [0, deep(1), deep(2), deep(3), deep(4), deep(5)])
@pytest.mark.parametrize(("version", "buckets"), [(6, None), deep(6, 2), deep(9, None), (9, 2)])
def test_random_histories(version: int, buckets: int | None, seed: int, tmp_path: Path) -> None:
    """Nothing that was replaced comes back, whichever service follows."""
    pick, path, model = random.Random(seed), tmp_path / "trips", Model()
    for step in range(20):
        numbers = sorted(pick.sample(range(40), pick.randint(0, 12)))
        batch = rows(*((n, step, pick.random()) for n in numbers))
        write = trips(batch, version, buckets).option(small_file_bytes=pick.choice((0, 100 << 20)))
        kind = pick.choices(["upsert", "delete", "over", "all", "gone"], [5, 1, 3, 1, 1])[0] if step else "upsert"
        if pick.random() < 0.6 and kind != "gone":
            write = write.compact_inline(max_delta_commits=1)
        if pick.random() < 0.4:
            write = write.clean(retain=1, floor_s=0)
        if pick.random() < 0.4:
            write = write.archive(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
        done = _apply(write, kind, str(path), pick, model, batch)
        assert done.after.error is None, f"seed {seed}, step {step}: {done.after.error}"
        assert read(path) == model.fares(), f"seed {seed}, step {step}, {kind}"


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
    trips(rows(*((n, 1, 1.0) for n in range(9))), version).upsert(path)
    trips(rows((0, 2, 2.0), (9, 2, 2.0)), version).upsert(path)
    over = trips(rows((3, 3, 3.0), (12, 3, 3.0)), version).insert_overwrite(path)
    gone = writer().delete_partition(path, ["tue"])
    trips(rows((1, 5, 5.0)), version).upsert(path)
    trips(rows((2, 6, 6.0)), version).insert_overwrite_table(path)
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
    trips(rows((0, 1, 1.0), (1, 1, 1.0)), version).upsert(str(path))
    done = trips(rows((3, 2, 2.0)), version).insert_overwrite_table(str(path))
    roll_back_newest(open_table(path), ProcessLock(str(path)), done.instant)
    assert read(path) == {"k0000": 1.0, "k0001": 1.0}
    trips(rows((3, 3, 3.0)), version).upsert(str(path))
    assert read(path) == {"k0000": 1.0, "k0001": 1.0, "k0003": 3.0}


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
