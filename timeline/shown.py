"""How a result shows itself. In a notebook: its fields as a table of HTML; a list of results is a table of its own.
As a text: the fields that hold something, in a line."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any

_ROWS = 20
"""The most items of a collection that are shown, and the most characters of a text."""
_CHARACTERS = 200


_TEXT = 60
"""The most characters of a value in a line."""


class Shown:
    """A dataclass that notebooks show as a table, and whose `repr` is short."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        cls.__repr__ = _line  # type: ignore[method-assign]  # in the class itself: there `dataclass` leaves it

    def _repr_html_(self) -> str:
        return f"<b>{type(self).__name__}</b>{_fields(self)}"


def as_html(columns: Sequence[str], rows: Sequence[Sequence[Any]], total: int | None = None) -> str:
    """A table: texts are escaped and cut. `total`: the number of rows, of which these are the first."""
    head = "".join(f"<th>{html.escape(one)}</th>" for one in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(one)}</td>' for one in row)}</tr>" for row in rows)
    more = f"<caption>the first {len(rows)} of {total:,}</caption>" if total is not None and total > len(rows) else ""
    return f"<table>{more}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _line(value: Any) -> str:
    said = ", ".join(f"{name}={_word(one)}" for name, one in _held(value) if not _is_empty(one))
    return f"{type(value).__name__}({said})"


def _held(value: Any) -> list[tuple[str, Any]]:
    """The fields that may be shown: secrets are in others."""
    return [(one.name, getattr(value, one.name)) for one in fields(value) if one.repr]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Collection) and not value)


def _word(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.name)
    if isinstance(value, float):
        return str(round(value, 6))
    text = repr(value)
    if len(text) <= _TEXT and "\n" not in text:
        return text
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return f"<{len(value):,} item{'s' * (len(value) != 1)}>"
    return f"<{type(value).__name__}>" if "\n" in text else f"{text[:_TEXT]}..."


def _fields(value: Any) -> str:
    return as_html(("field", "value"), _held(value))


def _cell(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return ""
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        rows = list(islice(value.items(), _ROWS))
        return as_html(("name", "value"), rows, len(value)) if rows else ""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return _items(list(islice(value, _ROWS)), len(value))
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return html.escape(text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}...")


def _items(shown: Sequence[Any], total: int) -> str:
    if shown and all(is_dataclass(one) and type(one) is type(shown[0]) for one in shown):
        names = [name for name, _ in _held(shown[0])]
        return as_html(names, [[_short(item) for _, item in _held(one)] for one in shown], total)
    return ", ".join(map(_cell, shown)) + (f" and {total - len(shown):,} more" if total > len(shown) else "")


def _short(value: Any) -> Any:
    """What a row shows of a value: of a collection how many items it has."""
    if is_dataclass(value):
        return str(value)
    return len(value) if isinstance(value, Collection) and not isinstance(value, str | bytes) else value
