"""The pages as HTML, made on the server (pure): they need no script, and one helps to filter.

A table's page has commands to copy, some of which are orders, with buttons; what a pending instant blocks; and the
timeline as bars, each from an instant's request to its completion."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..terminal.text_table import Row, human_bytes, human_duration, moment, plural, readable, spoken
from .orders import CommandSettings, advice, more_orders
from .overview import is_late
from .verdict import NOTHING, SILENCED, Health, health_word

_SETTINGS = CommandSettings()

_PLANNED = {
    "compaction": "other plans for its file groups",
    "logcompaction": "other plans for its file groups",
    "clustering": "compactions and writes of its file groups",
}
_NO_WRITES = frozenset({"clean", "rollback", "restore", "savepoint", "indexing"})


_DETAIL = re.compile(r" \((?:requested|waiting)[^)]*\)| \d{17}| \d{14}(?!\d)")


def brief(why: str) -> str:
    """A reason in the one line of an index: without the instants, ages and paths that the page of its table shows."""
    text, cut, _ = _DETAIL.sub("", why).partition("; ")
    return f"{text})" if cut and text.count("(") > text.count(")") else text


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
    newest = _newest(instants)
    if not newest:
        return []
    ends, today = [_end(row, begun) for row, begun in newest], now.replace(tzinfo=None)
    first, edge = time_shown(instants, now)
    whole_s = max((edge - first).total_seconds(), 0.001)

    def place(at: datetime) -> int:
        return round((at - first).total_seconds() / whole_s * WIDTH)

    found = [
        _bar(row, place(begun), place(end or edge), ((end or max(today, begun)) - begun).total_seconds())
        for (row, begun), end in zip(newest, ends, strict=True)
    ]
    return found[::-1]


def _newest(instants: Sequence[Row]) -> list[tuple[Row, datetime]]:
    return [(row, begun) for row in instants if (begun := moment(row["instant"])) is not None][-SHOWN:]


def time_shown(instants: Sequence[Row], now: datetime) -> tuple[datetime, datetime]:
    """The first and the last moment of the bars, of which there is one."""
    newest = _newest(instants)
    ends = [_end(row, begun) for row, begun in newest]
    first = min(begun for _, begun in newest)
    last = max(begun if end is None else end for (_, begun), end in zip(newest, ends, strict=True))
    return first, max(min(now.replace(tzinfo=None), last + (last - first) / _MARGIN), last) if None in ends else last


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    kind: str
    bars: tuple[Bar, ...]


_ORDER = ("deltacommit", "compaction", "logcompaction", "replacecommit", "clustering", "clean", "rollback", "restore")


def pools(found: Sequence[Bar]) -> list[BarRow]:
    """The bars in rows, one for each kind, writes first."""
    kinds = sorted({bar.kind for bar in found}, key=lambda k: (_ORDER.index(k) if k in _ORDER else len(_ORDER), k))
    return [BarRow(kind=kind, bars=tuple(bar for bar in found[::-1] if bar.kind == kind)) for kind in kinds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Values over time: the `points` of a line in a box of `WIDTH` by `HEIGHT`, what the axes begin and end with."""

    what: str
    points: str
    most: str
    begun: str
    ended: str


def chart(what: str, values: Sequence[tuple[float, float]], ages_s: tuple[float, float], shown: str) -> Chart:
    """`values`: by their age in seconds, oldest first; the time shown is between the two `ages_s`. `shown`: the
    greatest value in words."""
    first, last = ages_s
    most, whole = max((value for _, value in values), default=0.0) or 1.0, (first - last) or 1.0
    points = (
        f"{(first - age) / whole * WIDTH:.0f},{HEIGHT - value / most * (HEIGHT - 4) - 2:.1f}" for age, value in values
    )
    begun, ended = (f"{human_duration(age)} ago" if age > 0 else "now" for age in ages_s)
    return Chart(what=what, points=" ".join(points), most=shown, begun=begun, ended=ended)


def charts(row: Row, now: datetime) -> list[Chart]:
    """What the timeline records of delta commits, and what this service has sampled. `now`: in the table's zone."""
    steps = unmerged(row["instants"], now)
    found = []
    if len(steps) > 1:
        most = max(count for _, count in steps)
        found.append(chart("delta commits in no compaction, by the timeline", steps, (steps[0][0], 0.0), f"{most:,}"))
    trend: Sequence[Row] = row.get("trend") or ()
    for name, what, words in (("log_bytes", "bytes of logs", human_bytes), ("log_files", "log files", "{:,}".format)):
        values = [(trend[-1]["at_s"] - one["at_s"], one[name] or 0) for one in trend]
        if len(values) > 1:
            most = max(value for _, value in values)
            found.append(chart(f"{what}, since this service runs", values, (values[0][0], 0.0), str(words(most))))
    return found


def unmerged(instants: Sequence[Row], now: datetime) -> list[tuple[float, int]]:
    """The delta commits that no completed compaction has merged, by age in seconds: two points at each step."""
    begun = [(at, row) for row in instants if (at := moment(row["instant"])) is not None]
    ended = [(end, at, row.get("kind", row["action"])) for at, row in begun if (end := _end(row, at)) is not None]
    steps, waiting, today = list[tuple[float, int]](), list[datetime](), now.replace(tzinfo=None)
    for end, at, kind in sorted(ended):
        before, age_s = len(waiting), max(0.0, (today - end).total_seconds())
        if kind == "compaction":
            waiting = [one for one in waiting if one > at]
        elif kind == "deltacommit":
            waiting.append(end)
        if len(waiting) != before:
            steps += [(age_s, before), (age_s, len(waiting))]
    return [*steps, (0.0, len(waiting))] if steps else []


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
_SOON, _MANY = 0.8, 10


def login_page(*, wrong: bool = False) -> str:
    """The form for the token. `wrong`: the given token was wrong."""
    return _render("login.html", wrong=wrong)


def tables_page(index: Row, given: Mapping[str, str], *, again: bool = True) -> str:
    """The tables of a page. `index`: of `tables_index`, asked with the parameters `given`. `again`: whether the page
    reloads itself after a while."""
    counts = {**index["counts"], SILENCED: index["silenced"]}
    worse = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count and word != Health.WELL.value)
    shown = [
        {**_BROKEN, **row, "slo": _slo(row), "why": _why(row), "word": health_word(row)} for row in index["tables"]
    ]

    def link(**changed: object) -> str:
        return "?" + urlencode({k: v for k, v in {**given, **changed}.items() if v not in (None, "")})

    states, index = [one.value for one in Health], {"age_s": None, "served": 0, **index}
    toggle = link(again="never" if again else None)
    return _render(
        "tables.html", index=index, rows=shown, worse=worse, again=again, link=link, states=states, toggle=toggle
    )


def _why(row: Row) -> str:
    """Why a table is as it is; nothing if there is nothing to say."""
    return "" if row["reason"] == NOTHING else row["reason"]


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
        row={**_BROKEN, **row, "word": health_word(row)},
        bars=shown,
        pools=pools(shown),
        span=[f"{at:%Y-%m-%d %H:%M:%S}" for at in time_shown(row["instants"], now)] if shown and now else (),
        advice=advice(row, settings),
        more=more_orders(row, settings),
        proof=proof,
        ordered=ordered,
        slo=_slo(row),
        holds=held_back(row.get("pending") or (), row.get("fleet_info")),
        again=again,
        charts=charts(row, now) if now is not None else [],
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
    return {
        "width": round(min(1.0, part) * 1000),
        "word": word,
        "said": f"{part:.0%}" if part < _MANY else f"{part:,.0f} times",
    }


_BROKEN: Row = dict.fromkeys(
    ("table", "pending", "oldest_pending_s", "delta_commits_since_compaction", "log_files", "log_bytes", "last_write",
     "read_amplification", "fleet_info", "fleet_info_problem", "compactions", "instants", "slo_s", "lock", "work",
     "next_plan", "seconds_since_write", "findings", "pool", "served_by", "read_optimized_lag_s")
)  # fmt: skip
"""Keys that the row of an unreadable table lacks."""


def _render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(marks=_MARKS, **{"again": None, "toggle": None, **values})


@cache
def _environment() -> Environment:
    made = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    made.filters.update(
        age=lambda seconds: "" if seconds is None else human_duration(seconds),
        size=lambda count: "" if count is None else human_bytes(count),
        shown=lambda value: "" if value is None else value,
        number=lambda value: "" if value is None else f"{value:,}",
        quoted=lambda text: shlex.quote(str(text)),
        segment=lambda text: quote(str(text), safe="", errors="surrogateescape"),
        parts=lambda text: str(text).split("`"),
        when=readable,
        spoken=lambda text: spoken(str(text)),
        brief=brief,
    )
    return made


@cache
def style() -> bytes:
    return (_FOLDER / "page.css").read_bytes()


@cache
def script() -> bytes:
    return (_FOLDER / "page.js").read_bytes()
