"""What a service did, and the record of when each service ran last on a table: `.hoodie/.phantombase/services`.

The record saves work and shows what ran; no safety depends on it. The daemons of a fleet together serve a table once
per interval. Each service has its own entry, since the daemons of a table may run different services. All are in one
file, which is one request to an object store. If two processes record runs concurrently, the entries of one may be
lost: these services run once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import MalformedError, MissingFileError, StorageError
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS

from ..service_run import ServiceAnswer
from .options import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDone(ServiceAnswer):
    """A run of a service. `what`: also its error, if it `failed`."""

    service: Service
    seconds: float = 0.0
    failed: bool = False


_EARLY = 0.9
"""The services are due after this part of the interval since the last run."""
PATH = f"{RECORDS}/services"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """`at_ms`: its end, since the epoch. `who`: the process. `what`: what it did, a line; the error, if it `failed`."""

    at_ms: int
    who: str
    what: str
    failed: bool = False


def last_runs(storage: Storage) -> dict[Service, LastRun]:
    """The last known run of each service of a table, in the order of services. Unreadable entries are left out, and the
    record of a release that had one entry for all services."""
    try:
        fields = Fields.parse(storage.read(PATH), PATH, "unreadable record of services")
    except (MissingFileError, MalformedError, StorageError):
        return {}
    found = {service: _entry(fields, service) for service in Service if service.value in fields.values}
    return {service: run for service, run in found.items() if run is not None}


def _entry(fields: Fields, service: Service) -> LastRun | None:
    try:
        entry = fields.inner(fields.values[service.value])
        failed = entry.values.get("failed") is True  # earlier releases have no `failed`
        return LastRun(at_ms=entry.whole("at_ms"), who=entry.text("who"), what=entry.text("what"), failed=failed)
    except MalformedError:
        return None


def note_runs(storage: Storage, who: str, done: Sequence[ServiceDone]) -> None:
    """Records runs that end now; entries of other services are kept. StorageError."""
    now = clock_ms()
    runs = last_runs(storage) | {
        one.service: LastRun(at_ms=now, who=who, what=one.what, failed=one.failed) for one in done
    }
    storage.overwrite(PATH, json.dumps({s.value: asdict(run) for s, run in runs.items()}, sort_keys=True).encode())


def due(
    services: Sequence[Service], runs: Mapping[Service, LastRun], every_s: float, now_ms: int
) -> tuple[Service, ...]:
    """The services that should run now (pure). A run in the future is ignored: its process's clock was wrong.
    `every_s`: 0 in a daemon that runs once."""
    wait_ms = {s: max(every_s, s.least_s if every_s else 0.0) * 1000 * _EARLY for s in services}
    return tuple(s for s in services if s not in runs or not 0 <= now_ms - runs[s].at_ms < wait_ms[s])
