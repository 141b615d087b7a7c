"""Log compactions change nothing that a reader sees: not of what is there, nor of what comes later."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import FailureClass, classify, failure_of
from phantombase.compactor_daemon.attempt.inputs import has_barrier
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.attempt.slice_record import named_files
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.audit.audit import audit
from phantombase.timeline.errors import BarrierError, ConflictError, MissingFileError, StalePlanError
from phantombase.timeline.format import log_encode
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, encode
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.instant import Instant, State, later, next_time
from phantombase.timeline.format.log_block import BlockKind, HeaderKey
from phantombase.timeline.format.log_encode import LogFormat, Parts, data_block, delete_block
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import IS_DELETED, MergeRule
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table, TableSchema
from phantombase.timeline.view.log_blocks import slice_blocks
from phantombase.timeline.view.view import FileSlice, latest_slice
from phantombase.writer_hooks.commit.conflict import WriteSet
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.options import WriteOptions
from tests.support import compaction_steps as attempts
from tests.support.change_feeds import at, longest, request, slice_runs
from tests.support.compaction_steps import check_no_strays, decided, open_table, run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.faults import Faults, pending_write
from tests.support.moved_tables import upsert
from tests.support.places import SEED
from tests.support.selection import ALL, deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, seed_note, written_table

KEYS = 12
ROUNDS = 4 if ALL else 1
"""Random slices a layout and merge mode."""


def batch(keys: Sequence[int], ts: Sequence[int], fare: float) -> pa.Table:
    """Trips of one day."""
    return pa.table(
        {
            "id": [f"k{key}" for key in keys],
            "day": ["d1"] * len(keys),
            "ts": pa.array(ts, pa.int64()),
            "fare": pa.array([fare + key for key in keys], pa.float64()),
        }
    )


class Slice:
    """One file group, to which random delta commits are added by hand: blocks of every kind in any order."""

    def __init__(self, path: Path, version: int, mode: MergeMode, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        written_table(path, version, batch(range(0, KEYS, 2), [50] * (KEYS // 2), 0.5), WriteOptions(), mode)

    @property
    def table(self) -> Table:
        """As it is now."""
        return open_table(self.path)

    def begin(self) -> str:
        """A delta commit that pends; its instant."""
        table = self.table
        timeline = table.load_timeline()
        time = next_time(table.now(), [*timeline.used_times(), *table.times.reserved(timeline)])
        for state in (State.REQUESTED, State.INFLIGHT):
            instant = Instant(requested_time=time, action="deltacommit", state=state)
            assert table.storage.put_if_absent(table.instant_path(instant), b"")
        return time

    def log(self, time: str, blocks: Sequence[Parts]) -> WriteStat:
        """A log file of a delta commit, on the newest slice."""
        table = self.table
        slice_, _ = self.newest()
        instant = time if table.layout.has_completion_times else slice_.base_instant
        version = 1 + len(list((self.path / slice_.partition).glob(f".{slice_.file_id}_{instant}.log.*")))
        name = LogFileName(file_id=slice_.file_id, instant=instant, version=version, token="1-0-1")
        path = f"{slice_.partition}/{name}"
        with table.storage.open_output(path) as file:
            for block in blocks:
                file.writelines(block)
        return WriteStat(file_id=slice_.file_id, path=path, prev_commit=instant, partition_path=slice_.partition)

    def complete(self, time: str, stats: Sequence[WriteStat]) -> None:
        """The delta commit completes."""
        table = self.table
        timeline = table.load_timeline()
        schema = table.with_timeline(timeline).newest_schema()
        metadata = CommitMetadata(
            partition_to_write_stats={"d1": tuple(stats)},
            extra_metadata={"schema": schema.commit_text},
            operation_type="UPSERT",
        )
        completion = table.with_timeline(timeline).next_time() if table.layout.has_completion_times else None
        done = Instant(requested_time=time, action="deltacommit", state=State.COMPLETED, completion_time=completion)
        assert table.storage.put_if_absent(table.instant_path(done), encode(metadata, table.layout.encoding))

    def newest(self) -> tuple[FileSlice, TableSchema]:
        """What a snapshot reads, and the schema."""
        view = self.table.load_view()
        (group,) = view.groups
        slice_ = latest_slice(group)
        assert slice_ is not None
        return slice_, self.table.with_timeline(view.timeline).newest_schema()

    def blocks(self, time: str) -> list[Parts]:
        """One to three blocks; from version 8 on they name the base file that they have positions in, as Hudi's do."""
        slice_, _ = self.newest()
        plain = log_encode._headers

        def headers(*values: Any) -> dict[HeaderKey, str]:
            return plain(*values) | {HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: slice_.base_instant}

        with pytest.MonkeyPatch.context() as patch:
            if self.table.layout.has_completion_times:
                patch.setattr(log_encode, "_headers", headers)
            return self.drawn_blocks(time)

    def drawn_blocks(self, time: str) -> list[Parts]:
        """One to three blocks: rows in either format, deletes with ordering values and without."""
        pick, (slice_, schema) = self.random, self.newest()
        hudi_0x = not self.table.layout.has_completion_times
        found: list[Parts] = []
        for number in range(pick.randint(1, 3)):
            keys = pick.sample(range(KEYS), pick.randint(1, KEYS // 2))
            ts = [pick.choice((48, 49, 50, 51, 52)) for _ in keys]
            if pick.random() < 0.5:
                rows = self.rows(time, keys, ts, slice_, schema, number)
                log_format = pick.choice(list(LogFormat))
                found.append(data_block(rows, instant=time, schema_text=schema.file_text, log_format=log_format))
                continue
            ordering = (pa.array(ts, pa.int64()),) if pick.random() < 0.5 else ()
            names, paths = pa.array([f"k{key}" for key in keys]), pa.array(["d1"] * len(keys))
            text = schema.file_text
            found.append(delete_block(names, paths, ordering, instant=time, schema_text=text, hudi_0x=hudi_0x))
        return found

    def rows(
        self, time: str, keys: Sequence[int], ts: Sequence[int], slice_: FileSlice, schema: TableSchema, number: int
    ) -> pa.Table:
        """Rows as a log holds them."""
        own = batch(keys, ts, self.random.random())
        meta = {
            "_hoodie_commit_time": [time] * len(keys),
            "_hoodie_commit_seqno": [f"{time}_{number}_{key}" for key in keys],
            "_hoodie_record_key": own["id"],
            "_hoodie_partition_path": own["day"],
            "_hoodie_file_name": [slice_.file_id] * len(keys),
        }
        return pa.table({n: meta[n] if n in meta else own[n] for n in schema.arrow.names}, schema=schema.arrow)

    def commit(self) -> None:
        """A random delta commit, of one log file or two."""
        time = self.begin()
        self.complete(time, [self.log(time, self.blocks(time)) for _ in range(self.random.choice((1, 1, 2)))])

    def merged(self) -> bool:
        """A log compaction of random neighbours; False where there are none."""
        (_, runs), *_ = slice_runs(self.table)
        lengths = [n for n, run in enumerate(runs) if len(run.pieces) > 1]
        if not lengths:
            return False
        run = runs[self.random.choice(lengths)]
        start = self.random.randrange(len(run.pieces) - 1)
        end = self.random.randint(start + 2, len(run.pieces))
        instant = request(self.table, lambda _: run.pieces[start:end])
        run_all(self.table)
        found = audit(self.table, instant)
        assert found.good, found
        return True

    def compacted(self) -> None:
        """A compaction."""
        planned = schedule_compaction(self.table, ProcessLock(str(self.path)))
        assert planned.instant is not None
        run_all(self.table)

    def read(self, as_of: str | None = None) -> pa.Table:
        """The snapshot."""
        return read_table(self.table, ReadOptions(as_of=as_of))

    @contextmanager
    def twin(self) -> Iterator[Slice]:
        """The same table as if there never had been a log compaction."""
        twin = copy(self)
        twin.path = self.path.with_name("twin")
        shutil.copytree(self.path, twin.path)
        timeline = twin.path / twin.table.config.timeline_folder
        for requested in timeline.glob("*.logcompaction.requested"):
            time = requested.name.split(".")[0]
            for done in twin.table.files.completed_commits(time):
                for path in named_files(twin.table, done):
                    (twin.path / path).unlink()
                (twin.path / twin.table.instant_path(done)).unlink()
            requested.unlink()
        yield twin
        shutil.rmtree(twin.path)


MODES = [*product((9, 6), (MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME))]
USUAL = [(*mode, ("memory", "disk", "disk", "memory")[number]) for number, mode in enumerate(MODES)]
MORE = [deep(*mode, memory) for mode in MODES for memory in ("memory", "disk") if (*mode, memory) not in USUAL]


@pytest.mark.parametrize(("version", "mode", "memory"), [*USUAL, *MORE])
def test_nothing_changes(
    version: int, mode: MergeMode, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table reads as its twin without log compactions at every step of a random history, and compacts as it.

    A write may pend while files are merged, and completes later, in front of them or between others."""
    if memory == "disk":
        monkeypatch.setattr("phantombase.timeline.merge.rule.SliceRules.fold_bytes", property(lambda _: 4000.0))
    for number in range(ROUNDS):
        with seed_note(SEED, version, mode, memory, number):
            mine = Slice(tmp_path / f"{number}" / "table", version, mode, SEED * 1000 + number)
            late: str | None = None
            for _ in range(8):
                step = mine.random.choice(("commit", "commit", "late", "merge", "merge"))
                if step == "commit":
                    mine.commit()
                elif step == "merge":
                    point, before = mine.table.load_timeline().latest_completed, mine.read()
                    mine.merged()
                    assert_same_rows(mine.read(), before)
                    if late is None:
                        assert_same_rows(mine.read(as_of=point), before)
                elif late is not None:
                    mine.complete(late, [mine.log(late, mine.blocks(late))])
                    late = None
                elif version > 6:
                    late = mine.begin()
                with mine.twin() as twin:
                    assert_same_rows(mine.read(), twin.read())
            mine.commit()
            if late is not None:
                mine.complete(late, [])
            with mine.twin() as twin:
                mine.compacted()
                twin.compacted()
                assert_same_rows(mine.read(), twin.read())


@pytest.fixture(params=[(9, MergeMode.EVENT_TIME), deep((6, MergeMode.COMMIT_TIME))], ids=["v9", "v6"])
def busy(request: pytest.FixtureRequest, tmp_path: Path) -> Slice:
    """Four delta commits; the same ones in every run."""
    version, mode = request.param
    mine = Slice(tmp_path / "origin" / "table", version, mode, 1)
    for _ in range(4):
        mine.commit()
    return mine


def merging(mine: Slice) -> str:
    """A log compaction of the three youngest is requested; its instant."""
    return request(mine.table, at(1))


def test_a_death_at_every_storage_call_is_finished_by_the_next_run(busy: Slice) -> None:
    """A reader in between sees the same rows; one log file is left of it, and nothing else."""
    instant, before, died = merging(busy), busy.read(), 0
    for _, path in Faults.of(busy.path, lambda storage: run_all(Table.on(storage))).deaths():
        mine = copy(busy)
        mine.path = path
        assert_same_rows(mine.read(), before)
        run_all(mine.table)
        assert_same_rows(mine.read(), before)
        (done,) = mine.table.files.completed_commits(instant)
        (named,) = named_files(mine.table, done)
        assert (mine.path / named).exists()
        assert len(list((mine.path / "d1").glob(".*.log.*"))) == len(list((busy.path / "d1").glob(".*.log.*"))) + 1
        check_no_strays(mine.path)
        assert audit(mine.table, instant).good
        mine.compacted()
        assert_same_rows(mine.read(), before)
        died += 1
    assert died > 8


def test_a_lost_log_file_is_merged_again(busy: Slice) -> None:
    """Between publication and clean-up, with newer logs on top."""
    instant = merging(busy)
    decision = decided(busy.table, instant)
    publish(busy.table, decision, ProcessLock("publish"))
    busy.commit()
    before = busy.read()
    (placement,) = decision.placements
    (busy.path / placement.final).unlink()
    (busy.path / placement.staged).unlink()
    run_all(busy.table)
    assert (busy.path / placement.final).stat().st_size == placement.size
    assert_same_rows(busy.read(), before)


def test_on_version_6_it_waits_for_writes_that_may_come_between_its_pieces(busy: Slice) -> None:
    """Elsewhere the instants in the names of log files keep them apart."""
    plan = busy.table.compaction_plan(merging(busy))
    assert has_barrier(busy.table, plan) is (busy.table.config.version == 6)


def test_a_writer_and_a_log_compaction_do_not_disturb_each_other(busy: Slice) -> None:
    """A write that began before the request completes while it pends, another after it: no conflict."""
    with transaction(busy.table, ProcessLock("w"), 30.0) as begun:
        if begun.table.layout.has_completion_times:
            merging(busy)
            run_all(busy.table)
        slice_, schema = busy.newest()
        write_set = WriteSet(
            appended=frozenset({slice_.key}),
            rewritten=frozenset(),
            buckets=frozenset(),
            inserts=frozenset({slice_.partition}),
            looked_up=True,
        )
        begun.check_conflicts(write_set, schema.recorded)
        begun.complete(write_set, CommitMetadata(extra_metadata={"schema": schema.commit_text}))


def test_dead_writers_are_rolled_back_beside_it(busy: Slice) -> None:
    """A pending log compaction is nobody's write."""
    instant = merging(busy)
    done = roll_back_dead_writers(busy.table, ProcessLock("r"), lazy=False, now_ms=lambda: 2**50, expiry_s=1.0)
    assert done == []
    assert pending_instants(busy.table) == (instant,)


def test_it_can_be_taken_back(busy: Slice) -> None:
    """And planned again."""
    instant, before = merging(busy), busy.read()
    attempts.staged(busy.table, instant)
    unschedule(busy.table, instant, ProcessLock("u"))
    assert pending_instants(busy.table) == ()
    assert_same_rows(busy.read(), before)
    assert merging(busy) > instant
    run_all(busy.table)
    assert_same_rows(busy.read(), before)


def test_a_planned_file_that_is_gone_is_an_error(busy: Slice) -> None:
    """Nothing is written then."""
    instant = merging(busy)
    name = busy.table.compaction_plan(instant).operations[0].delta_file_paths[-1]
    (busy.path / "d1" / name).unlink()
    with pytest.raises(MissingFileError, match="names a file that is not there"):
        run_all(busy.table)
    assert not busy.table.files.completed_commits(instant)


def test_what_was_compacted_meanwhile_is_let_be(busy: Slice) -> None:
    """Hudi plans file groups in pending log compactions: once its base file is there nobody reads the planned logs."""
    instant = merging(busy)
    requested = busy.path / busy.table.instant_path(busy.table.files.requested_merge(instant))
    plan = requested.read_bytes()
    requested.unlink()
    before = busy.read()
    busy.compacted()
    requested.write_bytes(plan)
    run_all(busy.table)
    (done,) = busy.table.files.completed_commits(instant)
    assert not named_files(busy.table, done)
    assert_same_rows(busy.read(), before)


def test_an_executor_of_hudi_is_respected_and_followed(busy: Slice) -> None:
    """While its inflight file is young nothing is begun; of what it left when it is dead nothing is read."""
    instant, before = merging(busy), busy.read()
    inflight = busy.path / busy.table.instant_path(busy.table.files.requested_merge(instant).at(State.INFLIGHT))
    inflight.write_bytes(b"")
    with pytest.raises(ConflictError, match="a Hudi compactor is at work"):
        run_all(busy.table)
    stray = busy.log(instant, busy.blocks(instant)).path
    assert stray is not None
    for path in (inflight, busy.path / stray):
        os.utime(path, (0, 0))
    assert_same_rows(busy.read(), before)
    if not busy.table.layout.has_completion_times:
        (busy.path / stray).unlink()  # there its blocks would have the same entries as ours
    run_all(busy.table)
    assert not inflight.exists()
    assert not (busy.path / stray).exists()
    assert_same_rows(busy.read(), before)


def test_blocks_are_avro_where_text_orders_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hudi 1.2 merges Parquet blocks wrongly there, also those that it wrote: it takes each text from the last row."""

    def write(ts: int) -> None:
        table = rows((0, ts, float(ts)), (3, 5 - ts, float(ts))).drop_columns([IS_DELETED])
        table = table.append_column("text", pc.cast(table["ts"], pa.string()))
        described = writer(table).table("t", version=9).key("id").partition("day").ordering("ts", "text")
        described.option(log_format=LogFormat.PARQUET).upsert(str(path))

    def kinds() -> dict[str, BlockKind]:
        (group,) = open_table(path).load_view().groups
        found = latest_slice(group)
        assert found is not None
        return {block.instant: block.kind for block in slice_blocks(open_table(path).storage, found)}

    path = tmp_path / "t"
    with monkeypatch.context() as patched:
        patched.setattr(MergeRule, "orders_by_text", False)
        for ts in range(1, 5):
            write(ts)
        assert set(kinds().values()) == {BlockKind.PARQUET_DATA}
    before = read_rows(path)
    instant = request(open_table(path))
    run_all(open_table(path))
    assert kinds()[instant] is BlockKind.AVRO_DATA
    assert read_rows(path) == before
    written = set(kinds())
    write(5)
    assert [kind for time, kind in kinds().items() if time not in written] == [BlockKind.AVRO_DATA]


# Plans of log compactions whose log files are no neighbours, or may be none.


def four_logs(path: Path) -> tuple[Path, list[str]]:
    """A file group with a base file and four logs; the instants of its writes."""
    written_table(path, 9, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    for n in range(4):
        upsert(LocalStorage(str(path)), rows((0, 2 + n, 2.0)))
    return path, [i.requested_time for i in open_table(path).load_timeline().completed]


@pytest.mark.parametrize("writing", [True, False])
def test_files_that_are_no_neighbours_are_reported_as_what_they_are(writing: bool, tmp_path: Path) -> None:
    """No repetition mends it, nor the end of a write: parked, with the command that ends it."""
    path, writes = four_logs(tmp_path / "t")
    instant = request(open_table(path), lambda runs: [longest(runs)[0], longest(runs)[2]])
    if writing:
        pending_write(path, 9, later(writes[2], 1))
    before = read_rows(path)
    with pytest.raises(StalePlanError, match=f"unschedule TABLE {instant}") as error:
        run_all(open_table(path))
    assert failure_of(error.value, "d", 0).park
    unschedule(open_table(path), instant, ProcessLock("unschedule"))
    assert open_table(path).load_timeline().pending_merges == ()
    assert read_rows(path) == before


def test_a_pending_write_that_may_come_between_is_waited_for(tmp_path: Path) -> None:
    """It is none of the plan's faults: when it is rolled back the log compaction is done."""
    path, writes = four_logs(tmp_path / "t")
    instant = request(open_table(path))
    before = read_rows(path)
    write = pending_write(path, 9, later(writes[2], 1))
    with pytest.raises(BarrierError, match=later(writes[2], 1)) as error:
        run_all(open_table(path))
    assert classify(error.value) is FailureClass.NOTHING
    write.unlink()
    write.with_name(write.name.replace("inflight", "requested")).unlink()
    run_all(open_table(path))
    assert open_table(path).files.completed_commits(instant)
    assert read_rows(path) == before
