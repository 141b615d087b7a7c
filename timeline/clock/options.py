"""The time zone of instants and the allowed clock difference: the only place that defines both options (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from ..errors import UsageError
from ..option import check_least, least_of, option

LOCAL = "LOCAL"
"""Hudi's name for the zone of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOptions:
    """How times of instants are chosen and read (by every stage that requests or completes an instant)."""

    timezone: str = option(
        LOCAL,
        "time zone of the table's instants, must be that of its writers: LOCAL (this process's), UTC, or a name like "
        "America/New_York; ignored if the table has hoodie.table.timeline.timezone=UTC",
        metavar="ZONE",
    )
    clock_skew_s: float = option(
        30.0,
        "how far this process's clock may be ahead of the storage's, and a file's time ahead of this clock",
        least=0,
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(ClockOptions))
        self.zone(utc_timezone=False)

    def zone(self, *, utc_timezone: bool) -> tzinfo | None:
        """The zone of a table's instants, None for this process's own; `utc_timezone`: the table's setting.

        UsageError: this machine does not know the zone.
        """
        if utc_timezone or self.timezone.upper() == "UTC":
            return UTC
        if self.timezone.upper() == LOCAL:
            return None
        try:
            return ZoneInfo(self.timezone)
        except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise _unknown(self.timezone) from error
        except KeyError as error:
            raise _unknown(self.timezone) from error


def _unknown(name: str) -> UsageError:
    return UsageError(
        "no such time zone",
        expected="LOCAL, UTC or a name like America/New_York",
        found=repr(name),
        todo="If the name is right, install the time zones (the package tzdata).",
    )
