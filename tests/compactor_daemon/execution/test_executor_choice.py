"""Which executor runs a plan, with how many threads, and why."""

from __future__ import annotations

import socket
from dataclasses import replace

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.execution.executor_choice import LARGE_BYTES, Machine, Work, check_memory, choose
from phantombase.compactor_daemon.execution.machine import this_machine
from phantombase.compactor_daemon.execution.slice_task import keep_freed
from phantombase.compactor_daemon.execution.spark_check import check_spark
from phantombase.compactor_daemon.options import ExecuteOptions, Executor
from phantombase.timeline.errors import SparkError, UsageError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.view.view import DataFile, FileSlice

GIB = 1 << 30
SMALL = Work(slices=8, read_bytes=GIB, slice_memory=GIB)
LARGE = replace(SMALL, read_bytes=LARGE_BYTES + 1)
HERE = Machine(java=True, spark=True, total_memory=64 * GIB, free_memory=64 * GIB)
AUTO = ExecuteOptions(threads=4)


@pytest.mark.parametrize(
    ("options", "work", "machine", "executor", "why"),
    [
        (AUTO, SMALL, HERE, Executor.LOCAL, "a small plan: 8 file groups and 1.0 GiB to read; Spark from 8.0 GiB on"),
        (AUTO, replace(SMALL, read_bytes=LARGE_BYTES), HERE, Executor.LOCAL, "a small plan"),
        (AUTO, LARGE, HERE, Executor.SPARK, "a large plan: 8 file groups"),
        (AUTO, LARGE, replace(HERE, java=False), Executor.LOCAL, "no Java was found"),
        (AUTO, LARGE, replace(HERE, spark=False), Executor.LOCAL, "PySpark is not installed"),
        (replace(AUTO, master="yarn"), SMALL, HERE, Executor.SPARK, "a master is given: yarn"),
        (replace(AUTO, master="local[2]"), SMALL, HERE, Executor.SPARK, "a master is given"),
        (replace(AUTO, spark_conf=(("spark.a", "1"),)), SMALL, HERE, Executor.SPARK, "a setting of Spark"),
        (replace(AUTO, spark_conf=(("spark.hadoop.a", "1"),)), SMALL, HERE, Executor.LOCAL, "a small plan"),
        (replace(AUTO, executor=Executor.LOCAL), LARGE, HERE, Executor.LOCAL, "--executor local is given"),
        (replace(AUTO, executor=Executor.SPARK), SMALL, HERE, Executor.SPARK, "--executor spark is given"),
    ],
)
def test_the_executor_and_why(
    options: ExecuteOptions, work: Work, machine: Machine, executor: Executor, why: str
) -> None:
    found = choose(options, work, machine)
    assert found.executor is executor
    assert why in found.why
    assert (found.threads is None) is (executor is Executor.SPARK)


@pytest.mark.parametrize(
    ("free", "slices", "threads"),
    [(4 * GIB, 8, 4), (4 * GIB - 1, 8, 3), (1, 8, 1), (None, 8, 4), (0, 1, 1), (2 * GIB, 2, 2)],
)
def test_threads_that_memory_has_room_for(free: int | None, slices: int, threads: int) -> None:
    """Never none; what was lowered is said."""
    found = choose(AUTO, replace(SMALL, slices=slices), replace(HERE, free_memory=free))
    assert found.threads == threads
    assert ("--memory-limit is 1.0 GiB" in found.why) is (threads < min(4, slices))


def test_a_memory_limit_beyond_the_machine_is_refused() -> None:
    """One line with what there is; unknown memory is no reason."""
    check_memory(GIB, replace(HERE, total_memory=GIB))
    check_memory(GIB, replace(HERE, total_memory=None))
    with pytest.raises(UsageError, match=r"--memory-limit of 512\.0 MiB or less"):
        check_memory(GIB, replace(HERE, total_memory=GIB // 2))


def test_this_machine() -> None:
    """What it has free is no more than it has."""
    found = this_machine()
    assert found.total_memory is None or found.free_memory is None or 0 < found.free_memory <= found.total_memory


def test_a_master_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown host and a refused connection are told apart; one host of several suffices."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_spark(ExecuteOptions(master=f"spark://127.0.0.1:1,127.0.0.1:{port}"))
    with pytest.raises(SparkError, match=r"127\.0\.0\.1:1: connection refused") as refused:
        check_spark(ExecuteOptions(master="spark://127.0.0.1:1"))
    assert refused.value.path == "spark://127.0.0.1:1"
    with pytest.raises(SparkError, match=r"nowhere\.invalid:7077: unknown host"):
        check_spark(ExecuteOptions(master="spark://nowhere.invalid:7077"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SparkError, match="--executor local, which needs none"):
        check_spark(ExecuteOptions(executor=Executor.SPARK))


# Freed memory is kept for small slices only.


@pytest.mark.parametrize(
    ("log_bytes", "limit_bytes", "decay_ms"), [(100, 800, 10_000), (101, 800, 1_000), (100, None, 10_000)]
)
def test_small_slices_keep_what_they_freed(
    log_bytes: int, limit_bytes: int | None, decay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eighth of the limit, or no limit at all."""
    name = LogFileName(file_id="f", instant="20", version=1)
    log = DataFile(partition="", name=name, size=log_bytes)
    slice_ = FileSlice(partition="", file_id="f", base_instant="10", base=None, logs=(log,))
    said: list[int] = []
    monkeypatch.setattr(pa, "jemalloc_set_decay_ms", said.append)
    monkeypatch.setattr(pa, "default_memory_pool", pa.jemalloc_memory_pool)
    keep_freed(slice_, limit_bytes)
    monkeypatch.setattr(pa, "default_memory_pool", pa.system_memory_pool)
    keep_freed(slice_, limit_bytes)  # nothing to set
    assert said == [decay_ms]
