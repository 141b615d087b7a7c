"""The file groups that a pending resize of buckets will make, from its plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phantombase.timeline.avro.container import (
    STRING,
    array_of,
    defaulted,
    map_of,
    optional,
    record_of,
    required,
    root_record,
    write_record,
)
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.view.bucket_resize import forming_groups
from tests.support.golden_tables import CLUSTERINGS

_SLICE = record_of("HoodieSliceInfo", required("fileId", STRING))
_GROUP = record_of(
    "HoodieClusteringGroup",
    optional("slices", array_of(_SLICE)),
    optional("extraMetadata", map_of(STRING)),
    defaulted("version", "int", 1),
)
_PLAN = record_of("HoodieClusteringPlan", optional("inputGroups", array_of(_GROUP)))
_SCHEMA = root_record(
    "HoodieRequestedReplaceMetadata", optional("operationType", STRING), optional("clusteringPlan", _PLAN)
)
SPLIT = [{"value": 5, "fileIdPrefix": "aa", "tag": "NORMAL"}, {"value": 9, "fileIdPrefix": "bb", "tag": "REPLACE"}]
MERGE = [{"value": 3, "fileIdPrefix": "old", "tag": "DELETE"}, {"value": 7, "fileIdPrefix": "cc", "tag": "REPLACE"}]


def requested(*extras: dict[str, str] | None) -> bytes:
    """A plan with an input group for each extra metadata."""
    groups: list[dict[str, Any]] = [{"slices": [{"fileId": "x-0"}], "extraMetadata": extra} for extra in extras]
    return write_record({"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": groups}}, _SCHEMA)


def of_bucket(partition: str, nodes: list[dict[str, Any]]) -> dict[str, str]:
    """The extra metadata of an input group."""
    return {
        "clustering.group.partition": partition,
        "clustering.group.child.node": json.dumps(nodes),
        "clustering.group.sequence.no": "0",
    }


def test_buckets_that_are_split_and_merged() -> None:
    """A bucket that goes is none that comes."""
    data = requested(of_bucket("north", SPLIT), of_bucket("", MERGE))
    assert forming_groups(data, "x") == {("north", "aa-0"), ("north", "bb-0"), ("", "cc-0")}


def test_other_clusterings_make_none() -> None:
    """Their input groups say nothing of buckets; an insert overwrite has no plan."""
    assert forming_groups(CLUSTERINGS[0][2], "x") == frozenset()
    assert forming_groups(requested(None, {"phantombase.file_id": "a"}), "x") == frozenset()
    assert forming_groups(b"", "x") == frozenset()


@pytest.mark.parametrize("nodes", ["", "[1]", '[{"value": 1, "tag": "NORMAL"}]', "null"])
def test_unreadable_plans_are_errors(nodes: str) -> None:
    """What cannot be read is never "none"."""
    extra = {"clustering.group.partition": "p", "clustering.group.child.node": nodes}
    with pytest.raises(MalformedError, match="resize"):
        forming_groups(requested(extra), "x")
    with pytest.raises(MalformedError):
        forming_groups(requested(extra)[:-3], "x")
