"""Compaction plans (`<t>.compaction.requested`, `<t>.logcompaction.requested`) (pure).

A plan is an Avro container file of one `HoodieCompactionPlan`. Hudi 1.x has one more field than 0.15,
`missingSchedulePartitions`. Plan version 2 holds bare file names; version 1 (Hudi before 0.6) held absolute paths,
which are reduced to their names when read, as in Hudi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codec.avro_container import (
    STRING,
    EncodedArray,
    array_of,
    decode_value,
    defaulted,
    encode_value,
    map_of,
    optional,
    optional_array,
    read_record,
    record_of,
    required,
    root_record,
    write_record,
)
from ..errors import MalformedError, UnsupportedError
from ..shown import Shown
from ..storage.folders import inside_table, join
from .file_name import CHANGE_LOG


def planned_paths(plan: CompactionPlan) -> list[str]:
    """Every file that a plan reads, relative to the table's base path."""
    named = ((o, name) for o in plan.operations for name in (o.data_file_path, *o.delta_file_paths))
    return [join(operation.partition_path, name) for operation, name in named if name]


PLAN_VERSION = 2

TOTAL_LOG_FILES = "TOTAL_LOG_FILES"
TOTAL_LOG_FILES_SIZE = "TOTAL_LOG_FILES_SIZE"
"""In bytes; the only metric that is required: without it Hudi 0.15 fails while it executes the plan."""
TOTAL_IO_MB = "TOTAL_IO_MB"
TOTAL_IO_READ_MB = "TOTAL_IO_READ_MB"
TOTAL_IO_WRITE_MB = "TOTAL_IO_WRITE_MB"

_MB = 1 << 20


def operation_metrics(log_files: int, log_bytes: int, read_bytes: int, write_bytes: int) -> dict[str, float]:
    """The metrics that Hudi 0.15 and 1.2 write for an operation (FileSliceMetricUtils): full megabytes."""
    read_mb, write_mb = read_bytes // _MB, write_bytes // _MB
    return {
        TOTAL_LOG_FILES: float(log_files),
        TOTAL_LOG_FILES_SIZE: float(log_bytes),
        TOTAL_IO_READ_MB: float(read_mb),
        TOTAL_IO_WRITE_MB: float(write_mb),
        TOTAL_IO_MB: float(read_mb + write_mb),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOperation(Shown):
    """One file group to compact: the slice's base file, if any, and its log files in log order.
    File names are relative to the partition. The names of `metrics` state their units."""

    base_instant_time: str | None
    delta_file_paths: tuple[str, ...]
    data_file_path: str | None
    file_id: str
    partition_path: str
    metrics: Mapping[str, float] | None = None
    bootstrap_file_path: str | None = None

    @property
    def merged_logs(self) -> tuple[str, ...]:
        """Its log files without change logs. Hudi 1.2 names one where it is the only log file of a slice, as behind a
        write that rewrites a small base file (seen); it holds no row of the table."""
        return tuple(name for name in self.delta_file_paths if not name.endswith(CHANGE_LOG))

    @property
    def log_bytes(self) -> float | None:
        """The bytes of its log files as the plan states them; None: it does not."""
        return (self.metrics or {}).get(TOTAL_LOG_FILES_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStrategy(Shown):
    """How Hudi must execute the plan; set for log compactions."""

    compactor_class_name: str | None = None
    strategy_params: Mapping[str, str] | None = None
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan(Shown):
    """What a compaction must merge. `missing_schedule_partitions` is None in plans of Hudi 0.15.
    `preserve_hoodie_metadata` has no effect: the meta columns of rows are always preserved. `action`: compaction or
    logcompaction; it comes from the name of the plan's file, not from its content."""

    operations: Sequence[CompactionOperation]
    extra_metadata: Mapping[str, str] | None = None
    version: int = PLAN_VERSION
    strategy: CompactionStrategy | None = None
    preserve_hoodie_metadata: bool | None = False
    missing_schedule_partitions: tuple[str, ...] | None = None
    action: str = "compaction"

    @property
    def merges_logs(self) -> bool:
        """Whether the plan merges log files into log files instead of base files."""
        return self.action == "logcompaction"

    def only(self, position: int) -> CompactionPlan:
        return replace(self, operations=(self.operations[position],))

    @property
    def groups(self) -> frozenset[tuple[str, str]]:
        """The file groups that the plan merges: (partition path, file id)."""
        return frozenset((o.partition_path, o.file_id) for o in self.operations)


def decode_plan(data: bytes, where: str) -> CompactionPlan:
    """The plan in a requested file; always of `PLAN_VERSION`. MalformedError: empty, truncated or broken, an operation
    without file id, a path instead of a file name. UnsupportedError: a later plan version."""
    _, record = read_record(data, where, PLAN_SCHEMA)
    version = 1 if record["version"] is None else record["version"]
    if version not in (1, PLAN_VERSION):
        raise UnsupportedError(
            "unsupported compaction plan version",
            path=where,
            expected="1 or 2",
            found=str(version),
            todo="Let the Hudi version that made the plan execute it, or use a newer phantombase.",
        )
    strategy = record["strategy"]
    missing = record["missingSchedulePartitions"]
    return CompactionPlan(
        operations=tuple(_operation(o, version, where) for o in record["operations"] or ()),
        extra_metadata=record["extraMetadata"],
        strategy=None
        if strategy is None
        else CompactionStrategy(
            compactor_class_name=strategy["compactorClassName"],
            strategy_params=strategy["strategyParams"],
            version=strategy["version"],
        ),
        preserve_hoodie_metadata=record["preserveHoodieMetadata"],
        missing_schedule_partitions=None if missing is None else tuple(missing),
    )


def encode_plan(plan: CompactionPlan) -> bytes:
    """The bytes of a requested file, in Hudi 0.15's schema unless the plan has the field that 0.15 lacks."""
    missing = plan.missing_schedule_partitions
    given = plan.operations
    encoded = given.items if isinstance(given, EncodedArray) else None
    record = {
        "operations": [] if encoded is not None else optional_array(given, _operation_record),
        "extraMetadata": plan.extra_metadata,
        "version": plan.version,
        "strategy": None if plan.strategy is None else _strategy_record(plan.strategy),
        "preserveHoodieMetadata": plan.preserve_hoodie_metadata,
        "missingSchedulePartitions": None if missing is None else list(missing),
    }
    return write_record(record, PLAN_SCHEMA_0X if missing is None else PLAN_SCHEMA, first=encoded)


def encode_operation(operation: CompactionOperation) -> bytes:
    """An operation as a plan contains it."""
    return encode_value(_operation_record(operation), _OPERATION_SCHEMA)


def decode_operation(data: bytes) -> CompactionOperation:
    return _operation(decode_value(data, _OPERATION_SCHEMA), PLAN_VERSION, "an operation")


def _operation(record: Mapping[str, Any], version: int, where: str) -> CompactionOperation:
    base = record["dataFilePath"]
    return CompactionOperation(
        base_instant_time=record["baseInstantTime"],
        delta_file_paths=tuple(_file_name(path, version, where) for path in record["deltaFilePaths"] or ()),
        data_file_path=_file_name(base, version, where) if base else None,
        file_id=named_file_id(record, "compaction plan", where),
        partition_path=_partition(record["partitionPath"] or "", where),
        metrics=record["metrics"],
        bootstrap_file_path=record["bootstrapFilePath"],
    )


def _file_name(path: str, version: int, where: str) -> str:
    name = path.rpartition("/")[2]
    if not name or (version == PLAN_VERSION and name != path):
        raise MalformedError(
            "a compaction plan of version 2 must name files without their folders",
            path=where,
            expected=repr(name) if name else "a file name",
            found=repr(path),
        )
    return name


def _partition(path: str, where: str) -> str:
    if not inside_table(path):
        raise MalformedError("compaction plan with a partition outside the table", path=where, found=repr(path))
    return path


def named_file_id(record: Mapping[str, Any], what: str, where: str) -> str:
    file_id = record["fileId"]
    if not file_id:
        raise MalformedError(f"{what} without a file id", path=where, found=repr(record))
    return str(file_id)


def _operation_record(operation: CompactionOperation) -> dict[str, Any]:
    return {
        "baseInstantTime": operation.base_instant_time,
        "deltaFilePaths": list(operation.delta_file_paths),
        "dataFilePath": operation.data_file_path,
        "fileId": operation.file_id,
        "partitionPath": operation.partition_path,
        "metrics": operation.metrics,
        "bootstrapFilePath": operation.bootstrap_file_path,
    }


def _strategy_record(strategy: CompactionStrategy) -> dict[str, Any]:
    return {
        "compactorClassName": strategy.compactor_class_name,
        "strategyParams": strategy.strategy_params,
        "version": strategy.version,
    }


_VERSION = defaulted("version", "int", 1)

_OPERATION_SCHEMA = record_of(
    "HoodieCompactionOperation",
    required("baseInstantTime", STRING),
    optional("deltaFilePaths", array_of(STRING)),
    optional("dataFilePath", STRING),
    required("fileId", STRING),
    optional("partitionPath", STRING),
    optional("metrics", map_of("double")),
    optional("bootstrapFilePath", STRING),
)
_STRATEGY_SCHEMA = record_of(
    "HoodieCompactionStrategy",
    optional(
        "compactorClassName",
        STRING,
        doc="The class name that is provided here should extend CompactionExecutionStrategy abstract class, "
        "idea is that the plan generator will also provide the execution strategy to use.",
    ),
    optional(
        "strategyParams",
        map_of(STRING),
        doc="These parameters play a key role in determining which action type it is i.e. compaction or "
        "logcompaction and it will also include configs that determine how compaction needs to be executed.",
    ),
    _VERSION,
)
_FIELDS_0X = (
    optional("operations", array_of(_OPERATION_SCHEMA)),
    optional("extraMetadata", map_of(STRING)),
    _VERSION,
    optional("strategy", _STRATEGY_SCHEMA),
    defaulted("preserveHoodieMetadata", "boolean", False),
)
PLAN_SCHEMA_0X = root_record("HoodieCompactionPlan", *_FIELDS_0X)
PLAN_SCHEMA = root_record("HoodieCompactionPlan", *_FIELDS_0X, optional("missingSchedulePartitions", array_of(STRING)))
