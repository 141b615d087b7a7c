"""The commit decision of an attempt.

Under the table lock: check that nothing has changed since the attempt was opened, then write the outcome `commit` by
put-if-absent. The decision is final: from then on any process may publish it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType

from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import reserve
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.in_progress import check_version, exclusive
from phantombase.timeline.table.table import Table, TableSchema

from .attempt import Attempt
from .completed import completed_compaction
from .hudi_executors import ForeignWatch
from .outcome import CommitDecision, Placement, write_outcome
from .publish import not_published
from .slice_record import SliceDone
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
    job = attempt.job
    with exclusive(table, lock, f"decide a {job.name}", OF_ATTEMPT, cached=True) as table:
        check_version(table, attempt.table_version, attempt.instant, not_published(job))
        _check_undisturbed(table, attempt)
        table.times.check_reached(attempt.instant, table.timeline)
        completion = table.completion_time()
        decision = build_decision(
            table, attempt, done, schema, completion, oldest=table.timeline.start, properties=properties
        )
        # A write that was merged may have been rolled back since the view was loaded.
        refuse(table, job, validity_of(table, decision))
        if completion is not None:
            reserve(table.storage, attempt.instant, attempt.number, completion)
        write_outcome(table.storage, attempt.instant, attempt.number, decision.to_json(), decision.nonce)
        return decision


def _check_undisturbed(table: Table, attempt: Attempt) -> None:
    instant, job = attempt.instant, attempt.job
    try:
        is_planned = job.is_planned(table)
    except MissingFileError as error:
        raise ConflictError(
            f"this {job.name} was unscheduled, or rolled back and removed",
            path=error.path,
            instant=instant,
            todo="This attempt published nothing.",
        ) from error
    if not is_planned:
        raise ConflictError(
            "file groups were removed from this plan",
            path=table.storage.base_path,
            instant=instant,
            todo="This attempt published nothing. Run again.",
        )
    done = completed_compaction(table, instant, job.requested.family)
    if done is not None:
        raise ConflictError(
            f"another process completed this {job.name}", path=table.instant_path(done), instant=instant
        )
    ForeignWatch(table, instant, attempt.number, attempt.trace, requested=job.requested).check_now()


def build_decision(
    table: Table,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    completion: str | None,
    *,
    oldest: str,
    properties: Mapping[str, str],
) -> CommitDecision:
    """The `commit` record. It depends on the arguments alone, except for its random nonce."""
    job, layout = attempt.job, table.layout
    completed = Instant(
        requested_time=attempt.instant, action=job.requested.action, state=State.COMPLETED, completion_time=completion
    )
    placements = tuple(
        Placement(staged=file.staged, final=file.final, size=file.size, output=d.output)
        for d in done
        for file in d.files
    )
    return CommitDecision(
        instant=attempt.instant,
        attempt=attempt.number,
        nonce=uuid.uuid4().hex,
        table_version=attempt.table_version,
        completion_time=completion,
        completed_path=f"{table.config.timeline_folder}/{layout.file_name(completed)}",
        content=encode_commit(job.commit(done, schema, properties), layout.encoding),
        placements=placements,
        merged=tuple(sorted({instant for d in done for instant in d.merged or ()})),
        oldest=oldest,
        passed=job.passed(table, done),
        replaced=job.replaced(done),
        skipped=job.skipped(done),
    )
