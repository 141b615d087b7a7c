"""Rows of plain values as tables that fit the terminal; sizes, durations and times in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..errors import UsageError
from ..format.instant import parse_time


def human_bytes(size: int | None) -> str | None:
    """1536 -> '1.5 KiB'; None for None."""
    if size is None:
        return None
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if round(abs(value), 1) < 1024:
            return f"{value:,.1f} {unit}"
    return f"{value / 1024:,.1f} PiB"


def human_duration(seconds: float) -> str:
    """5400 -> '1 h 30 min': the two largest units."""
    if seconds < 0:
        return f"-{human_duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    parts = [f"{n} {u}" for n, u in ((days, "d"), (hours, "h"), (minutes, "min"), (whole % 60, "s")) if n]
    return " ".join(parts[:2])


SHOWN = 40
"""The most rows that a command shows of a long table; JSON has all."""


def first_rows(title: str, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> RowsTable:
    """A table of the first rows; the title says so."""
    more = f", {SHOWN} of {len(rows)} shown (--json has all)" if len(rows) > SHOWN else ""
    return RowsTable(f"{title}{more}", columns, rows[:SHOWN])


def plural(count: int, noun: str) -> str:
    """(2, 'file group') -> '2 file groups'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


Row: TypeAlias = dict[str, Any]


def moment(time: str) -> datetime | None:
    """The time that an instant time names, or None for artificial ones such as `00000000000001`."""
    try:
        return parse_time(time)
    except (UsageError, ValueError):
        return None


_SHORTENED_COLUMNS = 9
"""Smallest width of a column that is shortened: `4b9809df…`."""
_WRAPPED_COLUMNS = 6
"""Smallest width of a column whose words break."""
_INSTANT_COLUMNS = 17
_WORD_COLUMNS = 24
"""Length of the longest words that break last: instants, titles, names of options. Longer ones are paths."""
_NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of rows. `shorten`: shorten its cells, with an ellipsis, if the terminal is too narrow."""

    title: str
    cell: Callable[[Mapping[str, Any]], str | Text | None]
    right: bool = False
    shorten: bool = False

    def text(self, row: Mapping[str, Any]) -> Text:
        """The row's cell; a dash for no value."""
        cell = self.cell(row)
        return Text(_NONE, "dim") if cell is None else Text(cell) if isinstance(cell, str) else cell


def numbers(title: str, key: str = "") -> Column:
    """A column of numbers, their digits in groups of three; the key of the values is the title if none is given."""
    key = key or _key(title)
    return Column(title, lambda row: None if row[key] is None else f"{row[key]:,}", right=True)


def sizes(title: str, key: str = "") -> Column:
    """A column of numbers of bytes; `key`: see `numbers`."""
    key = key or _key(title)
    return Column(title, lambda row: human_bytes(row[key]), right=True)


def _key(title: str) -> str:
    return title.replace(" ", "_")


Columns: TypeAlias = Sequence[Column | str]
"""A title alone: a column of the values of that key, as they are."""


@dataclass(frozen=True, slots=True)
class RowsTable:
    """A rich renderable. If the terminal is too narrow, these steps apply in order until the table fits: shorten the
    columns that allow it, omit columns without any value, wrap cells between words, narrow the gaps, wrap words, wrap
    instants."""

    title: str
    columns: Columns
    rows: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = (Column(one, plain(_key(one))) if isinstance(one, str) else one for one in self.columns)
        shown = [_Shown(column, [column.text(row) for row in self.rows]) for column in columns]
        if not _fits([one.least for one in shown], options.max_width):
            shown = [one for one in shown if any(cell.plain != _NONE for cell in one.cells)]
        gap = 2 if _fits([one.least_wrapped for one in shown], options.max_width) else 1
        widths = _widths(shown, options.max_width, gap)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, padding=(0, gap - 1))
        for one, width in zip(shown, widths, strict=True):
            table.add_column(
                Text(one.column.title),
                justify="right" if one.column.right else "left",
                overflow="ellipsis" if one.column.shorten else "fold",
                width=width,
                no_wrap=one.column.shorten or width >= one.widest,
            )
        for line in zip(*(one.cells for one in shown), strict=True):
            table.add_row(*line)
        yield Text(self.title, "bold")
        yield table


@dataclass(frozen=True, slots=True)
class _Shown:
    column: Column
    cells: Sequence[Text]

    @property
    def widest(self) -> int:
        """The smallest width in which no value wraps."""
        return max([len(self.column.title), *(cell.cell_len for cell in self.cells)])

    @property
    def least(self) -> int:
        """The smallest width in which no value wraps, after shortening."""
        return min(self.widest, max(_SHORTENED_COLUMNS, self.differing)) if self.column.shorten else self.widest

    @property
    def differing(self) -> int:
        """The smallest width in which shortened values still differ: buckets of Hudi begin with zeros."""
        values = {cell.plain for cell in self.cells}
        widths = range(_WRAPPED_COLUMNS, self.widest)
        return next((n for n in widths if len({value[: n - 1] for value in values}) == len(values)), self.widest)

    @property
    def least_wrapped(self) -> int:
        """The smallest width in which no word breaks, such as an instant or the title: parts of one are of no use."""
        if self.column.shorten:
            return self.least
        words = [len(word) for text in (self.column.title, *(c.plain for c in self.cells)) for word in text.split()]
        long = _WRAPPED_COLUMNS if max(words, default=0) > _WORD_COLUMNS else 1
        return min(self.widest, max([long, *(length for length in words if length <= _WORD_COLUMNS)]))

    @property
    def least_of_an_instant(self) -> int:
        """The smallest width in which no instant breaks: parts of one cannot be copied. Other columns may be narrow."""
        if self.column.shorten:
            return self.differing
        words = (word for cell in self.cells for word in cell.plain.split())
        has_instant = any(len(w) == _INSTANT_COLUMNS and w.isdigit() for w in words)
        return self.least_wrapped if has_instant else min(_WRAPPED_COLUMNS, self.widest)


def _fits(widths: Sequence[int], width: int, gap: int = 2) -> bool:
    return sum(widths) + gap * (len(widths) - 1) <= width


def _widths(shown: Sequence[_Shown], width: int, gap: int) -> list[int]:
    """The width of each column: the widest become narrower first; words break last, instants after all other words."""
    widths = [one.widest for one in shown]
    for floors in (
        [one.least for one in shown],
        [one.least_wrapped for one in shown],
        [one.least_of_an_instant for one in shown],
        [_WRAPPED_COLUMNS for _ in shown],
    ):
        while not _fits(widths, width, gap):
            spare, _, number = max((w > floor, w, n) for n, (w, floor) in enumerate(zip(widths, floors, strict=True)))
            if not spare:
                break
            widths[number] -= 1
    return widths


Cell = Callable[[Mapping[str, Any]], str | None]


def plain(key: str) -> Cell:
    """A value as it is; an empty text is none."""
    return lambda row: None if row[key] in (None, "") else str(row[key])


def duration(key: str) -> Cell:
    return lambda row: None if row[key] is None else human_duration(row[key])


def age(row: Mapping[str, Any]) -> str | None:
    """How long an instant has been pending; a negative age: the writer has another clock or time zone."""
    return "not yet begun" if (row["age_s"] or 0.0) < 0 else duration("age_s")(row)


_INSTANT = re.compile(r"\b20[0-9]{15}\b")


def spoken(text: str) -> str:
    """A text for people: its instants as date and time."""
    return _INSTANT.sub(lambda found: readable(found[0]), text)


def readable(time: str) -> str:
    """An instant as date and time; one that is no time as it is."""
    when = moment(time)
    return time if when is None else when.strftime("%Y-%m-%d %H:%M:%S")


def labelled(label: str, style: str, text: str) -> Text:
    return Text.assemble((f"{label}:", style), f" {text}")


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names and values, one pair per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    return grid
