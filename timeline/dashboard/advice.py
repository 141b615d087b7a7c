"""What can be done about a table, as commands to copy; some of them are orders, which may be buttons (pure)."""

from __future__ import annotations

import shlex

from ..planning.triggers import TriggerOptions
from ..terminal.plain import Row, human_bytes, plural
from .actions.orders import CommandSettings, Order, OrderName, shown

_TRIGGER = TriggerOptions()


_SETTINGS = CommandSettings()
_RELEASES = "removes its recorded failures, so that daemons try it again"
_SCHEDULES = "requests a compaction of them; writers go on"


def advice(row: Row, settings: CommandSettings = _SETTINGS) -> list[Row]:
    """`why`, `command` and what it `does`, most urgent first; `order`: the name and the instant of one (`orders`), or
    None. `row`: the whole row of a table. `settings`: what commands must be given.
    """
    path, told = shlex.quote(row["path"]), _Told(row, settings)
    found = [*_of_crew(row, path, told), *_of_pending(row, path, told), *_of_debt(row, told)]
    if row["health"] == "broken":
        found.insert(0, _one("what is wrong, file by file", f"timeline audit {path}", "changes nothing"))
    commands: dict[str, Row] = {}
    for one in found:
        commands.setdefault(one["command"], one)
    return list(commands.values())


def more_orders(row: Row, settings: CommandSettings = _SETTINGS) -> list[Row]:
    """Orders that nothing asks for, like `advice`."""
    told, found = _Told(row, settings), []
    if row.get("file_groups_waiting"):
        found.append(told.order(_waiting(row), OrderName.SCHEDULE, None, _SCHEDULES))
    for one in row.get("pending") or ():
        if one["action"] == "compaction":
            time, why = one["instant"], f"compaction {one['instant']} is pending"
            found.append(told.order(why, OrderName.UNSCHEDULE, time, "takes the plan back, where no rows need it"))
            found.append(told.order(why, OrderName.RELEASE, time, _RELEASES))
    said = {one["command"] for one in advice(row, settings)}
    return [one for one in found if one["command"] not in said]


def _one(why: str, command: str, does: str, order: Row | None = None) -> Row:
    return {"why": why, "command": command, "does": does, "order": order}


class _Told:
    """Makes the commands of orders about one table."""

    def __init__(self, row: Row, settings: CommandSettings) -> None:
        self._path, self._settings = row["path"], settings
        self._name = (row.get("table") or {}).get("name") or row.get("name") or row.get("served_as", "")

    def order(self, why: str, name: OrderName, instant: str | None, does: str) -> Row:
        words = Order(name=name, instant=instant).words(self._path, self._name, self._settings)
        return _one(why, shown(words), does, {"name": name.value, "instant": instant})


def _waiting(row: Row) -> str:
    groups = row["file_groups_waiting"]
    return f"{plural(groups, 'file group')} with {human_bytes(row['log_bytes_waiting'])} of logs in no plan"


def _of_crew(row: Row, path: str, told: _Told) -> list[Row]:
    crew = row.get("crew") or {}
    found = []
    for one in crew.get("pending", ()):
        why = f"compaction {one['instant']} is {one['state']}" + (f": {one['why']}" if one["why"] else "")
        if one["state"] == "parked":
            found.append(told.order(why, OrderName.RELEASE, one["instant"], _RELEASES))
        elif one["state"] == "unscheduled":
            found.append(told.order(why, OrderName.UNSCHEDULE, one["instant"], "takes the plan back"))
    for half in crew.get("half_way", ()):
        why = f"{half['action']} {half['instant']} is half-way"
        command = half["todo"].replace("TABLE", path).replace("INSTANT", half["instant"])
        found.append(_one(why, command, "finishes it, if its process is dead"))
    return found


def _of_pending(row: Row, path: str, told: _Told) -> list[Row]:
    pending = row.get("pending", ())
    found = []
    for one in pending:
        if one["problem"] is not None:
            does = "takes back the plan that cannot be read; it refuses where a process may be at work"
            time = one["instant"]
            found.append(told.order(f"the plan of {time} cannot be read", OrderName.UNSCHEDULE, time, does))
        elif one["heartbeat"] == "stale" and one["action"] == "deltacommit":
            why = f"the writer of {one['instant']} is silent; the next write rolls it back"
            found.append(_one(why, f"compactor-daemon status {path}", "says whose it was, and changes nothing"))
    waiting = [one for one in pending if one["action"] == "compaction" and one["problem"] is None]
    if waiting and row["health"] != "ok":
        why = f"{plural(len(waiting), 'compaction')} pending"
        does = "executes them in this process, or waits for the one that works on them"
        found.append(_one(why, f"compactor-daemon compact {path}", does))
    return found


def _of_debt(row: Row, told: _Told) -> list[Row]:
    commits = row.get("delta_commits_since_request", 0)
    if not row.get("file_groups_waiting") or commits < _TRIGGER.max_delta_commits:
        return []
    return [told.order(_waiting(row), OrderName.SCHEDULE, None, _SCHEDULES)]
