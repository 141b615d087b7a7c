"""The actions that may be ordered on a table, and the command of each (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import UsageError
from ..instants.clock_check import LOCAL

PROGRAM = "compactor-daemon"
_INSTANT = re.compile(r"[0-9]{1,17}")


class OrderName(Enum):
    """A command of `compactor-daemon`."""

    SCHEDULE = "schedule"
    RELEASE = "release"
    UNSCHEDULE = "unschedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """The settings for commands on the served tables. Neither `lock` nor `sole_writer`: they are unknown here. `lock`:
    as for `table_lock`; `{name}` in it is replaced by the table's name. UsageError: both are given."""

    lock: str | None = None
    sole_writer: bool = False
    timezone: str = LOCAL

    def __post_init__(self) -> None:
        if self.lock is not None and self.sole_writer:
            raise UsageError("--lock and --sole-writer are both given", expected="one of them")

    def lock_of(self, table_name: str) -> str | None:
        return None if self.lock is None else self.lock.replace("{name}", table_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One command on one table. `instant`: a pending compaction; None for `schedule`."""

    name: OrderName
    instant: str | None = None

    @staticmethod
    def parse(name: str, instant: str | None) -> Order:
        """UsageError: no such order; or the instant is missing, not allowed, or invalid."""
        if name not in {known.value for known in OrderName}:
            raise UsageError("no such action", expected=", ".join(n.value for n in OrderName), found=repr(name))
        if (name == OrderName.SCHEDULE.value) != (instant is None):
            raise UsageError(f"{name} takes {'no' if instant else 'an'} instant", found=repr(instant))
        if instant is not None and not _INSTANT.fullmatch(instant):
            raise UsageError("not an instant", expected="such as 20260101120000000", found=repr(instant))
        return Order(name=OrderName(name), instant=instant)

    def words(self, path: str, table_name: str, settings: CommandSettings) -> list[str]:
        """The command line after the program's name."""
        found = [self.name.value, path, *([] if self.instant is None else [self.instant])]
        if self.name is OrderName.RELEASE:  # only removes records of failures
            return found
        lock = settings.lock_of(table_name)
        found += [] if lock is None else ["--lock", lock]
        found += ["--sole-writer"] if settings.sole_writer else []
        if self.name is OrderName.SCHEDULE and settings.timezone != LOCAL:
            found += ["--timezone", settings.timezone]
        return found


def shown(words: Sequence[str]) -> str:
    """A command line to copy."""
    return shlex.join((PROGRAM, *words))
