"""Command line options that several commands share, and what is made of them. Each option's home is its dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from compactor_daemon.hudi_conf import parse_hudi_conf
from compactor_daemon.options import (
    AttemptOptions,
    Bloom,
    Codec,
    ExecuteOptions,
    Executor,
    OutputOptions,
    parse_bytes,
)
from timeline.clock_options import ClockOptions
from timeline.errors import UsageError
from timeline.option import help_of

OUTPUT, EXECUTE, ATTEMPT, CLOCK = OutputOptions(), ExecuteOptions(), AttemptOptions(), ClockOptions()


def option(options: type, name: str, **more: Any) -> Any:
    """The command line option of a dataclass field."""
    return typer.Option(help=help_of(options, name), **more)


TablePath = Annotated[str, typer.Argument(metavar="TABLE", help="base path of the table (the folder with .hoodie)")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Lock = Annotated[
    str | None,
    typer.Option(
        metavar="LOCK",
        help="table lock shared with every writer and scheduler of the table: file:PATH or "
        "zookeeper:HOST:PORT[,HOST:PORT]/BASE/PATH/KEY, as Hudi's ZookeeperBasedLockProvider",
    ),
]
SoleWriter = Annotated[
    bool, typer.Option(help="no other process writes to the table or schedules on it while this runs")
]

# --- whose clock instants follow ---
Timezone = Annotated[str, option(ClockOptions, "timezone", metavar="ZONE")]
ClockSkew = Annotated[float, option(ClockOptions, "clock_skew_s", min=0, metavar="SECONDS")]

# --- where and how slices are compacted ---
ExecutorOption = Annotated[Executor, option(ExecuteOptions, "executor")]
Master = Annotated[str, option(ExecuteOptions, "master")]
Threads = Annotated[int, option(ExecuteOptions, "threads", min=1)]
DriverMemory = Annotated[str, option(ExecuteOptions, "driver_memory")]
ExecutorMemory = Annotated[str | None, option(ExecuteOptions, "executor_memory", metavar="SIZE")]
MaxExecutors = Annotated[int | None, option(ExecuteOptions, "max_executors", min=1)]
SparkConf = Annotated[list[str] | None, option(ExecuteOptions, "spark_conf", metavar="NAME=VALUE")]
CodecOption = Annotated[Codec | None, option(OutputOptions, "codec", show_default=OUTPUT.codec.value)]
BloomOption = Annotated[Bloom | None, option(OutputOptions, "bloom", show_default=OUTPUT.bloom.value)]
RowGroupRows = Annotated[int, option(OutputOptions, "row_group_rows", min=1)]
BatchRows = Annotated[int, option(OutputOptions, "batch_rows", min=1)]
MemoryLimit = Annotated[str | None, option(OutputOptions, "memory_limit", metavar="SIZE", show_default="1g")]
SpillDir = Annotated[str | None, option(OutputOptions, "spill_dir", metavar="FOLDER")]
Conf = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="an option under Hudi's own name (README)")]
ForeignGrace = Annotated[float, option(AttemptOptions, "foreign_grace_s", min=0, metavar="SECONDS")]
Barrier = Annotated[float, option(AttemptOptions, "barrier_s", min=0, metavar="SECONDS")]


def execute_options(
    executor: Executor,
    master: str,
    threads: int,
    driver_memory: str,
    executor_memory: str | None,
    max_executors: int | None,
    spark_conf: list[str] | None,
) -> ExecuteOptions:
    """Where slices are compacted; UsageError: settings that contradict each other."""
    pairs = (pair.partition("=") for pair in spark_conf or ())
    return ExecuteOptions(
        executor=executor,
        master=master,
        threads=threads,
        driver_memory=driver_memory,
        executor_memory=executor_memory,
        max_executors=max_executors,
        spark_conf=tuple((name, value) for name, _, value in pairs),
    )


def check_writers_known(lock: str | None, sole_writer: bool, what: str, todo: str) -> None:
    """UsageError unless it is said who else writes: those who share a lock, or nobody. `what` needs to know it."""
    if (lock is None) == (not sole_writer):
        raise UsageError(
            what,
            expected="one of --lock and --sole-writer",
            found="both" if sole_writer else "neither",
            todo=todo,
        )


def said_once(*said: Mapping[str, Any]) -> dict[str, Any]:
    """Options from several entrances in one; UsageError when two of them name one and differ."""
    found: dict[str, Any] = {}
    for one in said:
        if differing := [name for name in one if name in found and found[name] != one[name]]:
            raise UsageError("an option is given twice with different values", found=", ".join(differing))
        found |= one
    return found


def output_options(
    codec: Codec | None,
    bloom: Bloom | None,
    row_group_rows: int,
    batch_rows: int,
    memory_limit: str | None,
    spill_dir: str | None,
    conf: list[str] | None,
) -> OutputOptions:
    """Output options under our names and Hudi's; UsageError when both name one and differ."""
    named = parse_hudi_conf(conf or [])
    limit = parse_bytes(memory_limit) if memory_limit is not None else None
    given = {"codec": codec, "bloom": bloom, "memory_limit": limit, "spill_dir": spill_dir}
    chosen = {k: v for k, v in given.items() if v is not None}
    return OutputOptions(**said_once(named, chosen), row_group_rows=row_group_rows, batch_rows=batch_rows)
