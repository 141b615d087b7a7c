"""Runs the services of a table, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from phantombase.timeline.errors import ConflictError, PhantombaseError, UnsupportedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.text_table import human_bytes, plural

from ..archiving.archive import archive_table
from ..cleaning.clean import clean_table
from ..clustering.cluster import cluster_table, commit_stays
from ..metadata_services.serve import serve_metadata
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
    """Runs the services that `options` and `only` name; none is started once `stopping` is set.

    Each service decides what is due, and finishes what a dead process left. The error of a service is in its result,
    and the next one runs: each service leaves a valid table.
    """
    chosen = [service for service in options.services if service in only]
    return tuple(_run(service, table, options, lock) for service in chosen if not stopping())


def _run(service: Service, table: Table, options: ServiceOptions, lock: TableLock) -> ServiceDone:
    started = time.monotonic()
    try:
        done = _SERVICES[service](table.reload(), options, lock)
    except Exception as error:  # a bug of one service stops no other one, and fails no write
        if not isinstance(error, PhantombaseError):
            _log.exception("internal_error", service=service.value)
        what = str(error) if isinstance(error, PhantombaseError) else f"internal error: {type(error).__name__}: {error}"
        _log.warning("service_failed", table=table.storage.base_path, service=service.value, error=what)
        done = ServiceDone(service=service, what=what, failed=True)
    done = replace(done, seconds=round(time.monotonic() - started, 3))
    if done.instants:
        _log.info("service_done", table=table.storage.base_path, service=service.value, what=done.what)
    return done


def _metadata(table: Table, options: ServiceOptions, lock: TableLock) -> ServiceDone:
    assert options.metadata is not None
    served = serve_metadata(table, options.metadata, lock)
    did = []
    if forgotten := len(served.forgotten):
        did.append(f"{plural(forgotten, 'instant')} of the metadata table forgotten")
    if served.compactions:
        did.append(f"{plural(len(served.compactions), 'compaction')} of the metadata table")
    files, size = sum(one.files for one in served.cleans), sum(one.bytes for one in served.cleans)
    if served.cleans:
        did.append(f"{plural(files, 'file')} of the metadata table removed, {human_bytes(size)}")
    if archived := len(served.archived.instants):
        did.append(f"{plural(archived, 'instant')} of the metadata table archived")
    return ServiceDone(
        service=Service.METADATA,
        what=", ".join(did) or served.why,
        instants=forgotten + len(served.compactions) + len(served.cleans) + archived,
        files=files,
        bytes=size,
    )


def _cluster(table: Table, options: ServiceOptions, lock: TableLock) -> ServiceDone:
    assert options.cluster is not None
    try:
        done = cluster_table(table, options.cluster, lock, output=options.output, threads=options.threads)
    except UnsupportedError as error:  # such as a bucket-indexed table of a fleet: no failure
        return ServiceDone(service=Service.CLUSTER, what=f"not clustered: {error.what}")
    except ConflictError as error:  # others changed the files, or may: the next interval tries again
        if commit_stays(table, error):
            raise
        return ServiceDone(service=Service.CLUSTER, what=f"put off: {error.what}")
    all_ = [*done.finished, *([] if done.done is None else [done.done])]
    files, made = sum(one.files for one in all_), sum(one.made for one in all_)
    what = f"{plural(files, 'file')} clustered, now {made}" if all_ else f"nothing to cluster: {done.why}"
    return ServiceDone(service=Service.CLUSTER, what=what, instants=len(all_))


def _clean(table: Table, options: ServiceOptions, lock: TableLock) -> ServiceDone:
    assert options.clean is not None
    done = clean_table(table, options.clean, lock)
    earlier = sum(one.files for one in done.finished)
    files, cleans = done.files + earlier, len(done.finished) + (done.instant is not None)
    what = f"{plural(files, 'file')} removed, {human_bytes(done.bytes)}" if cleans else f"nothing to clean: {done.why}"
    return ServiceDone(service=Service.CLEAN, what=what, instants=cleans, files=files, bytes=done.bytes)


def _archive(table: Table, options: ServiceOptions, lock: TableLock) -> ServiceDone:
    done = archive_table(table, options.archiving, lock)
    count = len(done.archived) + len(done.finished)
    what = f"{plural(count, 'instant')} archived" if count else f"nothing to archive: {done.why}"
    return ServiceDone(service=Service.ARCHIVE, what=what, instants=count)


_SERVICES: dict[Service, Callable[[Table, ServiceOptions, TableLock], ServiceDone]] = {
    Service.METADATA: _metadata,
    Service.CLUSTER: _cluster,
    Service.CLEAN: _clean,
    Service.ARCHIVE: _archive,
}
