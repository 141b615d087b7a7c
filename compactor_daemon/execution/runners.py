"""Runs file slice tasks: on Spark, one task per file slice, or in this process; `auto` decides for each plan.

Both run the same slice code. Spark runs plain RDD tasks: no shuffle, no DataFrame, and only counts come back to the
driver. `auto` goes by the size of a plan, and by what this machine has.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from phantombase.timeline.errors import PhantombaseError, SparkError, UsageError, reason_of, without_classes
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.option import spelled_class
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.storage_options import Given, StorageOptions
from phantombase.timeline.terminal.text_table import human_bytes, plural

from ..jvm_archive import spark_java
from ..options import ExecuteOptions, Executor
from .spark_session import PYTHON_OF_WORKERS, StartingSpark, check_spark, hadoop_conf

if TYPE_CHECKING:
    from ..attempt.slice_record import SliceDone
    from ..attempt.slice_task import Runner, SliceProgress, StageTask, Tasks

LARGE_BYTES = 8 << 30
"""A plan that reads more is large: Spark's processes share the work better than threads of one process do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorWork:
    """What a plan asks for: its file slices, the bytes they read, and the memory limit of one slice's merge."""

    slices: int
    read_bytes: int
    slice_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has. `total_memory`, `free_memory`: bytes that this process may use, None if unknown."""

    java: bool
    spark: bool
    total_memory: int | None
    free_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorChoice(Shown):
    """The executor, the slices that it merges at a time (None: as Spark is set up), and why."""

    executor: Executor
    threads: int | None
    why: str


def choose(options: ExecuteOptions, work: ExecutorWork, machine: Machine) -> ExecutorChoice:
    """The executor for this work. `auto`: in process, unless a master is given or the plan is large."""
    executor, why = _executor(options, work, machine)
    if executor is Executor.SPARK:
        return ExecutorChoice(executor=executor, threads=None, why=why)
    threads, fewer = _threads(options.threads, work, machine)
    return ExecutorChoice(executor=executor, threads=threads, why=f"{why}; {fewer}" if fewer else why)


def _executor(options: ExecuteOptions, work: ExecutorWork, machine: Machine) -> tuple[Executor, str]:
    if options.executor is not Executor.AUTO:
        return options.executor, f"--executor {options.executor.value} is given"
    if why := options.wants_spark:
        return Executor.SPARK, why
    plan = f"{plural(work.slices, 'file group')} and {human_bytes(work.read_bytes)} to read"
    if work.read_bytes <= LARGE_BYTES:
        return Executor.LOCAL, f"a small plan: {plan}; Spark from {human_bytes(LARGE_BYTES)} on"
    if not machine.spark:
        return Executor.LOCAL, f"a large plan: {plan}; but PySpark is not installed"
    if not machine.java:
        return Executor.LOCAL, f"a large plan: {plan}; but no Java was found"
    return Executor.SPARK, f"a large plan: {plan}"


def _threads(asked: int, work: ExecutorWork, machine: Machine) -> tuple[int, str]:
    """The number of slices at a time that memory allows, at least one; and why it was lowered, or empty."""
    wanted = max(1, min(asked, work.slices))
    if machine.free_memory is None or work.slice_memory * wanted <= machine.free_memory:
        return wanted, ""
    fits = max(1, machine.free_memory // work.slice_memory)
    if fits >= wanted:
        return wanted, ""
    free, limit = human_bytes(machine.free_memory), human_bytes(work.slice_memory)
    return fits, f"{fits} at a time, not {wanted}: {free} of memory are free, and --memory-limit is {limit}"


def check_memory(slice_memory: int, options: ExecuteOptions, machine: Machine) -> None:
    """UsageError: the memory limit of one slice is more than this machine has, which is to merge it."""
    if not options.on_cluster and machine.total_memory is not None and slice_memory > machine.total_memory:
        raise UsageError(
            "the memory limit of one file slice is more than this machine, or container, has",
            expected=f"--memory-limit of {human_bytes(machine.total_memory)} or less",
            found=str(human_bytes(slice_memory)),
            todo="Log data beyond the limit is spilled to --spill-dir, so a smaller one works too.",
        )


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_CACHE = ("inactive_file", "active_file")
"""Memory of a control group that the system reclaims when it is needed."""


def this_machine() -> Machine:
    """The machine as it is now. What the system does not report is None."""
    memory, group = _fields(_MEMINFO), _group()
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    cached = sum(_fields(group / "memory.stat").get(name, 0) for name in _CACHE)
    free = limit - used + cached if limit is not None and used is not None else None
    return Machine(
        java=spark_java() is not None,
        spark=find_spec("pyspark") is not None,
        total_memory=_least(memory.get("MemTotal"), limit),
        free_memory=_least(memory.get("MemAvailable"), free),
    )


def _least(*sizes: int | None) -> int | None:
    return min((max(0, size) for size in sizes if size is not None), default=None)


def _group() -> Path:
    """The folder of this process's control group, version 2. Source: cgroups(7)."""
    with suppress(OSError):
        for line in _OWN_GROUP.read_text().splitlines():
            if line.startswith("0::"):
                return _CGROUP / line.removeprefix("0::").lstrip("/")
    return _CGROUP


def _fields(path: Path) -> Mapping[str, int]:
    """Lines `name number` or `name: number kB` in bytes; none on other systems. Source: proc_meminfo(5), cgroups(7)."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, number, *unit = line.split()
            found[name.rstrip(":")] = int(number) << (10 if unit == ["kB"] else 0)
    return found


def _number(path: Path) -> int | None:
    """A limit of a control group; None: there is none, `max`."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


_POLL_S = 0.2
_CANCEL_S = 10.0
_CAUSES = 2


class Spark(Protocol):
    def context(self) -> Any:
        """Waits for the context; SparkError: Spark does not start."""


def all_storage_options(
    paths: Iterable[str], given: Given, execute: ExecuteOptions, runner: Runner | None
) -> StorageOptions:
    """The given options, completed by those of Hadoop: of the Spark of a runner, or of the Spark to be started."""
    options = StorageOptions.of(given)
    if not isinstance(runner, SparkRunner):
        return options.over(execute.hadoop_conf)
    for path in paths:
        options = options.over(runner.hadoop_conf(path))
    return options


@spelled_class
class LocalRunner:
    """Runs `threads` slices at a time in this process. If `progress` raises, slices at work are still finished."""

    def __init__(self, threads: int) -> None:
        if not isinstance(threads, int) or threads < 1:
            raise UsageError("not a number of threads", expected="a whole number above 0", found=repr(threads))
        self._threads = threads

    def __call__(self, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        with ThreadPoolExecutor(self._threads) as pool:
            # Each task runs in a copy of the context, so that its logs carry what the caller has bound.
            futures = [pool.submit(copy_context().run, task.run, storage) for task in tasks]
            waiting = set(futures)
            try:
                while waiting:
                    done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
                    if any(future.exception() is not None for future in done):
                        break
                    progress(len(futures) - len(waiting), len(tasks))
            finally:
                pool.shutdown(cancel_futures=True)
            return [future.result() for future in futures if not future.cancelled()]


@spelled_class
class SparkRunner:
    """Runs one Spark task per file slice. `pool`: scheduler pool of the jobs, if `spark.scheduler.mode` is FAIR."""

    def __init__(self, spark: Spark, pool: str | None = None) -> None:
        self._spark = spark
        self._pool = pool

    def hadoop_conf(self, path: str) -> dict[str, str]:
        """See `hadoop_conf`; SparkError: Spark did not start."""
        return hadoop_conf(self._spark.context(), path)

    @property
    def is_gone(self) -> bool:
        """Whether Spark has ended, or never started: no job can run on it any more."""
        try:
            return bool(self._spark.context()._jsc.sc().isStopped())
        except Exception:  # no answer from its JVM: any kind of error
            return True

    def __call__(self, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        """See `Runner`. SparkError: Spark did not start."""
        context = self._spark.context()
        group = f"phantombase-{tasks[0].instant}-{tasks[0].attempt}-{uuid.uuid4().hex}"
        outcomes: list[SliceDone | PhantombaseError] = []
        failure: list[BaseException] = []

        def job() -> None:
            try:
                context.setJobGroup(group, f"{tasks[0].job} {tasks[0].instant}")
                if self._pool is not None:
                    context.setLocalProperty("spark.scheduler.pool", self._pool)
                parts, function = spark_work(storage, tasks)
                outcomes.extend(context.parallelize(parts, len(parts)).map(function).collect())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=job, name=group, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                try:
                    done = _completed(context, group)
                except Exception as error:  # an error of a socket if the JVM has ended
                    raise self._job_failed(tasks[0], error) from error
                progress(done, len(tasks))
        except BaseException:
            _cancel(context, group, thread)
            raise
        if failure:
            raise self._job_failed(tasks[0], failure[0]) from failure[0]
        for outcome in outcomes:
            if isinstance(outcome, PhantombaseError):
                raise outcome
        progress(len(tasks), len(tasks))
        return [o for o in outcomes if not isinstance(o, PhantombaseError)]

    def _job_failed(self, task: StageTask, error: BaseException) -> SparkError:
        what = f"a Spark job of the {task.job} failed"
        if self.is_gone:
            what = "Spark has ended: its JVM was killed, or its master has ended or cannot be reached"
        todo = "Nothing was published. Run again: the next attempt adopts finished file slices."
        return SparkError(what, instant=task.instant, found=(words := spark_words(error)), todo=spark_todo(words, todo))


Numbered: TypeAlias = tuple[int, Any]
"""A part, with the number of what it shares with others."""


def spark_work(
    storage: Storage, tasks: Sequence[StageTask]
) -> tuple[list[Numbered], Callable[[Numbered], SliceDone | PhantombaseError]]:
    """The part that Spark sends to each task, and the function with all that tasks share, sent once per stage."""
    rounds = {id(task.round): (type(task), task.round) for task in tasks}
    number = {key: n for n, key in enumerate(rounds)}
    parts = [(number[id(task.round)], task.part) for task in tasks]
    return parts, partial(_run_part, storage, tuple(rounds.values()))


def _run_part(
    storage: Storage, rounds: tuple[tuple[type[StageTask], Any], ...], sent: Numbered
) -> SliceDone | PhantombaseError:
    """Runs a task in Spark; errors of the tree come back as values, with all their fields."""
    number, part = sent
    kind, round_ = rounds[number]
    try:
        return kind(round_, part).run(storage)
    except PhantombaseError as error:
        return error


def spark_words(error: BaseException) -> str:
    """The last causes of a Spark job's failure, without their traces."""
    lines = [line.strip().lstrip(": ").removeprefix("Caused by: ") for line in str(error).splitlines()]
    causes = [line for line in lines if re.match(r"[\w.$]+(Error|Exception)\b", line) and "Traceback" not in line]
    return without_classes(" | ".join(causes[-_CAUSES:])) or reason_of(error)


def spark_todo(words: str, usual: str) -> str:
    """What helps where executors run another Python; else the `usual` advice. `words`: of `spark_words`."""
    is_other = re.search("No module named|PYTHON_VERSION_MISMATCH|PYSPARK_PYTHON", words)
    return PYTHON_OF_WORKERS if is_other else usual


def _cancel(context: Any, group: str, thread: threading.Thread) -> None:
    """Ends the jobs of a group, also those that are about to start; waits a limited time for their thread."""
    deadline = time.monotonic() + _CANCEL_S
    while thread.is_alive() and time.monotonic() < deadline:
        with suppress(Exception):  # a JVM that has ended has no job
            context.cancelJobGroup(group)
        thread.join(_POLL_S)


def _completed(context: Any, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            done += stage_info.numCompletedTasks if stage_info else 0
    return done


_COUNT_S = 1.0
"""How often the records of finished tasks are looked for."""


class CountingRunner:
    """Runs tasks on another runner. `counts`: of those that run now, the rows and bytes made so far, by the records of
    finished tasks; only to be shown."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.counts = {"rows": 0, "bytes": 0}

    def __call__(self, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        """See `Runner`."""
        left, counted_at = {task.record_path for task in tasks}, 0.0
        self.counts = dict.fromkeys(self.counts, 0)

        def counted(done: int, total: int) -> None:
            nonlocal counted_at
            now = time.monotonic()
            if done > total - len(left) and (done == total or now - counted_at >= _COUNT_S):
                counted_at = now
                with suppress(PhantombaseError):
                    self._count(storage, left)
            progress(done, total)

        return self._inner(storage, tasks, counted)

    def _count(self, storage: Storage, left: set[str]) -> None:
        """Counts the records that are there now, and removes them from `left`: each is read once."""
        from ..attempt.slice_record import SliceDone  # late: commands that execute nothing start without pyarrow

        folders = {path.rpartition("/")[0] for path in left}
        there = {f"{folder}/{e.name}" for folder in folders for e in listed_if_there(storage, folder) or ()}
        for path in left & there:
            made = SliceDone.from_json(storage.read(path), path)
            left.discard(path)
            self.counts["rows"] += made.ledger.rows_out
            self.counts["bytes"] += sum(file.size for file in made.files)


_log = get_logger()


def log_choice(choice: ExecutorChoice) -> None:
    """At the level of what happens: Spark starts. In this process the compaction begins at once, and says so."""
    say = _log.info if choice.executor is Executor.SPARK else _log.debug
    say("executor", executor=choice.executor.value, threads=choice.threads, why=choice.why)


@contextmanager
def open_runner(options: ExecuteOptions, chosen: Callable[[ExecutorChoice], None] = log_choice) -> Iterator[Runner]:
    """The runner of an executor. `chosen` is called with the choice for each plan. SparkError: Spark was asked for and
    cannot start. Spark starts in the background; the first tasks wait for it. It ends at exit. With `auto` it starts
    when the first plan needs it."""
    if options.idle:
        _log.warning("options_without_effect", of=" ".join(name.replace("_", "-") for name in options.idle))
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

    def __call__(self, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        """See `Runner`. SparkError: Spark does not start."""
        memory = max((task.round.output.memory_limit for task in tasks), default=1)
        read_bytes = sum(task.read_bytes for task in tasks)
        work = ExecutorWork(slices=len(tasks), read_bytes=read_bytes, slice_memory=memory)
        choice = choose(self._options, work, this_machine())
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
        if self._spark is not None:
            self._spark.stop()

    @property
    def is_gone(self) -> bool:
        """Whether Spark was started and has ended: no job can run on it any more."""
        return self._spark is not None and SparkRunner(self._spark).is_gone
