"""Hours of the day, in a time zone: `22:00-06:00 Europe/Berlin` (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import ZoneInfo

from phantombase.timeline.errors import UsageError

_HOURS = re.compile(r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)(?:\s+(\S+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """From `start` until before `end`, over midnight if that is earlier."""

    start: time
    end: time
    zone: str = "UTC"

    @staticmethod
    def parse(text: str) -> Hours:
        """From `HH:MM-HH:MM [ZONE]`; UsageError."""
        found = _HOURS.fullmatch(text.strip())
        try:
            if found is None:
                raise ValueError(text)
            hours = Hours(
                start=time(int(found[1]), int(found[2])),
                end=time(int(found[3]), int(found[4])),
                zone=found[5] or "UTC",
            )
            ZoneInfo(hours.zone)
        except (ValueError, OSError, KeyError) as error:
            raise UsageError("not hours of a day", expected="HH:MM-HH:MM [ZONE]", found=repr(text)) from error
        if hours.start == hours.end:
            raise UsageError("hours of no length", expected="two different times", found=repr(text))
        return hours

    def hold(self, now_ms: int) -> bool:
        """Whether a moment (ms since the epoch) lies within."""
        now = datetime.fromtimestamp(now_ms / 1000, ZoneInfo(self.zone)).time()
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} {self.zone}"
