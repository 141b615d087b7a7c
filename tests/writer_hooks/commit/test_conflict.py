"""Which writes conflict, where new rows go, and which batch of a stream is written already: pure decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice
from phantombase.writer_hooks.commit.conflict import (
    Footprint,
    conflict_with_commit,
    conflict_with_plans,
    conflict_with_schema,
)
from phantombase.writer_hooks.commit.stream_batches import Begun, StreamBatch, written_as
from phantombase.writer_hooks.index.insert_plan import Spread, plan_inserts
from tests.support.golden_tables import unzip_golden

NOTHING = Footprint(
    appended=frozenset(), rewritten=frozenset(), buckets=frozenset(), inserts=frozenset(), looked_up=False
)
GROUP = ("p", "00000001-a-0")
SCHEMA = '{"type":"record","name":"r","fields":[{"name":"id","type":"string"}]}'


def commit(file_id: str, name: str, inserts: int = 0, replaced: tuple[str, ...] | None = None) -> CommitMetadata:
    stat = WriteStat(file_id=file_id, path=f"p/{name}", num_inserts=inserts)
    return CommitMetadata(
        partition_to_write_stats={"p": (stat,)},
        partition_to_replace_file_ids=None if replaced is None else {"p": replaced},
    )


CLUSTERED = replace(commit("new", "x.parquet", replaced=("old",)), operation_type="CLUSTER")


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        (replace(NOTHING, appended=frozenset({GROUP})), commit(GROUP[1], "x.log.1"), "file group"),
        (replace(NOTHING, rewritten=frozenset({GROUP})), commit(GROUP[1], "x.log.1"), "file group"),
        (replace(NOTHING, appended=frozenset({GROUP})), commit("other", "x.log.1"), None),
        (replace(NOTHING, appended=frozenset({("q", GROUP[1])})), commit(GROUP[1], "x.log.1"), None),
        (replace(NOTHING, appended=frozenset({GROUP})), commit("new", "x.parquet", replaced=(GROUP[1],)), "file group"),
        (replace(NOTHING, buckets=frozenset({("p", "00000001")})), commit("00000001-b-0", "x.parquet"), "bucket"),
        (replace(NOTHING, buckets=frozenset({("p", "00000002")})), commit("00000001-b-0", "x.parquet"), None),
        (replace(NOTHING, inserts=frozenset({"p"})), commit("new", "x.parquet", inserts=1), "inserts"),
        (replace(NOTHING, inserts=frozenset({"p"})), commit("new", "x.parquet"), None),
        (replace(NOTHING, inserts=frozenset({"p"})), commit("new", ".x.log.1", inserts=1), None),
        (replace(NOTHING, inserts=frozenset({"q"})), commit("new", "x.parquet", inserts=1), None),
        (replace(NOTHING, everywhere=True, looked_up=True), commit("new", ".x.log.1"), "all partitions"),
        (replace(NOTHING, everywhere=True, looked_up=True), CLUSTERED, None),
        (replace(NOTHING, everywhere=True), commit("new", ".x.log.1"), "all partitions"),
        (replace(NOTHING, overwritten=frozenset({"p"})), commit("new", ".x.log.1"), "overwritten"),
        (replace(NOTHING, overwritten=frozenset({"q"})), commit("new", ".x.log.1"), None),
        (replace(NOTHING, overwrites_all=True), commit("new", "x.parquet"), "overwritten"),
        (replace(NOTHING, partitions=frozenset({"p"})), commit("new", "x.parquet", replaced=("old",)), "overwritten"),
        (replace(NOTHING, partitions=frozenset({"p"})), commit("new", "x.parquet"), None),
        (replace(NOTHING, partitions=frozenset({"p"})), CLUSTERED, None),
        (replace(NOTHING, overwritten=frozenset({"p"})), CLUSTERED, "overwritten"),
    ],
)
def test_conflicts_with_a_commit(mine: Footprint, theirs: CommitMetadata, found: str | None) -> None:
    said = conflict_with_commit(mine, theirs)
    assert (said is None) if found is None else (said is not None and found in said)


@pytest.mark.parametrize(
    ("mine", "logs_too", "conflicts"),
    [
        (replace(NOTHING, appended=frozenset({GROUP})), True, True),
        (replace(NOTHING, appended=frozenset({GROUP})), False, False),
        (replace(NOTHING, appended=frozenset({GROUP}), looked_up=True), False, True),
        (replace(NOTHING, rewritten=frozenset({GROUP})), False, True),
        (replace(NOTHING, rewritten=frozenset({GROUP})), True, True),
        (NOTHING, True, False),
    ],
)
def test_conflicts_with_a_plan(mine: Footprint, logs_too: bool, conflicts: bool) -> None:
    assert (conflict_with_plans(mine, {GROUP: "20260101000000000"}, logs_too=logs_too) is not None) is conflicts


def test_conflicts_of_schemas() -> None:
    def theirs(text: str) -> CommitMetadata:
        return CommitMetadata(extra_metadata={"schema": text})

    assert conflict_with_schema({"schema": SCHEMA}, theirs(SCHEMA.replace('"r"', '"another"'))) is None
    assert conflict_with_schema({"schema": SCHEMA}, CommitMetadata()) is None
    assert conflict_with_schema({"schema": SCHEMA}, theirs(SCHEMA.replace('"string"', '"long"'))) is not None


def group(size: int, *, logs: int = 0, pending: str | None = None, base: bool = True, file_id: str = "f") -> FileGroup:
    t = "20260101000000000"
    name = BaseFileName(file_id=file_id, token="0-0-0", instant=t)
    log = DataFile(partition="p", name=LogFileName(file_id=file_id, instant=t, version=1), size=1)
    slice_ = FileSlice(
        partition="p",
        file_id=file_id,
        base_instant=t,
        base=DataFile(partition="p", name=name, size=size) if base else None,
        logs=(log,) * logs,
    )
    return FileGroup(partition="p", file_id=file_id, slices=(slice_,), pending_compaction=pending)


@pytest.mark.parametrize(
    ("held", "takes"),
    [
        (group(10), True),
        (group(99), False),
        (group(10, logs=1), False),
        (group(10, pending="20260101000000001"), False),
        (group(10, base=False), False),
    ],
)
def test_which_files_take_new_rows(held: FileGroup, takes: bool) -> None:
    plan = plan_inserts({"p": 5}, {"p": [held]}, frozenset(), small_file_bytes=50, file_bytes=100, row_bytes=1)
    assert plan.rewritten == (frozenset({held.key}) if takes else frozenset())
    busy = plan_inserts(
        {"p": 5}, {"p": [held]}, frozenset({held.key}), small_file_bytes=50, file_bytes=100, row_bytes=1
    )
    assert not busy.rewritten


def test_new_rows_are_spread_by_room() -> None:
    """90 rows into the small file, 100 into each new one; every key finds its file again."""
    plan = plan_inserts({"p": 290}, {"p": [group(10)]}, frozenset(), small_file_bytes=50, file_bytes=100, row_bytes=1)
    spread = plan.spreads["p"]
    assert spread.file_ids[0] == "f"
    assert len(spread.file_ids) == 3
    assert spread.until == pytest.approx((90 / 290, 190 / 290, 1.0))
    keys = pa.array([f"k{n}" for n in range(20_000)])
    shares = np.bincount(spread.pick(keys), minlength=3) / len(keys)
    assert shares == pytest.approx([90 / 290, 100 / 290, 100 / 290], abs=0.02)
    assert (Spread(("a", "b"), (0.5, 1.0)).pick(keys) == Spread(("a", "b"), (0.5, 1.0)).pick(keys)).all()


def test_which_batch_is_written(tmp_path: Path) -> None:
    """By the recorded instant: completed, archived, pending, or gone; and by the number."""
    table = Table.open(str(unzip_golden("v9_archived", tmp_path)))
    timeline = table.load_timeline(archived=True)
    completed = max(timeline.completed_writes)
    archived = max(i.requested_time for i in timeline.archived if i.action == "deltacommit")
    batch = StreamBatch(name="s", number=7, operation="UPSERT")

    def record(instant: str) -> None:
        batch.record(table.storage, Begun(number=7, query="", parts=(batch.at(instant),)), None)

    def done(number: int) -> str | None:
        found = written_as(table, replace(batch, number=number)).done
        return found.instant if found is not None else None

    assert done(7) is None
    for instant in (completed, archived):
        record(instant)
        assert done(7) == instant
        assert done(8) is None
        with pytest.raises(UsageError, match="a later batch of this stream is written already"):
            done(6)
    record("20200101000000000")
    assert [done(number) for number in (6, 7, 8)] == [None, None, None]
    pending = "20990101000000000"
    table.storage.put_if_absent(f"{table.config.timeline_folder}/{pending}.deltacommit.inflight", b"")
    record(pending)
    assert written_as(table, batch).pending == pending
    assert done(7) is None
