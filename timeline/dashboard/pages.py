"""The pages as HTML, made on the server (pure): they need no script.

A table's page has commands to copy, some of which are orders, with buttons; what a pending instant blocks; and the
timeline as bars, each from an instant's request to its completion."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..instants.triggers import TriggerOptions
from ..terminal.text_table import Row, human_bytes, human_duration, moment, plural
from .orders import CommandSettings, Order, OrderName, shown
from .overview import is_late
from .verdict import Health

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
        command = half["todo"].replace("TABLE", path).replace("INSTANT", half["instant"])
        found.append(_one(why, command, "finishes it, if its process is dead"))
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


_PLANNED = {
    "compaction": "other plans for its file groups",
    "logcompaction": "other plans for its file groups",
    "clustering": "compactions and writes of its file groups",
}
_NO_WRITES = frozenset({"clean", "rollback", "restore", "savepoint", "indexing"})


def held_back(pending: Sequence[Row], fleet_info: Row | None) -> dict[str, str]:
    """What each pending instant blocks, by its time. `pending`: oldest first. `fleet_info`: has awaited writes."""
    waiting = {one["instant"]: one["holds"] for one in (fleet_info or {}).get("writes", ())}
    writes = [row["instant"] for row in pending if row["action"] not in _NO_WRITES]
    found = {}
    for row in pending:
        time, kind, words = row["instant"], row.get("kind", row["action"]), []
        if row is pending[0]:
            words.append("archiving of later instants")
        if time in writes[:1]:
            words.append("cleaning of later writes")
        if kind in _PLANNED:
            words.append(_PLANNED[kind])
        if held := waiting.get(time):
            words.append(f"the end of {plural(len(held), 'compaction')}: {', '.join(held)}")
        found[time] = "; ".join(words)
    return found


WIDTH = 1000
"""The width of all the time shown."""
HEIGHT = 60
_LEAST = 6
_MARGIN = 4
SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One instant: `x` and `width` in thousandths of the time shown. `took_s`: None if the end is unknown."""

    instant: Row
    kind: str
    x: int
    width: int
    open: bool
    took_s: float | None
    label: str


def bars(instants: Sequence[Row], now: datetime) -> list[Bar]:
    """The newest instants, newest first. `now` is in the table's zone. Pending ones are open to the right: the time
    shown ends a quarter after the last event, or now if that is earlier."""
    newest = [(row, begun) for row in instants if (begun := moment(row["instant"])) is not None][-SHOWN:]
    if not newest:
        return []
    first = min(begun for _, begun in newest)
    ends = [_end(row, begun) for row, begun in newest]
    last = max(begun if end is None else end for (_, begun), end in zip(newest, ends, strict=True))
    today = now.replace(tzinfo=None)
    edge = max(min(today, last + (last - first) / _MARGIN), last) if None in ends else last
    whole_s = max((edge - first).total_seconds(), 0.001)

    def place(at: datetime) -> int:
        return round((at - first).total_seconds() / whole_s * WIDTH)

    found = [
        _bar(row, place(begun), place(end or edge), ((end or max(today, begun)) - begun).total_seconds())
        for (row, begun), end in zip(newest, ends, strict=True)
    ]
    return found[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    kind: str
    bars: tuple[Bar, ...]


_ORDER = ("deltacommit", "compaction", "logcompaction", "replacecommit", "clustering", "clean", "rollback", "restore")


def pools(found: Sequence[Bar]) -> list[BarRow]:
    """The bars in rows, one for each kind, writes first."""
    kinds = sorted({bar.kind for bar in found}, key=lambda k: (_ORDER.index(k) if k in _ORDER else len(_ORDER), k))
    return [BarRow(kind=kind, bars=tuple(bar for bar in found[::-1] if bar.kind == kind)) for kind in kinds]


def curve(values: Sequence[float]) -> str:
    """The points of a line from left to right, for a box of `WIDTH` by `HEIGHT`; "" for fewer than two values."""
    if len(values) < 2:
        return ""
    most = max(values) or 1.0
    step = WIDTH / (len(values) - 1)
    return " ".join(f"{n * step:.0f},{HEIGHT - value / most * (HEIGHT - 4) - 2:.1f}" for n, value in enumerate(values))


def _end(row: Row, begun: datetime) -> datetime | None:
    """When an instant completed, if that is recorded; None while it is pending."""
    if row["state"] != "completed":
        return None
    done = moment(row["completion_time"]) if row["completion_time"] else None
    return max(done, begun) if done is not None else begun


def _bar(row: Row, x: int, end: int, seconds: float) -> Bar:
    pending = row["state"] != "completed"
    took = seconds if pending or row["completion_time"] else None
    text = "end not recorded" if took is None else f"{took:.1f} s"
    width = max(end - x, _LEAST)
    kind = str(row.get("kind", row["action"]))
    label = f"{kind} {row['instant']}, {row['state']}, {text}"
    x = min(x, WIDTH - width)
    return Bar(instant=row, kind=kind, x=x, width=width, open=pending, took_s=took, label=label)


_FOLDER = Path(__file__).parent
_MARKS = {"broken": "✖", "needs care": "▲", "well": "●", "danger": "✖", "warning": "▲", "info": "●"}
_SOON = 0.8


def login_page(*, wrong: bool = False) -> str:
    """The form for the token. `wrong`: the given token was wrong."""
    return _render("login.html", wrong=wrong)


def tables_page(rows: Sequence[Row], *, again: bool = True) -> str:
    """All tables. `rows`: of `TableRows.all`. `again`: whether the page reloads itself after a while."""
    counts = Counter(row["health"] for row in rows)
    worse = ", ".join(
        f"{counts[one.value]} {one.value}" for one in Health if one is not Health.WELL and counts[one.value]
    )
    shown = [{**_BROKEN, **row, "slo": _slo(row)} for row in rows]
    return _render("tables.html", rows=shown, worse=worse, again=again)


def table_page(
    row: Row,
    now: datetime | None,
    settings: CommandSettings = _SETTINGS,
    *,
    proof: str | None = None,
    ordered: Sequence[Row] = (),
    again: bool = True,
) -> str:
    """One table. `row`: of `TableRows.one`, with `whole`. `now`: in the table's zone, if it can be read. `proof`: for
    the forms of orders; None: orders are commands to copy. `ordered`: the last orders. `again`: see `tables_page`."""
    shown = bars(row["instants"], now) if now is not None else []
    return _render(
        "table.html",
        row={**_BROKEN, **row},
        bars=shown,
        pools=pools(shown),
        advice=advice(row, settings),
        more=more_orders(row, settings),
        proof=proof,
        ordered=ordered,
        slo=_slo(row),
        holds=held_back(row.get("pending") or (), row.get("fleet_info")),
        again=again,
        curves=[(name, curve([s[name] or 0 for s in row.get("trend", ())])) for name in ("log_bytes", "log_files")],
    )


def groups_page(name: str, page: Row) -> str:
    """The file groups of a table. `page`: of `details.groups_page`."""

    def link(**changed: object) -> str:
        given = {"sort": page["sort"], "partition": page["partition"], "page": 1, **changed}
        return "?" + urlencode({k: v for k, v in given.items() if v not in (None, "")})

    return _render("groups.html", name=name, page=page, link=link)


def instant_page(name: str, page: Row) -> str:
    """One instant. `page`: of `details.instant_page`."""
    return _render("instant.html", name=name, page=page)


def fleet_page(fleet: Row, *, again: bool = True) -> str:
    """The processes of the compactor. `fleet`: of `FleetInfo.fleet`, with the work on the tables."""
    return _render("fleet.html", fleet=fleet, again=again)


def error_page(status: int, reason: str) -> str:
    return _render("error.html", status=status, reason=reason)


def _slo(row: Row) -> Row | None:
    """The age of the oldest pending compaction relative to the SLO: `width` of 1000, and a word for its colour."""
    goal, age = row.get("slo_s"), row.get("oldest_pending_s")
    if not goal or age is None:
        return None
    part = age / goal
    word = "late" if is_late(age, goal) else "soon" if part >= _SOON else "ok"
    return {"width": round(min(1.0, part) * 1000), "word": word, "percent": round(part * 100)}


_BROKEN: Row = dict.fromkeys(
    ("table", "pending", "oldest_pending_s", "delta_commits_since_compaction", "log_files", "log_bytes", "last_write",
     "read_amplification", "fleet_info", "fleet_info_problem", "compactions", "instants", "slo_s", "lock", "work",
     "next_plan", "seconds_since_write", "findings")
)  # fmt: skip
"""Keys that the row of an unreadable table lacks."""


def _render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(marks=_MARKS, **{"again": None, **values})


@cache
def _environment() -> Environment:
    made = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    made.filters.update(
        age=lambda seconds: "" if seconds is None else human_duration(seconds),
        size=lambda count: "" if count is None else human_bytes(count),
        shown=lambda value: "" if value is None else value,
        number=lambda value: "" if value is None else f"{value:,}",
        quoted=lambda text: shlex.quote(str(text)),
        segment=lambda text: quote(str(text), safe=""),
        parts=lambda text: str(text).split("`"),
    )
    return made


@cache
def style() -> bytes:
    return (_FOLDER / "page.css").read_bytes()
