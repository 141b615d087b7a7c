"""Runs the services of a table, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table

from .last_run import ServiceDone
from .options import Service, ServiceOptions

_log = get_logger()


def serve_table(
    table: Table,
    options: ServiceOptions,
    lock: TableLock,
    only: Sequence[Service] = tuple(Service),
    stopping: Callable[[], bool] = lambda: False,
) -> tuple[ServiceDone, ...]:
    """Runs the services that `options` and `only` name; none is started once `stopping` is set. Each service decides
    what is due, and finishes what a dead process left. The error of a service is in its result, and the next one runs:
    each service leaves a valid table."""
    chosen = [service for service in options.services if service in only]
    return tuple(_run(service, table, options, lock) for service in chosen if not stopping())


def _run(service: Service, table: Table, options: ServiceOptions, lock: TableLock) -> ServiceDone:
    started = time.monotonic()
    try:
        ran = service.run(table.reload(), options.options_of(service), lock, options.means)
        done = ServiceDone(service=service, **asdict(ran))
    except Exception as error:  # a bug of one service stops no other one, and fails no write
        if not isinstance(error, PhantombaseError):
            _log.exception("internal_error", service=service.value)
        what = str(error) if isinstance(error, PhantombaseError) else f"internal error: {type(error).__name__}: {error}"
        _log.warning("service_failed", table=table.storage.base_path, service=service.value, error=what)
        done = ServiceDone(service=service, what=what, failed=True)
    done = replace(done, seconds=round(time.monotonic() - started, 3))
    if done.instants or done.files:
        _log.info("service_done", table=table.storage.base_path, service=service.value, what=done.what)
    return done
