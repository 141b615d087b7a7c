"""Random histories beside Hudi's record index, by Hudi and phantombase: at each step the index is where the rows are.

Or it is out, and Hudi's next write builds it. Rows are compared with a model, so no write doubles or loses one.

`PHANTOMBASE_INDEX_HISTORIES=20` and `PHANTOMBASE_INDEX_STEPS=12` take more and longer ones, `-k "v6 and seed7"` one of
them again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.pending_clusterings import planned_by_hudi
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table import index_logs
from tests.hudi.cases.indexed_table import IndexedTable
from tests.hudi.cases.random_history import RandomSteps
from tests.hudi.cases.rows import PARTITIONS, same
from tests.hudi.cases.shared_table import COMMIT_TIME, EVENT_TIME
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.archived_tables import forget_heartbeats, of_clustering, opens_attempt
from tests.support.failing_storage import Call, Hook, HookedStorage, ProcessDied
from tests.support.faults import kill_newest, leave_dead_write
from tests.support.record_indexes import check_index, hudi_places
from tests.support.selection import ALL, versions

pytestmark = pytest.mark.interop

SEEDS = range(int(os.environ.get("PHANTOMBASE_INDEX_HISTORIES", "1")))
STEPS = int(os.environ.get("PHANTOMBASE_INDEX_STEPS", "8" if ALL else "4"))
KEYS = 40
JOINED = ClusterOptions(min_files=2, wait_s=0)
SORTED = ClusterOptions(grouping=Grouping.SIZE, target_size=1 << 20, sort_by=("v",), wait_s=0)
REWRITTEN = ClusterOptions(rewrite=("codec",), wait_s=0)
_STARTS = ("", "ключ-", "ﷺ", "a b/", "x:y,", "ü\uffff")
"""Of keys; all below U+FFFF, since Hudi 0.15 cannot build the index over others."""
_MOVES = {"hoodie.record.index.update.partition.path": "true"}


class IndexHistory(RandomSteps):
    """One table and what may happen to it next. `rows_now`: partition and value of each key that is there."""

    table: IndexedTable

    def __init__(self, judge: Judge, version: int, seed: int, path: Path) -> None:
        self.random = random.Random(seed * 37 + version)
        pick = self.random.choice
        self.commit_time, self.parted, groups = pick((True, False)), pick((True, True, False)), pick((1, 2, 5))
        compacts, small = pick((2, 10)), pick((0, 100 << 20))
        self.said = [
            f"version {version}, commit time {self.commit_time}, partitions {self.parted}, index groups {groups}, "
            f"metadata compactions every {compacts}, small files of Hudi's {small}"
        ]
        self.table = IndexedTable(
            judge=judge,
            path=path,
            version=version,
            conditions=0,
            partition_field="p" if self.parted else None,
            options={
                **(COMMIT_TIME if self.commit_time else EVENT_TIME),
                **METADATA_TABLE,
                "hoodie.metadata.record.index.enable": "true",
                "hoodie.metadata.record.index.min.filegroup.count": groups,
                "hoodie.metadata.record.index.max.filegroup.count": groups,
                "hoodie.metadata.compact.max.delta.commits": compacts,
                "hoodie.parquet.small.file.limit": small,
                "hoodie.index.type": "RECORD_INDEX",
            },
        )
        self.clock, self.fresh, self.merged = 10, 1000, False
        self.restored = self.moved = False
        self.rows_now: dict[str, tuple[str, int]] = {}
        self.table.create(self.batch(range(KEYS)))
        self.look("create")

    # Rows.

    def name(self, number: int) -> str:
        return f"{_STARTS[number % len(_STARTS)]}{number:05d}"

    def place(self, number: int) -> str:
        """The partition of a new key."""
        return PARTITIONS[number % 7 % len(PARTITIONS)] if self.parted else ""

    def batch(self, numbers: Sequence[int], places: Mapping[str, str] | None = None, *, gone: bool = False) -> pa.Table:
        """Rows of these keys, where they are, or are to be; the model follows."""
        self.clock += 1
        rows = []
        for number in numbers:
            key = self.name(number)
            where = (places or {}).get(key) or (self.rows_now[key][0] if key in self.rows_now else self.place(number))
            value = self.clock * 1000 + number
            rows.append({"id": key, "p": where or "all", "ts": self.clock, "v": value})
            if gone:
                self.rows_now.pop(key, None)
            else:
                self.rows_now[key] = (where, value)
        return pa.Table.from_pylist(rows, pa.schema({"id": "string", "p": "string", "ts": "int64", "v": "int64"}))

    def some(self, most: int = 20) -> list[int]:
        return sorted(self.random.sample(range(KEYS + 20), self.random.randint(1, most)))

    def new(self) -> list[int]:
        self.fresh += 10
        return list(range(self.fresh, self.fresh + self.random.randint(1, 7)))

    def moving(self) -> tuple[list[int], dict[str, str]]:
        numbers = self.some(6)
        return numbers, {self.name(n): self.random.choice((*PARTITIONS, "new")) for n in numbers}

    # Steps of Hudi.

    def upsert(self) -> bool:
        self.table.upsert(self.batch(self.some()))
        return True

    def upsert_that_moves(self) -> bool:
        if not self.parted or self.merged:  # Hudi cannot merge updates of some columns then
            return False
        self.table.upsert(self.batch(*self.moving()), _MOVES)
        return True

    def delete(self) -> bool:
        self.table.delete(self.batch(self.some(), gone=True))
        return True

    def insert(self) -> bool:
        self.table.judge.insert(self.table.path, self.batch(self.new()))
        return True

    def bulk_insert(self) -> bool:
        self.table.judge.bulk_insert(self.table.path, self.batch(self.new()))
        return True

    def hudi_schedules(self) -> bool:
        return self.table.judge.schedule_compaction(self.table.path) is not None

    def clean(self) -> bool:
        self.table.judge.clean(self.table.path)
        return True

    def archive(self) -> bool:
        if self.restored and self.table.version > 6:  # Hudi 1.2.0 would lose rows then, by itself
            return False
        self.table.judge.archive(self.table.path)
        return True

    def hudi_takes_back(self) -> bool:
        """The newest write, of Hudi or ours; it refuses where it compacts the metadata table first."""
        if self.table.version == 8:  # Hudi 1.2.0 cannot
            return False
        before = dict(self.rows_now)
        self.random.choice((self.upsert, self.we_upsert, self.we_delete))()
        rare = {"hoodie.metadata.compact.max.delta.commits": 1000}
        self.table.judge.rollback(self.table.path, max(self.table.open().load_timeline().completed_writes), rare)
        self.rows_now = before
        return True

    def we_take_back(self) -> bool:
        """The newest write, of Hudi or ours."""
        before = dict(self.rows_now)
        self.random.choice((self.upsert, self.we_upsert, self.we_delete))()
        roll_back_newest(self.table.open(), self.lock(), max(self.table.open().load_timeline().completed_writes))
        self.rows_now = before
        return True

    def cluster(self) -> bool:
        if self.table.pending():
            return False
        self.table.judge.cluster(self.table.path)
        return True

    def restore(self) -> bool:
        """To a savepoint, by Hudi or by ours, over one to three writes; ours drops the metadata table."""
        before, newest = dict(self.rows_now), max(self.table.open().load_timeline().completed_writes)
        had_index = "record_index" in self.table.open().config.built_metadata_partitions
        self.table.judge.savepoint(self.table.path, newest)
        choices = [self.upsert, self.delete, self.we_upsert, self.we_delete, self.we_insert, self.we_overwrite]
        for step in self.random.choices(choices, k=self.random.randint(1, 3)):
            self.said.append(step.__name__)
            step() or self.we_upsert()
        # What Hudi 1.2.0 has built since is empty behind its restore, counts as built, and fails its next upsert.
        by_hudi = self.random.random() < 0.5 and had_index
        self.said.append(f"back by {'Hudi' if by_hudi else 'us'}")
        if by_hudi:
            rare = {"hoodie.metadata.compact.max.delta.commits": 1000}
            self.table.judge.restore(self.table.path, newest, rare)
        else:
            restore_table(self.table.open(), self.lock(), newest)
        self.table.judge.delete_savepoint(self.table.path, newest)
        self.rows_now, self.restored = before, True
        return True

    def replacing(self) -> pa.Table:
        """Rows that a partition is to have instead of its own: some of these, and new ones."""
        where = self.random.choice(PARTITIONS) if self.parted else ""
        there = [n for n in range(KEYS + 20) if self.rows_now.get(self.name(n), (None,))[0] == where]
        kept = self.random.sample(there, self.random.randint(0, len(there)))
        news = [
            n for n in (*range(KEYS + 20), *self.new()) if self.place(n) == where and self.name(n) not in self.rows_now
        ]
        taken = kept + self.random.sample(news, min(len(news), self.random.randint(1, 5)))
        taken = taken or there[:1]
        self.rows_now = {key: row for key, row in self.rows_now.items() if row[0] != where}
        return self.batch(sorted(taken), {self.name(n): where for n in taken})

    def overwrite(self) -> bool:
        if self.moved and self.table.version == 6:  # 0.15.0 forgets the keys that the replaced base files once held
            return False
        self.table.judge.insert_overwrite(self.table.path, self.replacing())
        return True

    def delete_partition(self) -> bool:
        if not self.parted or self.table.pending():  # Hudi refuses
            return False
        self.table.judge.delete_partition(self.table.path, self.drop())
        return True

    def drop(self) -> str:
        """The model without a partition that has rows."""
        where = self.random.choice(sorted({place for place, _ in self.rows_now.values()} or {PARTITIONS[0]}))
        self.rows_now = {key: row for key, row in self.rows_now.items() if row[0] != where}
        return where

    # Steps of ours.

    def ours(self, rows: pa.Table, write: Callable[[Writer, str], object], *, move: bool | None = None) -> bool:
        options = {
            "small_file_bytes": self.random.choice((0, 100 << 20)),
            "file_bytes": self.random.choice((5_000, 120 << 20)),
            "slots": self.random.choice((1, 2, 5)),
        }
        self.said.append(str(options))
        made = self.table.writer(rows, **options)
        write(made if move is None else made.global_keys(move=move), str(self.table.path))
        return True

    def we_upsert(self) -> bool:
        return self.ours(self.batch(self.some()), Writer.upsert)

    def we_delete(self) -> bool:
        return self.ours(self.batch(self.some(), gone=True), Writer.delete)

    def we_insert(self) -> bool:
        return self.ours(self.batch(self.new()), Writer.insert)

    def we_bulk_insert(self) -> bool:
        return self.ours(self.batch(self.new()), Writer.bulk_insert)

    def we_move(self) -> bool:
        if not self.parted:
            return False
        self.moved = True
        return self.ours(self.batch(*self.moving()), Writer.upsert, move=True)

    def we_leave(self) -> bool:
        """Rows for other partitions than those that have their keys."""
        numbers, places = self.moving()
        if not self.parted:
            return False
        held = {key: self.rows_now[key][0] for key in places if key in self.rows_now}
        rows = self.batch(numbers, {**places, **held})
        given = pa.array([places[key] for key in rows["id"].to_pylist()])
        self.ours(rows.set_column(1, "p", given), Writer.upsert, move=False)
        return True

    def we_overwrite(self) -> bool:
        if self.table.pending():  # refused
            return False
        return self.ours(self.replacing(), Writer.insert_overwrite)

    def we_delete_partition(self) -> bool:
        if not self.parted or self.table.pending():
            return False
        where = self.drop()
        writer().delete_partition(str(self.table.path), [where])
        return True

    def we_merge(self) -> bool:
        if self.table.version == 6:
            return False
        numbers, inserts = self.some(), self.random.random() < 0.7
        numbers = [n for n in numbers if inserts or self.name(n) in self.rows_now]
        rows = self.batch(numbers)
        gone = [self.name(n) in self.rows_now and self.random.random() < 0.2 for n in numbers]
        for number, goes in zip(numbers, gone, strict=True):
            if goes:
                self.rows_now.pop(self.name(number))
        source = rows.append_column("gone", pa.array(gone, pa.bool_()))

        def merge(made: Writer, path: str) -> object:
            return made.merge_into(path, update=["ts", "v"], insert=inserts, delete="gone")

        self.merged = self.merged or bool(numbers)
        return bool(numbers) and self.ours(source, merge)

    def we_compact(self) -> bool:
        pending = self.table.pending()
        return bool(pending and self.table.we_compact(self.random.choice(pending)))

    def we_merge_logs(self) -> bool:
        return self.table.version > 6 and self.table.we_merge_logs()

    def clustered(self, hook: Hook = lambda call: call.do()) -> bool:
        """Small files, or whole partitions sorted, or files with another codec. `hook`: of its storage."""
        table, how = self.table.open(), self.random.choice((JOINED, SORTED, REWRITTEN))
        codec = self.random.choice((Codec.GZIP, Codec.SNAPPY))
        storage = HookedStorage(table.storage, hook)
        self.said.append(f"{how.grouping.value} {how.rewrite} {codec.value}")
        done = cluster_table(replace(table, storage=storage), how, self.lock(), output=OutputOptions(codec=codec))
        return done.done is not None or bool(done.finished) or done.left_out > 0

    def we_cluster(self) -> bool:
        return self.clustered()

    def we_cluster_meanwhile(self) -> bool:
        """Others write while its files are staged: what they write to is left out."""
        wrote = list[str]()

        def hook(call: Call) -> object:
            if call.name == "open_output" and of_clustering(call.path) and not wrote:
                step = self.random.choice((self.upsert, self.delete, self.we_upsert, self.we_delete, self.we_insert))
                wrote.append(step.__name__)
                self.said.append(f"meanwhile {wrote}")
                step()
            return call.do()

        return self.clustered(hook) or bool(wrote)

    def we_execute_a_clustering(self) -> bool:
        """That Hudi has planned."""
        if self.table.pending():
            return False
        self.table.judge.plan_clustering(self.table.path)
        planned = planned_by_hudi(self.table.open().snapshot())
        self.clustered()
        assert not planned_by_hudi(self.table.open().snapshot())
        return bool(planned)

    def hudi_executes_ours(self) -> bool:
        """A plan of a process that died."""
        dead = list[str]()

        def hook(call: Call) -> object:
            if dead or opens_attempt(call):
                dead.append(call.path)
                raise ProcessDied(call.path)
            return call.do()

        with suppress(ProcessDied):
            return self.clustered(hook)
        forget_heartbeats(self.table.path)
        self.table.judge.execute_clustering(self.table.path)
        return True

    def we_clean(self) -> bool:
        clean_table(self.table.open(), CleanOptions(retain=1), self.lock())
        return True

    def we_archive(self) -> bool:
        archive_table(self.table.open(), ArchiveOptions(min_instants=2, max_instants=3), self.lock())
        return True

    def we_serve(self) -> bool:
        serve_metadata(self.table.open(), MetadataOptions(max_delta_commits=1), self.lock())
        return True

    def our_writer_dies(self) -> bool:
        """Before it has noted anything."""
        leave_dead_write(self.table.path)
        return self.roll_back()

    def a_writer_dies(self) -> bool:
        """After it has noted its keys."""
        before = dict(self.rows_now)
        if not self.random.choice((self.upsert, self.we_upsert, self.we_delete))():
            return False
        kill_newest(self.table.open())
        self.rows_now = before
        return self.roll_back()

    def roll_back(self) -> bool:
        return bool(
            roll_back_dead_writers(self.table.open(), self.lock(), lazy=False, now_ms=lambda: 0, expiry_s=120.0)
        )

    def lock(self) -> ProcessLock:
        return ProcessLock(str(self.table.path))

    def clusterings(self) -> tuple[Callable[[], bool], ...]:
        """Those of phantombase, and those that one plans and the other executes."""
        return self.we_cluster, self.we_cluster_meanwhile, self.we_execute_a_clustering, self.hudi_executes_ours

    def steps(self) -> dict[Callable[[], bool], int]:
        return {
            self.upsert: 6,
            self.upsert_that_moves: 2,
            self.delete: 3,
            self.insert: 1,
            self.bulk_insert: 1,
            self.hudi_schedules: 2,
            self.hudi_compacts: 2,
            self.clean: 1,
            self.archive: 1,
            self.hudi_takes_back: 1,
            self.we_take_back: 2,
            self.cluster: 1,
            self.restore: 2,
            self.overwrite: 1,
            self.delete_partition: 1,
            self.we_overwrite: 3,
            self.we_delete_partition: 1,
            self.we_upsert: 8,
            self.we_delete: 4,
            self.we_insert: 2,
            self.we_bulk_insert: 2,
            self.we_move: 3,
            self.we_leave: 2,
            self.we_merge: 3,
            self.we_schedule: 3,
            self.we_compact: 4,
            self.we_merge_logs: 2,
            **dict.fromkeys(self.clusterings(), 3 if self.table.version == 9 else 0),
            self.we_clean: 1,
            self.we_archive: 1,
            self.we_serve: 2,
            self.our_writer_dies: 1,
            self.a_writer_dies: 2,
        }

    def look(self, _step: str) -> None:
        """The rows are those of the model; the index says where they are, for both, if it is there."""
        found, listed = (self.hudi_reads(options) for options in (None, METADATA_TABLE))
        same(self.table.we_read().drop_columns(["p"]), found)
        same(listed, found)
        self.table.check_listing()
        values = dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
        places = dict(zip(found["id"].to_pylist(), found["_hoodie_partition_path"].to_pylist(), strict=True))
        assert found.num_rows == len(values), "a key is doubled"
        expected = {key: value for key, (_, value) in self.rows_now.items()}
        assert values == expected, {
            k: (values.get(k), expected.get(k)) for k in {*values, *expected} if values.get(k) != expected.get(k)
        }
        assert places == {key: where for key, (where, _) in self.rows_now.items()}
        if "record_index" not in self.table.open().config.metadata_partitions:
            self.said.append("[out]")
            return
        assert hudi_places(self.table.judge, self.table.path) == check_index(self.table.path)

    def hudi_reads(self, options: Mapping[str, object] | None) -> pa.Table:
        """Without the partition column, for which Hudi shows the folder."""
        return self.table.judge.read(self.table.path, options=options).drop_columns(["p"])

    def ends(self) -> None:
        """Hudi upserts every key; where the index was out, it builds it."""
        self.said.append("ends")
        self.table.upsert(self.batch(range(KEYS + 20)))
        self.look("ends")
        assert "record_index" in self.table.open().config.built_metadata_partitions


@versions(9, deep=[8, 6])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_the_index_is_where_the_rows_are(
    judge: Judge, version: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each log of the index is made in several portions and passes in some histories."""
    few = random.Random(seed).random() < 0.5
    monkeypatch.setattr(index_logs, "_PORTION_ROWS", 3 if few else 1 << 19)
    play(IndexHistory(judge, version, seed, tmp_path / "table"), seed)


def play(history: IndexHistory, seed: int) -> None:
    """Takes the steps."""
    try:
        for _ in range(STEPS):
            history.step()
        history.ends()
    except Exception as error:
        error.add_note(f"seed {seed}: " + "; ".join(history.said))
        raise
