"""The actions that may be ordered on a table, the command of each, and which ones a table needs (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import UsageError
from ..instants.clock_check import LOCAL
from ..instants.triggers import TriggerOptions
from ..terminal.text_table import Row, human_bytes, plural
from .verdict import Health, locked

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
            raise UsageError(
                f"{name} takes {'no' if instant else 'an'} instant",
                expected="schedule without an instant, the others with ?instant=TIME",
                found=repr(instant),
            )
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


_TRIGGER = TriggerOptions()
_SETTINGS = CommandSettings()
_RELEASES = "removes its recorded failures, so that daemons try it again"
_SCHEDULES = "requests a compaction of them; writers go on"


def advice(row: Row, settings: CommandSettings = _SETTINGS) -> list[Row]:
    """`why`, `command` and what it `does`, most urgent first; `order`: the name and the instant of one (`orders`), or
    None. `row`: the complete row of a table. `settings`: those of the commands."""
    path, orders = shlex.quote(row["path"]), _Orders(row, settings)
    found = [*_of_fleet_info(row, path, orders), *_of_pending(row, path, orders), *_of_debt(row, orders)]
    if row["health"] == Health.BROKEN.value:
        found.insert(0, _one("what is wrong, file by file", f"timeline audit {path}", "changes nothing"))
    commands: dict[str, Row] = {}
    for one in found:
        commands.setdefault(one["command"], one)
    return list(commands.values())


def more_orders(row: Row, settings: CommandSettings = _SETTINGS) -> list[Row]:
    """Further orders, without a reason to give them now; the form is that of `advice`."""
    orders, found = _Orders(row, settings), []
    if row.get("file_groups_waiting"):
        found.append(orders.order(_waiting(row), OrderName.SCHEDULE, None, _SCHEDULES))
    for one in row.get("pending") or ():
        if one["action"] == "compaction":
            time, why = one["instant"], f"compaction {one['instant']} is pending"
            found.append(orders.order(why, OrderName.UNSCHEDULE, time, "cancels the plan, if no rows need it"))
            found.append(orders.order(why, OrderName.RELEASE, time, _RELEASES))
    said = {one["command"] for one in advice(row, settings)}
    return [one for one in found if one["command"] not in said]


def _one(why: str, command: str, does: str, order: Row | None = None) -> Row:
    return {"why": why, "command": command, "does": does, "order": order}


class _Orders:
    def __init__(self, row: Row, settings: CommandSettings) -> None:
        self._path, self._settings = row["path"], settings
        self._name = (row.get("table") or {}).get("name") or row.get("name") or row.get("served_as", "")

    def order(self, why: str, name: OrderName, instant: str | None, does: str) -> Row:
        words = Order(name=name, instant=instant).words(self._path, self._name, self._settings)
        return _one(why, shown(words), does, {"name": name.value, "instant": instant})


def _waiting(row: Row) -> str:
    groups = row["file_groups_waiting"]
    return f"{plural(groups, 'file group')} with {human_bytes(row['log_bytes_waiting'])} of logs in no plan"


def _of_fleet_info(row: Row, path: str, orders: _Orders) -> list[Row]:
    fleet_info = row.get("fleet_info") or {}
    found = []
    for one in (*fleet_info.get("pending", ()), *fleet_info.get("clusterings", ())):
        what = "clustering" if one["action"] == "clustering" else "compaction"
        why = f"{what} {one['instant']} is {one['state']}" + (f": {one['why']}" if one["why"] else "")
        if one["state"] == "parked":
            found.append(orders.order(why, OrderName.RELEASE, one["instant"], _RELEASES))
        elif one["state"] == "unscheduled":
            found.append(orders.order(why, OrderName.UNSCHEDULE, one["instant"], "cancels the plan"))
    resume = f"compactor-daemon resume {path}"
    found += [_one(pause["what"], resume, "ends the pause") for pause in fleet_info.get("paused", ())]
    for half in fleet_info.get("in_progress", ()):
        why = f"{half['action']} {half['instant']} is in progress"
        command = re.search(r"`(compactor-daemon [^`]*)`", locked(half["todo"]))
        if command is not None:
            words = command[1].replace("TABLE", path).replace("INSTANT", half["instant"])
            found.append(_one(why, words, "finishes it, if its process is dead"))
    return found


def _of_pending(row: Row, path: str, orders: _Orders) -> list[Row]:
    pending = row.get("pending", ())
    found = []
    for one in pending:
        if one["problem"] is not None:
            does = "cancels the plan that cannot be read; refuses if a process may be at work"
            time = one["instant"]
            found.append(orders.order(f"the plan of {time} cannot be read", OrderName.UNSCHEDULE, time, does))
        elif one["heartbeat"] == "stale" and one["action"] == "deltacommit":
            why = f"the writer of {one['instant']} is silent; the next write rolls it back"
            found.append(_one(why, f"compactor-daemon status {path}", "shows whose it was, and changes nothing"))
    waiting = [one for one in pending if one["action"] == "compaction" and one["problem"] is None]
    if waiting and row["health"] != Health.WELL.value:
        why = f"{plural(len(waiting), 'compaction')} pending"
        does = "executes them in this process, or waits for the one that works on them"
        found.append(_one(why, f"compactor-daemon compact {path}", does))
    return found


def _of_debt(row: Row, orders: _Orders) -> list[Row]:
    commits = row.get("delta_commits_since_request", 0)
    if not row.get("file_groups_waiting") or commits < _TRIGGER.max_delta_commits:
        return []
    return [orders.order(_waiting(row), OrderName.SCHEDULE, None, _SCHEDULES)]
