"""Every golden table reads as real Hudi read it, before and after our compaction.

Expected rows were read by the Hudi that wrote the table; `*_after_compaction` after that Hudi had executed all
pending plans on a copy."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import UnsupportedError, read
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.audit.audit import Verdict, audit, audited_instants
from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.format.record_key import KeySplit, bucket_of, bucket_of_file_id
from phantombase.timeline.format.table_config import PROPERTIES, MergeMode, TableConfig
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.key_encoding import one_field_prefixed
from phantombase.writer_hooks.schema.key_generator import KeyGenerator
from phantombase.writer_hooks.schema.new_table import NewTable, check_same_table
from phantombase.writer_hooks.schema.table_schema import evolve, new_schema, to_file_schema
from tests.hudi.cases.rows import same
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import (
    DECIMALS_SPOILT_BY_HUDI,
    GOLDEN,
    NEWEST_AND_OLDEST,
    ONE_A_CASE,
    golden_metadata,
    unzip_golden,
)
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep

RO = ReadOptions(query=Query.READ_OPTIMIZED)


def compact(path: Path, executor: Executor = Executor.LOCAL, output: OutputOptions | None = None) -> int:
    """Executes everything pending (the metadata table goes, where there is one); returns the number of instants."""
    results = run_compactions(
        str(path),
        drop_metadata=True,
        output=output or OutputOptions(),
        execute=ExecuteOptions(executor=executor, master="local[2]", threads=2),
        attempt=AttemptOptions(),
    )
    return len(results.done)


def expected(path: Path, what: str) -> pa.Table | None:
    """What Hudi read, None where the table had nothing pending."""
    file = path.with_name(f"{path.name}.expected") / f"{what}.parquet"
    return pq.read_table(file) if file.exists() else None


@pytest.mark.parametrize("name", GOLDEN)
def test_reads_as_hudi_did(name: str, tmp_path: Path) -> None:
    """Snapshot and read-optimized, every column."""
    path = unzip_golden(name, tmp_path)
    assert_same_rows(read_table(Table.open(str(path))), expected(path, "snapshot"))
    assert_same_rows(read_table(Table.open(str(path)), RO), expected(path, "read_optimized"))


@pytest.mark.parametrize("name", ONE_A_CASE)
def test_compacts_as_hudi_did(name: str, tmp_path: Path) -> None:
    """With pending plans: both reads equal Hudi's after its compaction. Without: ours is scheduled first."""
    path = unzip_golden(name, tmp_path)
    before = read_table(Table.open(str(path)))
    snapshot = expected(path, "snapshot_after_compaction")
    read_optimized = expected(path, "read_optimized_after_compaction")
    planned = pending_instants(Table.open(str(path)))
    if not planned:
        drop_and_schedule(path)
    assert compact(path) == max(1, len(planned))
    table = Table.open(str(path))
    audits = [audit(table, instant) for instant in audited_instants(table)]
    assert {g.verdict for a in audits for g in a.groups} == {Verdict.PROVED}
    assert all(a.good for a in audits)
    after, base_files = read_table(table), read_table(table, RO)
    if snapshot is None or read_optimized is None:
        snapshot = read_optimized = before
    spoilt = DECIMALS_SPOILT_BY_HUDI.get(name)
    if spoilt is not None:
        assert pc.any(pc.greater(pc.abs(snapshot.column(spoilt)), pc.max(pc.abs(before.column(spoilt))))).as_py()
        assert_same_rows(after, before)
        after, base_files, snapshot, read_optimized = (
            t.drop_columns([spoilt]) for t in (after, base_files, snapshot, read_optimized)
        )
    assert_same_rows(after, snapshot)
    assert_same_rows(base_files, read_optimized)


def drop_and_schedule(path: Path) -> None:
    """Requests a compaction; the lock is in-process: nobody else is there."""
    from phantombase.timeline.metadata_table.create import drop_metadata_table

    lock = ProcessLock(str(path))
    table = drop_metadata_table(Table.open(str(path)), lock)
    assert schedule_compaction(table, lock).instant is not None


@pytest.mark.parametrize("name", ["v6_pending", "v9_parquet_log", "v8_log_only"])
def test_nothing_but_records_is_left(name: str, tmp_path: Path) -> None:
    """After a compaction no staged file, heartbeat or stray lies around; open and outcome stay."""
    path = unzip_golden(name, tmp_path)
    compact(path)
    records = sorted(p.name for p in (path / RECORDS).rglob("*") if p.is_file())
    left = {r for r in records if not r.endswith((".lock", ".json")) and not r.startswith("reserved-")}
    assert left == {"open", "outcome"}
    assert not list((path / ".hoodie" / ".heartbeat").glob("*"))
    assert compact(path) == 0


@pytest.mark.spark
@pytest.mark.parametrize("name", [deep("v6_two_pending"), "v9_types"])
def test_spark_gives_the_same(name: str, tmp_path: Path) -> None:
    """The same slice code as Spark tasks."""
    path = unzip_golden(name, tmp_path)
    compact(path, Executor.SPARK)
    assert_same_rows(read_table(Table.open(str(path))), expected(path, "snapshot_after_compaction"))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("bloom", list(Bloom))
def test_output_options(codec: Codec, bloom: Bloom, tmp_path: Path) -> None:
    """Codec, row group size and bloom filter are as asked for, and the footer carries what Hudi writes."""
    path = unzip_golden("v9_bucket_nonpart", tmp_path)
    compact(path, output=OutputOptions(codec=codec, bloom=bloom, row_group_rows=7, batch_rows=5))
    written = list(path.glob("*_*-*-990000000_*.parquet"))
    assert written
    for file in written:
        metadata = pq.read_metadata(file)
        wanted = "UNCOMPRESSED" if codec is Codec.NONE else codec.name
        assert metadata.row_group(0).column(0).compression == wanted
        assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) <= 7
        rows = pq.read_table(file)
        assert set(rows.column("_hoodie_file_name").to_pylist()) == {file.name}
        footer = metadata.metadata
        keys = rows.column("_hoodie_record_key").to_pylist()
        assert footer[b"hoodie_min_record_key"].decode() == min(keys)
        assert footer[b"hoodie_max_record_key"].decode() == max(keys)
        assert footer[b"hoodie_bloom_filter_type_code"] == (b"DYNAMIC_V0" if bloom is Bloom.ON else b"SIMPLE")
        assert b'"name":"_hoodie_commit_time"' in footer[b"parquet.avro.schema"]
        assert b"ARROW:schema" not in footer


# Keys, partition paths, buckets and schemas of every row that real Hudi wrote into the golden tables, made again.


BUCKETS = {"bucket_nonpart": 4, "log_only": 2}
VIRTUAL_KEYS = "virtual_keys"


def _config(name: str) -> TableConfig:
    return TableConfig.parse(golden_metadata(name)[PROPERTIES], name)


@pytest.mark.parametrize("name", NEWEST_AND_OLDEST)
def test_keys_and_places(name: str, tmp_path: Path) -> None:
    """Every row's key, partition path and, on a bucket index, file."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    rows = read_table(table)
    generator = KeyGenerator.of(table.config, one_field_prefixed=one_field_prefixed(table))
    case = name.partition("_")[2]
    assert rows.num_rows
    keys, paths = generator.keys(rows), generator.partition_paths(rows)
    if case == VIRTUAL_KEYS:
        return
    assert keys.to_pylist() == rows.column("_hoodie_record_key").to_pylist()
    assert paths.to_pylist() == rows.column("_hoodie_partition_path").to_pylist()
    if case in BUCKETS:
        split = KeySplit.of(table.layout)
        files = [bucket_of_file_id(file) for file in rows.column("_hoodie_file_name").to_pylist()]
        assert bucket_of(keys, table.config.record_key_fields, BUCKETS[case], split).tolist() == files


@pytest.mark.parametrize("name", NEWEST_AND_OLDEST)
def test_schemas(name: str, tmp_path: Path) -> None:
    """The schema Hudi recorded is the one made of its columns; its own rows change neither it nor themselves."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    text = table.snapshot().newest_schema().commit_text
    schema = arrow_schema(text)
    if table.config.create_schema is None:  # SQL makes other names and ["T", "null"]
        assert new_schema(table.config.name, schema) == text
    assert evolve(text, schema) == text
    rows = read_table(table)
    assert to_file_schema(rows, schema).equals(rows.select([f.name for f in schema]))


_PLAIN = ("plain", "complex_key", "bucket_nonpart", "event_time", "commit_time", "multi_ordering")


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.partition("_")[2] in _PLAIN])
def test_properties(name: str) -> None:
    """A new table of the same description has the same properties."""
    config = _config(name)
    mode = config.merge_mode
    spec = NewTable(
        name=config.name,
        version=config.version,
        key_fields=config.record_key_fields,
        partition_fields=config.partition_fields,
        ordering_fields=config.ordering_fields,
        hive_style=config.hive_style,
        url_encode=config.url_encode,
        merge_mode=mode.as_new,
    )
    check_same_table(config, spec)
    # Only there where a writer says its payload class; a merge mode says the same.
    said = {k: v for k, v in config.properties.items() if k != "hoodie.table.legacy.payload.class"}
    assert spec.config().properties == said
    assert spec.mode in (MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME)


# The public test tables of hudi-rs, made by real Hudi with other options than the golden tables: all columns.
#
# `tests/golden/hudi_rs/answers.zip` has what Hudi 1.2.0 reads from each. MERGE_ON_READ tables are compacted too.


FOLDER = GOLDEN_FOLDER / "hudi_rs"
LANCE = "cow_v9_lance_nonpartitioned"
ALL = sorted(path.stem for path in FOLDER.glob("*_v*.zip") if path.stem != LANCE)
WITH_LOGS = [name for name in ALL if name.startswith("mor_")]


def unzipped(name: str, into: Path) -> str:
    """The table's path; its folder is the one that is not macOS' own."""
    with ZipFile(FOLDER / f"{name}.zip", metadata_encoding="utf-8") as archive:
        archive.extractall(into)
    (properties,) = (path for path in into.glob("*/.hoodie/hoodie.properties") if "__MACOSX" not in path.parts)
    return str(properties.parents[1])


def answer(name: str, query: str) -> pa.Table:
    """What Hudi reads."""
    with ZipFile(FOLDER / "answers.zip") as archive, archive.open(f"{name}.{query}.parquet") as file:
        return pq.read_table(pa.BufferReader(file.read()))


@pytest.mark.parametrize("name", ALL)
def test_reads_as_hudi_does(name: str, tmp_path: Path) -> None:
    """Snapshot and read-optimized."""
    path = unzipped(name, tmp_path)
    same(read(path).to_arrow(), answer(name, "snapshot"))
    same(read(path, query="read-optimized").to_arrow(), answer(name, "read_optimized"))


@pytest.mark.parametrize("name", [n if number % 3 == 0 else deep(n) for number, n in enumerate(WITH_LOGS)])
def test_reads_the_same_behind_a_compaction(name: str, tmp_path: Path) -> None:
    """Every file slice that has logs is compacted; read-optimized shows the snapshot then."""
    path = unzipped(name, tmp_path)
    requested = schedule_compaction(Table.open(path), ProcessLock(path)).requested
    done = run_compactions(
        path,
        output=OutputOptions(),
        execute=ExecuteOptions(executor=Executor.LOCAL, threads=2),
        attempt=AttemptOptions(),
    ).done
    assert len(done) == len(requested)
    same(read(path).to_arrow(), answer(name, "snapshot"))
    if requested:
        same(read(path, query="read-optimized").to_arrow(), answer(name, "snapshot"))


def test_base_files_of_lance_are_refused(tmp_path: Path) -> None:
    """By name, with what to do."""
    with pytest.raises(UnsupportedError, match=r"expected PARQUET; found LANCE\. Use Hudi"):
        read(unzipped(LANCE, tmp_path))
