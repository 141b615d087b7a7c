"""Plain values for a terminal: rows, and moments in words (pure)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

from ..errors import UsageError
from ..format.instant import parse_time


def human_bytes(size: int | None) -> str | None:
    """1536 -> '1.5 KiB'; None stays None."""
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


def plural(count: int, noun: str) -> str:
    """(2, 'file group') -> '2 file groups'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


Row: TypeAlias = dict[str, Any]


def moment(time: str) -> datetime | None:
    """The moment that an instant time names, or None for artificial ones such as `00000000000001`."""
    try:
        return parse_time(time)
    except (UsageError, ValueError):
        return None
