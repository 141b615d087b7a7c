"""Pools: rules for the tables whose names match a pattern (pure).

A table belongs to the first pool that matches it, else to the pool of the other tables. A name is the path below the
root, or DATABASE/TABLE in a catalog. A pattern without `/` is compared with the last part of a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import check_above_zero, check_least, option
from phantombase.timeline.planning.options import ScheduleOptions

from .hours import Hours

OTHERS = "*"
"""The name of the pool of the tables that no pool matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Rules for the tables that `match`. `weight` None: the tables share slots with those of other pools without one.

    `schedule`: how plans are requested; None: as the daemon does elsewhere.
    """

    match: str = option(OTHERS, "a pattern of names")
    weight: float | None = option(None, "share of the daemon's slots, against the weights of other pools")
    slo_s: float | None = option(None, "a compaction that is pending for longer is late: the latest table comes first")
    hours: Hours | None = option(None, "when its tables are compacted: HH:MM-HH:MM and a time zone, UTC by default")
    quota: float | None = option(None, "the most of the daemon's slots, from 0 to 1, over some minutes")
    bytes_per_hour: int | None = option(None, "the most bytes that compactions of the fleet read in an hour", size=True)
    daemons: int = option(1, "how many daemons of a fleet serve each table", least=1)
    schedule: ScheduleOptions | None = option(None, "how plans are requested")

    def __post_init__(self) -> None:
        check_above_zero(self, "weight", "slo_s", "quota", "bytes_per_hour")
        check_least(self, {"daemons": 1})
        if self.quota is not None and self.quota > 1:
            raise UsageError("quota is a part of the slots", expected="at most 1", found=f"{self.quota:g}")

    @property
    def share(self) -> str:
        """The pools of one share share their slots by lateness; shares share them by weight."""
        return OTHERS if self.weight is None else self.match


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern means the table of this name."""
    return fnmatchcase(name if "/" in pattern else name.rpartition("/")[2], pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The pools, first match first, and which tables there are at all: `include` (empty: all) without `exclude`."""

    pools: tuple[Pool, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    others: Pool = Pool(match=OTHERS)

    def __post_init__(self) -> None:
        if len({one.match for one in self.all}) < len(self.all):
            raise UsageError("two pools have the same pattern", found=", ".join(one.match for one in self.all))

    @property
    def all(self) -> tuple[Pool, ...]:
        """Every pool; that of the other tables comes last."""
        return (*self.pools, self.others)

    def takes(self, name: str) -> bool:
        """Whether a table is served at all."""
        return (not self.include or _any(name, self.include)) and not _any(name, self.exclude)

    def of(self, name: str) -> Pool:
        """The pool of a table."""
        return next((one for one in self.pools if matches(name, one.match)), self.others)


def pools_of(
    pools: Iterable[Pool], include: Sequence[str], exclude: Sequence[str], slo_s: float | None = None
) -> Pools:
    """The pools. One whose pattern is `*` is the pool of the other tables. `slo_s`: for pools without one."""
    given = [one if one.slo_s is not None or slo_s is None else replace(one, slo_s=slo_s) for one in pools]
    last = next((one for one in given if one.match == OTHERS), Pool(match=OTHERS, slo_s=slo_s))
    named = tuple(one for one in given if one is not last)
    return Pools(pools=named, include=tuple(include), exclude=tuple(exclude), others=last)


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(matches(name, one) for one in patterns)
