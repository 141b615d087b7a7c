"""What this machine, or this container, has: memory, Java, PySpark."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ..jvm_archive import spark_java
from .executor_choice import Machine

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_CACHE = ("inactive_file", "active_file")
"""Memory of a group that the system takes back when it is needed."""


def this_machine() -> Machine:
    """The machine as it is now. What the system does not say is None."""
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
