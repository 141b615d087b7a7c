"""The commit decision of an attempt, and the content of the commit.

Under the table lock: check that nothing has changed since the attempt was opened, then write the outcome `commit` by
put-if-absent. The decision is final: from then on any process may publish it. The commit is as Hudi 0.15 and 1.2 write
it, plus the ledger.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.commit_metadata import LEDGER, LOG_COMPACT, CommitMetadata, RuntimeStats, WriteStat
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout, Slicing
from phantombase.timeline.format.ledger import GroupLedger, encode_ledgers
from phantombase.timeline.instants.reserved_times import reserve
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.exclusive import check_version, exclusive
from phantombase.timeline.table.table import Table, TableSchema

from .attempt import Attempt
from .completed import completed_compaction
from .hudi_executors import ForeignWatch
from .outcome import CommitDecision, Placement, write_outcome
from .publish import NOT_PUBLISHED
from .slice_task import SliceDone
from .validity import OF_ATTEMPT, refuse, validity_of


def decide_commit(
    table: Table,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    lock: TableLock,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> CommitDecision:
    """Decides under the table lock. ConflictError, AttemptDeadError: nothing is published."""
    with exclusive(table, lock, "decide a compaction", OF_ATTEMPT, snapshot=True) as held:
        table, timeline = held.table, held.timeline
        check_version(table, attempt.table_version, attempt.instant, NOT_PUBLISHED)
        _check_undisturbed(table, attempt)
        table.times.check_reached(attempt.instant, timeline)
        completion = table.completion_time(timeline)
        decision = build_decision(
            table.layout,
            attempt,
            done,
            schema,
            completion,
            table.config.timeline_folder,
            oldest=timeline.start,
            properties=properties,
        )
        # A write that was merged may have been rolled back since the view was loaded.
        refuse(table, decision.instant, validity_of(table, decision))
        if completion is not None:
            reserve(table.storage, attempt.instant, attempt.number, completion)
        write_outcome(table.storage, attempt.instant, attempt.number, decision.to_json(), decision.nonce)
        return decision


def _check_undisturbed(table: Table, attempt: Attempt) -> None:
    instant = attempt.instant
    try:
        plan = table.compaction_plan(instant)
    except MissingFileError as error:
        raise ConflictError(
            "this compaction was unscheduled, or rolled back and removed",
            path=error.path,
            instant=instant,
            todo="This attempt published nothing.",
        ) from error
    if plan.groups != attempt.plan.groups:
        raise ConflictError(
            "file groups were removed from this plan",
            path=table.storage.base_path,
            instant=instant,
            todo="This attempt published nothing. Run again.",
        )
    done = completed_compaction(table, instant)
    if done is not None:
        raise ConflictError("another process completed this compaction", path=table.instant_path(done), instant=instant)
    ForeignWatch(table, instant, attempt.number, attempt.trace).check_now()


def build_decision(
    layout: Layout,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    completion: str | None,
    timeline_folder: str,
    *,
    oldest: str,
    properties: Mapping[str, str],
) -> CommitDecision:
    """The `commit` record. It depends on the arguments alone, except for its random nonce."""
    completed = Instant(
        requested_time=attempt.instant, action=attempt.plan.action, state=State.COMPLETED, completion_time=completion
    )
    commit = log_compaction_commit if attempt.plan.merges_logs else compaction_commit
    placements = tuple(
        Placement(staged=d.staged, final=d.final, size=d.size, output=d.output)
        for d in done
        if d.staged is not None and d.final is not None
    )
    return CommitDecision(
        instant=attempt.instant,
        attempt=attempt.number,
        nonce=uuid.uuid4().hex,
        table_version=attempt.table_version,
        completion_time=completion,
        completed_path=f"{timeline_folder}/{layout.file_name(completed)}",
        content=encode_commit(commit(done, schema, properties), layout.encoding),
        placements=placements,
        merged=tuple(sorted({instant for d in done for instant in d.merged or ()})),
        oldest=oldest,
        passed=_passed(layout, attempt, done),
    )


def _passed(layout: Layout, attempt: Attempt, done: list[SliceDone]) -> tuple[str, ...]:
    """The replaced file groups, which were left out: they have no inputs.

    Their replace commit may be rolled back before this decision is published. Then logs on the plan's slice would hide
    the rows below them. Only version 6 has such logs: from version 8 on, no log is named after the plan.
    """
    if attempt.plan.merges_logs or layout.slicing is not Slicing.BY_BASE_INSTANT:
        return ()
    return tuple(f"{d.partition}/{d.file_id}" for d in done if not d.inputs)


def compaction_commit(done: Iterable[SliceDone], schema: TableSchema, properties: Mapping[str, str]) -> CommitMetadata:
    """The completed commit of a compaction. `schema`: of the files written.

    `properties`: of the user, recorded in it.
    """
    return _commit(done, schema, properties, "COMPACT", _write_stat)


def log_compaction_commit(
    done: Iterable[SliceDone], schema: TableSchema, properties: Mapping[str, str]
) -> CommitMetadata:
    """The completed delta commit of a log compaction."""
    return _commit(done, schema, properties, LOG_COMPACT, _log_write_stat)


def _commit(
    done: Iterable[SliceDone],
    schema: TableSchema,
    properties: Mapping[str, str],
    operation: str,
    stat: Callable[[SliceDone, str], WriteStat],
) -> CommitMetadata:
    slices = sorted(done, key=lambda d: d.position)
    stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
    for one in slices:
        if one.final is not None:
            stats[one.partition].append(stat(one, one.final))
    ledger = encode_ledgers([_group_ledger(d) for d in slices])
    return CommitMetadata(
        partition_to_write_stats={partition: tuple(s) for partition, s in stats.items()},
        compacted=True,
        extra_metadata={**properties, **schema.recorded, LEDGER: ledger},
        operation_type=operation,
    )


def _group_ledger(done: SliceDone) -> GroupLedger:
    return GroupLedger(
        partition=done.partition,
        file_id=done.file_id,
        inputs=done.inputs,
        output=done.final.rpartition("/")[2] if done.final is not None else None,
        size=done.size,
        ledger=done.ledger,
        skipped=done.skipped,
    )


def _log_write_stat(done: SliceDone, final: str) -> WriteStat:
    """The statistics as a write records them: the rows in the log file, and its deletes."""
    name, ledger = final.rpartition("/")[2], done.ledger
    return replace(
        _write_stat(done, final),
        num_deletes=ledger.deletes_of_absent,
        num_update_writes=ledger.rows_out,
        num_inserts=0,
        log_version=LogFileName.parse(name).version,
        log_offset=0,
        base_file=done.base_file or "",
        log_files=(name,),
    )


def _write_stat(done: SliceDone, final: str) -> WriteStat:
    ledger = done.ledger
    return WriteStat(
        file_id=done.file_id,
        path=final,
        prev_commit=done.base_instant or "null",
        num_writes=ledger.rows_out,
        num_deletes=ledger.deleted,
        num_update_writes=ledger.replaced,
        num_inserts=ledger.inserts,
        total_write_bytes=done.size,
        file_size_in_bytes=done.size,
        partition_path=done.partition,
        total_log_records=ledger.log_entries,
        total_log_files_compacted=done.log_files,
        total_log_size_compacted=done.log_bytes,
        total_updated_records_compacted=ledger.log_keys,
        total_log_blocks=done.log_blocks,
        total_corrupt_log_block=done.corrupt_blocks,
        total_rollback_blocks=done.rolled_back_blocks,
        prev_base_file=done.base_file,
        runtime_stats=RuntimeStats(total_upsert_time=round(done.seconds * 1000)),
    )
