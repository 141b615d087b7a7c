"""What can be done about a table, as commands to copy (pure)."""

from __future__ import annotations

import shlex

from ..planning.triggers import TriggerOptions
from ..terminal.plain import Row, human_bytes, plural

_TRIGGER = TriggerOptions()


def advice(row: Row) -> list[Row]:
    """`why`, `command` and what it `does`, most urgent first. `row`: the whole row of a table."""
    path = shlex.quote(row["path"])
    found = [*_of_crew(row, path), *_of_pending(row, path), *_of_debt(row, path)]
    if row["health"] == "broken":
        found.insert(0, _one("what is wrong, file by file", f"timeline audit {path}", "changes nothing"))
    commands: dict[str, Row] = {}
    for one in found:
        commands.setdefault(one["command"], one)
    return list(commands.values())


def _one(why: str, command: str, does: str) -> Row:
    return {"why": why, "command": command, "does": does}


def _of_crew(row: Row, path: str) -> list[Row]:
    crew = row.get("crew") or {}
    found = []
    for one in crew.get("pending", ()):
        why = f"compaction {one['instant']} is {one['state']}" + (f": {one['why']}" if one["why"] else "")
        if one["state"] == "parked":
            does = "removes its recorded failures, so that daemons try it again"
            found.append(_one(why, f"compactor-daemon release {path} {one['instant']}", does))
        elif one["state"] == "unscheduled":
            does = "takes the plan back"
            found.append(_one(why, f"compactor-daemon unschedule {path} {one['instant']}", does))
    for half in crew.get("half_way", ()):
        why = f"{half['action']} {half['instant']} is half-way"
        command = half["todo"].replace("TABLE", path).replace("INSTANT", half["instant"])
        found.append(_one(why, command, "finishes it, if its process is dead"))
    return found


def _of_pending(row: Row, path: str) -> list[Row]:
    pending = row.get("pending", ())
    found = []
    for one in pending:
        if one["problem"] is not None:
            does = "takes back the plan that cannot be read; it refuses where a process may be at work"
            command = f"compactor-daemon unschedule {path} {one['instant']}"
            found.append(_one(f"the plan of {one['instant']} cannot be read", command, does))
        elif one["heartbeat"] == "stale" and one["action"] == "deltacommit":
            why = f"the writer of {one['instant']} is silent; the next write rolls it back"
            found.append(_one(why, f"compactor-daemon status {path}", "says whose it was, and changes nothing"))
    waiting = [one for one in pending if one["action"] == "compaction" and one["problem"] is None]
    if waiting and row["health"] != "ok":
        why = f"{plural(len(waiting), 'compaction')} pending"
        does = "executes them in this process, or waits for the one that works on them"
        found.append(_one(why, f"compactor-daemon compact {path}", does))
    return found


def _of_debt(row: Row, path: str) -> list[Row]:
    groups, commits = row.get("file_groups_waiting", 0), row.get("delta_commits_since_request", 0)
    if not groups or commits < _TRIGGER.max_delta_commits:
        return []
    why = f"{plural(groups, 'file group')} with {human_bytes(row['log_bytes_waiting'])} of logs in no plan"
    return [_one(why, f"compactor-daemon schedule {path}", "requests a compaction of them; writers go on")]
