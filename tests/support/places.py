"""What every test takes: places in a checkout, the seed of a run, what the packages log, what a process left."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phantombase.timeline.event_log import NAME
from tests.support.selection import ALL

ROOT = Path(__file__).parents[2]
"""The project: packages, deploy, docs, README.md."""
GOLDEN_FOLDER = ROOT / "tests" / "golden"
"""Tables that real Hudi wrote, one zip file each."""


def memory() -> str | None:
    """A folder in memory that has room for the files of tests; None where there is none. A synced file costs 11 ms on a
    disk, and 0.1 ms there."""
    return _MEMORY if os.path.isdir(_MEMORY) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES else None


NO_AUTHORITY = {"SSL_CERT_FILE": str(ROOT / "tests/support/servers/nobody.pem"), "SSL_CERT_DIR": ""}
"""The environment of clients of servers without TLS: each client reads all authorities of the machine, in 9 ms."""
_MEMORY, _MEMORY_BYTES = "/dev/shm", 4 * 2**30

# The seed of a test run: `PHANTOMBASE_SEED`; else 1, and by chance in a run of all tests.
#
# It is the same in all workers, which must collect alike.


def drawn(variable: str, below: int = 10**9) -> int:
    """What the environment says; else 1, or with all tests a number by chance, at least 1."""
    given = int(os.environ.get(variable, "0"))
    if given or not ALL:
        return given or 1
    return random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(1, below)


SEED = drawn("PHANTOMBASE_SEED")

# What the packages log, as dictionaries.


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
