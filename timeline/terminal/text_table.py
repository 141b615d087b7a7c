"""Rows of plain values as tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_SHORTENED_COLUMNS = 9
"""Smallest width of a column that is shortened: `4b9809df…`."""

_WRAPPED_COLUMNS = 6
"""A width in which text that wraps can still be read."""

_WORD_COLUMNS = 17
"""The digits of an instant."""

_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table of rows. `shorten`: shorten it, with an ellipsis, if the terminal is too narrow."""

    title: str
    cell: Callable[[Mapping[str, Any]], str | Text | None]
    right: bool = False
    shorten: bool = False

    def text(self, row: Mapping[str, Any]) -> Text:
        """The row's cell; a dash for no value."""
        cell = self.cell(row)
        return Text(_NONE, "dim") if cell is None else Text(cell) if isinstance(cell, str) else cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTable:
    """A rich renderable. Where the terminal is too narrow, in this order, until that is enough: columns that may be
    shortened are, columns without any value are left out, cells wrap. An instant wraps last.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [_Shown(column, [column.text(row) for row in self.rows]) for column in self.columns]
        if not _fits(shown, [one.least for one in shown], options.max_width):
            shown = [one for one in shown if not one.is_empty]
        fits = _fits(shown, [one.least for one in shown], options.max_width)
        whole = _fits(shown, [one.least if one.is_one_word else _WRAPPED_COLUMNS for one in shown], options.max_width)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        for one in shown:
            column = one.column
            table.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                overflow="ellipsis" if column.shorten else "fold",
                min_width=one.least if column.shorten or (whole and one.is_one_word) else None,
                no_wrap=not column.shorten and (fits or (whole and one.is_one_word)),
            )
        for line in zip(*(one.cells for one in shown), strict=True):
            table.add_row(*line)
        yield Text(self.title, "bold")
        yield table


@dataclass(frozen=True, slots=True)
class _Shown:
    """A column with its cells."""

    column: Column
    cells: Sequence[Text]

    @property
    def least(self) -> int:
        """The width without which something wraps."""
        widest = max([len(self.column.title), *(cell.cell_len for cell in self.cells)])
        return min(widest, _SHORTENED_COLUMNS) if self.column.shorten else widest

    @property
    def is_one_word(self) -> bool:
        """Whether its cells are short words such as instants, which are of no use in pieces."""
        return not self.column.shorten and all(c.cell_len <= _WORD_COLUMNS and " " not in c.plain for c in self.cells)

    @property
    def is_empty(self) -> bool:
        """Whether it has no value."""
        return all(cell.plain == _NONE for cell in self.cells)


def _fits(shown: Sequence[_Shown], widths: Sequence[int], width: int) -> bool:
    return sum(widths) + 2 * len(shown) <= width


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names and values, one pair per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    return grid
