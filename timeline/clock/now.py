"""The current time."""

from __future__ import annotations

import time


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return round(time.time() * 1000)
