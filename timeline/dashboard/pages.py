"""The pages as HTML, made on the server (pure): they need no script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..terminal.plain import Row, human_bytes, human_duration
from .bars import bars

_FOLDER = Path(__file__).parent
_MARKS = {"broken": "✖", "stuck": "■", "late": "▲", "ok": "●"}


def login_page(*, wrong: bool = False) -> str:
    """The form that asks for the token. `wrong`: what was given is not it."""
    return _environment().get_template("login.html").render(wrong=wrong)


def tables_page(rows: Sequence[Row]) -> str:
    """All tables. `rows`: of `table_rows.table_rows`."""
    return _environment().get_template("tables.html").render(rows=[{**_BROKEN, **row} for row in rows], marks=_MARKS)


def table_page(row: Row, now: datetime | None) -> str:
    """One table. `row`: of `table_rows.table_row`, whole. `now`: in the table's zone, if it can be read."""
    shown = bars(row["instants"], now) if now is not None else []
    return _environment().get_template("table.html").render(row={**_BROKEN, **row}, bars=shown, marks=_MARKS)


_BROKEN: Row = dict.fromkeys(
    ("table", "pending", "oldest_pending_s", "delta_commits_since_compaction", "log_files", "log_bytes", "last_write")
)
"""What a table that cannot be read lacks."""


@cache
def _environment() -> Environment:
    made = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    made.filters.update(
        age=lambda seconds: "" if seconds is None else human_duration(seconds),
        size=lambda count: "" if count is None else human_bytes(count),
        shown=lambda value: "" if value is None else value,
    )
    return made


@cache
def style() -> bytes:
    """The style sheet."""
    return (_FOLDER / "page.css").read_bytes()
