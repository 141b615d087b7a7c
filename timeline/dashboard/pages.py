"""The pages as HTML, made on the server (pure): they need no script."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..report.health import Word
from ..report.values import is_late
from ..terminal.text_table import Row, human_bytes, human_duration
from .orders import CommandSettings
from .page_parts import advice, bars, curve, held_back, more_orders, pools

_SETTINGS = CommandSettings()
_FOLDER = Path(__file__).parent
_MARKS = {"broken": "✖", "stuck": "■", "late": "▲", "ok": "●"}
_SOON = 0.8


def login_page(*, wrong: bool = False) -> str:
    """The form for the token. `wrong`: the given token was wrong."""
    return _render("login.html", wrong=wrong)


def tables_page(rows: Sequence[Row], *, again: bool = True) -> str:
    """All tables. `rows`: of `TableRows.all`. `again`: whether the page reloads itself after a while."""
    counts = Counter(row["health"] for row in rows)
    worse = ", ".join(
        f"{counts[word.value]} {word.value}" for word in Word if word is not Word.OK and counts[word.value]
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
    the forms of orders; None: orders are commands to copy. `ordered`: the last orders. `again`: see `tables_page`.
    """
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
    """The page of an error: its status and reason."""
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
     "next_plan", "seconds_since_write")
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
    )
    return made


@cache
def style() -> bytes:
    """The style sheet."""
    return (_FOLDER / "page.css").read_bytes()
