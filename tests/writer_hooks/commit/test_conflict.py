"""Which writes conflict, where new rows go, and which batch of a stream is written already: pure decisions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from phantombase.compactor_daemon.archiving import choice
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.timeline.errors import ConflictError, UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.metadata_table.record_index import GLOBAL_KEYS_MARK
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice
from phantombase.writer_hooks.commit.conflict import (
    WriteSet,
    conflict_with_commit,
    conflict_with_plans,
    conflict_with_schema,
)
from phantombase.writer_hooks.commit.stream_batches import Begun, StreamBatch, written_as
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.index.key_index import Spread, plan_inserts
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.selection import for_each
from tests.support.written_tables import read_rows, written_table

NOTHING = WriteSet(
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


@for_each(
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
    ]
)
def test_conflicts_with_a_commit(mine: WriteSet, theirs: CommitMetadata, found: str | None) -> None:
    said = conflict_with_commit(mine, theirs)
    assert (said is None) if found is None else (said is not None and found in said)


@for_each(
    [
        (replace(NOTHING, appended=frozenset({GROUP})), True, True),
        (replace(NOTHING, appended=frozenset({GROUP})), False, False),
        (replace(NOTHING, appended=frozenset({GROUP}), looked_up=True), False, True),
        (replace(NOTHING, rewritten=frozenset({GROUP})), False, True),
        (replace(NOTHING, rewritten=frozenset({GROUP})), True, True),
        (NOTHING, True, False),
    ]
)
def test_conflicts_with_a_plan(mine: WriteSet, logs_too: bool, conflicts: bool) -> None:
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


@for_each(
    [
        (group(10), True),
        (group(99), False),
        (group(10, logs=1), False),
        (group(10, pending="20260101000000001"), False),
        (group(10, base=False), False),
    ]
)
def test_which_files_take_new_rows(held: FileGroup, takes: bool) -> None:
    _, rewritten = plan_inserts({"p": 5}, {"p": [held]}, frozenset(), small_file_bytes=50, file_bytes=100, row_bytes=1)
    assert rewritten == (frozenset({held.key}) if takes else frozenset())
    _, rewritten = plan_inserts(
        {"p": 5}, {"p": [held]}, frozenset({held.key}), small_file_bytes=50, file_bytes=100, row_bytes=1
    )
    assert not rewritten


def test_new_rows_are_spread_by_room() -> None:
    """90 rows into the small file, 100 into each new one; every key finds its file again."""
    group_of_10 = {"p": [group(10)]}
    spreads, _ = plan_inserts({"p": 290}, group_of_10, frozenset(), small_file_bytes=50, file_bytes=100, row_bytes=1)
    spread = spreads["p"]
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
        begun = Begun(number=7, query="", parts=(batch.at(instant),))
        batch.record(table.storage, (begun,))

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


# A long write, and others that end beside it and are archived before it ends: it must still see that they conflict.


VERSIONS = pytest.mark.parametrize("version", [6, 9])
FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
ROWS = {"old": (0, 0.0), "older": (14, 14.0), "x": (5, 5.0)}
_APPENDS = WriteOptions(slots=1, small_file_bytes=0)


class Slow:
    """A write of one row that waits before it places its files, until `end`."""

    def __init__(
        self, path: Path, pool: ThreadPoolExecutor, key: str, number: int, operation: Operation = Operation.UPSERT
    ) -> None:
        self._there, self._decision = threading.Event(), threading.Event()

        def wait(call: Call) -> Any:
            if call.name == "place":
                self._there.set()
                self._decision.wait(60)
            return call.do()

        table = open_table(path, HookedStorage(LocalStorage(str(path)), wait))
        engine, how = LocalEngine(one_row(key, number), slots=1), Write(operation=operation, options=_APPENDS)
        self._done: Future[object] = pool.submit(lambda: write(table, engine, how))
        assert self._there.wait(60)

    def end(self) -> None:
        """Lets it go on; its error."""
        self._decision.set()
        self._done.result(60)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def beside(path: Path, version: int, pool: ThreadPoolExecutor, key: str) -> Slow:
    """A slow write of a key. While it waits, a new key and an older one are written by writes that began before it, and
    another one by five that began later."""
    written_table(path, version, one_row("old", 0), _APPENDS)
    upsert(path, one_row("older", 1))
    slow = [Slow(path, pool, one, number) for number, one in enumerate(("x", "older", key), 5)]
    slow[0].end()
    slow[1].end()
    for number in range(10, 15):
        upsert(path, one_row("older", number))
    return slow[2]


@one_of("version", 9, 6)
def test_what_ended_beside_a_pending_write_stays(version: int, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Both inserted a key: the row would be doubled."""
    path = tmp_path / "trips"
    last = beside(path, version, pool, "x")
    done = archive_table(open_table(path), FEW, LOCK)
    assert len(done.archived) == 2
    assert "a write is pending that began before" in done.why
    with pytest.raises(ConflictError, match="inserts into partition 'a'"):
        last.end()
    assert read_rows(path) == ROWS
    assert archive_table(open_table(path), FEW, LOCK).archived  # now nothing is pending


@pytest.fixture
def as_hudi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archiving goes up to the last write before the earliest pending one, as Hudi's does."""
    monkeypatch.setattr(choice, "_beside_pending", lambda *_: ())


@VERSIONS
def test_what_an_archiver_of_hudi_took_is_asked_for(
    version: int, pool: ThreadPoolExecutor, as_hudi: None, tmp_path: Path
) -> None:
    path = tmp_path / "trips"
    last = beside(path, version, pool, "x")
    assert len(archive_table(open_table(path), FEW, LOCK).archived) == 3
    with pytest.raises(ConflictError, match="archived since then: " + ("what it" if version == 6 else "inserts into")):
        last.end()
    assert read_rows(path) == ROWS
    upsert(path, one_row("x", 20))  # again: it finds the key
    assert read_rows(path) == ROWS | {"x": (20, 20.0)}


def test_what_was_archived_is_no_conflict_where_it_wrote_elsewhere(
    pool: ThreadPoolExecutor, as_hudi: None, tmp_path: Path
) -> None:
    path = tmp_path / "trips"
    last = beside(path, 9, pool, "old")
    assert len(archive_table(open_table(path), FEW, LOCK).archived) == 3
    last.end()
    assert read_rows(path) == ROWS | {"old": (7, 7.0)}


def test_a_slow_insert_that_is_archived_at_once_is_looked_at(
    pool: ThreadPoolExecutor, as_hudi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are unique over all partitions. It ends between the look-up and the begin of a write of the same key."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("old", 0), _APPENDS)
    (path / GLOBAL_KEYS_MARK).touch()
    slow = Slow(path, pool, "x", 5, Operation.INSERT)
    for number in range(10, 15):
        upsert(path, one_row("old", number))
    monkeypatch.setattr(choice, "_late", lambda *_: None)
    once = iter([True])

    def it_ends(*args: Any, **more: Any) -> Any:
        if next(once, False):
            slow.end()
            assert len(archive_table(open_table(path), FEW, LOCK).archived) == 4
        return roll_back_dead_writers(*args, **more)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.roll_back_dead_writers", it_ends)
    elsewhere = one_row("x", 20).set_column(1, "day", pa.array(["b"]))
    with pytest.raises(UnsupportedError, match="move keys to another partition"):
        upsert(path, elsewhere)
    assert read_rows(path) == {"old": (14, 14.0), "x": (5, 5.0)}


@one_of("version", 6, 9)
def test_the_size_of_a_row_is_not_asked_of_what_was_archived_meanwhile(version: int, tmp_path: Path) -> None:
    """A write estimates it by the newest commits, of which an archiver may have left two."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), _APPENDS)
    for number in range(1, 7):
        upsert(path, one_row("k0", number))
    oldest = open_table(path).instant_path(open_table(path).load_timeline().completed[0])
    archived = list[object]()

    def hook(call: Call) -> Any:
        if call.name == "read" and call.path == oldest and not archived:
            archived.extend(archive_table(open_table(path), FEW, LOCK).archived)
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    write(table, LocalEngine(one_row("new", 9), slots=1), Write(operation=Operation.UPSERT, options=_APPENDS))
    assert archived
    assert read_rows(path) == {"k0": (6, 6.0), "new": (9, 9.0)}


def test_a_write_does_not_complete_on_half_of_a_timeline(tmp_path: Path) -> None:
    """An upgrade that died during the write: writes that completed since then may be in the other half."""
    path = tmp_path / "t"
    written_table(path, 9, one_row("k0", 0), WriteOptions(buckets=1))
    with suppress(KeyError), transaction(open_table(path), LOCK, 60.0) as begun:
        (path / ".hoodie" / "20990101000000000.deltacommit.requested").touch()
        with pytest.raises(ConflictError, match="is being upgraded or downgraded"):
            begun.check_conflicts(NOTHING, {})
        raise KeyError
