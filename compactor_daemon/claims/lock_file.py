"""A lock file that allows one compactor process per table. It saves work; no safety rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from phantombase.timeline.errors import ClaimedError
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table


@contextmanager
def claim(table: Table, wait_s: float = 0.0) -> Iterator[None]:
    """Holds the claim on all instants of a table. It saves work; safety rests on the records of attempts.

    ClaimedError: another process of phantombase holds the claim for longer than `wait_s`.
    """
    path = f"{RECORDS}/claim.lock"
    busy = ClaimedError(
        "another compactor is at work on this table",
        path=f"{table.storage.base_path}/{path}",
        todo="Wait until it ends, or run with --wait SECONDS.",
    )
    with table.storage.hold(path, wait_s, busy):
        yield
