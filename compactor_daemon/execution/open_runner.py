"""Opens the runner of an executor; `auto` decides for each plan, when its file slices are known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phantombase.timeline.event_log import get_logger
from phantombase.timeline.storage.contract import Storage

from ..options import ExecuteOptions, Executor
from ..records.slice_done import SliceDone
from .executor_choice import ExecutorChoice, ExecutorWork, choose, work_of
from .machine import this_machine
from .runners import LocalRunner, Runner, SliceProgress, SparkRunner
from .slice_task import SliceTask
from .spark_check import check_spark
from .spark_session import StartingSpark

_log = get_logger()


def log_choice(choice: ExecutorChoice) -> None:
    """A line in the log."""
    _log.info("executor", executor=choice.executor.value, threads=choice.threads, why=choice.why)


@contextmanager
def open_runner(options: ExecuteOptions, chosen: Callable[[ExecutorChoice], None] = log_choice) -> Iterator[Runner]:
    """The runner of an executor. `chosen` is called with the choice for each plan.

    SparkError: Spark was asked for and cannot start. Spark starts in the background; the first tasks wait for it. It
    ends at exit. With `auto` it starts when the first plan needs it.
    """
    runner = ChosenRunner(options, chosen)
    if options.asks_for_spark:
        runner.start()
    try:
        yield runner
    finally:
        runner.stop()


class ChosenRunner:
    """Runs the tasks of each plan on the executor that `choose` names."""

    def __init__(self, options: ExecuteOptions, chosen: Callable[[ExecutorChoice], None]) -> None:
        self._options = options
        self._chosen = chosen
        self._spark: StartingSpark | None = None
        self._starting = threading.Lock()

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        """See `Runner`. SparkError: Spark does not start."""
        choice = choose(self._options, _work(tasks), this_machine())
        self._chosen(choice)
        if choice.executor is Executor.SPARK:
            return SparkRunner(self.start())(storage, tasks, progress)
        return LocalRunner(choice.threads or 1)(storage, tasks, progress)

    def start(self) -> StartingSpark:
        """Starts Spark, once. SparkError: it cannot start."""
        with self._starting:
            if self._spark is None:
                check_spark(self._options)
                self._spark = StartingSpark(self._options)
            return self._spark

    def stop(self) -> None:
        """Ends Spark, if it was started."""
        if self._spark is not None:
            self._spark.stop()

    @property
    def is_gone(self) -> bool:
        """Whether Spark was started and has ended: no job can run on it any more."""
        return self._spark is not None and SparkRunner(self._spark).is_gone


def _work(tasks: list[SliceTask]) -> ExecutorWork:
    return work_of((task.slice for task in tasks), max((t.round.output.memory_limit for t in tasks), default=1))
