"""How soon a file group's log files are due, by partition (pure): with the table's trigger, or earlier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from ..errors import UsageError
from ..option import check_least, option


class Urgency(Enum):
    """RADICAL: as soon as a file group has a log file. GENTLE: with the trigger, or with a log `max_interval_s` old."""

    GENTLE = "gentle"
    RADICAL = "radical"


@dataclass(frozen=True, kw_only=True)
class UrgencyOptions:
    """Urgency of the table, and of partitions by pattern: the first match counts (Paimon's lookup compaction).

    `partition_urgency`: shell patterns of whole partition paths, like `2026/11/*=radical`.
    """

    urgency: Urgency = option(Urgency.GENTLE, "at the trigger (gentle), or as soon as there is a log file (radical)")
    max_interval_s: float | None = option(None, "gentle: seconds after which a log file is due without the trigger")
    partition_urgency: tuple[str, ...] = option((), "urgency of partitions, PATTERN=gentle or PATTERN=radical")

    def __post_init__(self) -> None:
        check_least(self, {"max_interval_s": 1})
        levels = [level for _, level in self._patterns()] + [self.urgency]
        if self.max_interval_s is not None and Urgency.GENTLE not in levels:
            raise UsageError(
                "max-interval has no effect with radical: log files are due at once",
                expected="urgency=gentle, or no max-interval",
                found=f"max-interval {self.max_interval_s:g} s",
            )

    def _patterns(self) -> Iterator[tuple[str, Urgency]]:
        for text in self.partition_urgency:
            pattern, _, level = text.rpartition("=")
            if not pattern or level not in {u.value for u in Urgency}:
                raise UsageError("not an urgency of partitions", expected="PATTERN=gentle or =radical", found=text)
            yield pattern, Urgency(level)

    def of(self, partition: str) -> Urgency:
        """The urgency of one partition."""
        return next((u for pattern, u in self._patterns() if fnmatchcase(partition, pattern)), self.urgency)

    def is_due(self, partition: str, waiting_s: float | None) -> bool:
        """Whether a log that has waited this long (None: unknown) is due although the trigger has not fired."""
        if self.of(partition) is Urgency.RADICAL:
            return True
        return self.max_interval_s is not None and waiting_s is not None and waiting_s >= self.max_interval_s

    @property
    def any_radical(self) -> bool:
        """Whether anything is due as soon as it has a log file."""
        return Urgency.RADICAL in (self.urgency, *(level for _, level in self._patterns()))

    def fires(self, commits: int, waiting_s: float | None, *, left_out: bool = False) -> bool:
        """Whether anything can be due. `commits`: since the last request; `waiting_s`: since the first of them, or
        since the request if there is none; `left_out`: whether the last request left something out.
        """
        if (commits or left_out) and self.any_radical:
            return True
        return self.max_interval_s is not None and waiting_s is not None and waiting_s >= self.max_interval_s
