"""Options of compaction: one frozen dataclass per part; each option is defined once, with its unit and default."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.heartbeat import BEAT_S, EXPIRY_S
from phantombase.timeline.option import (
    check_above_zero,
    check_below,
    check_finite,
    check_least,
    check_text,
    idle_of,
    least_of,
    option,
    spelled_class,
)


class Executor(Enum):
    """Where file slices are compacted: on Spark, or in this process. The same code runs. AUTO decides for each plan."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class BenefitOptions:
    """What the work on a table is worth, beside that on other tables."""

    reads_per_hour: float = option(1.0, "under a budget: how often a table is read in an hour", least=0)

    def __post_init__(self) -> None:
        check_finite(self, least_of(BenefitOptions))


def output_to_json(output: OutputOptions | None) -> dict[str, Any] | None:
    """The options as stored in records of attempts."""
    return None if output is None else {**asdict(output), "codec": output.codec.value, "bloom": output.bloom.value}


def output_from_json(values: object) -> OutputOptions | None:
    """Inverse of `output_to_json`. Unknown fields are ignored, and so is a spill folder that is not on this machine.
    None also for a value that this release does not know: it must not make a decision unreadable. The options are used
    to make a lost file again, and then the size and the ledger of that file are checked."""
    if not isinstance(values, dict):
        return None
    folder = values.get("spill_dir")
    try:
        return OutputOptions(
            codec=Codec(values["codec"]),
            row_group_rows=int(values["row_group_rows"]),
            bloom=Bloom(values["bloom"]),
            batch_rows=int(values["batch_rows"]),
            memory_limit=int(values["memory_limit"]),
            spill_dir=folder if isinstance(folder, str) and os.path.isdir(folder) else None,
            record_ttl=values.get("record_ttl"),
        )
    except (KeyError, TypeError, ValueError, OverflowError, UsageError):
        return None


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """Where file slices are compacted, and how many at a time (stage: execute)."""

    executor: Executor = option(
        Executor.AUTO,
        "where file slices are compacted; auto: in this process, but on Spark if a master is given or a plan is large",
    )
    master: str | None = option(None, "Spark master; default: local[*], where Spark is used", metavar="URL")
    threads: int = option(
        os.cpu_count() or 1, "slices at a time in this process; fewer where memory has no room for them", least=1
    )
    driver_memory: str = option("1g", "memory of the Spark driver JVM", metavar="SIZE")
    executor_memory: str | None = option(
        None, "memory of a Spark executor JVM on a cluster; default: Spark's", metavar="SIZE"
    )
    max_executors: int | None = option(
        None, "on a cluster: the limit of executors; one is used for each waiting file slice, none while idle", least=1
    )
    spark_conf: tuple[tuple[str, str], ...] = option(
        (), "a setting of Spark; it overrides the settings made here", metavar="NAME=VALUE"
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(ExecuteOptions))
        if self.master is not None and _MASTER.fullmatch(self.master) is None:
            raise UsageError("not a Spark master", expected=_MASTERS, found=self.master, todo="Correct --master.")
        for name in ("driver_memory", "executor_memory"):
            if (size := getattr(self, name)) is not None and _MEMORY.fullmatch(size) is None:
                raise UsageError(f"not a size for {name.replace('_', '-')}", expected="like 512m or 2g", found=size)
        for name, value in self.spark_conf:
            if not name.startswith("spark."):
                raise UsageError("not a setting of Spark", expected="spark.NAME=VALUE", found=f"{name}={value}")
            if name in _SPARK_NAMES:
                raise UsageError(f"{name} has an option of its own", todo=f"Use --{_SPARK_NAMES[name]}.")

    @property
    def idle(self) -> tuple[str, ...]:
        """Fields that differ from their defaults, and that mean nothing with the others. Hadoop's settings count on
        every executor."""
        is_local = self.executor is Executor.LOCAL
        has_settings = any(not name.startswith(_HADOOP) for name, _ in self.spark_conf)
        unused = {
            "master": is_local,
            "threads": self.asks_for_spark,
            "driver_memory": is_local,
            "executor_memory": not self.on_cluster,
            "max_executors": not self.on_cluster,
            "spark_conf": is_local and has_settings,
        }
        return idle_of(self, unused)

    def refuse_idle(self, typed: Collection[str]) -> None:
        """UsageError: one of these fields is `idle`."""
        for name in self.idle:
            if name in typed:
                raise UsageError(
                    f"--{name.replace('_', '-')} means nothing here",
                    expected=_NEEDED.get(name, "--executor auto or spark"),
                    found=f"--executor {self.executor.value} --master {self.spark_master}",
                )

    @property
    def hadoop_conf(self) -> dict[str, str]:
        conf = dict(self.spark_conf)
        return {name.removeprefix(_HADOOP): value for name, value in conf.items() if name.startswith(_HADOOP)}

    @property
    def on_cluster(self) -> bool:
        """Whether slices are compacted by executors of a cluster, in other processes than this one."""
        return self.asks_for_spark and re.fullmatch(r"local(\[.*\])?", self.spark_master) is None

    @property
    def spark_master(self) -> str:
        return self.master or "local[*]"

    @property
    def wants_spark(self) -> str | None:
        """Why `auto` means Spark for any plan; None: it depends on the plan."""
        if self.master is not None:
            return f"a master is given: {self.master}"
        named = next((name for name, _ in self.spark_conf if not name.startswith(_HADOOP)), None)
        return None if named is None else f"a setting of Spark is given: {named}"

    @property
    def asks_for_spark(self) -> bool:
        return self.executor is Executor.SPARK or (self.executor is Executor.AUTO and self.wants_spark is not None)


_MASTER = re.compile(
    r"local(\[([1-9]\d*|\*)( *, *\d+)?\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+", re.IGNORECASE
)
"""Spark itself finds a wrong one only after its JVM has started."""
_MEMORY = re.compile(r"\d+[kmgt]?b?", re.IGNORECASE | re.ASCII)
_MASTERS = "local[N], local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
_ON_CLUSTER = "the --master of a cluster, and not --executor local"
_NEEDED = {
    "threads": "--executor local, or auto without a master",
    "executor_memory": _ON_CLUSTER,
    "max_executors": _ON_CLUSTER,
}
"""What gives an option a meaning; the others need Spark."""
_HADOOP = "spark.hadoop."
_SPARK_NAMES = {
    "spark.master": "master",
    "spark.driver.memory": "driver-memory",
    "spark.executor.memory": "executor-memory",
    "spark.dynamicAllocation.maxExecutors": "max-executors",
}
"""Settings of Spark that have an option here, which must be used instead."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOptions:
    """How long one attempt waits, and for what (stages: claim, open, decide). Seconds, except `redo_max`. `properties`:
    recorded in the extra metadata of the commit."""

    foreign_grace_s: float = option(
        3600.0, "a Hudi compactor counts as dead after this time without a sign of life", least=0
    )
    foreign_poll_s: float = option(3.0, "how often staging checks for a Hudi compactor", least=0)
    heartbeat_s: float = option(BEAT_S, "how often the heartbeat, which Hudi 1.2+ respects, is refreshed")
    heartbeat_expiry_s: float = option(EXPIRY_S, "a heartbeat of Hudi that is older than this is no sign of life")
    barrier_s: float = option(
        300.0, "how long to wait for writes that began before the compaction; daemons wait without limit", least=0
    )
    barrier_poll_s: float = option(1.0, "how often the barrier checks for pending writes", least=0)
    claim_wait_s: float = option(
        0.0, "how long to wait for another phantombase compactor on the table", flag="wait", least=0
    )
    redo_max: int = option(5, "the most rounds of staging while inputs keep changing", least=1)
    properties: tuple[tuple[str, str], ...] = option(
        (), "a property that the commit records; may be repeated", flag="property", metavar="NAME=VALUE"
    )

    def __post_init__(self) -> None:
        check_finite(self, least_of(AttemptOptions))
        for name, value in self.properties:
            check_text("a property of a commit", f"{name}={value}")
            if not name or name == "schema" or name.startswith(("hoodie.", "phantombase.")):
                raise UsageError(
                    "not a name for a property of a commit",
                    expected="another than `schema`, `hoodie.*` and `phantombase.*`",
                    found=repr(name),
                )
        check_above_zero(self, "heartbeat_s", "heartbeat_expiry_s")
        check_below(self, "heartbeat_s", "heartbeat_expiry_s")


class PartitionTtl(Enum):
    """From when on the time of a partition counts: its last write, or its first one."""

    KEEP_BY_TIME = "keep-by-time"
    KEEP_BY_CREATION_TIME = "keep-by-creation-time"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTtlOptions:
    """Which partitions are past their time, by Hudi's strategies. `days_retain` has no default: nothing is past its
    time until someone says so."""

    strategy: PartitionTtl = option(
        PartitionTtl.KEEP_BY_TIME, "what is counted from: the last write of a partition, or the first one"
    )
    days_retain: int | None = option(None, "partitions older than these days are deleted", least=1)
    partitions: tuple[str, ...] = option(
        (), "only these partitions; may be repeated; default: all", flag="partition", metavar="PARTITION"
    )
    max_partitions: int = option(1000, "the most partitions that one run deletes", least=1)

    def __post_init__(self) -> None:
        check_least(self, least_of(PartitionTtlOptions))
