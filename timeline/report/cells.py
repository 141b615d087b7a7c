"""How reports look in a terminal: cells of rows, and lines that begin with a label (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from ..terminal.text_table import human_bytes, human_duration, moment

Cell = Callable[[Mapping[str, Any]], str | None]


def plain(key: str) -> Cell:
    """A value as it is."""
    return lambda row: None if row[key] is None else str(row[key])


def count(key: str) -> Cell:
    """A number, its digits in groups of three."""
    return lambda row: None if row[key] is None else f"{row[key]:,}"


def size(key: str) -> Cell:
    """A number of bytes."""
    return lambda row: human_bytes(row[key])


def duration(key: str) -> Cell:
    """A number of seconds."""
    return lambda row: None if row[key] is None else human_duration(row[key])


def age(row: Mapping[str, Any]) -> str | None:
    """How long an instant has been pending; a negative age: the writer has another clock or time zone."""
    return "not yet begun" if (row["age_s"] or 0.0) < 0 else duration("age_s")(row)


def readable(time: str) -> str:
    """An instant as date and time; one that is no time as it is."""
    when = moment(time)
    return time if when is None else when.strftime("%Y-%m-%d %H:%M:%S")


def labelled(label: str, style: str, text: str) -> Text:
    """A line after a label."""
    return Text.assemble((f"{label}:", style), f" {text}")
