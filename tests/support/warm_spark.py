"""Compactions of many tables on one Spark, as a process of its own: the JVM starts once.

python -m tests.support.warm_spark     tables from its input, one a line; one line of its output answers each"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.execution.runners import SparkRunner
from phantombase.compactor_daemon.execution.spark_session import StartingSpark
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.terminal.console import configure_logging
from tests.hudi.judge.client import INTERPRETED
from tests.support.places import ROOT
from tests.support.selection import ALL

_DONE = "compacted"


@dataclass(frozen=True)
class WarmSpark:
    """The process, which has the environment that it was started with."""

    process: subprocess.Popen[str]

    def compact(self, url: str) -> None:
        """Executes the pending compactions of a table in tasks of Spark."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(url, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        assert answer == _DONE, answer.replace("\\n", "\n")


@contextmanager
def warm_spark(environment: Mapping[str, str]) -> Iterator[WarmSpark]:
    """A process with these variables beside those of this one."""
    command = [sys.executable, "-m", "tests.support.warm_spark"]
    env = {**os.environ, **environment}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield WarmSpark(process)
        process.communicate()  # it ends with its input


def main() -> None:
    """Answers until its input ends; logs go elsewhere."""
    configure_logging(json=False)
    execute = ExecuteOptions(master="local[2]")
    spark = StartingSpark(execute)
    runner = SparkRunner(spark)
    for line in sys.stdin:
        try:
            run_compactions(
                line.strip(),
                drop_metadata=True,
                output=OutputOptions(),
                execute=execute,
                attempt=AttemptOptions(),
                runner=runner,
            )
            print(_DONE, flush=True)
        except Exception:
            print(traceback.format_exc().replace("\n", "\\n"), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

# One Spark of this process, for the tests that hand it frames or ask it for a table.


@pytest.fixture(scope="session")
def spark_environment() -> Iterator[None]:
    """What Spark reads when it starts: its workers are this Python, and it asks for no name of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def spark(spark_environment: None) -> Iterator[Any]:
    """A session for the tests of a file; nothing in it names the source: Spark finds that by its module's name.

    The JVM stays for the next file, the context does not: commands of other tests make their own."""
    from pyspark.sql import SparkSession

    connect = os.environ.get("PHANTOMBASE_CONNECT")  # see tests/pyspark_phantombase/test_releases.py
    builder = SparkSession.builder.remote("local[2]") if connect else SparkSession.builder.master("local[2]")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.python.daemon.module", "tests.support.spark_daemon")
    for name, value in ({} if ALL else {**INTERPRETED, "spark.sql.shuffle.partitions": "4"}).items():
        builder = builder.config(name, value)
    session = builder.config("spark.log.level", "ERROR").config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()
