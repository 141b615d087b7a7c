"""Time of a test: it goes on by itself, and by as much more as the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table
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


def sleeps(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], object]) -> None:
    """In the place of `time.sleep` in this thread. Others sleep: heartbeats, servers that another test has started."""
    others, this = time.sleep, threading.get_ident()
    monkeypatch.setattr(time, "sleep", lambda s: (sleep if threading.get_ident() == this else others)(s))


ONE_BUCKET = WriteOptions(buckets=1, slots=1)


def upsert(path: Path, batch: pa.Table, options: WriteOptions = ONE_BUCKET) -> None:
    write(open_table(path), LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=options))


def schedule(path: Path, clock: ClockOptions | None = None, *, dry_run: bool = False) -> Scheduled:
    table = open_table(path).with_clock(clock or ClockOptions())
    return schedule_compaction(table, ProcessLock(str(path)), dry_run=dry_run)
