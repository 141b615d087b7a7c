"""How a result shows itself, by the fields that hold something. In a notebook: a table of HTML; a list of results is a
table of its own. As a text: a line. Of options within a result only those are shown that differ from the defaults."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any, TypeVar

_T = TypeVar("_T")
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
    head = "".join(f"<th {_LEFT}>{html.escape(one)}</th>" for one in columns)
    body = "".join(f"<tr>{''.join(f'<td {_LEFT}>{_cell(one)}</td>' for one in row)}</tr>" for row in rows)
    more = f"<caption>the first {len(rows)} of {total:,}</caption>" if total is not None and total > len(rows) else ""
    return f"<table>{more}{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


_LEFT = 'style="text-align:left;vertical-align:top"'
"""Notebooks put cells to the right: names and values would be far from each other."""


class Results(tuple[_T, ...]):
    """Several results: a tuple that notebooks show as one table, a row each."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _items(self[:_ROWS], len(self)) if self else "none"


def _line(value: Any, *, inner: bool = False) -> str:
    return f"{type(value).__name__}({_pairs(value, inner)})"


def _pairs(value: Any, inner: bool) -> str:
    return ", ".join(f"{name}={_word(one)}" for name, one in _held(value, inner))


def _held(value: Any, inner: bool = False) -> list[tuple[str, Any]]:
    """The fields that hold something; of an `inner` value without those that are as by default. Secrets are in fields
    that are not shown."""
    every = ((one, getattr(value, one.name)) for one in fields(value) if one.repr)
    return [(one.name, v) for one, v in every if not (_is_empty(v) or (inner and _is_default(one, v)))]


def _is_default(of: Field[Any], value: Any) -> bool:
    default = of.default_factory() if of.default_factory is not MISSING else of.default
    return type(value) is type(default) and bool(value == default)


def _is_empty(value: Any) -> bool:
    if is_dataclass(value):
        return not _held(value, inner=True)
    return value is None or (isinstance(value, Collection) and not value)


def _word(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.name)
    if isinstance(value, float):
        return str(round(value, 6))
    text = _line(value, inner=True) if is_dataclass(value) else repr(value)
    if len(text) <= _TEXT and "\n" not in text:
        return text
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return f"<{len(value):,} item{'s' * (len(value) != 1)}>"
    return f"<{type(value).__name__}>" if "\n" in text else f"{text[:_TEXT]}..."


def _fields(value: Any, *, inner: bool = False) -> str:
    return as_html((), _held(value, inner))


def _cell(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return ""
    if is_dataclass(value):
        alone = [held for _, held in _held(value, inner=True)]
        return _cell(alone[0]) if len(alone) == 1 and is_dataclass(alone[0]) else _fields(value, inner=True)
    if isinstance(value, float):
        value = round(value, 6)
    if isinstance(value, Mapping):
        rows = list(islice(value.items(), _ROWS))
        return as_html((), rows, len(value)) if rows else ""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return _items(list(islice(value, _ROWS)), len(value))
    text = f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    text = f"<{type(value).__name__}>" if "\n" in text else text
    return html.escape(text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}...")


def _items(shown: Sequence[Any], total: int) -> str:
    if shown and all(is_dataclass(one) and type(one) is type(shown[0]) for one in shown):
        held = [dict(_held(one)) for one in shown]
        names = [one.name for one in fields(shown[0]) if any(one.name in row for row in held)]
        return as_html(names, [[_short(row.get(name)) for name in names] for row in held], total)
    return ", ".join(map(_cell, shown)) + (f" and {total - len(shown):,} more" if total > len(shown) else "")


def _short(value: Any) -> Any:
    """What a row shows of a value: of a collection how many items it has."""
    if is_dataclass(value):
        return _pairs(value, inner=True)
    return len(value) if isinstance(value, Collection) and not isinstance(value, str | bytes) else value
