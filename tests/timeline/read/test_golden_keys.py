"""Keys, partition paths, buckets and schemas of every row that real Hudi wrote into the golden tables, made again."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import UnsupportedError, read
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.run.pending import run_compactions
from phantombase.timeline.avro.arrow_schema import arrow_schema
from phantombase.timeline.format.bucket import KeySplit, bucket_of, bucket_of_file_id
from phantombase.timeline.format.table_config import PROPERTIES, MergeMode, TableConfig
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.keys.key_encoding import one_field_prefixed
from phantombase.writer_hooks.keys.key_generator import KeyGenerator
from phantombase.writer_hooks.new_table.spec import AS_NEW, NewTable, check_same_table
from phantombase.writer_hooks.schema.incoming import to_file_schema
from phantombase.writer_hooks.schema.table_schema import evolve, new_schema
from tests.hudi.cases.rows import same
from tests.support.golden_tables import GOLDEN, NEWEST_AND_OLDEST, golden_metadata, unzip_golden
from tests.support.places import GOLDEN_FOLDER

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
    text = table.newest_schema(table.load_timeline()).commit_text
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
        merge_mode=AS_NEW.get(mode, mode),
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


@pytest.mark.parametrize("name", WITH_LOGS)
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
