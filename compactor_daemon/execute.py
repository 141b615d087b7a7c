"""Runs file slice tasks: on Spark, one task per file slice, or in this process. The same slice code in both.

Spark is used through plain RDD tasks: no shuffle, no DataFrame, and only counts come back to the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Protocol

from compactor_daemon.options import ExecuteOptions, Executor
from compactor_daemon.records import SliceDone
from compactor_daemon.slice_task import SliceTask, compact_slice
from compactor_daemon.spark_start import StartingSpark
from timeline.errors import PhantombaseError, SparkError
from timeline.storage import Storage

Progress = Callable[[int, int], None]
"""Called with (slices done, slices in all) while tasks run."""

_POLL_S = 0.2


class Runner(Protocol):
    """Compacts file slices and returns their records in task order; the first error of the tree is raised."""

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: Progress) -> list[SliceDone]:
        """Runs all tasks."""
        ...


@contextmanager
def open_runner(options: ExecuteOptions) -> Iterator[Runner]:
    """The runner of an executor. Spark starts in the background, and the first tasks wait for it; it ends with this."""
    if options.executor is Executor.LOCAL:
        yield LocalRunner(options.threads)
        return
    spark = StartingSpark(options)
    try:
        yield SparkRunner(spark)
    finally:
        spark.stop()


class LocalRunner:
    """In-process, `threads` slices at a time."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: Progress) -> list[SliceDone]:
        """See `Runner`."""
        with ThreadPoolExecutor(self._threads) as pool:
            futures = [pool.submit(compact_slice, storage, task) for task in tasks]
            for count, future in enumerate(as_completed(futures), 1):
                if future.exception() is not None:
                    pool.shutdown(cancel_futures=True)
                    break
                progress(count, len(tasks))
            return [future.result() for future in futures if not future.cancelled()]


class SparkRunner:
    """One Spark task per file slice."""

    def __init__(self, spark: StartingSpark) -> None:
        self._spark = spark
        self._runs = 0

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: Progress) -> list[SliceDone]:
        """See `Runner`. SparkError when Spark did not start."""
        context = self._spark.context()
        self._runs += 1
        group = f"phantombase-{tasks[0].instant}-{tasks[0].attempt}-{self._runs}"
        outcomes: list[SliceDone | PhantombaseError] = []
        failure: list[BaseException] = []

        def job() -> None:
            try:
                context.setJobGroup(group, f"compaction {tasks[0].instant}")
                rdd = context.parallelize(tasks, len(tasks))
                outcomes.extend(rdd.map(_Compact(storage)).collect())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=job, name=group, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            progress(_completed(context, group), len(tasks))
        if failure:
            raise SparkError(
                "a Spark job of the compaction failed",
                instant=tasks[0].instant,
                found=spark_words(failure[0]),
                todo="Nothing was published. Run again; finished file slices are adopted.",
            ) from failure[0]
        for outcome in outcomes:
            if isinstance(outcome, PhantombaseError):
                raise outcome
        progress(len(tasks), len(tasks))
        return [o for o in outcomes if isinstance(o, SliceDone)]


class _Compact:
    """The function a Spark task runs; errors of the tree come back as values, with all they say."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __call__(self, task: SliceTask) -> SliceDone | PhantombaseError:
        try:
            return compact_slice(self._storage, task)
        except PhantombaseError as error:
            return error


def spark_words(error: BaseException) -> str:
    """What went wrong in a Spark job, without its traces."""
    lines = [line.strip() for line in str(error).splitlines() if "Error" in line or "Exception" in line]
    return lines[-1] if lines else f"{type(error).__name__}: {error}"


def _completed(context: Any, group: str) -> int:
    """Tasks done of a job group."""
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            done += stage_info.numCompletedTasks if stage_info else 0
    return done
