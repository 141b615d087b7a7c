"""Plans: Hudi's plans are read and written back without loss, and broken ones are refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.codec.avro_container import write_record
from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.format.compaction_plan import (
    PLAN_SCHEMA,
    TOTAL_IO_MB,
    TOTAL_IO_READ_MB,
    TOTAL_IO_WRITE_MB,
    TOTAL_LOG_FILES,
    TOTAL_LOG_FILES_SIZE,
    CompactionOperation,
    CompactionPlan,
    CompactionStrategy,
    decode_plan,
    encode_plan,
    operation_metrics,
)
from phantombase.timeline.format.replace_request import pending_clustering_file_groups
from phantombase.timeline.storage.folders import inside_table
from tests.support.golden_tables import CLUSTERINGS, golden_files
from tests.support.selection import for_each

PLANS = list(golden_files("compaction.requested"))  # log compactions too
REPLACES = list(golden_files(".replacecommit.requested"))


def container(data: bytes) -> tuple[Any, Any]:
    """(schema as written, record) of an Avro container file, without any of our code."""
    reader: Any = fastavro.reader(io.BytesIO(data))
    (record,) = list(reader)
    return json.loads(reader.metadata["avro.schema"]), record


@for_each(PLANS)
def test_golden_plans_survive_a_round_trip(name: str, path: str, data: bytes) -> None:
    """What we write is what Hudi wrote: the schema of 0.15 for its plans, of 1.x for the others."""
    plan = decode_plan(data, path)
    assert decode_plan(encode_plan(plan), path) == plan
    assert container(encode_plan(plan)) == container(data)
    assert (plan.missing_schedule_partitions is None) is name.startswith("v6")
    if name.startswith("v6"):
        assert container(encode_plan(replace(plan, missing_schedule_partitions=("p",))))[1] == {
            **container(data)[1],
            "missingSchedulePartitions": ["p"],
        }


@for_each(PLANS)
def test_golden_plans_are_plausible(name: str, path: str, data: bytes) -> None:
    """The values reach the right fields: names belong to the file group, metrics have the known keys."""
    plan = decode_plan(data, path)
    assert plan.version == 2
    assert plan.operations
    assert (plan.strategy is not None) is (".logcompaction." in path)
    for operation in plan.operations:
        assert operation.partition_path == "" or not operation.partition_path.endswith("/")
        assert operation.delta_file_paths
        assert all(p.startswith(f".{operation.file_id}_") for p in operation.delta_file_paths)
        assert operation.data_file_path is not None
        assert operation.data_file_path.startswith(f"{operation.file_id}_")
        assert operation.base_instant_time is not None
        assert f"_{operation.base_instant_time}." in operation.data_file_path
        assert operation.metrics is not None
        assert operation.metrics.keys() == {
            TOTAL_LOG_FILES,
            TOTAL_LOG_FILES_SIZE,
            TOTAL_IO_MB,
            TOTAL_IO_READ_MB,
            TOTAL_IO_WRITE_MB,
        }
        assert operation.metrics[TOTAL_LOG_FILES] == len(operation.delta_file_paths)


NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=10)
TEXTS = st.text(max_size=10)
OPERATIONS = st.builds(
    CompactionOperation,
    base_instant_time=st.none() | TEXTS,
    delta_file_paths=st.lists(NAMES, max_size=3).map(tuple),
    data_file_path=st.none() | NAMES,
    file_id=NAMES,
    partition_path=TEXTS.filter(inside_table),
    metrics=st.none() | st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=3),
    bootstrap_file_path=st.none() | TEXTS,
)
STRATEGIES = st.builds(
    CompactionStrategy,
    compactor_class_name=st.none() | TEXTS,
    strategy_params=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    version=st.none() | st.integers(-5, 5),
)
ANY_PLAN = st.builds(
    CompactionPlan,
    operations=st.lists(OPERATIONS, max_size=3).map(tuple),
    extra_metadata=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    strategy=st.none() | STRATEGIES,
    preserve_hoodie_metadata=st.none() | st.booleans(),
    missing_schedule_partitions=st.none() | st.lists(TEXTS, max_size=2).map(tuple),
)


@given(ANY_PLAN)
def test_any_plan_survives_a_round_trip(plan: CompactionPlan) -> None:
    """Whatever the values, a plan is given back, and equal plans are equal bytes."""
    data = encode_plan(plan)
    assert decode_plan(data, "x") == plan
    assert encode_plan(decode_plan(data, "x")) == data


OPERATION = CompactionOperation(
    base_instant_time="1", delta_file_paths=(".f-0_1.log.1_0-0-0",), data_file_path=None, file_id="f-0",
    partition_path="p",
)  # fmt: skip


def plan_bytes(version: int | None, **changes: Any) -> bytes:
    """A plan of one operation as another writer may have made it."""
    _, record = container(encode_plan(CompactionPlan(operations=(OPERATION,))))
    record["operations"][0].update(changes)
    return write_record({**record, "version": version}, PLAN_SCHEMA)


@pytest.mark.parametrize("version", [1, None])
def test_absolute_paths_of_version_1_become_names(version: int | None) -> None:
    """Version 1 (also the default) holds paths; the decoded plan holds names and is of version 2."""
    data = plan_bytes(
        version, deltaFilePaths=["file:/t/p/.f-0_1.log.1_0-0-0"], dataFilePath="s3://b/t/p/f-0_0-0-0_1.parquet"
    )
    expected = replace(OPERATION, data_file_path="f-0_0-0-0_1.parquet")
    assert decode_plan(data, "x") == CompactionPlan(operations=(expected,))


@for_each(
    [
        {"deltaFilePaths": ["file:/t/p/.f-0_1.log.1_0-0-0"]},
        {"dataFilePath": "p/f-0_0-0-0_1.parquet"},
        {"deltaFilePaths": [""]},
        {"fileId": None},
        {"fileId": ""},
        {"partitionPath": "../p"},
        {"partitionPath": "/p"},
    ]
)
def test_impossible_operations_are_malformed(changes: dict[str, Any]) -> None:
    """A path in a version 2 plan, an empty name, a missing file id, a folder outside the table: refused, with the
    plan's path."""
    with pytest.raises(MalformedError, match=r"where\.requested"):
        decode_plan(plan_bytes(2, **changes), "where.requested")


def test_metrics_have_whole_megabytes_floored() -> None:
    found = operation_metrics(2, 5, (2 << 20) - 1, (3 << 20) + 1)
    assert (found[TOTAL_IO_READ_MB], found[TOTAL_IO_WRITE_MB], found[TOTAL_IO_MB]) == (1, 3, 4)
    assert (found[TOTAL_LOG_FILES], found[TOTAL_LOG_FILES_SIZE]) == (2, 5)


def test_nulls_mean_empty() -> None:
    """No logs, no base file and the empty partition may be written as nulls (and the base file as "")."""
    data = plan_bytes(2, deltaFilePaths=None, dataFilePath="", partitionPath=None)
    expected = replace(OPERATION, delta_file_paths=(), data_file_path=None, partition_path="")
    assert decode_plan(data, "x").operations == (expected,)
    none = write_record({"operations": None, "version": 2, "preserveHoodieMetadata": None}, PLAN_SCHEMA)
    assert decode_plan(none, "x").operations == ()


def test_plan_version_of_the_future_is_refused() -> None:
    """A version nobody knows is refused by its number."""
    with pytest.raises(UnsupportedError, match="found 3"):
        decode_plan(plan_bytes(3), "x")


def test_every_truncation_of_a_plan_is_malformed() -> None:
    """A plan cut off at any byte, an empty one included, is an error and never a smaller plan."""
    _, path, data = PLANS[0]
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            decode_plan(data[:length], path)


def test_another_record_is_no_plan() -> None:
    """A clustering plan where a compaction plan belongs is refused by its name, and the other way round."""
    _, path, data = CLUSTERINGS[0]
    with pytest.raises(MalformedError, match="HoodieRequestedReplaceMetadata"):
        decode_plan(data, path)
    with pytest.raises(MalformedError, match="HoodieCompactionPlan"):
        pending_clustering_file_groups(PLANS[0][2], path)


def clustering_slices(data: bytes) -> list[tuple[str, str]]:
    _, record = container(data)
    groups = record["clusteringPlan"]["inputGroups"]
    return [(s["partitionPath"], s["fileId"]) for group in groups for s in group["slices"]]


@pytest.mark.parametrize("version", ["v6", "v8", "v9"])
def test_golden_clustering_plans_name_their_file_groups(version: str) -> None:
    """The file groups of a pending clustering are all those of all its groups' slices, in both partitions."""
    files = [f for f in (*CLUSTERINGS, *REPLACES) if f[0] == f"{version}_clustered"]
    assert len(files) == 1
    _, path, data = files[0]
    groups = pending_clustering_file_groups(data, path)
    assert groups == set(clustering_slices(data))
    assert {partition for partition, _ in groups} == {"north", "south"}
    assert len(groups) == 4


def test_other_replace_requests_name_no_file_groups() -> None:
    """insert_overwrite and delete_partition leave no clustering plan, or no bytes at all."""
    others = [f for f in REPLACES if f[0].endswith("_replaced")]
    assert {f[0] for f in others} == {"v6_replaced", "v8_replaced", "v9_replaced"}
    assert all(pending_clustering_file_groups(data, path) == set() for _, path, data in others)
    assert pending_clustering_file_groups(b"", "x") == set()


def test_broken_clustering_plans_are_malformed() -> None:
    """A truncated request and a slice without a file id are errors: unknown file groups are never "none"."""
    _, path, data = CLUSTERINGS[0]
    for length in (*range(1, 60), len(data) // 2, len(data) - 1):
        with pytest.raises(MalformedError):
            pending_clustering_file_groups(data[:length], path)
    schema, record = container(data)
    record["clusteringPlan"]["inputGroups"][0]["slices"][0]["fileId"] = None
    with pytest.raises(MalformedError, match="file id"):
        pending_clustering_file_groups(write_record(record, schema), path)
