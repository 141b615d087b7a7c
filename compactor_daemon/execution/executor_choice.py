"""Which executor runs the file slices of a plan, with how many threads, and why; and what this machine has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from phantombase.timeline.errors import UsageError
from phantombase.timeline.terminal.text_table import human_bytes, plural

from ..jvm_archive import spark_java
from ..options import ExecuteOptions, Executor

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
class ExecutorChoice:
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


def check_memory(slice_memory: int, machine: Machine) -> None:
    """UsageError: the memory limit of one slice is more than this machine has."""
    if machine.total_memory is not None and slice_memory > machine.total_memory:
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
