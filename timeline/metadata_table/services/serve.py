"""Runs what is due on the metadata table: pending compactions first, then a new one."""

from __future__ import annotations

from dataclasses import dataclass

from ...format.commit_metadata import CommitMetadata
from ...format.compaction_plan import CompactionPlan
from ...format.instant import format_time
from ...instants.since_compaction import commits_since_compaction
from ...locks.table_lock import TableLock
from ...table.table import Table
from ..location import open_metadata_table
from ..metadata_view import load_metadata_view
from .compact import execute, request
from .due import Due, due
from .options import MetadataOptions
from .planned import plan_all


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCompaction:
    """A compaction of the metadata table: `files` base files of `log_files` log files, and the bytes of both.

    `finished`: it was pending already.
    """

    instant: str
    finished: bool
    files: int
    log_files: int
    log_bytes: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataServed:
    """What was done, or would be in a dry run. `why`: why a new compaction was due or not."""

    compactions: tuple[MetadataCompaction, ...]
    why: str


def serve_metadata(table: Table, options: MetadataOptions, lock: TableLock, *, dry_run: bool = False) -> MetadataServed:
    """Runs the due services of a table's metadata table, under the table's lock; nothing where it has none.

    May be repeated: what a dead process left is finished. `dry_run`: nothing is changed.
    LockError: the lock was not free, or was lost. MalformedError, UnsupportedError, MissingFileError: the metadata
    table cannot be compacted; it is as before.
    """
    if (nothing := _nothing(table.reload(), options)) is not None:  # so that most writes take no lock for it
        return MetadataServed(compactions=(), why=nothing)
    with lock.hold("serve the metadata table") as section:
        table = table.reload()
        if (nothing := _nothing(table, options)) is not None:
            return MetadataServed(compactions=(), why=nothing)
        done = []
        for pending in open_metadata_table(table).load_timeline().pending_compactions:
            instant = pending.requested_time
            if dry_run:
                done.append(_planned(instant, open_metadata_table(table).compaction_plan(instant)))
            else:
                done.append(_done(instant, execute(table, instant, section), finished=True))
        decided, plan = _decide(table, options, dry_run=dry_run)
        if decided.instant is None or plan is None:
            return MetadataServed(compactions=tuple(done), why=decided.why)
        if dry_run:
            done.append(_planned(decided.instant, plan, finished=False))
        else:
            request(open_metadata_table(table), decided.instant, plan, section)
            done.append(_done(decided.instant, execute(table, decided.instant, section), finished=False))
        return MetadataServed(compactions=tuple(done), why=decided.why)


def _nothing(table: Table, options: MetadataOptions) -> str | None:
    """Why there is nothing to do; None: there may be something."""
    if not table.config.metadata_partitions:
        return "the table has no metadata table"
    timeline = open_metadata_table(table).load_timeline()
    count = commits_since_compaction(timeline)
    if timeline.pending_compactions or count >= options.max_delta_commits:
        return None
    return f"{count} of {options.max_delta_commits} delta commits since the last compaction"


def _decide(table: Table, options: MetadataOptions, *, dry_run: bool) -> tuple[Due, CompactionPlan | None]:
    data = table.load_timeline()
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)

    def new_time() -> str:
        if dry_run:  # choosing one may put an object on storage, to learn its clock
            return format_time(table.now())
        return table.next_time(data, also_above=view.timeline.used_times())

    decided = due(
        data,
        view.timeline,
        building=table.config.building_metadata_partitions,
        max_delta_commits=options.max_delta_commits,
        new_time=new_time,
    )
    return decided, None if decided.instant is None else plan_all(view, decided.instant)


def _planned(instant: str, plan: CompactionPlan, *, finished: bool = True) -> MetadataCompaction:
    metrics = [operation.metrics or {} for operation in plan.operations]
    return MetadataCompaction(
        instant=instant,
        finished=finished,
        files=len(plan.operations),
        log_files=sum(len(operation.delta_file_paths) for operation in plan.operations),
        log_bytes=int(sum(of.get("TOTAL_LOG_FILES_SIZE", 0) for of in metrics)),
        bytes_written=0,
    )


def _done(instant: str, commit: CommitMetadata, *, finished: bool) -> MetadataCompaction:
    stats = [stat for of in commit.partition_to_write_stats.values() for stat in of]
    return MetadataCompaction(
        instant=instant,
        finished=finished,
        files=len(stats),
        log_files=sum(stat.total_log_files_compacted for stat in stats),
        log_bytes=sum(stat.total_log_size_compacted for stat in stats),
        bytes_written=sum(stat.file_size_in_bytes for stat in stats),
    )
