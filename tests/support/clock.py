"""Time of a test: it goes on by itself, and by as much more as the test says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.servers.zookeeper_server import wait_until


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


def calls_of(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives a function that waits until so many more calls of a function of `owner` have ended, in any thread."""
    call, ended = getattr(owner, name), list[None]()

    def noted(*given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        finally:
            ended.append(None)

    def wait(more: int) -> None:
        before = len(ended)
        wait_until(lambda: len(ended) >= before + more)

    monkeypatch.setattr(owner, name, noted)
    return wait
