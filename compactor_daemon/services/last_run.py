"""The record of the last run of services on a table: `.hoodie/.phantombase/services`.

It saves work, and shows what ran; nothing rests on it. The daemons of a fleet serve a table once an interval together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.errors import MalformedError, MissingFileError
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS

from .done import ServiceDone

_EARLY = 0.9
"""A process that comes this much of the interval after the last run runs the services, not an interval later."""

PATH = f"{RECORDS}/services"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """`at_ms`: its end, since the epoch. `who`: the process. `did`: a line for each service."""

    at_ms: int
    who: str
    did: tuple[str, ...]


def last_run(storage: Storage) -> LastRun | None:
    """The last run of services on a table; None: none is known."""
    try:
        fields = Fields.parse(storage.read(PATH), PATH, "unreadable record of services")
        return LastRun(at_ms=fields.whole("at_ms"), who=fields.text("who"), did=tuple(fields.texts("did")))
    except (MissingFileError, MalformedError):
        return None


def note_run(storage: Storage, who: str, done: Sequence[ServiceDone]) -> None:
    """Records a run that ends now. StorageError."""
    run = LastRun(at_ms=clock_ms(), who=who, did=tuple(f"{one.service.value}: {one.what}" for one in done))
    storage.overwrite(PATH, json.dumps(asdict(run), sort_keys=True).encode())


def is_due(run: LastRun | None, every_s: float, now_ms: int) -> bool:
    """Whether services should run now (pure). A run in the future does not count: the clock of its process was off."""
    return run is None or not 0 <= now_ms - run.at_ms < every_s * 1000 * _EARLY
