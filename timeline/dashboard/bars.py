"""A timeline as bars from requested to completed (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..terminal.plain import Row, moment

WIDTH = 1000
"""Of the whole time that is shown."""

HEIGHT = 60

_LEAST = 6
_MARGIN = 4
SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One instant: `x` and `width` in thousandths of the time shown. `took_s`: None if the end is not known."""

    instant: Row
    kind: str
    x: int
    width: int
    open: bool
    took_s: float | None
    label: str


def bars(instants: Sequence[Row], now: datetime) -> list[Bar]:
    """The newest instants, newest first. `now` is in the table's zone.

    Pending ones are open to the right: the time shown ends a quarter after the last event, or now if that is earlier.
    """
    newest = [(row, begun) for row in instants if (begun := moment(row["instant"])) is not None][-SHOWN:]
    if not newest:
        return []
    first = min(begun for _, begun in newest)
    ends = [_end(row, begun) for row, begun in newest]
    last = max(begun if end is None else end for (_, begun), end in zip(newest, ends, strict=True))
    today = now.replace(tzinfo=None)
    edge = max(min(today, last + (last - first) / _MARGIN), last) if None in ends else last
    whole_s = max((edge - first).total_seconds(), 0.001)

    def place(at: datetime) -> int:
        return round((at - first).total_seconds() / whole_s * WIDTH)

    found = [
        _bar(row, place(begun), place(end or edge), ((end or max(today, begun)) - begun).total_seconds())
        for (row, begun), end in zip(newest, ends, strict=True)
    ]
    return found[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """All bars of one kind of instant."""

    kind: str
    bars: tuple[Bar, ...]


_ORDER = ("deltacommit", "compaction", "logcompaction", "replacecommit", "clustering", "clean", "rollback", "restore")


def lanes(found: Sequence[Bar]) -> list[Lane]:
    """The same bars, one row for each kind, writes first."""
    kinds = sorted({bar.kind for bar in found}, key=lambda k: (_ORDER.index(k) if k in _ORDER else len(_ORDER), k))
    return [Lane(kind=kind, bars=tuple(bar for bar in found[::-1] if bar.kind == kind)) for kind in kinds]


def curve(values: Sequence[float]) -> str:
    """The points of a line from left to right, for a box of `WIDTH` by `HEIGHT`; "" for fewer than two values."""
    if len(values) < 2:
        return ""
    most = max(values) or 1.0
    step = WIDTH / (len(values) - 1)
    return " ".join(f"{n * step:.0f},{HEIGHT - value / most * (HEIGHT - 4) - 2:.1f}" for n, value in enumerate(values))


def _end(row: Row, begun: datetime) -> datetime | None:
    """When an instant completed, as far as that is recorded; None while it is pending."""
    if row["state"] != "completed":
        return None
    done = moment(row["completion_time"]) if row["completion_time"] else None
    return max(done, begun) if done is not None else begun


def _bar(row: Row, x: int, end: int, seconds: float) -> Bar:
    pending = row["state"] != "completed"
    took = seconds if pending or row["completion_time"] else None
    text = "end not recorded" if took is None else f"{took:.1f} s"
    width = max(end - x, _LEAST)
    return Bar(
        instant=row,
        kind=str(row.get("kind", row["action"])),
        x=min(x, WIDTH - width),
        width=width,
        open=pending,
        took_s=took,
        label=f"{row.get('kind', row['action'])} {row['instant']}, {row['state']}, {text}",
    )
