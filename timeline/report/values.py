"""What all reports are made of: the rule from values to JSON, and the moment from which ages count.

A report is a tree of frozen dataclasses. Sizes are bytes, ages are seconds, instants are digit strings as on disk; None
means unknown or not applicable. Texts, pages and metrics are drawn from its JSON, so that all show the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

from ..clocks import clock_ms
from ..errors import PhantombaseError
from ..table.table import Table
from ..terminal.text_table import moment

FLAT = {"json": "flat"}
"""Metadata of a field whose own fields stand in its place; None: it has none."""
OPTIONAL = {"json": "optional"}
"""Metadata of a field that JSON lacks while it is None."""
Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(Generic[Fact]):
    """A fact, or the problem that hides it: other facts are shown all the same."""

    fact: Fact | None = field(default=None, metadata=FLAT)
    problem: PhantombaseError | None = None

    @staticmethod
    def of(ask: Callable[[], Fact | None]) -> Known[Fact]:
        try:
            return Known(fact=ask())
        except PhantombaseError as error:
            return Known(problem=error)


def as_json(value: object) -> Any:
    """A value as JSON has it: a dataclass is an object with its fields, an error its text, a member of an enum its
    value. Fields with `FLAT` or `OPTIONAL`: see there."""
    if is_dataclass(value):
        found: dict[str, Any] = {}
        for one in fields(value):
            inner, rule = getattr(value, one.name), one.metadata.get("json")
            if rule is None or (rule == "optional" and inner is not None):
                found[one.name] = as_json(inner)
            elif inner is not None:
                found |= as_json(inner)
        return found
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PhantombaseError):
        return str(value)
    if isinstance(value, Mapping):
        return {name: as_json(inner) for name, inner in value.items()}
    return [as_json(inner) for inner in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Clock:
    """One moment: `now_ms` since the epoch, and `now` in the zone of the table's instants, naive as they are."""

    now_ms: int
    now: datetime

    @staticmethod
    def of(table: Table) -> Clock:
        return Clock(clock_ms(), table.now().replace(tzinfo=None))

    def since(self, ms: int | None) -> float | None:
        """Seconds since a time in milliseconds since the epoch."""
        return None if ms is None else round((self.now_ms - ms) / 1000, 3)

    def age(self, instant: str) -> float | None:
        """Seconds since an instant; None if its name is no time."""
        then = moment(instant)
        return None if then is None else round((self.now - then).total_seconds(), 3)

    def oldest(self, instants: Iterable[str]) -> float | None:
        """The greatest age; None without any, or if no name is a time."""
        return max((age for one in instants if (age := self.age(one)) is not None), default=None)


def is_late(age_s: float | None, slo_s: float | None) -> bool | None:
    """Whether a compaction has been pending for longer than the goal, if there is one; None: its age is unknown."""
    return False if slo_s is None else None if age_s is None else age_s > slo_s
