"""One compactor process a table, by a lock file: for liveness only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from phantombase.timeline.errors import ClaimedError
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table


@contextmanager
def claim(table: Table, wait_s: float = 0.0) -> Iterator[None]:
    """One compactor process a table, for liveness only: safety rests on the attempts' records.

    ClaimedError when another process of ours holds the claim for longer than `wait_s`.
    """
    path = f"{RECORDS}/claim.lock"
    busy = ClaimedError(
        "another compactor is at work on this table",
        path=f"{table.storage.base_path}/{path}",
        todo="Wait for it, or run with --wait SECONDS.",
    )
    with table.storage.hold(path, wait_s, busy):
        yield
