"""Runs the services of a table, one after another, and records when each ran last: `.hoodie/.phantombase/services`.

The record saves work and shows what ran; no safety depends on it. The daemons of a fleet together serve a table once
per interval. Each service has its own entry, since the daemons of a table may run different services. All are in one
file, which is one request to an object store. If two processes record runs concurrently, the entries of one may be
lost: these services run once more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import (
    MalformedError,
    MissingFileError,
    PausedError,
    PhantombaseError,
    StoppedError,
    StorageError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.locks.pause import KnownPauses
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.table.table import Table

from ..unit_of_work import ServiceAnswer, ServiceMeans
from .options import Service, ServiceOptions


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
    """`at_ms`: its end, since the epoch. `who`: the process. `what`: what it did, a line; the error, if it `failed`.
    `since_ms`: the first of the runs that have failed without one between them that succeeded. `inline`: after a write;
    no daemon waits for the next one."""

    at_ms: int
    who: str
    what: str
    failed: bool = False
    since_ms: int | None = None
    inline: bool = False


def last_runs(storage: Storage) -> dict[Service, LastRun]:
    """The last known run of each service of a table, in the order of services. Unreadable entries are left out, and the
    record of a release that had one entry for all services."""
    return read_runs(storage)[0]


def read_runs(storage: Storage) -> tuple[dict[Service, LastRun], PhantombaseError | None]:
    """As `last_runs`, and why the record cannot be read."""
    found: dict[Service, LastRun] = {}
    try:
        fields = Fields.parse(storage.read(PATH), PATH, "unreadable record of services")
    except MissingFileError:
        return found, None
    except (MalformedError, StorageError) as error:
        return found, error
    for service in (one for one in Service if one.value in fields.values):
        with suppress(MalformedError):
            entry = fields.inner(fields.values[service.value])
            since = entry.values.get("since_ms")
            found[service] = entry.of(
                LastRun,
                failed=entry.values.get("failed") is True,
                since_ms=since if isinstance(since, int) else None,
                inline=entry.values.get("inline") is True,
            )
    return found, None


def note_runs(storage: Storage, who: str, done: Sequence[ServiceDone], *, inline: bool = False) -> None:
    """Records runs that end now; entries of other services are kept. `inline`: runs after a write, or by a command, of
    which those that failed are recorded, those that end a series of failed ones, and the first sync after one of
    daemons: no catalog is behind where writers sync. StorageError."""
    now, runs = clock_ms(), last_runs(storage)
    if inline:
        before = {one.service: runs.get(one.service) for one in done}
        ends = {of for of, run in before.items() if run and (run.failed or (of is Service.SYNC and not run.inline))}
        done = [one for one in done if one.failed or one.service in ends]
    for one in done:
        last = runs.get(one.service)
        first = now if last is None or not last.failed else last.since_ms or last.at_ms
        since = first if one.failed else None
        runs[one.service] = LastRun(at_ms=now, who=who, what=one.what, failed=one.failed, since_ms=since, inline=inline)
    if not done:
        return
    storage.overwrite(PATH, json.dumps({s.value: asdict(run) for s, run in runs.items()}, sort_keys=True).encode())


def due(
    services: Sequence[Service], runs: Mapping[Service, LastRun], every_s: float, now_ms: int
) -> tuple[Service, ...]:
    """The services that should run now (pure). A run in the future is ignored. `every_s`: 0 where it runs once."""
    wait_ms = {s: max(every_s, s.least_s if every_s else 0.0) * 1000 * _EARLY for s in services}
    return tuple(s for s in services if s not in runs or runs[s].inline or not 0 <= now_ms - runs[s].at_ms < wait_ms[s])


_log = get_logger()


def serve_table(
    table: Table,
    options: ServiceOptions,
    lock: TableLock,
    only: Sequence[Service] = tuple(Service),
    stopping: Callable[[], bool] = lambda: False,
    means: ServiceMeans | None = None,
    failed: Callable[[Service, Exception], None] = lambda *_: None,
    known: KnownPauses | None = None,
) -> tuple[ServiceDone, ...]:
    """Runs the services that `options` and `only` name; none is started once `stopping` is set. Each service decides
    what is due, and finishes what a dead process left. The error of a service is in its result, and `failed` is called
    with it; the next one runs: each service leaves a valid table. One that was stopped or is paused has not failed:
    another process, or the next run, goes on. `known`: the pauses of the table, if the caller has them."""
    known = known or KnownPauses(without_snapshot(table.storage))
    chosen = [service for service in options.services if service in only]
    return tuple(
        _run(service, table, options, lock, means or ServiceMeans(), failed, known)
        for service in chosen
        if not stopping()
    )


def _run(
    service: Service,
    table: Table,
    options: ServiceOptions,
    lock: TableLock,
    means: ServiceMeans,
    failed: Callable[[Service, Exception], None],
    known: KnownPauses,
) -> ServiceDone:
    def run() -> ServiceAnswer:
        if (pause := known.held_by(service.value)) is not None:
            raise pause.error(table.storage.base_path)
        return service.run(table.snapshot(cached=False), options.options_of(service), lock, means)

    return ServiceDone(service=service, **guarded(table, service.value, run, partial(failed, service)))


def guarded(
    table: Table, name: str, run: Callable[[], ServiceAnswer], failed: Callable[[Exception], None] = lambda _: None
) -> dict[str, Any]:
    """The answer of one part of the upkeep of a table, with `seconds` and `failed`; its error is in `what`."""
    started, path, has_failed = time.monotonic(), table.storage.base_path, False
    try:
        done = run()
    except (StoppedError, PausedError) as error:
        _log.info("service_stopped", table=path, service=name, why=error.what)
        done = ServiceAnswer(what=error.what)
        failed(error)
    except Exception as error:  # a bug of one service stops no other one, and fails no write
        if not isinstance(error, PhantombaseError):
            _log.exception("internal_error", service=name)
        what = str(error) if isinstance(error, PhantombaseError) else f"internal error: {type(error).__name__}: {error}"
        _log.warning("service_failed", table=path, service=name, error=what)
        done, has_failed = ServiceAnswer(what=what), True
        failed(error)
    if done.instants or done.files:
        _log.info("service_done", table=path, service=name, what=done.what)
    return {**asdict(done), "failed": has_failed, "seconds": round(time.monotonic() - started, 3)}
