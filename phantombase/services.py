"""What the commands do to a table, as calls: the same names, options and results, as values.

schedule, compact, maintain                                       compactions; all that is due
clean, archive, cluster, metadata, build_metadata, orphans        services; with `dry_run` nothing is changed
rollback, restore, savepoint, delete_savepoint, unschedule        undo; the same, as is `replan`
pause, resume, cancel                                             hold or end work, on all machines
sync                                                              a catalog shows the table

`table` is a path, a URL or a `Table`; `storage_options`: see `read`. What changes a table needs `lock`, which all
writers share, or `sole_writer`: UsageError without, but for a dry run. Where a call has the default, an option counts
that the table keeps (`config set`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from .api import AnyTable, Given, locked, opened
from .compactor_daemon.archiving.archive import ArchiveResult, archive_table
from .compactor_daemon.archiving.choice import ArchiveOptions
from .compactor_daemon.attempt.outcome import CancelledWork
from .compactor_daemon.catalogs.options import SyncOptions, SyncResult
from .compactor_daemon.catalogs.sync import sync_table
from .compactor_daemon.cleaning.choice import CleanOptions
from .compactor_daemon.cleaning.clean import clean_table
from .compactor_daemon.cleaning.orphan_choice import OrphanOptions
from .compactor_daemon.cleaning.orphans import OrphanResult, remove_orphans
from .compactor_daemon.cleaning.plan import CleanResult
from .compactor_daemon.clustering.cluster import cluster_table
from .compactor_daemon.clustering.options import ClusterOptions
from .compactor_daemon.clustering.result import ClusterResult
from .compactor_daemon.execution.run_compactions import Compactions, run_compactions
from .compactor_daemon.execution.runners import all_storage_options, check_memory, open_runner, this_machine
from .compactor_daemon.metadata_services.build import MetadataBuilt
from .compactor_daemon.metadata_services.build import build_metadata as build
from .compactor_daemon.metadata_services.chosen import BuildOptions
from .compactor_daemon.metadata_services.due import MetadataOptions
from .compactor_daemon.metadata_services.serve import MetadataServed, serve_metadata
from .compactor_daemon.options import AttemptOptions, ExecuteOptions
from .compactor_daemon.services.maintain import (
    MaintainStep,
    Maintenance,
    cancel_instant,
    maintain_table,
    pause_table,
    resume_table,
)
from .compactor_daemon.services.options import (
    Options,
    Service,
    ServiceOptions,
    kept_attempt_options,
    parse_services,
    read_policies,
    usual_services,
)
from .compactor_daemon.undo import replan as replanning
from .compactor_daemon.undo import savepoint as kept
from .compactor_daemon.undo import unschedule as unscheduling
from .compactor_daemon.undo.replan import Replanned
from .compactor_daemon.undo.restore import Restored, restore_table
from .compactor_daemon.undo.rollback import RolledBack, roll_back_newest
from .compactor_daemon.undo.savepoint import KeptSavepoint
from .compactor_daemon.undo.unschedule import Unscheduled
from .compactor_daemon.unit_of_work import Limit
from .timeline.codec.output_options import OutputOptions
from .timeline.errors import UsageError
from .timeline.locks.pause import Pause, refuse_paused, user_name
from .timeline.locks.table_lock import check_writers_known
from .timeline.option import path_text, spelled
from .timeline.planning.options import PLAN_NOW, ScheduleOptions
from .timeline.planning.schedule import Scheduled, schedule_compaction
from .timeline.shown import Results
from .timeline.storage.open_storage import open_storage
from .timeline.table.table import Table


@spelled
def schedule(
    table: AnyTable,
    options: ScheduleOptions | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> Scheduled:
    """Requests a compaction of a table; by default of every file group with log files, at once.

    `lock`: the table lock that all writers share, `file:PATH`, `zookeeper:HOSTS/BASE/PATH/KEY`, or `storage`: that of
    the table's storage, a file in the table, which only phantombase's own writers know, and on an object store the
    lock that Hudi's StorageBasedLockProvider holds. `sole_writer`: no other process writes concurrently. `dry_run`: the
    choice is made, and nothing is requested. `compact` executes the request. `storage_options`: see `read`.
    UsageError: neither lock nor sole_writer, or both (a dry run needs none).
    """
    risk = "A plan made while an unknown write is running would lose that write's rows."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "schedule", risk)
    chosen = read_policies(at[0].storage).over(options or PLAN_NOW, by_person=True)
    return schedule_compaction(at[0], at[1], chosen, dry_run=dry_run)


@spelled
def compact(
    table: str | os.PathLike[str],
    instant: str | None = None,
    *,
    lock: str | None = None,
    limit_s: float | None = None,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Given = None,
) -> Compactions:
    """Executes the pending compactions of a table, earliest first, or only the named `instant`.

    `limit_s`: after this many seconds no instant begins; the next call continues. `lock`: see `schedule`.
    `storage_options`: see `read`.
    """
    path, running = path_text(table), execute or ExecuteOptions()
    kept = read_policies(open_storage(path, all_storage_options([path], storage_options, running, None)))
    return run_compactions(
        path,
        instant=instant,
        lock=lock,
        output=kept.over(output or OutputOptions()),
        execute=running,
        attempt=kept.over(attempt or AttemptOptions()),
        limit=Limit(limit_s),
        storage_options=storage_options,
    )


@spelled
def maintain(
    table: AnyTable,
    *,
    services: str | None = None,
    options: Sequence[Any] = (),
    schedule: ScheduleOptions | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Given = None,
) -> tuple[MaintainStep, ...]:
    """Does all that is due on a table, as `compactor-daemon maintain`: requests a compaction by the trigger of
    `schedule`, executes pending ones, then runs `services` (such as `clean,archive`; by default all but orphan files
    and syncs). `options`: of services, such as a CleanOptions. A step that fails has the error in its answer, and holds
    no other one back. `lock`, `sole_writer`: see `schedule`; one of them is needed. `dry_run`: nothing is changed.
    `storage_options`: see `read`."""
    if not dry_run:
        risk = "A write that is under way could lose its rows."
        check_writers_known(lock, sole_writer, "maintain", risk, names="lock= and sole_writer=True")
    chosen = usual_services() if services is None else parse_services(services)
    given = {type(one): one for one in options}
    if odd := [one for one in options if type(one) not in {service.kind for service in chosen}]:
        expected = ", ".join(service.kind.__name__ for service in chosen)
        raise UsageError("not options of a service that runs", expected=expected, found=repr(odd[0]))
    if len(given) < len(options):
        raise UsageError("options of one service are given twice", found=", ".join(type(o).__name__ for o in options))
    how = Maintenance(
        services=ServiceOptions(chosen={one: given.get(one.kind) or one.kind() for one in chosen}),
        requests=schedule or ScheduleOptions(),
        output=output or OutputOptions(),
        attempt=attempt or AttemptOptions(),
        lock=lock,
        sole_writer=sole_writer,
        dry_run=dry_run,
    )
    with open_runner(execute or ExecuteOptions()) as runner:
        at = opened(table, storage_options)
        how = how.over(read_policies(at.storage), (), named=services is not None)
        return Results(maintain_table(at, how, runner))


@spelled
def clean(
    table: AnyTable,
    options: CleanOptions | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> CleanResult:
    """Removes old file slices and replaced file groups, which only reads of the past still need."""
    risk = "A savepoint that is made now may lose files."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "clean", risk, service=True)
    return clean_table(at[0], _kept(at[0], options or CleanOptions()), at[1], dry_run=dry_run)


@spelled
def archive(
    table: AnyTable,
    options: ArchiveOptions | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> ArchiveResult:
    """Moves the oldest completed instants from the active timeline into the archive, as Hudi does after commits."""
    risk = "Two at once could lose archived instants."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "archive", risk, service=True)
    return archive_table(at[0], _kept(at[0], options or ArchiveOptions()), at[1], dry_run=dry_run)


@spelled
def cluster(
    table: AnyTable,
    options: ClusterOptions | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    storage_options: Given = None,
) -> ClusterResult:
    """Joins small files, so that readers open fewer, or sorts large ones, so that filters skip more. No row changes."""
    risk = "A write that is under way could lose its rows."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "cluster", risk, service=True)
    policies, running = read_policies(at[0].storage), execute or ExecuteOptions()
    if output is not None and output.record_ttl is not None:
        raise UsageError("a clustering keeps all rows", found=f"record_ttl={output.record_ttl}", todo="Leave it out.")
    written, chosen = policies.over(output or OutputOptions()), policies.over(options or ClusterOptions())
    if not dry_run:
        check_memory(written.memory_limit, running, this_machine())
    with ExitStack() as stack:
        runner = None if dry_run else stack.enter_context(open_runner(running))
        return cluster_table(at[0], chosen, at[1], output=written, runner=runner, dry_run=dry_run)


@spelled
def metadata(
    table: AnyTable,
    options: MetadataOptions | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> MetadataServed:
    """Compacts, cleans and archives Hudi's metadata table, if the table has one and that is due: see `build_metadata`
    for one that has none."""
    risk = "Another process may write to it meanwhile."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "metadata", risk, service=True)
    return serve_metadata(at[0], _kept(at[0], options or MetadataOptions()), at[1], dry_run=dry_run)


@spelled
def build_metadata(
    table: AnyTable,
    options: BuildOptions | None = None,
    *,
    rebuild: bool = False,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> MetadataBuilt:
    """Builds the partitions of Hudi's metadata table that the table lacks. `rebuild`: partitions that are there are
    taken out first, and built again. Others may write meanwhile: what completes is added before it becomes visible."""
    risk = "Another process may write to it meanwhile."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "metadata", risk, service=True)
    return build(at[0], options or BuildOptions(), at[1], again=rebuild, dry_run=dry_run)


@spelled
def orphans(
    table: AnyTable,
    options: OrphanOptions | None = None,
    *,
    remove: bool = False,
    lock: str | None = None,
    sole_writer: bool = False,
    storage_options: Given = None,
) -> OrphanResult:
    """The files that no record of the table names; `remove`: they are removed, which needs a lock."""
    risk = "A write may be completed meanwhile."
    at = locked(table, storage_options, lock, sole_writer, not remove, "orphans", risk, service=True)
    return remove_orphans(at[0], _kept(at[0], options or OrphanOptions()), at[1], dry_run=not remove)


@spelled
def rollback(
    table: AnyTable,
    instant: str,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> RolledBack:
    """Rolls back the newest completed write. Refused if anything came after it: `restore` undoes more."""
    at = locked(table, storage_options, lock, sole_writer, dry_run, "rollback", _STOP)
    return roll_back_newest(at[0], at[1], instant, dry_run=dry_run)


@spelled
def restore(
    table: AnyTable,
    to: str | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> Restored:
    """Restores the state at a write or savepoint: all that was written after it is undone. `to` None: the restore that
    was interrupted is finished. Stop all writers and compactors first."""
    at = locked(table, storage_options, lock, sole_writer, dry_run, "restore", _STOP)
    expiry_s = kept_attempt_options(at[0].storage).heartbeat_expiry_s
    return restore_table(at[0], at[1], to, dry_run=dry_run, expiry_s=expiry_s)


@spelled
def savepoint(
    table: AnyTable,
    instant: str | None = None,
    *,
    comment: str = "",
    user: str | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> KeptSavepoint:
    """Keeps the state at a write, by default the newest one, until `delete_savepoint`. `user`: this process's by
    default."""
    at = locked(table, storage_options, lock, sole_writer, dry_run, "savepoint", _CLEANERS)
    by = user_name() if user is None else user
    return kept.create_savepoint(at[0], at[1], instant, user=by, comment=comment, dry_run=dry_run)


@spelled
def delete_savepoint(
    table: AnyTable,
    instant: str,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> None:
    """Deletes a savepoint: the next clean may remove its files."""
    at = locked(table, storage_options, lock, sole_writer, dry_run, "delete_savepoint", _CLEANERS)
    kept.delete_savepoint(at[0], at[1], instant, dry_run=dry_run)


@spelled
def unschedule(
    table: AnyTable,
    instant: str,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> Unscheduled:
    """Cancels a requested compaction; its file groups are then free for the next plan."""
    risk = "Logs of an unknown write could be lost."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "unschedule", risk)
    return unscheduling.unschedule(at[0], instant, at[1], kept_attempt_options(at[0].storage), dry_run=dry_run)


@spelled
def replan(
    table: AnyTable,
    instant: str,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    storage_options: Given = None,
) -> Replanned:
    """Replaces a requested compaction by one of the same file groups that takes in the logs written since."""
    risk = "An unknown process may plan the same file groups."
    at = locked(table, storage_options, lock, sole_writer, dry_run, "replan", risk)
    return replanning.replan(at[0], instant, at[1], kept_attempt_options(at[0].storage), dry_run=dry_run)


@spelled
def cancel(
    table: AnyTable, instant: str, reason: str = "", *, dry_run: bool = False, storage_options: Given = None
) -> CancelledWork:
    """Ends the work on a pending compaction or clustering, in whichever process it runs; its plan stays requested.
    `decided` of the result: it was too late. UsageError: the instant is not pending."""
    return cancel_instant(opened(table, storage_options), instant, reason, dry_run=dry_run)


@spelled
def sync(table: AnyTable, options: SyncOptions, *, dry_run: bool = False, storage_options: Given = None) -> SyncResult:
    """A catalog (Hive Metastore, Glue, Iceberg) shows the table as it is now. `options.to` names it. Needs no lock."""
    found = opened(table, storage_options, reading=True)
    if not dry_run:
        refuse_paused(found.storage, Service.SYNC.value)
    return sync_table(found, _kept(found, options), dry_run=dry_run)


@spelled
def pause(
    table: AnyTable,
    reason: str,
    *,
    until: datetime | None = None,
    services: Sequence[str] = (),
    storage_options: Given = None,
) -> Pause:
    """Holds compactions and services of a table on all machines, or some `services`, until a time or `resume`. What has
    begun goes on. The calls and commands that are held raise PausedError. `until`: without a zone UTC. UsageError: no
    reason, a time that is over, an unknown service."""
    return pause_table(opened(table, storage_options, reading=True).storage, reason, until=until, services=services)


@spelled
def resume(table: AnyTable, *, storage_options: Given = None) -> tuple[str, ...]:
    """Removes all pauses of a table; what each said, for people."""
    return resume_table(opened(table, storage_options, reading=True).storage)


def _kept(table: Table, options: Options) -> Options:
    return read_policies(table.storage).over(options)


_STOP = "What another process writes meanwhile may be lost: stop all writers and compactors."
_CLEANERS = "A cleaner that works meanwhile may remove files of the savepoint."
