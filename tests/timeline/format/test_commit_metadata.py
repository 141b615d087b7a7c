"""Commit metadata: what Hudi wrote is read and written back without loss, in JSON and in Avro."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.codec.avro_container import STRING, optional, root_record, write_record
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.commit_metadata import CommitMetadata, RuntimeStats, WriteStat, decode, encode
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout, MetadataEncoding
from phantombase.timeline.format.table_config import PROPERTIES, TableConfig
from tests.support.golden_tables import GOLDEN, golden_metadata
from tests.support.selection import for_each

AVRO, JSON = MetadataEncoding.AVRO, MetadataEncoding.JSON


def golden_commits(name: str, *, completed: bool = True) -> Iterator[tuple[str, str, bytes, Layout]]:
    """(action, path, bytes, layout) of a golden table's commits, delta commits and replace commits."""
    files = golden_metadata(name)
    config = TableConfig.parse(files[PROPERTIES], name)
    for path, data in files.items():
        folder, _, file_name = path.rpartition("/")
        instant = config.layout.parse(file_name) if folder == config.timeline_folder else None
        if instant is not None and instant.is_write and instant.completed is completed:
            yield instant.family, path, data, config.layout


def container(data: bytes) -> tuple[Any, Any]:
    """(schema as written, record) of an Avro container file, without any of our code."""
    reader: Any = fastavro.reader(io.BytesIO(data))
    records = list(reader)
    assert len(records) == 1
    return json.loads(reader.metadata["avro.schema"]), records[0]


@for_each(GOLDEN)
def test_golden_commits_survive_a_round_trip(name: str) -> None:
    """Every completed commit: what we write has Hudi's schema and says all that Hudi's file said."""
    seen = 0
    for action, path, data, layout in golden_commits(name):
        metadata = decode(data, path)
        written = encode(metadata, layout.encoding)
        assert decode(written, path) == metadata
        if layout is LAYOUT_2:
            assert container(written) == container(data)
        else:
            assert json.loads(written) == json.loads(data)
        assert (metadata.partition_to_replace_file_ids is not None) is (action == "replacecommit")
        seen += 1
    assert seen >= 3


@for_each(GOLDEN)
def test_golden_commits_are_plausible(name: str) -> None:
    """The values reach the right fields: paths begin with the partition and contain the file id."""
    for _, path, data, _ in golden_commits(name):
        metadata = decode(data, path)
        assert metadata.operation_type not in (None, "")
        assert metadata.compacted is (metadata.operation_type in ("COMPACT", "LOG_COMPACT"))
        assert "schema" in metadata.extra_metadata
        for partition, stats in metadata.partition_to_write_stats.items():
            for stat in stats:
                assert stat.partition_path == partition
                assert stat.path is not None
                assert stat.path.startswith(f"{partition}/" if partition else "")
                assert stat.file_id in stat.path
                assert stat.file_size_in_bytes > 0
                if not name.endswith("upgraded"):  # the upgrade drops the log-only fields
                    assert (".log." in stat.path) is (stat.log_version is not None)


def test_golden_inflight_files_decode() -> None:
    """Inflight files hold the same record with planned counts and no paths, or nothing at all."""
    found = 0
    for name in GOLDEN:
        for _, path, data, _ in golden_commits(name, completed=False):
            if data and path.endswith("deltacommit.inflight"):
                stats = [s for group in decode(data, path).partition_to_write_stats.values() for s in group]
                assert stats, (name, path)
                assert all(stat.path is None for stat in stats), (name, path)
                found += 1
    assert found > len(GOLDEN)


@for_each(["v6_replaced", "v6_clustered", "v8_replaced", "v9_replaced", "v9_clustered"])
def test_golden_replace_commits_name_what_they_replace(name: str) -> None:
    """A replace commit lists file ids by partition, in JSON and in Avro."""
    replaced = [
        metadata.partition_to_replace_file_ids
        for action, path, data, _ in golden_commits(name)
        if (metadata := decode(data, path)) and action == "replacecommit"
    ]
    assert replaced
    for by_partition in replaced:
        assert by_partition
        assert all(ids and all(i.endswith("-0") for i in ids) for ids in by_partition.values())


COUNTS = st.integers(0, 2**63 - 1)
SMALL = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(max_size=10)
OPTIONAL_LONG = st.none() | st.integers(-(2**63), 2**63 - 1)
SPECIAL = {
    "file_id": NAMES,
    "path": st.none() | NAMES,
    "prev_commit": st.none() | NAMES,
    "partition_path": st.none() | NAMES,
    "base_file": st.none() | NAMES,
    "prev_base_file": st.none() | NAMES,
    "temp_path": st.none() | NAMES,
    "total_log_files": OPTIONAL_LONG,
    "log_version": st.none() | SMALL,
    "log_offset": OPTIONAL_LONG,
    "log_files": st.none() | st.lists(NAMES, max_size=3).map(tuple),
    "cdc_stats": st.none() | st.dictionaries(NAMES, COUNTS, max_size=2),
    "min_event_time": OPTIONAL_LONG,
    "max_event_time": OPTIONAL_LONG,
    "runtime_stats": st.none()
    | st.builds(RuntimeStats, total_scan_time=COUNTS, total_create_time=COUNTS, total_upsert_time=COUNTS),
}
STATS = st.builds(WriteStat, **{f.name: SPECIAL.get(f.name, COUNTS) for f in fields(WriteStat)})
METADATA = st.builds(
    CommitMetadata,
    partition_to_write_stats=st.dictionaries(NAMES, st.lists(STATS, max_size=2).map(tuple), max_size=2),
    compacted=st.booleans(),
    extra_metadata=st.dictionaries(NAMES, NAMES, max_size=3),
    operation_type=st.none() | NAMES,
    partition_to_replace_file_ids=st.none()
    | st.dictionaries(NAMES, st.lists(NAMES, max_size=2).map(tuple), max_size=2),
)
NOT_IN_JSON = {"total_log_files": None, "prev_base_file": None, "total_log_read_time_ms": 0, "num_updates": 0}
LOG_ONLY = {"log_version": None, "log_offset": None, "base_file": None, "log_files": None}


@given(METADATA)
def test_avro_keeps_everything(metadata: CommitMetadata) -> None:
    """Whatever the values, Avro gives them back, and equal values are equal bytes."""
    data = encode(metadata, AVRO)
    assert decode(data, "x") == metadata
    assert encode(decode(data, "x"), AVRO) == data


@given(METADATA)
def test_json_keeps_what_hudi_15_has(metadata: CommitMetadata) -> None:
    """JSON gives back all but the four fields Hudi 0.15 has not, and log-only fields of base files."""
    expected = replace(
        metadata,
        partition_to_write_stats={
            partition: tuple(
                replace(s, **NOT_IN_JSON, **(LOG_ONLY if s.log_version is None else {}))  # type: ignore[arg-type]
                for s in stats
            )
            for partition, stats in metadata.partition_to_write_stats.items()
        },
    )
    assert decode(encode(metadata, JSON), "x") == expected


def test_a_new_commit_has_hudis_shape() -> None:
    """A commit made from few values has the fields and the nulls of a golden one."""
    stat = WriteStat(file_id="f-0", path="p/f-0_0-0-0_1.parquet", partition_path="p", num_writes=3)
    metadata = CommitMetadata(partition_to_write_stats={"p": (stat,)}, compacted=True, operation_type="COMPACT")
    _, _, golden, _ = next(golden_commits("v9_plain"))
    schema, record = container(encode(metadata, AVRO))
    assert schema == container(golden)[0]
    assert record["version"] is None
    assert record["partitionToWriteStats"]["p"][0]["numWrites"] == 3
    golden_stats = [
        stat
        for _, _, golden, _ in golden_commits("v6_plain")
        for stats in json.loads(golden)["partitionToWriteStats"].values()
        for stat in stats
    ]
    text = json.loads(encode(metadata, JSON))
    assert text["partitionToWriteStats"]["p"][0].keys() in [s.keys() for s in golden_stats if "logFiles" not in s]
    assert list(text) == ["partitionToWriteStats", "compacted", "extraMetadata", "operationType"]


@pytest.mark.parametrize("encoding", [JSON, AVRO])
def test_files_of_captured_changes_are_named_by_path(encoding: MetadataEncoding) -> None:
    """Hudi's keys of cdcStats are paths below the table (seen: 1.2.0)."""
    change = "p/.f-0_1.log.1_0-0-0.cdc"
    stats = (WriteStat(file_id="f-0", path="p/f-0_0-0-0_1.parquet", cdc_stats={change: 7}), WriteStat(file_id="f-1"))
    metadata = decode(encode(CommitMetadata(partition_to_write_stats={"p": stats}), encoding), "x")
    assert metadata.change_files == {change}
    assert metadata.named_files == {"p/f-0_0-0-0_1.parquet"}


def test_the_encodings_of_the_layouts() -> None:
    """Version 6 writes JSON, later ones an Avro container file."""
    assert encode(CommitMetadata(), LAYOUT_1.encoding).startswith(b"{")
    assert encode(CommitMetadata(), LAYOUT_2.encoding).startswith(b"Obj\x01")


@pytest.mark.parametrize("name", ["v6_plain", "v9_plain", "v9_replaced"])
def test_every_truncation_is_malformed(name: str) -> None:
    """A file cut off at any byte is an error that says how long it was, never a shorter commit."""
    for _, path, data, _ in list(golden_commits(name))[-1:]:
        for length in range(len(data)):
            with pytest.raises(MalformedError, match=rf"\b{length} bytes|found 0 records"):
                decode(data[:length], path)


@given(st.binary(max_size=60), st.booleans())
def test_arbitrary_bytes_are_malformed(data: bytes, is_container: bool) -> None:
    """Bytes that are no commit are an error of ours and nothing else."""
    with pytest.raises(MalformedError):
        decode((b"Obj\x01" if is_container else b"\x00") + data, "x")


@for_each(
    [
        "[]",
        "null",
        '{"compacted": "yes"}',
        '{"extraMetadata": []}',
        '{"extraMetadata": {"schema": 1}}',
        '{"partitionToWriteStats": {"p": {}}}',
        '{"partitionToWriteStats": {"p": [{"numWrites": "3"}]}}',
        '{"partitionToWriteStats": {"p": [{"numWrites": true}]}}',
        '{"partitionToWriteStats": {"p": [{"path": 3}]}}',
        '{"partitionToWriteStats": {"p": [{"runtimeStats": {"totalScanTime": 1.5}}]}}',
        '{"partitionToReplaceFileIds": {"p": "f"}}',
        "[" * 100_000,
    ]
)
def test_json_of_another_shape_is_malformed(text: str) -> None:
    """JSON whose values have the wrong type is refused, not guessed at."""
    with pytest.raises(MalformedError, match="commit metadata"):
        decode(text.encode(), "x")


def test_unknown_and_absent_json_fields() -> None:
    """Unknown fields are ignored, absent and null ones have their default: the minimal form Hudi accepts."""
    data = b"""{"partitionToWriteStats": {"p": [{"fileId": "f-0", "path": "p/f", "new": [1], "numWrites": null}]},
        "compacted": null, "extraMetadata": {"schema": null, "k": "v"}, "later": {}}"""
    assert decode(data, "x") == CommitMetadata(
        partition_to_write_stats={"p": (WriteStat(file_id="f-0", path="p/f"),)}, extra_metadata={"k": "v"}
    )
    assert decode(b"{}", "x") == CommitMetadata()


def test_avro_is_resolved_by_name() -> None:
    """A writer with other fields in another order is understood; another record is refused by its name."""
    foreign = root_record("HoodieCommitMetadata", optional("later", STRING), optional("operationType", STRING))
    data = write_record({"later": "x", "operationType": "UPSERT"}, foreign)
    assert decode(data, "x") == CommitMetadata(operation_type="UPSERT")
    other = write_record({"operationType": "UPSERT"}, {**foreign, "name": "HoodieCleanMetadata"})
    with pytest.raises(MalformedError, match="HoodieCleanMetadata"):
        decode(other, "x")


def test_several_records_are_malformed() -> None:
    """A container file of two records is no commit."""
    out = io.BytesIO()
    schema = root_record("HoodieCommitMetadata", optional("operationType", STRING))
    fastavro.writer(out, schema, [{"operationType": "UPSERT"}] * 2)
    with pytest.raises(MalformedError, match="2 records"):
        decode(out.getvalue(), "x")
