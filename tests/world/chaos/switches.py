"""What the test and one daemon process share: switches of its faults, and counts of what it tried.

They lie in shared memory, so that a process that is killed or stands still has said what it did."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import Enum


class Switches(ctypes.Structure):
    """Of one daemon, kept over its restarts: a machine's clock and disk do not heal with a new process. `point`: number
    of the `Point` at which `signal` is sent to itself, before the call or `after` it; 0: none. Then 0 again, and
    `struck` counts. `looks`: at tables. `busy`: instants at work. `decided`: decisions that stand; `refused`: those of
    dead attempts; `noticed`: attempts that ended because they were dead. `broken`: a dead attempt decided, or something
    undecided was published, which must never be."""

    _fields_ = (
        ("clock_s", ctypes.c_double),
        ("slow_s", ctypes.c_double),
        ("full", ctypes.c_bool),
        ("point", ctypes.c_int),
        ("signal", ctypes.c_int),
        ("after", ctypes.c_bool),
        ("struck", ctypes.c_long),
        ("looks", ctypes.c_long),
        ("busy", ctypes.c_long),
        ("decided", ctypes.c_long),
        ("refused", ctypes.c_long),
        ("noticed", ctypes.c_long),
        ("broken", ctypes.c_long),
    )
    clock_s: float
    slow_s: float
    full: bool
    point: int
    signal: int
    after: bool
    struck: int
    looks: int
    busy: int
    decided: int
    refused: int
    noticed: int
    broken: int

    def heal(self) -> None:
        """All faults off."""
        self.clock_s = self.slow_s = 0.0
        self.full, self.point = False, 0


@dataclass(frozen=True)
class _Calls:
    """Calls of a storage, by name, end of the path, and what the data contain."""

    name: str
    ending: str = ""
    data: bytes = b""


class Point(Enum):
    """Steps of a compaction at which it is worst to die or to stand still."""

    OPEN = _Calls("put_if_absent", "/open")
    DONE = _Calls("put_if_absent", ".ok")
    DEAD = _Calls("put_if_absent", "/outcome", b'"outcome":"dead"')
    COMMITTED = _Calls("put_if_absent", "/outcome", b'"outcome":"commit"')
    PLACE = _Calls("place")
    COMPLETE = _Calls("put_if_absent", ".commit")
    BOOKS = _Calls("put_if_absent", ".json")
    RETIRE = _Calls("delete", ".ok")

    @property
    def number(self) -> int:
        """From 1, as switched on."""
        return list(Point).index(self) + 1

    def is_at(self, name: str, path: str, *data: bytes) -> bool:
        """Whether a call is at this step."""
        calls = self.value
        return name == calls.name and path.endswith(calls.ending) and all(calls.data in d for d in data)
