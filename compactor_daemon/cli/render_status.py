"""Renders what `compactor_daemon.status.status` computed, for a terminal (pure: dicts in, rich renderables out)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.dashboard.verdict import SILENCED, health_word
from phantombase.timeline.terminal.text_table import (
    Column,
    Row,
    RowsTable,
    age,
    duration,
    facts_grid,
    human_bytes,
    human_duration,
    labelled,
    numbers,
    plain,
    plural,
    readable,
    sizes,
    spoken,
)

_NAMED = 2
"""Up to this many compactions that wait for a write are named; more are counted."""
_STATES = {
    "unknown": "bold red",
    "unscheduled": "red",
    "decided": "green",
    "invalid": "red",
    "running": "green",
    "foreign": "magenta",
    "parked": "bold red",
    "backing off": "yellow",
    "waiting": "cyan",
}
HEALTH = {"broken": "bold red", "needs care": "yellow", "well": "green"}
_SEVERITIES = {"danger": "bold red", "warning": "yellow", "info": "cyan"}


def status(data: Row) -> Iterator[RenderableType]:
    """The pending compactions, why they wait, the writes that they wait for, and the last completed ones."""
    if "health" in data:
        yield Text(health_word(data), HEALTH[data["health"]]) if data["findings"] else data["reason"]
        yield from _findings(data["findings"])
        yield ""
    if "pending" not in data:
        return
    pending, writes, recent = data["pending"], data["writes"], data["recent"]
    if data["claims_problem"]:
        yield labelled("claims unknown", "bold red", data["claims_problem"])
    for row in () if "health" in data else data["paused"]:  # else a finding has it
        yield labelled("paused", "bold red" if row["problem"] else "magenta", row["what"])
    if pending:
        late = f", {data['overdue']:,} overdue" if data["overdue"] else ""
        title = f"{plural(len(pending), 'pending compaction')}{late}"
        yield RowsTable(title, _PENDING_COLUMNS, pending)
        reasons = list(_reasons(pending))
        yield from ("", *reasons) if reasons else ()
    else:
        yield "No compaction is pending."
    if clusterings := data["clusterings"]:
        yield ""
        yield RowsTable(plural(len(clusterings), "pending clustering"), _PENDING_COLUMNS, clusterings)
        yield from ("", *_reasons(clusterings))
    yield from _outlook(data)
    if writes:
        yield ""
        yield RowsTable(plural(len(writes), "pending write"), _WRITE_COLUMNS, writes)
        yield from _writers(writes)
    for row in data["in_progress"]:
        yield labelled(
            "in progress", "yellow", f"{row['action']} {row['instant']}; if its process is dead: {row['todo']}"
        )
    if data["services"]:
        yield ""
        for row in data["services"]:
            label, style = ("service failed", "bold red") if row["failed"] else ("service", "green")
            failing = f", failing for {human_duration(row['failing_s'])}" if row["failing_s"] is not None else ""
            when = "unknown" if row["service"] is None else f"{row['service']}, {human_duration(row['ago_s'])} ago"
            yield labelled(label, style, f"{when}{failing}: {row['what']}")
    if recent:
        yield ""
        yield RowsTable("completed last", _RECENT_COLUMNS, recent)
        for row in recent:
            if row["problem"]:
                yield labelled("problem", "bold red", f"{row['instant']}: {row['problem']}")


def checked(data: Row) -> Iterator[RenderableType]:
    """The findings of each table that is not well, and how many are."""
    rows = data["tables"]
    for row in rows:
        if row["findings"]:
            yield labelled(row["name"], HEALTH[row["health"]], health_word(row))
            yield from _findings(row["findings"])
            yield ""
    each = health_counts(rows)
    yield plural(len(rows), "table") + (f": {each}" if each else "")


def health_counts(rows: list[Row]) -> str:
    counts = Counter(map(health_word, rows))
    return ", ".join(f"{counts[one]:,} {one}" for one in (*HEALTH, SILENCED) if counts[one])


def _findings(rows: list[Row]) -> Iterator[RenderableType]:
    for row in rows:
        yield labelled(row["severity"], _SEVERITIES[row["severity"]], f"{row['what']} ({row['found']})")
        yield Text(f"  {row['todo']}", "dim")


def _outlook(data: Row) -> Iterator[RenderableType]:
    """When the next plan is due, what it would find, the last success, and what a clean could remove."""
    facts: dict[str, str] = {}
    if (ahead := data.get("next_plan")) is not None:
        by = "freshness" if (data.get("freshness") or {}).get("goal_s") else ahead.get("trigger")
        facts["next plan"] = ahead["problem"] or f"{_due(ahead)} ({by})"
        if not ahead["problem"] and ahead["due"]:
            facts["requested by"] = "a daemon with --schedule, a writer's .schedule(), or `compactor-daemon schedule`"
        for one in ahead.get("triggers", ()):
            if one["trigger"] != ahead["trigger"]:
                facts[f"  by {one['trigger']}"] = _due(one)
    if (backlog := data.get("backlog")) is not None:
        facts["backlog"] = backlog["problem"] or _backlog(backlog)
    if (fresh := data.get("freshness")) is not None and (fresh["problem"] or "lag_s" in fresh):
        facts["freshness"] = fresh["problem"] or _fresh(fresh)
    if last := data["last_success"]:
        ago = "at an unknown time" if last["ago_s"] is None else f"{human_duration(max(0.0, last['ago_s']))} ago"
        facts["last compaction"] = f"{last['instant']}, {ago}"
    else:
        facts["last compaction"] = "none on the active timeline"
    if (clean := data.get("cleanable")) is not None:
        facts["a clean removes"] = clean["problem"] or _cleanable(clean)
    yield ""
    yield facts_grid(facts)


def _due(row: Row) -> str:
    return f"{'due' if row['due'] else 'not due'}: {spoken(row['why'])}"


def _backlog(row: Row) -> str:
    if not row["file_groups"]:
        return "no log files outside of pending plans"
    files, groups = plural(row["log_files"], "log file"), plural(row["file_groups"], "file group")
    return f"{files}, {human_bytes(row['log_bytes'])}, of {groups} in no plan"


def _fresh(row: Row) -> str:
    text = f"the oldest row in no base file is {human_duration(row['lag_s'])} old" if row["lag_s"] else ""
    text = text or "all rows are in base files"
    if row["goal_s"] is None:
        return text
    return f"{text}, the goal is {human_duration(row['goal_s'])}" + (f": {row['why']}" if row["why"] else "")


def _cleanable(row: Row) -> str:
    if not row["files"]:
        return f"nothing: {row['why']}"
    return f"{plural(row['files'], 'file')}, {human_bytes(row['bytes'])}, with the default of `clean`"


def _reasons(pending: list[Row]) -> Iterator[RenderableType]:
    if logs := [row["instant"] for row in pending if row["action"] == "logcompaction"]:
        yield labelled("log compaction", "green", ", ".join(logs))
    for row in pending:
        if row["why"]:
            silent = f", silent for {human_duration(row['foreign']['silent_s'])}" if row["state"] == "foreign" else ""
            yield labelled(row["state"], _style(row), f"{row['instant']}: {row['why']}{silent}")
        if row["problem"]:
            yield labelled("problem", "bold red", f"{row['instant']}: {row['problem']}")
        if row["state"] == "parked":
            yield Text(f"  to try it again: compactor-daemon release TABLE {row['instant']}", "dim")


def _writers(writes: list[Row]) -> Iterator[RenderableType]:
    dead = [row["instant"] for row in writes if row["alive"] is False and row["holds"]]
    if dead:
        yield labelled("dead", "red", f"{', '.join(dead)}: compactions wait until the next writer rolls it back")


def claims(data: Row) -> Iterator[RenderableType]:
    if not data["claims"]:
        yield "No process works on a compaction or clustering."
        return
    yield RowsTable(plural(len(data["claims"]), "claim"), _CLAIM_COLUMNS, data["claims"])


def released(data: Row) -> Iterator[RenderableType]:
    if data["attempt"] is not None:
        files = plural(len(data["files"]), "file")
        verb = "would revert" if data["dry_run"] else "reverted"
        yield f"{verb} attempt {data['attempt']} of {data['instant']}: its decision is invalid, {files} removed"
        return
    if data["failures"]:
        verb = "would release" if data["dry_run"] else "released"
        yield f"{verb} {data['instant']}: {plural(data['failures'], 'failure')} removed, it may be tried again"
    else:
        yield f"nothing to release: {data['instant']} has no failures"


# --- cells -------------------------------------------------------------------------------------------------------


def _age(row: Mapping[str, Any]) -> Text | None:
    text = age(row)
    return None if text is None else Text(text, "bold red" if row.get("overdue") else "")


def _state(row: Mapping[str, Any]) -> Text:
    failures, text = row["failures"], row["state"]
    if text == "backing off" and failures["next_try_s"] is not None:
        text = f"try {failures['count'] + 1} in {human_duration(failures['next_try_s'])}"
    elif text == "parked":
        text = f"parked after {plural(failures['count'], 'failure')}"
    return Text(text, _style(row))


def _style(row: Mapping[str, Any]) -> str:
    waits = row["state"] == "decided" and row["validity"] == "blocked"
    return "yellow" if waits else _STATES[row["state"]]


def _who(work: Mapping[str, Any]) -> str | None:
    return None if work["host"] is None else f"{work['host']}:{work['pid']}"


def _slices(work: Mapping[str, Any]) -> str | None:
    return f"{work['done']:,} of {work['total']:,}" if work["total"] else None


def _of_work(cell: Any) -> Any:
    return lambda row: cell(row["work"]) if row["work"] else None


def _alive(row: Mapping[str, Any]) -> Text:
    if row["alive"] is None:
        return Text("no heartbeat", "dim")
    age = human_duration(max(0.0, row["heartbeat_s"]))
    return Text(f"alive, beat {age} ago", "green") if row["alive"] else Text(f"dead, last beat {age} ago", "red")


def _holds(row: Mapping[str, Any]) -> str | None:
    return ", ".join(row["holds"]) or None if len(row["holds"]) <= _NAMED else plural(len(row["holds"]), "compaction")


_FOR, _PROCESS, _GROUPS = Column("for", _age), Column("process", _who, shorten=True), numbers("groups", "file_groups")
_SINCE, _TRY = duration("for_s"), plain("attempt")
_WORK_COLUMNS = (
    Column("by", _of_work(_who), shorten=True),
    Column("since", _of_work(_SINCE)),
    Column("try", _of_work(_TRY)),
    Column("slices", _of_work(_slices)),
)
_PENDING_COLUMNS = ("instant", _FOR, _GROUPS, sizes("size", "input_bytes"), Column("state", _state), *_WORK_COLUMNS)
_WRITE_COLUMNS = ("instant", "state", _FOR, Column("writer", _alive), _PROCESS, Column("waited for by", _holds))
_COMPLETED = Column("completed", lambda row: row["completion_time"] and readable(row["completion_time"]))
_RECENT_COLUMNS = ("instant", _COMPLETED, "by", _GROUPS, numbers("rows"), sizes("written", "bytes_written"))
_CLAIM_COLUMNS = (
    Column("table", plain("table"), shorten=True),
    "instant",
    Column("by", lambda row: row["holder"] or _who(row)),
    _PROCESS,
    Column("since", _SINCE),
    Column("try", _TRY),
    Column("slices", _slices),
    Column("size", lambda row: human_bytes(row["input_bytes"] or None), right=True),
)
