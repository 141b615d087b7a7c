"""Keeping the metadata table: which partitions, what is told, HFiles, and forgetting."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.timeline.errors import (
    ConflictError,
    MalformedError,
    MissingFileError,
    TableChangedError,
    UnsupportedError,
)
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, encode_plan
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.log_block import scan_blocks
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.format.table_config import load_table_config
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.commit import commit_records, forget, newest_schema
from phantombase.timeline.metadata_table.create import drop_metadata_table, make_metadata_table, metadata_config
from phantombase.timeline.metadata_table.index_logs import FileKeys, LogBounds, RecordedKeys
from phantombase.timeline.metadata_table.read import MetadataListing, open_slices, read_entries, read_files
from phantombase.timeline.metadata_table.records.entries import block_entries
from phantombase.timeline.metadata_table.records.keys import RowsChange, file_group_index, files_of_rollback, upkeep
from phantombase.timeline.metadata_table.update import Change, apply_update, prepare
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import PrefixStorage, Storage
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table, open_metadata_table
from phantombase.timeline.table.traces import revoke, traces_of
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.schema.new_table import create_table
from tests.support.compaction_steps import open_table, run_one
from tests.support.failing_storage import Failure, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.metadata_tables import AT_ONCE, files_of, serve, spec
from tests.support.metadata_tables import rows as some_rows
from tests.support.selection import deep
from tests.support.storage_contract import BetweenProcesses, OnFileSystems, Opener, StorageContract

# --- which partitions ----------------------------------------------------------------------------------------------

OURS = ("bloom_filters", "column_stats", "files", "partition_stats")


def test_what_is_kept_left_and_dropped() -> None:
    built = [*OURS, "record_index", "secondary_index_city", "expr_index_day"]
    writes, merges = (upkeep(built, [], RowsChange(moves_rows=moves), "") for moves in (True, False))
    assert writes.kept == merges.kept == OURS
    assert (writes.left, writes.dropped) == ((), ("expr_index_day", "record_index", "secondary_index_city"))
    assert (merges.left, merges.dropped) == (("record_index", "secondary_index_city"), ("expr_index_day",))
    known, merged = (upkeep(built, [], RowsChange(moves_rows=moves, knows_keys=True), "") for moves in (True, False))
    assert known.kept == (*OURS, "record_index")
    assert known.dropped == ("expr_index_day", "secondary_index_city")
    assert merged == merges


def test_what_is_being_built_is_kept_too_or_refused() -> None:
    """An indexer skips commits that the metadata table knows: they would be missing from its index."""
    assert upkeep(["files"], ["column_stats"], RowsChange(), "").kept == ("column_stats", "files")
    assert upkeep(["files"], ["record_index"], RowsChange(moves_rows=False), "").left == ("record_index",)
    with pytest.raises(UnsupportedError, match="record_index"):
        upkeep(["files"], ["record_index"], RowsChange(knows_keys=True), "")
    for moves in (True, False):
        with pytest.raises(UnsupportedError, match="vector_index"):
            upkeep(["files", "vector_index"], [], RowsChange(moves_rows=moves), "")


# --- telling and forgetting ----------------------------------------------------------------------------------------


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A golden table with the metadata table on."""
    return open_table(unzip_golden(f"{request.param}_with_metadata_table", tmp_path))


def rows(ids: range, ts: int) -> pa.Table:
    """Some of its columns."""
    return pa.table({"id": [f"k{i:03d}" for i in ids], "p": ["north"] * len(ids), "ts": [ts] * len(ids)})


def path_of(table: Table) -> Path:
    return Path(table.storage.base_path)


def test_writes_and_compactions_are_listed(table: Table) -> None:
    """What the metadata table says is what lies there, step by step."""
    for ts in (10**6, 10**6 + 1):
        writer(rows(range(6), ts)).upsert(str(path_of(table)))
        assert validate(table.snapshot(cached=False)).differences == ()
    schedule_compaction(table.snapshot(cached=False), ProcessLock("x"))
    writer(rows(range(3), 10**6 + 2)).upsert(str(path_of(table)))
    for instant in pending_instants(table):
        run_one(table.snapshot(cached=False), instant)
        assert validate(table.snapshot(cached=False)).differences == ()
    names = {name for files in read_files(table.snapshot(cached=False)).partitions.values() for name in files}
    assert any(instant in name for name in names)


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_an_index_of_rows_is_taken_out_by_a_write_and_not_by_a_compaction(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    properties = path_of(table) / ".hoodie/hoodie.properties"
    built = ",".join((*table.config.built_metadata_partitions, "record_index"))
    properties.write_bytes(properties.read_bytes() + f"\nhoodie.table.metadata.partitions={built}\n".encode())
    run_one(table.snapshot(cached=False), *pending_instants(table))
    assert "record_index" in table.snapshot(cached=False).config.metadata_partitions
    caplog.clear()
    writer(rows(range(3), 10**6)).upsert(str(path_of(table)))
    assert "record_index" not in table.snapshot(cached=False).config.metadata_partitions
    assert table.snapshot(cached=False).config.metadata_partitions == table.config.metadata_partitions
    (warning,) = [line for line in caplog.messages if "indexes_dropped" in line]
    assert "record_index" in warning


def test_a_metadata_table_dropped_under_a_write_is_not_told(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped_meanwhile(*args: Any) -> Any:
        drop_metadata_table(table, ProcessLock(table.storage.base_path))
        return place_all(*args)

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", dropped_meanwhile)
    writer(rows(range(3), 10**6)).upsert(str(path_of(table)))
    assert table.snapshot(cached=False).config.metadata_partitions == ()
    assert 10**6 in read_table(table.snapshot(cached=False))["ts"].to_pylist()


def test_a_write_that_fails_after_an_index_was_dropped_is_rolled_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself, not when others take it for dead: until then nothing would be planned on version 6."""
    properties = path_of(table) / ".hoodie/hoodie.properties"
    built = ",".join((*table.config.built_metadata_partitions, "record_index"))

    def switched_meanwhile(*_: object) -> None:
        properties.write_bytes(properties.read_bytes() + f"\nhoodie.table.metadata.partitions={built}\n".encode())
        raise ConflictError("another write or a plan changed what this write changes")

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", switched_meanwhile)
    with pytest.raises(ConflictError):
        writer(rows(range(3), 10**6)).upsert(str(path_of(table)))
    assert table.snapshot(cached=False).load_timeline().pending_delta_commits == ()


def test_an_empty_log_file_that_a_rollback_leaves_has_a_size() -> None:
    """Hudi's readers fail on entries of no size."""
    found = files_of_rollback({("p", "command"): 50}, {"p": {"dead": 0, "begun": 7}, "q": {"gone": 7}})
    assert found == {"p": {"dead": 1, "begun": 7, "command": 50}}


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_a_base_file_without_a_filter_takes_the_filters_out(table: Table) -> None:
    """Hudi's lookup by filters fails on a file that has none."""
    change = Change(
        instant="20990101000000000",
        files={"north": {f"f-0_0-0-0_{'2' * 17}.parquet": 1}},
        moves_rows=True,
        schema_text=table.snapshot().newest_schema().commit_text,
    )
    plain = next((path_of(table) / "north").glob("*.parquet"))
    target = path_of(table) / "north" / next(iter(change.files["north"]))
    pq.write_table(pq.read_table(plain).replace_schema_metadata(None), target, store_schema=False)
    properties = path_of(table) / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.metadata.partitions=files,bloom_filters\n")
    update = prepare(table.snapshot(cached=False), change)
    assert update is not None
    assert update.dropped == ("bloom_filters",)
    assert set(update.records) == {"files"}
    properties.write_bytes(
        properties.read_bytes()
        + b"\nhoodie.table.metadata.partitions=files\nhoodie.table.metadata.partitions.inflight=bloom_filters\n"
    )
    with pytest.raises(UnsupportedError, match="building"):
        prepare(table.snapshot(cached=False), change)


def told(table: Table, instant: str, name: str) -> None:
    """Only the metadata table hears of a file, as if its writer had died then."""
    change = Change(instant=instant, files={"north": {name: 7}}, moves_rows=True, schema_text=None)
    apply_update(table, change, prepare(table, change))


def listed(table: Table) -> set[str]:
    return {n for of in read_files(table).partitions.values() for n in of}


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_told_again_and_forgotten(table: Table) -> None:
    """Whatever an earlier try told is gone: a pending instant counts nothing, a completed one only its last telling."""
    instant = table.snapshot().next_time()
    before = listed(table)
    begun = path_of(table) / table.config.timeline_folder / f"{instant}.deltacommit.requested"
    begun.touch()
    for name in ("one", "two"):
        told(table, instant, f"{name}-0_0-0-0_{instant}.parquet")
        assert listed(table) == before, "the data table's instant pends"
    forget(table, instant)
    begun.unlink()  # as a rollback would
    assert listed(table) == before
    assert not [i for i in open_metadata_table(table).load_timeline().instants if i.requested_time == instant]
    begun.touch()
    told(table, instant, f"three-0_0-0-0_{instant}.parquet")
    done = path_of(table) / table.config.timeline_folder
    suffix = f"_{instant}" if table.layout.has_completion_times else ""
    newest = table.load_timeline().completed_writes[table.load_timeline().latest_completed]
    (done / f"{instant}{suffix}.deltacommit").write_bytes(table.storage.read(table.instant_path(newest)))
    assert listed(table) == before | {f"three-0_0-0-0_{instant}.parquet"}


@pytest.mark.parametrize("undone", ["nothing", "revoked", "by Hudi"])
def test_the_same_told_again(undone: str, tmp_path: Path) -> None:
    """It stays where nothing undoes it: a process asleep may be about to delete a completed file of that name."""
    table = open_table(unzip_golden("v6_with_metadata_table", tmp_path))
    metadata, instant = open_metadata_table(table), table.snapshot().next_time()
    name = f"one-0_0-0-0_{instant}.parquet"
    told(table, instant, name)
    logs = set(path_of(metadata).rglob("*.log.*"))
    if undone == "revoked":  # by a process that died while it forgot the instant
        for slice_ in traces_of(metadata, instant, "deltacommit", scan=True).revoked:
            revoke(metadata, slice_, instant)
    if undone == "by Hudi":
        plan = encode_rollback_plan(RollbackPlan(target=instant, action="deltacommit"), metadata.storage.base_path)
        rollback = Instant(requested_time=f"{int(instant) + 10**6}", action="rollback", state=State.REQUESTED)
        metadata.storage.put_if_absent(metadata.instant_path(rollback), plan)
    told(table, instant, name)
    assert (set(path_of(metadata).rglob("*.log.*")) == logs) == (undone == "nothing")
    assert metadata.load_timeline().pending("rollback") == ()
    newest = table.load_timeline().completed_writes[table.load_timeline().latest_completed]
    done = path_of(table) / table.config.timeline_folder / f"{instant}.deltacommit"
    done.write_bytes(table.storage.read(table.instant_path(newest)))
    assert name in listed(table)


def test_a_rollback_that_hudi_began_is_not_finished_over_what_is_told_again(table: Table) -> None:
    """Hudi finishes a pending rollback by its plan, also where the instant has completed since."""
    instant = table.snapshot().next_time()
    told(table, instant, f"one-0_0-0-0_{instant}.parquet")
    metadata = open_metadata_table(table)
    plan = encode_rollback_plan(RollbackPlan(target=instant, action="deltacommit"), metadata.storage.base_path)
    rollback = Instant(requested_time=f"{int(instant) + 10**6}", action="rollback", state=State.REQUESTED)
    metadata.storage.put_if_absent(metadata.instant_path(rollback), plan)
    metadata.storage.put_if_absent(metadata.instant_path(rollback.at(State.INFLIGHT)), b"")
    told(table, instant, f"two-0_0-0-0_{instant}.parquet")
    assert metadata.load_timeline().pending("rollback") == ()


@pytest.mark.parametrize("planned", [True, False])
def test_a_pending_compaction_begins_slices_of_the_file_groups_in_its_plan_only(planned: bool, tmp_path: Path) -> None:
    """Hudi plans those that have logs: a log of the others stays where their base file is."""
    table = open_table(unzip_golden("v6_with_metadata_table", tmp_path))
    metadata = open_metadata_table(table)
    (before,) = (s.base_instant for s in open_slices(metadata, "files"))
    compaction = "20990101000000000001"
    one = CompactionOperation(
        base_instant_time=before,
        delta_file_paths=(),
        data_file_path=None,
        file_id="files-0000-0" if planned else "col-stats-0000-0",
        partition_path="files" if planned else "column_stats",
    )
    requested = Instant(requested_time=compaction, action="compaction", state=State.REQUESTED)
    plan = encode_plan(CompactionPlan(operations=(one,)))
    metadata.storage.put_if_absent(metadata.instant_path(requested), plan)
    told(table, "20990101000000001", f"one-0_0-0-0_{'2' * 17}.parquet")
    logs = [LogFileName.parse(p.name) for p in (path_of(table) / ".hoodie/metadata/files").glob(".files*.log.*")]
    assert {n.instant for n in logs} == ({before, compaction} if planned else {before})


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_an_instant_that_was_compacted_cannot_be_forgotten(table: Table) -> None:
    """Its records are in a base file by then."""
    instant = table.snapshot().next_time()
    told(table, instant, f"one-0_0-0-0_{instant}.parquet")
    folder = path_of(table) / ".hoodie/metadata" / open_metadata_table(table).config.timeline_folder
    later = f"{int(instant) + 10**6}"
    (folder / (f"{later}_{later}.commit" if table.layout.has_completion_times else f"{later}.commit")).touch()
    with pytest.raises(MalformedError, match="never completed"):
        forget(table, instant)


def test_a_partition_without_file_groups_is_refused(table: Table) -> None:
    """Nothing is told then."""
    before = open_metadata_table(table).load_timeline()
    with pytest.raises(MalformedError, match="no file groups"):
        commit_records(table, "20990101000000000", {"bloom_filters": [("k", b"")]}, "{}")
    assert open_metadata_table(table).load_timeline() == before


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_the_schema_is_that_of_the_newest_delta_commit(table: Table) -> None:
    metadata = open_metadata_table(table)
    assert '"HoodieMetadataRecord"' in newest_schema(metadata)
    for instant in metadata.load_timeline().instants:
        if instant.state is State.COMPLETED:
            metadata.storage.delete(metadata.instant_path(instant))
    with pytest.raises(MalformedError, match="records its schema"):
        newest_schema(open_metadata_table(table))


@one_of("table", "v9", "v8", indirect=True)
def test_statistics_of_a_write_are_there(table: Table) -> None:
    """A record a column of a new log file, and partitions that are told of its values."""
    writer(rows(range(6), 10**6)).upsert(str(path_of(table)))
    now = table.snapshot(cached=False)
    instant = now.load_timeline().latest_completed
    of_file = [r["ColumnStatsMetadata"] for _, r in read_entries(now, "column_stats")]
    mine = {s["columnName"]: s for s in of_file if instant in s["fileName"]}
    assert mine["ts"]["maxValue"][1] == {"value": 10**6}
    assert mine["_hoodie_record_key"]["minValue"][1] == {"value": "k000"}
    of_partition = [r["ColumnStatsMetadata"] for _, r in read_entries(now, "partition_stats")]
    assert max(s["maxValue"][1]["value"] for s in of_partition if s["columnName"] == "ts") == 10**6


@pytest.mark.parametrize("when", ["staged", "prepared"])
def test_columns_indexed_since_a_file_was_measured_are_told_too(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi takes a column without statistics, beside others of a file, for one without values."""
    table = open_table(unzip_golden("v9_with_metadata_table", tmp_path))
    definitions = path_of(table) / ".hoodie/.index_defs/index.json"
    now = definitions.read_text()
    before = json.loads(now)
    before["indexDefinitions"]["column_stats"]["sourceFields"] = ["id"]
    definitions.write_text(json.dumps(before))
    monkeypatch.setattr("phantombase.timeline.metadata_table.indexed_columns._FIRST_COLUMNS", 1)

    def defined_anew(do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any) -> Any:
            try:
                return do(*args)
            finally:
                definitions.write_text(now)

        return done

    if when == "staged":
        monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", defined_anew(place_all))
    else:
        monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.prepare", defined_anew(prepare))
    writer(rows(range(6), 10**6)).upsert(str(path_of(table)))
    instant = table.load_timeline().latest_completed
    told = [r["ColumnStatsMetadata"] for _, r in read_entries(table.snapshot(cached=False), "column_stats")]
    assert "ts" in {s["columnName"] for s in told if instant in s["fileName"]}


@one_of("table", "v9", "v8", indirect=True)
def test_every_record_is_in_the_file_group_of_its_key(table: Table) -> None:
    """Readers look for a key nowhere else."""
    writer(rows(range(6), 10**6)).upsert(str(path_of(table)))
    instant = table.snapshot(cached=False).load_timeline().latest_completed
    metadata = open_metadata_table(table.snapshot(cached=False))
    logs = [e.name for e in metadata.storage.list("column_stats") if f"_{instant}.log" in e.name]
    assert len(logs) == 2
    for name in logs:
        path = f"column_stats/{name}"
        with metadata.storage.open_input(path) as source:
            keys = [key for block in scan_blocks(source, path) for key, _ in block_entries(block, source)]
        assert keys == sorted(keys)
        assert {file_group_index(key, 2) for key in keys} == {int(LogFileName.parse(name).file_id.split("-")[2])}


@one_of("table", "v9", "v8", indirect=True)
def test_a_column_that_becomes_wider_takes_the_statistics_of_partitions_out(table: Table) -> None:
    """Hudi's readers would merge an int with a long, and fail."""
    batch = rows(range(6), 10**6)
    writer(batch.append_column("n", pa.array([7] * 6, pa.int32()))).upsert(str(path_of(table)))
    assert "partition_stats" in table.snapshot(cached=False).config.metadata_partitions
    writer(batch.append_column("n", pa.array([7] * 6, pa.int64()))).upsert(str(path_of(table)))
    assert table.snapshot(cached=False).config.metadata_partitions == ("column_stats", "files")


# A new table with a metadata table: as Hudi would have made it, kept by our writes, and made anew behind a death.


VERSIONS = (6, deep(8), 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_settings_are_those_that_hudi_writes(version: int, tmp_path: Path) -> None:
    table = Table.open(str(unzip_golden(f"v{version}_with_metadata_table", tmp_path)))
    of_hudi = load_table_config(open_metadata_table(table).storage)
    assert metadata_config(table.config).properties == of_hudi.properties


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_kept_from_the_first_write_on(version: int, tmp_path: Path) -> None:
    conf = {"hoodie.metadata.enable": "true", "hoodie.write.table.version": str(version)}
    first = writer(some_rows(range(6), 1)).table("t").key("id").partition("p").ordering("ts").conf(conf)
    first.upsert(str(tmp_path))
    table = Table.open(str(tmp_path))
    assert table.config.built_metadata_partitions == ("files",)
    for ts in range(2, 5):
        writer(some_rows(range(ts, 6 + ts), ts)).upsert(str(tmp_path))
        assert validate(table.snapshot(cached=False)).differences == ()
        through = Table(table.storage, table.config, MetadataListing())
        assert read_table(through).sort_by("id") == read_table(table.snapshot(cached=False)).sort_by("id")
    assert len(serve(table.snapshot(cached=False), AT_ONCE).compactions) == 1
    writer(some_rows(range(20, 30), 9)).upsert(str(tmp_path))
    assert validate(table.snapshot(cached=False)).differences == ()
    assert list(read_files(table.snapshot(cached=False)).partitions) == ["north"]


def test_without_the_option_there_is_none(tmp_path: Path) -> None:
    for conf in ({}, {"hoodie.metadata.enable": "false"}):
        path = tmp_path / str(len(conf))
        writer(some_rows(range(6), 1)).table("t").key("id").partition("p").conf(conf).upsert(str(path))
        assert Table.open(str(path)).config.metadata_partitions == ()
        assert not (path / ".hoodie/metadata").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_death_at_a_storage_call(version: int, tmp_path: Path) -> None:
    """The next process makes the same table, byte for byte."""
    whole = tmp_path / "whole"
    calls = HookedStorage(LocalStorage(str(whole)), lambda call: call.do())
    create_table(calls, spec(version))
    expected = {name: (whole / name).read_bytes() for name in files_of(whole)}
    changing = [n for n, name in enumerate(calls.calls) if Failure.AFTER.can_hit(name)]
    assert len(changing) == 7
    for number in changing:
        died = tmp_path / "died"
        with pytest.raises(ProcessDied):
            create_table(HookedStorage(LocalStorage(str(died)), die_at(number)), spec(version))
        table = create_table(LocalStorage(str(died)), spec(version))
        assert {name: (died / name).read_bytes() for name in files_of(died)} == expected
        assert read_files(table).partitions == {}
        shutil.rmtree(died)


def test_two_at_once_make_the_same(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    config = spec(9).config()
    assert make_metadata_table(storage, config).properties == make_metadata_table(storage, config).properties
    before = files_of(tmp_path)
    create_table(storage, spec(9))
    assert files_of(tmp_path) - before == {".hoodie/hoodie.properties"}


# How much is held in memory while log files of the record index are made.


MIB = 1 << 20


def noted(files: int, count: int, key_bytes: int, limit: int) -> RecordedKeys:
    """Files of so many keys each."""
    one = FileKeys(partition="p", file_id="f", path="p", count=count, size=count * key_bytes)
    return RecordedKeys(files=(one,) * files, memory_limit=limit, folder="")


def test_small_logs_of_an_object_store_are_made_in_one_pass() -> None:
    """100 thousand keys of 20 bytes make 16 MiB."""
    bounds = LogBounds.of(noted(4, 25_000, 20, 1 << 30), 200, 90, is_file_system=False)
    assert (bounds.files, bounds.ahead) == (256, 8)


@pytest.mark.parametrize("limit", [32 * MIB, 256 * MIB, 1 << 30])
def test_large_ones_are_made_in_passes(limit: int) -> None:
    """100 million keys: each log holds back as much as it may."""
    bounds = LogBounds.of(noted(100, 1_000_000, 300, limit), 200, 90, is_file_system=False)
    assert bounds.files == max(1, limit // 2 // (48 * MIB))
    assert bounds.ahead == max(1, limit // 8 // (32 * MIB + 1))
    assert bounds.portion_bytes == limit // 12


def test_a_file_system_holds_nothing_back() -> None:
    """A write of nothing has bounds too."""
    assert LogBounds.of(noted(100, 1_000_000, 300, 32 * MIB), 200, 90, is_file_system=True).files == 200 + 56
    assert LogBounds.of(noted(0, 0, 0, 32 * MIB), 1, 0, is_file_system=False).files == 256


# The metadata table as a table of its own: a folder of a storage keeps the storage's promises.


def below(path: Path) -> Storage:
    """A folder two levels down."""
    return PrefixStorage(LocalStorage(str(path)), "some/folder")


class TestBelow(StorageContract, BetweenProcesses, OnFileSystems):
    """The whole contract, one folder down."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """An empty storage."""
        (tmp_path / "some/folder").mkdir(parents=True)
        return below(tmp_path)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        """Makes further handles on the same place."""
        return partial(below, tmp_path)

    def test_nothing_outside_the_folder(self, storage: Storage, tmp_path: Path) -> None:
        """Paths are below the folder, which is its base."""
        storage.put_if_absent("d/x", b"1")
        assert (tmp_path / "some/folder/d/x").read_bytes() == b"1"
        assert storage.base_path == f"{tmp_path}/some/folder"
        assert pickle.loads(pickle.dumps(storage)) == storage


@pytest.mark.parametrize("version", ["v6", "v8", "v9"])
def test_open(version: str, tmp_path: Path) -> None:
    """Its settings are its own."""
    table = Table.open(str(unzip_golden(f"{version}_with_metadata_table", tmp_path)))
    metadata = open_metadata_table(table)
    assert metadata.config.name == f"{table.config.name}_metadata"
    assert metadata.config.version == table.config.version
    assert metadata.config.record_key_fields == ("key",)
    assert metadata.storage.base_path == f"{table.storage.base_path}/{METADATA_FOLDER}"
    assert metadata.load_timeline().completed_writes.keys() >= table.load_timeline().completed_writes.keys()


def test_a_table_without_one(tmp_path: Path) -> None:
    """It is said where it was looked for."""
    table = Table.open(str(unzip_golden("v9_plain", tmp_path)))
    with pytest.raises(MissingFileError, match=METADATA_FOLDER):
        open_metadata_table(table)


def test_one_that_is_taken_out_meanwhile(tmp_path: Path) -> None:
    """The reader, which knows older settings, begins again."""
    table = Table.open(str(unzip_golden("v9_with_metadata_table", tmp_path)))
    drop_metadata_table(table, ProcessLock("drop"))
    with pytest.raises(TableChangedError):
        open_metadata_table(table)
