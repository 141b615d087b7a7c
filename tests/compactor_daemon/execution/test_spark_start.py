"""Spark starts in the background: it fails where tasks wait for it, and leaves nothing when it was not needed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.execution.runners import (
    LARGE_BYTES,
    ExecutorWork,
    Machine,
    check_memory,
    choose,
    open_runner,
    spark_words,
    this_machine,
)
from phantombase.compactor_daemon.execution.spark_session import StartingSpark, check_spark, chosen_settings, last_words
from phantombase.compactor_daemon.jvm_archive import NO_ARCHIVE, ClassArchive, class_archive
from phantombase.compactor_daemon.options import ExecuteOptions, Executor
from phantombase.timeline.errors import SparkError, UsageError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.merge.slice_log import keep_freed
from phantombase.timeline.view.view import DataFile, FileSlice
from tests.support.evolved_tables import lose_planned_log
from tests.support.golden_tables import unzip_golden
from tests.support.places import capture_logs

_LINGERS_S = 120.0


def test_spark_that_cannot_start_is_told_to_who_waits(tmp_path: Path) -> None:
    """In a process of its own: one that has a JVM already starts no other."""
    script = f"""if True:
        import os
        from phantombase.compactor_daemon.options import ExecuteOptions
        from phantombase.compactor_daemon.execution.spark_session import StartingSpark
        from phantombase.timeline.errors import SparkError

        os.environ["JAVA_HOME"] = {str(tmp_path)!r}
        spark = StartingSpark(ExecuteOptions(master="local[1]"))
        try:
            spark.context()
        except SparkError as error:
            print(error)
        spark.stop()
    """
    ran = _run(tmp_path, "-c", script)
    assert "Spark did not start" in ran.stdout
    assert str(tmp_path) in ran.stdout, "the end of the JVM's output"


def test_the_words_of_a_jvm_are_its_causes() -> None:
    """A master that does not exist: Spark names it first, and then its stack, which says nothing to a user."""
    frames = "".join(f"\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala:{n})\n" for n in range(30))
    output = f"Exception in thread main SparkException: Could not parse Master URL: 'wrong'\n{frames}\t... 9 more\n"
    assert last_words(BytesIO(output.encode())) == output.splitlines()[0]
    assert last_words(BytesIO(frames.encode())) == "none"


@pytest.mark.spark
def test_one_context_after_the_other() -> None:
    for number in range(2):
        spark = StartingSpark(ExecuteOptions(master="local[1]", spark_conf=(("spark.app.name", f"no. {number}"),)))
        assert spark.context().parallelize([number]).map(str).collect() == [str(number)]
        assert spark.context().appName == f"no. {number}"
        spark.stop()


@pytest.mark.spark
def test_refusal_while_spark_starts_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    table = unzip_golden("v9_event_time", tmp_path)
    lose_planned_log(table)
    ran = _run(tmp_path, "-m", "phantombase.compactor_daemon.cli.main", "compact", str(table), "--master", "local[1]")
    assert ran.returncode == 1
    assert ran.stderr.count("error: ") == 1
    assert "a file that is not there" in ran.stderr


@pytest.mark.spark
def test_stop_while_the_jvm_starts_leaves_nothing(tmp_path: Path) -> None:
    script = """if True:
        import os, tempfile, time
        from phantombase.compactor_daemon.options import ExecuteOptions
        from phantombase.compactor_daemon.execution.spark_session import StartingSpark

        spark = StartingSpark(ExecuteOptions(master="local[1]"))
        while not os.listdir(tempfile.gettempdir()):  # where the JVM will tell its port
            time.sleep(0.01)
        spark.stop()
    """
    ran = _run(tmp_path, "-c", script)
    assert (ran.returncode, ran.stderr) == (0, "")


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python; no process, temporary file or archive of a JVM that has seen no Spark is left behind."""
    temporary, cache, mark = folder / "temporary", folder / "cache", uuid.uuid4().hex
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache), "MARK": mark}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        with class_archive():
            pass  # the second run would make an archive
    ran = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    deadline = time.monotonic() + _LINGERS_S
    while (left := _processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not list(temporary.iterdir())
    assert not list(cache.rglob("*.new"))
    return ran


def _processes(mark: str) -> list[str]:
    """Command lines of the processes whose environment has the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # ended meanwhile
    return found


def test_what_is_asked_of_spark() -> None:
    conf = (("spark.executor.cores", "2"), ("spark.dynamicAllocation.executorIdleTimeout", "5s"))
    options = ExecuteOptions(master="spark://m:7077", executor_memory="2g", max_executors=8, spark_conf=conf)
    assert chosen_settings(options) == {
        "spark.executor.memory": "2g",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "8",
        **dict(conf),
    }
    assert chosen_settings(ExecuteOptions()) == {}


IDLE: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({"max_executors": 2}, {"max_executors"}),
    ({"max_executors": 2, "master": "local[4]"}, {"max_executors"}),
    ({"max_executors": 2, "master": "yarn"}, set()),
    (
        {"executor_memory": "1g", "master": "yarn", "driver_memory": "2g", "executor": Executor.LOCAL},
        {"executor_memory", "master", "driver_memory"},
    ),
    ({"driver_memory": "2g"}, set()),  # a large plan starts Spark
    ({"spark_conf": (("spark.a", "b"),), "executor": Executor.LOCAL}, {"spark_conf"}),
    ({"spark_conf": (("spark.hadoop.a", "b"),), "executor": Executor.LOCAL}, set()),
    ({"threads": 99, "executor": Executor.SPARK}, {"threads"}),
    ({"threads": 99, "master": "local[2]"}, {"threads"}),
    ({"threads": 99}, set()),
    ({"driver_memory": "1g", "executor": Executor.LOCAL}, set()),  # the default
)


def test_options_that_mean_nothing_with_the_others() -> None:
    """Typed ones are refused by commands; others, which a variable may give for another mode, are one warning."""
    for options, idle in IDLE:
        chosen = ExecuteOptions(**options)
        assert set(chosen.idle) == idle
        here = replace(chosen, executor=Executor.LOCAL)
        with capture_logs() as logs, open_runner(here):
            pass
        assert {name.replace("-", "_") for log in logs for name in log["of"].split()} == set(here.idle)
        for name in options:
            if name in idle:
                with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} means nothing here"):
                    chosen.refuse_idle({name})
            else:
                chosen.refuse_idle({name})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"spark_conf": (("hoodie.x", "1"),)}, "not a setting of Spark"),
        ({"spark_conf": (("spark.master", "yarn"),)}, "Use --master"),
        ({"spark_conf": (("spark.driver.memory", "1g"),)}, "Use --driver-memory"),
        ({"master": "locl"}, "not a Spark master; expected local"),
        ({"master": "localhost[2]"}, "not a Spark master"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        ExecuteOptions(**options)


def test_the_cause_of_a_failed_job_is_told_without_its_trace() -> None:
    said = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
        : org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
        \tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally(SparkErrorUtils.scala:83)
        Caused by: java.io.IOException: Cannot run program "/nowhere/python3": error=2, No such file or directory
        \t... 16 more
        Caused by: java.io.IOException: error=2, No such file or directory
        \tat java.base/java.lang.ProcessImpl.forkAndExec(Native Method)"""
    causes = spark_words(RuntimeError(said)).split(" | ")
    assert causes == [
        'Cannot run program "/nowhere/python3": error=2, No such file or directory',
        "error=2, No such file or directory",
    ]
    assert spark_words(ValueError("no")) == "no"


# Which executor runs a plan, with how many threads, and why.


GIB = 1 << 30
SMALL = ExecutorWork(slices=8, read_bytes=GIB, slice_memory=GIB)
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
    options: ExecuteOptions, work: ExecutorWork, machine: Machine, executor: Executor, why: str
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
    check_memory(GIB, ExecuteOptions(), replace(HERE, total_memory=GIB))
    check_memory(GIB, ExecuteOptions(), replace(HERE, total_memory=None))
    with pytest.raises(UsageError, match=r"--memory-limit of 512\.0 MiB or less"):
        check_memory(GIB, ExecuteOptions(), replace(HERE, total_memory=GIB // 2))


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


# The class-data archive: made once, used when whole, and never in the way.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a JVM that is never run."""
    java = tmp_path / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/phantombase/jvm"


def written(archive: ClassArchive) -> Path:
    """The file that the options have the JVM write."""
    return Path(archive.java_options.partition("-XX:ArchiveClassesAtExit=")[2].partition('"')[0])


def test_second_run_makes_the_archive_and_the_next_uses_it(cache: Path) -> None:
    assert class_archive() == NO_ARCHIVE, "a cache that is thrown away after each run would only cost"
    first = class_archive()
    new = written(first)
    assert new.parent == cache
    assert class_archive() == NO_ARCHIVE, "two JVMs would write one file"

    new.write_bytes(b"\xf0\x0b\xab\xa8 and classes")
    assert class_archive() == NO_ARCHIVE, "the first JVM still writes"

    with first:
        pass  # the JVM has ended: nobody holds the lock
    used = class_archive().java_options
    assert f"-XX:SharedArchiveFile={cache}/" in used
    assert "-Xshare:auto" in used
    assert class_archive().java_options == used


def test_archive_of_a_killed_jvm_is_made_again(cache: Path) -> None:
    class_archive()
    with (first := class_archive()):
        written(first).write_bytes(bytes(4096))  # the header comes last
    assert written(class_archive()) == written(first)


def test_another_java_has_another_archive(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class_archive()
    first = written(class_archive())
    os.utime(tmp_path / "jdk/bin/java", (0, 0))  # upgraded
    assert class_archive() == NO_ARCHIVE
    assert written(class_archive()) != first


def test_nothing_fails_without_cache_or_java(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache would be")
    assert class_archive() == NO_ARCHIVE
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert class_archive() == NO_ARCHIVE
