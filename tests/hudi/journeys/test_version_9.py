"""The journey of version 9 with real Hudi 1.2.0."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Copy
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import LockError
from phantombase.timeline.format.log_encode import LogFormat, Parts, data_block, delete_block
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import parse_lock
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.in_progress import PendingRollback, pending_rollbacks
from phantombase.timeline.table.table import TableSchema
from phantombase.timeline.view.view import FileSlice
from tests.hudi.cases.hand_written import commit, with_meta
from tests.hudi.cases.indexed_table import ALL_INDEXES, HUDI, IndexedTable
from tests.hudi.cases.rows import key, partition, same, without_files
from tests.hudi.cases.shared_table import EVENT_TIME, MULTI_WRITER, check_rows, hudi_rs_reads, is_ours, multi_writer
from tests.hudi.journeys.journey import LOCK, Journey, Stage, check_keys, look, travel
from tests.hudi.judge.client import METADATA_TABLE, JudgeError
from tests.hudi.judge.fixtures import Judges
from tests.hudi.judge.java_client import archived_instants
from tests.support.compaction_steps import check_no_strays, open_table, run_all
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import kill_newest
from tests.support.record_indexes import check_index, hudi_places
from tests.support.selection import deep
from tests.support.servers.zookeeper_server import ZooKeeper, client, wait_until

pytestmark = pytest.mark.interop

INDEXED: dict[str, object] = {
    **EVENT_TIME,
    **ALL_INDEXES,
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 2,
    "hoodie.metadata.record.index.max.filegroup.count": 2,
    "hoodie.metadata.index.bloom.filter.file.group.count": 1,
    "hoodie.metadata.index.column.stats.file.group.count": 1,
    "hoodie.index.type": "RECORD_INDEX",
}
COLUMN_STATS = "hoodie.metadata.index.column.stats.enable"
NEW_GROUPS = {"hoodie.parquet.small.file.limit": 0, "hoodie.merge.small.file.group.candidates.limit": 0}


def plain(*given: int) -> list[int]:
    """The numbers of a range whose keys a record index of ours may hold."""
    return [n for n in range(*given) if n % 5 != 2]


def we_make_the_table(journey: Journey) -> None:
    """In base files of each operation, rewritten ones and logs Hudi finds our rows, and the changes since a write."""
    table, rows, path = journey.table, journey.rows, str(journey.path)
    table.creator(rows(plain(60), 1)).bulk_insert(path)
    inserted = table.creator(rows(plain(60, 90), 1)).insert(path)
    table.creator(rows(plain(50, 100), 2)).upsert(path)  # inserts go to small files
    table.creator(rows(plain(30), 2)).upsert(path)
    table.creator(rows(plain(10), 3, deleted=True)).upsert(path)
    table.creator(rows(plain(10, 20), 0).drop_columns(["ts"])).delete(path)
    check_keys(journey.look(), plain(20, 100))
    since = {"hoodie.datasource.read.begin.instanttime": inserted.instant}
    seen = table.judge.read(table.path, query="incremental", options=since)
    check_keys(seen, [*plain(20, 30), *plain(50, 100)])


def hudi_merges_our_blocks(journey: Journey) -> None:
    """Both formats, typed and natural deletes, late and in time, in one delta commit."""
    rows, numbers = journey.rows, plain(20, 100)
    before = journey.table.we_read().select(rows([], 0).schema.names)
    avro, parquet, late = rows(numbers[0:16:2], 6), rows(numbers[1:16:2], 7), rows(numbers[16:20], 0)
    gone, kept, natural = numbers[20:24], numbers[24:28], numbers[28:32]

    def blocks(slice_: FileSlice, time: str, schema: TableSchema) -> Iterator[Parts]:
        for log_format, written in ((LogFormat.AVRO, avro), (LogFormat.PARQUET, parquet), (LogFormat.AVRO, late)):
            mine = with_meta(written, slice_, time, schema)
            yield data_block(mine, instant=time, schema_text=schema.file_text, log_format=log_format)
        for of, ts in ((gone, 6), (kept, 0), (natural, None)):
            here = pa.array([key(n) for n in of if partition(n) == slice_.partition])
            if not len(here):
                continue
            ordering = () if ts is None else (pa.array([ts] * len(here), pa.int64()),)
            paths = pa.array([slice_.partition] * len(here))
            yield delete_block(here, paths, ordering, instant=time, schema_text=schema.file_text, hudi_0x=False)

    commit(journey.table, blocks)
    found = journey.look(pa.concat_tables([avro, parquet]), [*gone, *natural])
    for of in (numbers[16:20], kept):
        present = pa.array([k in {key(n) for n in of} for k in before["id"].to_pylist()])
        check_rows(found, before.filter(present))


def each_compacts_its_copy(journey: Journey) -> None:
    """Hudi updates what we wrote, inserts and deletes. Its plan with writes of both on top: what either makes of it
    reads the same, in base files and as a whole."""
    table, rows = journey.table, journey.rows
    table.upsert(rows(plain(5, 110, 3), 8))
    table.delete(rows(plain(30, 40), 9))
    instant = table.hudi_schedules()
    # A late update after a planned delete is decided by the base row before compaction and wins after it.
    table.upsert(rows([*plain(30, 36), *plain(60, 80, 3)], (1, 9)))
    journey.we_upsert(rows(plain(40, 60, 3), (1, 20)))
    before, hudis = table.we_read(), table.copy()
    hudis.hudi_compacts(instant)
    assert table.we_compact() == [instant]
    snapshot, base_files = journey.look(), table.agree_on_base_files()
    same(snapshot, before)
    same(base_files, hudis.hudi_reads("read_optimized"))
    same(snapshot, hudis.hudi_reads())
    same(hudi_rs_reads(table.path), snapshot)


def hudi_reads_the_metadata_table_that_we_compacted(journey: Journey) -> None:
    """With all its indexes, and writes to it; queries skip no file by its statistics that has a row."""
    table, rows = journey.table, journey.rows
    table.upsert(rows(plain(0, 110, 7), 200))
    journey.we_upsert(rows(plain(60, 90), 201))
    compact_metadata(table)
    latest = rows(plain(0, 110, 4), 202)
    table.upsert(latest)
    journey.look_everywhere(latest)
    assert validate(table.open()).differences == ()


def compact_metadata(table: IndexedTable) -> None:
    """We compact the metadata table."""
    done = serve_metadata(table.open(), MetadataOptions(max_delta_commits=1), LOCK).compactions
    assert done
    assert all(one.log_files > 0 for one in done)


def hudi_finds_keys_by_our_index(journey: Journey) -> None:
    """Behind a compaction of ours it updates what we have inserted, and inserts what we have deleted."""
    table, rows = journey.table, journey.rows
    table.we_compact(table.we_schedule())
    journey.we_upsert(rows(plain(110, 130), 210), small_file_bytes=0)
    table.writer(rows(plain(4), 211)).delete(str(table.path))
    assert hudi_places(table.judge, table.path) == check_index(table.path)
    latest = rows([*plain(4), *plain(120, 140)], 212)
    table.upsert(latest)
    check_index(table.path)
    journey.look(latest)


def hudi_leaves_a_plan_alone_and_takes_it_over(journey: Journey) -> None:
    """In a multi-writer mode it refuses while our heartbeat is fresh, and finishes what we left half done after it."""
    table = journey.table
    instant = table.we_schedule()
    before = table.we_read()
    with heartbeat(table.open().storage, instant, 1.0), pytest.raises(JudgeError, match="heartbeat"):
        table.judge.run_compaction(table.path, instant, MULTI_WRITER)
    assert table.pending() == [instant]
    assert not (table.path / heartbeat_path(instant)).exists()
    half = HookedStorage(LocalStorage(str(table.path)), die_at_nth(2, "place", ".parquet"))
    with pytest.raises(ProcessDied):
        run_all(open_table(table.path, half))
    assert table.pending() == [instant]
    table.hudi_compacts(instant)  # the single writer asks nobody
    same(journey.look(), before)
    assert table.we_compact() == []
    check_no_strays(table.path)


def hudi_goes_on_behind_an_overwrite(journey: Journey) -> None:
    """It inserts what we have replaced, and updates what we have put in its place; and a partition that we took out. A
    key that it could not look up takes the index out."""
    table, rows, path = journey.table, journey.rows, str(journey.path)
    own, gone = ([n for n in plain(140) if partition(n) == partition(place)] for place in (3, 4))
    table.writer(rows(own[::4], 220)).insert_overwrite(path)
    writer().delete_partition(path, [partition(4)])
    journey.look(rows([], 0), {*own, *gone} - set(own[::4]))
    latest = rows([*own[::2], *gone[:5]], 221)
    table.upsert(latest)
    assert hudi_places(table.judge, table.path) == check_index(table.path)
    journey.look(latest, own[1::2])
    journey.we_upsert(rows([2], 222))
    assert "record_index" not in table.open().config.built_metadata_partitions
    journey.look()


def hudi_goes_on_behind_copied_row_groups(journey: Journey) -> None:
    """Row groups of its own files, as bytes in a clustering of ours of another table: reads, upsert, compaction."""
    rows, table = journey.rows, replace(journey.table, path=journey.path.with_name("clustered"))
    table.create(rows(range(20), 1), operation="insert")
    table.judge.insert(table.path, rows(range(20, 40), 1), {**table.options, **NEW_GROUPS})
    before = table.we_read()
    options = ClusterOptions(min_files=2, wait_s=0, copy=Copy.FORCE)
    done = cluster_table(table.open(), options, LOCK, output=OutputOptions()).done
    assert done is not None
    assert (done.files, done.made, done.copied, done.copied_row_groups) == (6, 3, 3, 6)
    same(without_files(look(table)), without_files(before))
    same(without_files(hudi_rs_reads(table.path)), without_files(before))
    newer = rows(range(10, 40), 9)
    table.upsert(newer)
    table.hudi_compacts(table.we_schedule())
    check_rows(look(table), newer)
    assert table.we_read().num_rows == 40


def both_clean_and_archive(journey: Journey) -> None:
    """Each behind the other; Hudi reads in the archive what we have moved there, and the other way round."""
    table = journey.table
    table.upsert(journey.rows(plain(0, 200, 9), 75))
    before = table.we_read()
    assert clean_table(table.open(), CleanOptions(retain=2, floor_s=0), LOCK).files
    table.judge.clean(table.path)
    compact_metadata(table)  # what it has not taken in yet stays
    small = ArchiveOptions(min_instants=6, max_instants=7, commits_retained=2, compaction_commits=1)
    assert archive_table(table.open(), small, LOCK).archived
    ours = table.open().load_timeline(archived=True).archived
    assert sorted(archived_instants("1.2.0", table.path)) == sorted((i.requested_time, i.action) for i in ours)
    table.judge.archive(table.path)
    assert len(table.open().load_timeline(archived=True).archived) > len(ours)
    same(journey.look(), before)


def a_dead_write_of_hudi_is_rolled_back(journey: Journey) -> None:
    """By us; where we die at it, Hudi finishes our rollback."""
    table, rows = journey.table, journey.rows
    before = table.we_read()
    table.upsert(rows(plain(0, 280, 3), 70))
    dead = kill_newest(table.open())
    same(table.we_read(), before)
    left = table.copy()
    assert undo(left) > dead.requested_time
    same(look(left), before)
    half = HookedStorage(LocalStorage(str(table.path)), die_at_nth(1, "put_if_absent", ".rollback"))
    with pytest.raises(ProcessDied):
        undo(replace(table, path=table.path), half)
    (pending,) = pending_rollbacks(table.open())
    assert isinstance(pending, PendingRollback)
    latest = rows(plain(0, 60, 5), 71)
    table.upsert(latest)
    done = table.open().load_timeline().find(pending.instant, "rollback")
    assert done is not None
    assert done.completed
    journey.look(latest)


def undo(table: IndexedTable, storage: HookedStorage | None = None) -> str:
    """A single writer's look after dead ones: the instant of the rollback."""
    opened = open_table(table.path, storage)
    (rollback,) = roll_back_dead_writers(opened, LOCK, lazy=False, now_ms=lambda: 0, expiry_s=120.0)
    return rollback


def hudi_goes_on_behind_a_restore(journey: Journey) -> None:
    """Past compactions, a plan, and writes of both; it builds its metadata table anew."""
    table, rows = journey.table, journey.rows
    before, target = table.we_read(), max(table.open().load_timeline().completed_writes)
    table.upsert(rows(plain(12), 100))
    table.we_schedule()
    journey.we_upsert(rows(plain(25), 101))
    assert table.we_compact()
    table.hudi_schedules()
    journey.we_upsert(rows(plain(30), 103))
    done = restore_table(table.open(), LOCK, target)
    assert len(done.undone) == 5
    same(without_files(journey.look()), without_files(before))
    latest = rows(plain(15, 30), 104)
    table.upsert(latest)
    table.hudi_compacts(table.we_schedule())
    same(journey.look(latest), table.agree_on_base_files())
    assert validate(table.open()).differences == ()


def waits_for_our_section(journey: Journey, zookeeper: ZooKeeper) -> None:
    """It waits as a contender behind our node while we are inside, and succeeds afterwards; so do we behind it."""
    table, place = journey.table, f"/hudi_locks/v{journey.table.version}"
    latest = journey.rows(plain(0, 20, 2), 90)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            table.upsert(latest, multi_writer(zookeeper, place.rpartition("/")[2]))
        except BaseException as error:
            errors.append(error)

    with client(zookeeper.hosts) as seen:
        with parse_lock(f"zookeeper:{zookeeper.hosts}{place}").hold("test"):
            before = len(table.open().load_timeline().completed_writes)
            thread = threading.Thread(target=write)
            thread.start()
            wait_until(lambda: len(seen.get_children(place)) == 2 or bool(errors), 180)
            time.sleep(1)
            assert thread.is_alive(), errors
            assert len(table.open().load_timeline().completed_writes) == before
            (hudis,) = (n for n in seen.get_children(place) if not is_ours(seen, place.rpartition("/")[2], n))
            payload = seen.get(f"{place}/{hudis}")[0].decode()
        thread.join(300)
        assert not thread.is_alive()
        assert errors == []
        assert seen.get_children(place) == []
        journey.look(latest)
        seen.create(f"{place}/{hudis[:-10]}", payload.encode(), ephemeral=True, sequence=True)
        base, _, name = place.rpartition("/")
        impatient = ZooKeeperLock(hosts=zookeeper.hosts, base_path=base, key=name, timeout_s=5.0)
        with pytest.raises(LockError) as error, impatient.hold("test"):
            pass
        assert payload in str(error.value)


@pytest.mark.parametrize("version", [9, deep(8)])
def test_journey(version: int, judges: Judges, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """What real Hudi 1.2 and we do to one table."""
    judge = judges(HUDI[version])
    travel(IndexedTable(judge=judge, path=tmp_path / "table", version=version), stages(lambda: zookeeper))


def stages(zookeeper: Callable[[], ZooKeeper]) -> Sequence[Stage]:
    """First without the metadata table, whose writes take twice as long; then with it; then with all its indexes."""

    def one_lock_for_both(journey: Journey) -> None:
        """A live writer of Hudi waits behind our section of the lock, and we behind its node."""
        waits_for_our_section(journey, zookeeper())

    alone = (
        we_make_the_table,
        hudi_merges_our_blocks,
        each_compacts_its_copy,
        hudi_leaves_a_plan_alone_and_takes_it_over,
        a_dead_write_of_hudi_is_rolled_back,
        one_lock_for_both,
    )
    listed = (hudi_goes_on_behind_copied_row_groups, both_clean_and_archive, hudi_goes_on_behind_a_restore)
    indexed = (
        hudi_reads_the_metadata_table_that_we_compacted,
        hudi_finds_keys_by_our_index,
        hudi_goes_on_behind_an_overwrite,
    )
    return (EVENT_TIME, alone), ({**EVENT_TIME, **METADATA_TABLE, COLUMN_STATS: False}, listed), (INDEXED, indexed)
