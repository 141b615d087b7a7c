"""Reserves the completion time that an attempt is about to decide: see `timeline.instants.reserved_times`."""

from __future__ import annotations

from phantombase.timeline.instants.reserved_times import reserved_path
from phantombase.timeline.storage.contract import Storage


def reserve(storage: Storage, instant: str, attempt: int, time: str) -> None:
    """Reserves a completion time before it is decided; doing it again changes nothing."""
    storage.put_if_absent(reserved_path(instant, attempt, time), b"")
