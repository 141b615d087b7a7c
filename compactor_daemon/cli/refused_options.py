"""The error of a refused option, with the option's name as it was typed (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phantombase.timeline.errors import UsageError


def as_typed(error: UsageError, default: Any, typed: Mapping[str, Any], words: Mapping[str, str]) -> UsageError:
    """The error that an option dataclass gave, naming the option of the command line.

    `default`: the dataclass with its defaults; `typed`: what was typed, by field; `words`: all its options, by field.
    What the dataclass says of several options together stays as it is.
    """
    for field in typed:
        own = field.replace("_", "-")
        if error.what.startswith(f"{own} "):
            return error.reworded(words[field] + error.what.removeprefix(own))
    for field, value in typed.items():
        if _refuses(default, field, value, error):
            return error.reworded(f"{words[field]}: {error.what}")
    return error


def _refuses(default: Any, field: str, value: Any, error: UsageError) -> bool:
    """Whether the value of this field alone gives the same error."""
    try:
        replace(default, **{field: value})
    except UsageError as alone:
        return str(alone) == str(error)
    return False
