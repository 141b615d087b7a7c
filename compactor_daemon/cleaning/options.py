"""What a clean leaves: its options, defined only here (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import check_finite, check_least, least_of, option


class Policy(Enum):
    """What is counted of what stays."""

    COMMITS = "commits"
    HOURS = "hours"
    VERSIONS = "versions"

    @property
    def hudi_name(self) -> str:
        """As plans and `hoodie.clean.policy` have it."""
        return f"KEEP_LATEST_{ {'commits': 'COMMITS', 'hours': 'BY_HOURS', 'versions': 'FILE_VERSIONS'}[self.value] }"


_RETAINED = {Policy.COMMITS: 10, Policy.HOURS: 24, Policy.VERSIONS: 3}
"""As Hudi."""

_MOST_HOURS = 24 * 365 * 1000
"""What lies further back may be no date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanOptions:
    """`retain`: how many commits, hours or file versions stay; None: 10, 24 or 3.

    Besides, everything stays that a query needs which began up to `floor_s` seconds ago. `max_files`, `max_partitions`:
    the most of one clean; the rest is left to the next. Replaced file groups count, and are never left.
    """

    policy: Policy = option(Policy.COMMITS, "what is retained: the newest commits, those of some hours, file versions")
    retain: int | None = option(None, "how many of them [default: 10 commits, 24 hours, 3 versions]", least=1)
    floor_s: float = option(
        3600.0, "seconds; what a query needs that began up to this long ago stays too", flag="floor", least=0
    )
    max_files: int | None = option(None, "the most files of one clean", least=1)
    max_partitions: int | None = option(None, "the most partitions of one clean", least=1)

    def __post_init__(self) -> None:
        check_least(self, least_of(CleanOptions))
        check_finite(self, least_of(CleanOptions))
        if self.policy is Policy.HOURS and self.retained > _MOST_HOURS:
            raise UsageError("too many hours", expected="up to a thousand years", found=str(self.retain))
        if self.floor_s > _MOST_HOURS * 3600:
            raise UsageError(
                "floor is too long", expected=f"up to {_MOST_HOURS * 3600}, a thousand years", found=f"{self.floor_s:g}"
            )

    @property
    def retained(self) -> int:
        """How many commits, hours or versions stay."""
        return self.retain or _RETAINED[self.policy]
