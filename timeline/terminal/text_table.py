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
        return Text("–", "dim") if cell is None else Text(cell) if isinstance(cell, str) else cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTable:
    """A rich renderable. First the columns marked `shorten` are shortened; only if that is not enough, cells wrap."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[column.text(row) for row in self.rows] for column in self.columns]
        least = sum(
            _SHORTENED_COLUMNS if column.shorten else max([len(column.title), *(c.cell_len for c in texts)])
            for column, texts in zip(self.columns, cells, strict=True)
        )
        fits = least + 2 * len(self.columns) <= options.max_width
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        for column in self.columns:
            table.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                overflow="ellipsis" if column.shorten else "fold",
                min_width=_SHORTENED_COLUMNS if column.shorten else None,
                no_wrap=fits and not column.shorten,
            )
        for line in zip(*cells, strict=True):
            table.add_row(*line)
        yield Text(self.title, "bold")
        yield table


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names and values, one pair per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    return grid
