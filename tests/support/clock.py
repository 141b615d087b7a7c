"""Time of a test: it goes on by itself, and by as much more as the test says."""

from __future__ import annotations

import time

import pytest


class Clock:
    """Both clocks of this process, and so those of a server in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        wall, steady = time.time, time.monotonic
        monkeypatch.setattr(time, "time", lambda: wall() + self.passed_s)
        monkeypatch.setattr(time, "monotonic", lambda: steady() + self.passed_s)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return round(time.time() * 1000)
