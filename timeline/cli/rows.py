"""Rows of a table for a terminal: as many columns as fit into its width, the others named below."""

from __future__ import annotations

import math
from datetime import date, datetime, time
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..codec.avro_schema import META_COLUMNS
from ..terminal.boundary import one_line
from ..terminal.text_table import Column, Row, RowsTable, plural

if TYPE_CHECKING:  # what `show` does not need to start
    import pyarrow as pa

_CELL_MAX = 40
_SPACE = 2


def plain_rows(rows: pa.Table) -> list[Row]:
    import pyarrow as pa  # late: `show` does not need it to start

    # Arrow prints every moment; Python has none after the year 9999.
    texts = [c.cast(pa.string()) if pa.types.is_temporal(c.type) else c for c in rows.columns]
    found = pa.Table.from_arrays(texts, names=rows.schema.names).to_pylist()
    return [{name: plain_value(value) for name, value in row.items()} for row in found]


def plain_value(value: Any) -> Any:
    """A value as JSON has it: moments as text, bytes as hex digits, decimals and floats without a number as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    return str(value)


class ShownRows:
    """A rich renderable of rows as `plain_value` makes them. Without `every_column` Hudi's own columns are left out."""

    def __init__(self, data: Row, *, every_column: bool) -> None:
        self._names: list[str] = data["columns"]
        if not every_column:
            self._names = [name for name in self._names if name not in META_COLUMNS] or self._names
        self._rows = [{name: _cell(value) for name, value in row.items()} for row in data["rows"]]
        self._numbers = {name for row in data["rows"] for name, value in row.items() if _is_number(value)}
        self._more: bool = data["more"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = self._fitting(options.max_width)
        more = " and more; --limit shows them" if self._more else ""
        columns = [Column(n, itemgetter(n), right=n in self._numbers) for n in self._names[:fitting]]
        yield RowsTable(f"{plural(len(self._rows), 'row')}{more}", columns, self._rows)
        if left := self._names[fitting:]:
            yield Text(f"{plural(len(left), 'column')} more; --columns chooses: {', '.join(left)}", "dim")

    def _fitting(self, width: int) -> int:
        """How many columns fit next to each other, at least one."""
        used = 0
        for number, name in enumerate(self._names):
            used += max([cell_len(name), *(cell_len(row[name] or "") for row in self._rows)]) + _SPACE
            if used > width and number:
                return number
        return len(self._names)


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = one_line(str(value).lower() if isinstance(value, bool) else str(value))
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
