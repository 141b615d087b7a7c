"""Fields of option dataclasses: default, help and least value in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from timeline.errors import UsageError


def option(default: Any, help_text: str, *, flag: str | None = None, size: bool = False) -> Any:
    """A dataclass field with the help that commands show.

    `flag`: its name there, where it is another one. `size`: bytes, which people write like `64m`.
    """
    return field(default=default, metadata={"help": help_text, "flag": flag, "size": size})


def help_of(options: type, name: str) -> str:
    """The help of one option."""
    return str(next(f for f in fields(options) if f.name == name).metadata["help"])


def check_least(options: Any, least: Mapping[str, float]) -> None:
    """UsageError where a value is below its least one; None passes."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and not value >= bound:
            raise UsageError(f"{name.replace('_', '-')} must be at least {bound}", found=str(value))
