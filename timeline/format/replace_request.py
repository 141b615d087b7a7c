"""Hudi's request to replace file groups: `<t>.replacecommit.requested`, `<t>.clustering.requested` (pure).

An Avro container file of one `HoodieRequestedReplaceMetadata`. Only clusterings have a plan in it: insert_overwrite and
similar writes leave the file empty or without one, and only their commit names the replaced file groups.

Hudi can execute phantombase's clustering plans, and phantombase those of Hudi. The extra metadata of each input group
names the file group that phantombase will write from it; this entry marks phantombase's plans. The ids of the file
groups that phantombase makes by a plan of Hudi follow from the bytes of the plan.

A plan names the class that executes it, not the one that made it:

    SparkSortAndSizeExecutionStrategy, Java...   sorts the rows of a group by the columns of the plan, if any, and
                                                 writes `numOutputFileGroups` files, or more smaller ones
    SparkSingleFileSortExecutionStrategy         the same; each group is of one file, and becomes one

A resize of consistent-hashing buckets is a clustering, too. The extra metadata of each input group of its plan has the
partition, and the new buckets as JSON:

    [{"value": 715827882, "fileIdPrefix": "8e2f...", "tag": "REPLACE"}, ...]      file id: <fileIdPrefix>-0

While the resize is pending, Hudi's writers write each row twice, into the old file group and into the new one. A bucket
with the tag DELETE is removed by the resize."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any

from ..codec.avro_container import (
    STRING,
    array_of,
    defaulted,
    map_of,
    optional,
    read_record,
    record_of,
    required,
    root_record,
    write_record,
)
from ..errors import MalformedError, UnsupportedError, reason_of
from ..record_fields import gathered
from ..storage.folders import RECORD_NAME, as_uri, inside_table, join
from .commit_metadata import CLUSTER
from .compaction_plan import named_file_id, operation_metrics

_DELETE_PARTITION = "DELETE_PARTITION"
_FILE_ID = "phantombase.file_id"
_PARTITION, _NODES = "clustering.group.partition", "clustering.group.child.node"
_SORT_ORDER = "phantombase.sort_order"
_STAGED = "phantombase.staged"
_SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
_PACKAGE = "org.apache.hudi.client.clustering.run.strategy."
_STRATEGIES = (
    "SparkSortAndSizeExecutionStrategy",
    "JavaSortAndSizeExecutionStrategy",
    "SparkSingleFileSortExecutionStrategy",
)
"""Hudi's default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """A file slice of a plan: the names of its base file, "" without one, and of its log files. The plan does not
    contain the bytes: they are 0 in a decoded plan."""

    file_id: str
    base: str
    logs: tuple[str, ...] = ()
    base_bytes: int = 0
    log_bytes: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """All its files, the base file first."""
        return (self.base, *self.logs) if self.base else self.logs


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroup:
    """Slices of one partition whose rows become at most `outputs` new file groups. `file_id`: of the first one."""

    partition: str
    file_id: str
    slices: tuple[PlannedSlice, ...]
    outputs: int = 1

    @property
    def file_ids(self) -> tuple[str, ...]:
        """The ids of the new file groups, the same in every try; only the number at the end differs, as in Hudi."""
        head = self.file_id.removesuffix("-0")
        return (self.file_id, *(f"{head}-{number}" for number in range(1, self.outputs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What a clustering writes. `sort_by`: columns by which the rows of each group are sorted; `sort_order`: how, "" by
    one after the other. `strategy`: the class that executes it in Hudi. `is_own`: phantombase made the plan. `staged`:
    the run that staged its files before it was put, "" if none did. `has_bootstrap`: it names files outside the table.
    `spans_partitions`: a group has slices of several partitions, as a planner of a user may make it; here it is one
    group for each. `metrics`: what a decoded plan states of each group, see `operation_metrics`."""

    groups: tuple[ClusterGroup, ...]
    sort_by: tuple[str, ...] = ()
    sort_order: str = ""
    strategy: str = ""
    is_own: bool = True
    staged: str = ""
    has_bootstrap: bool = False
    spans_partitions: bool = False
    metrics: tuple[Mapping[str, float], ...] = field(default=(), compare=False)

    def stated(self, name: str) -> float:
        """The sum of a metric over the groups."""
        return sum(of.get(name, 0.0) for of in self.metrics)

    def check_known(self, where: str) -> None:
        """UnsupportedError: phantombase does not know what the class does that executes the plan, the plan has
        bootstrapped files, or it moves rows between partitions."""
        if self.has_bootstrap:
            raise UnsupportedError(
                "the plan of a clustering has bootstrapped files", path=where, todo="Let Hudi execute it."
            )
        if self.spans_partitions:
            raise UnsupportedError(
                "the plan of a clustering has a group of several partitions",
                path=where,
                expected="the file slices of one partition in each group",
                todo="Let Hudi execute it.",
            )
        if self.strategy.removeprefix(_PACKAGE) not in _STRATEGIES:
            raise UnsupportedError(
                "the plan of a clustering is for a class that phantombase does not know",
                path=where,
                expected=", ".join(_STRATEGIES),
                found=self.strategy or "no class",
                todo="Let Hudi execute it.",
            )


def encode_cluster_plan(clustering: ClusterPlan, base_path: str) -> bytes:
    """The bytes of the requested file of a clustering. If Hudi executes the plan, it sorts by the columns too."""
    groups, params = clustering.groups, {_SORT_COLUMNS: ",".join(clustering.sort_by)} if clustering.sort_by else {}
    base = as_uri(base_path)
    extra = {_SORT_ORDER: clustering.sort_order} if clustering.sort_by else {}
    if clustering.staged:
        extra[_STAGED] = clustering.staged
    plan = {
        "inputGroups": [_group_record(group, base) for group in groups],
        "strategy": {"strategyClassName": f"{_PACKAGE}{_STRATEGIES[0]}", "strategyParams": params, "version": _VERSION},
        "extraMetadata": extra,
        "version": _VERSION,
        "preserveHoodieMetadata": True,
    }
    record = {"operationType": CLUSTER, "clusteringPlan": plan, "extraMetadata": {}, "version": _VERSION}
    return write_record(record, _SCHEMA)


def pending_clustering_file_groups(data: bytes, where: str) -> set[tuple[str, str]]:
    """(partition, file id) of every file group that a pending replacecommit or clustering will replace, as far as its
    requested file names them; MalformedError: it cannot be read."""
    slices = [one for group in _input_groups(data, where) for one in group["slices"] or ()]
    return {(s["partitionPath"] or "", named_file_id(s, "clustering plan", where)) for s in slices}


def forming_groups(data: bytes, where: str) -> frozenset[tuple[str, str]]:
    """(partition, file id) of the buckets that a pending clustering will make; empty if it is not a resize. `data`: the
    requested file. MalformedError: it cannot be read."""
    return frozenset(key for group in _input_groups(data, where) for key in _made(group["extraMetadata"] or {}, where))


def _input_groups(data: bytes, where: str) -> Sequence[dict[str, Any]]:
    if not data:
        return ()
    _, record = read_record(data, where, GROUPS_SCHEMA)
    return (record["clusteringPlan"] or {}).get("inputGroups") or ()


def _made(extra: dict[str, str], where: str) -> list[tuple[str, str]]:
    if _NODES not in extra:
        return []
    try:
        nodes: list[dict[str, Any]] = json.loads(extra[_NODES])
        return [(extra[_PARTITION], f"{node['fileIdPrefix']}-0") for node in nodes if node["tag"] != "DELETE"]
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(
            "the plan of a bucket resize cannot be read",
            path=where,
            found=reason_of(error),
            todo="Let Hudi complete it.",
        ) from error


def decode_cluster_plan(data: bytes, where: str) -> ClusterPlan | None:
    """The plan of a clustering, of phantombase or Hudi. None: of another write. MalformedError: unreadable."""
    if not data:
        return None
    _, record = read_record(data, where, _SCHEMA)
    plan = record["clusteringPlan"] or {}
    groups = plan.get("inputGroups") or ()
    if not groups:
        return None
    ids = [(group["extraMetadata"] or {}).get(_FILE_ID) for group in groups]
    is_own = None not in ids
    strategy = plan["strategy"] or {}
    params = strategy.get("strategyParams") or {}
    extra = plan["extraMetadata"] or {}
    return ClusterPlan(
        groups=tuple(
            one
            for position, (file_id, group) in enumerate(zip(ids, groups, strict=True))
            for one in _groups(str(file_id) if is_own else _derived_id(data, position), group, where)
        ),
        sort_by=tuple(filter(None, map(str.strip, params.get(_SORT_COLUMNS, "").split(",")))),
        sort_order=extra.get(_SORT_ORDER, ""),
        strategy=strategy.get("strategyClassName") or "",
        is_own=is_own,
        staged=staged if (staged := extra.get(_STAGED, "")) and RECORD_NAME.fullmatch(staged) else "",
        has_bootstrap=any(one["bootstrapFilePath"] for group in groups for one in group["slices"] or ()),
        spans_partitions=any(len(_by_partition(group)) > 1 for group in groups),
        metrics=tuple(group["metrics"] or {} for group in groups),
    )


def _derived_id(data: bytes, position: int) -> str:
    """The id of the first file group that phantombase makes of a group in a plan of Hudi: always the same."""
    from .record_key import looks_like_bucket  # late: it takes numpy and pyarrow, which `status` starts without

    for number in count():
        name = f"{sha256(data).hexdigest()} {position} {number}"
        if not looks_like_bucket(found := f"{uuid.uuid5(uuid.NAMESPACE_OID, name)}-0"):
            return found
    raise AssertionError("unreachable")


def _by_partition(group: dict[str, Any]) -> dict[str, tuple[dict[str, Any], ...]]:
    return gathered((one["partitionPath"] or "", one) for one in group["slices"] or ())


def _groups(file_id: str, group: dict[str, Any], where: str) -> Iterator[ClusterGroup]:
    slices = _by_partition(group)
    if not slices or not all(map(inside_table, slices)):
        raise MalformedError("the plan of a clustering has a group that is of no partition", path=where)
    for partition, of_partition in slices.items():
        planned = tuple(
            PlannedSlice(
                file_id=one["fileId"],
                base=(one["dataFilePath"] or "").rpartition("/")[2],
                logs=tuple(path.rpartition("/")[2] for path in one["deltaFilePaths"] or ()),
            )
            for one in of_partition
        )
        outputs = max(1, group["numOutputFileGroups"] or 1)
        yield ClusterGroup(partition=partition, file_id=file_id, slices=planned, outputs=outputs)


def _group_record(group: ClusterGroup, base: str) -> dict[str, Any]:
    logs, log_bytes = sum(len(one.logs) for one in group.slices), sum(one.log_bytes for one in group.slices)
    base_bytes = sum(one.base_bytes for one in group.slices)

    def path(name: str) -> str:
        return f"{base}/{join(group.partition, name)}"

    return {
        "slices": [
            {
                "dataFilePath": path(one.base) if one.base else "",
                "deltaFilePaths": [path(name) for name in one.logs],
                "fileId": one.file_id,
                "partitionPath": group.partition,
                "bootstrapFilePath": "",
                "version": _VERSION,
            }
            for one in group.slices
        ],
        "metrics": operation_metrics(logs, log_bytes, base_bytes + log_bytes, base_bytes),
        "numOutputFileGroups": group.outputs,
        "extraMetadata": {_FILE_ID: group.file_id},
        "version": _VERSION,
    }


def encode_replace_request(operation: str, *, names_deletes: bool) -> bytes:
    """The bytes of the requested file of a write. `operation`: Hudi's name, such as INSERT_OVERWRITE.
    `names_deletes`: from version 8 on, Hudi names the operation DELETE_PARTITION here; else all is null."""
    named = names_deletes and operation == _DELETE_PARTITION
    record: dict[str, Any] = {
        "operationType": operation if named else None,
        "clusteringPlan": None,
        "extraMetadata": {} if named else None,
        "version": _VERSION if named else None,
    }
    return write_record(record, _SCHEMA)


_VERSION = 1
_VERSION_FIELD = defaulted("version", "int", _VERSION)
_TEXTS = map_of(STRING)
_SLICE = record_of(
    "HoodieSliceInfo",
    optional("dataFilePath", STRING),
    optional("deltaFilePaths", array_of(STRING)),
    required("fileId", STRING),
    optional("partitionPath", STRING),
    optional("bootstrapFilePath", STRING),
    _VERSION_FIELD,
)
_GROUP = record_of(
    "HoodieClusteringGroup",
    optional("slices", array_of(_SLICE)),
    optional("metrics", map_of("double")),
    defaulted("numOutputFileGroups", "int", 1),
    optional("extraMetadata", _TEXTS),
    _VERSION_FIELD,
)
_STRATEGY = record_of(
    "HoodieClusteringStrategy",
    optional("strategyClassName", STRING),
    optional("strategyParams", _TEXTS),
    _VERSION_FIELD,
)
_PLAN = record_of(
    "HoodieClusteringPlan",
    optional("inputGroups", array_of(_GROUP)),
    optional("strategy", _STRATEGY),
    optional("extraMetadata", _TEXTS),
    _VERSION_FIELD,
    optional("preserveHoodieMetadata", "boolean"),
)
_SCHEMA = root_record(
    "HoodieRequestedReplaceMetadata",
    optional("operationType", STRING),
    optional("clusteringPlan", _PLAN),
    optional("extraMetadata", _TEXTS),
    _VERSION_FIELD,
)

# Only the fields that are read of any plan; resolution by name skips the others.
_BRIEF_SLICE = record_of("HoodieSliceInfo", required("fileId", STRING), optional("partitionPath", STRING))
_BRIEF_GROUP = record_of(
    "HoodieClusteringGroup", optional("slices", array_of(_BRIEF_SLICE)), optional("extraMetadata", _TEXTS)
)
GROUPS_SCHEMA = root_record(
    "HoodieRequestedReplaceMetadata",
    optional("clusteringPlan", record_of("HoodieClusteringPlan", optional("inputGroups", array_of(_BRIEF_GROUP)))),
)
