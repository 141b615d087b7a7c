"""What the packages log, as dictionaries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phantombase.timeline.event_log import NAME


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """The events that are logged inside, of all levels, each with its `log_level`."""
    found: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append({**getattr(record, NAME), "log_level": record.levelname.lower()})

    logger, handler = logging.getLogger(NAME), Kept()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# What a process left in a folder.


def traces(folder: Path) -> dict[Path, int]:
    """All files and folders with their times: equal before and after what must change nothing."""
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
