"""The decision of an attempt: under the table lock, check that nothing has changed, then write `go`, which is final."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType

from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout, Slicing
from phantombase.timeline.instants.reserved_times import reserve
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table, TableSchema

from ..decisions.commit import compaction_commit, log_compaction_commit
from ..decisions.completed import completed_compaction
from ..decisions.hudi_executors import ForeignWatch
from ..decisions.standing import refuse, standing_of
from ..records.fate import Go, Placement, write_fate
from ..records.slice_done import SliceDone
from .attempt import Attempt
from .publish import check_unchanged


def decide_go(
    table: Table,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    lock: TableLock,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Go:
    """Decides under the table lock. ConflictError, AttemptDeadError: nothing is published."""
    with lock.hold("decide a compaction") as section:
        table = table.still()
        check_unchanged(table, attempt.table_version, attempt.instant)
        _check_undisturbed(table, attempt)
        timeline = table.load_timeline()
        table.times.check_reached(attempt.instant, timeline)
        completion = table.completion_time(timeline)
        go = build_go(
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
        refuse(table, go.instant, standing_of(table, go))
        if completion is not None:
            reserve(table.storage, attempt.instant, attempt.number, completion)
        section.check()
        write_fate(table.storage, attempt.instant, attempt.number, go.to_json(), go.nonce)
        return go


def _check_undisturbed(table: Table, attempt: Attempt) -> None:
    instant = attempt.instant
    try:
        plan = table.compaction_plan(instant)
    except MissingFileError as error:
        raise ConflictError(
            "this compaction was meanwhile unscheduled, or rolled back and removed",
            path=error.path,
            instant=instant,
            todo="This attempt published nothing.",
        ) from error
    if plan.groups != attempt.plan.groups:
        raise ConflictError(
            "file groups were taken out of this plan meanwhile",
            path=table.storage.base_path,
            instant=instant,
            todo="This attempt published nothing. Run again.",
        )
    done = completed_compaction(table, instant)
    if done is not None:
        raise ConflictError("another process completed this compaction", path=table.instant_path(done), instant=instant)
    ForeignWatch(table, instant, attempt.number, attempt.trace).look()


def build_go(
    layout: Layout,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    completion: str | None,
    timeline_folder: str,
    *,
    oldest: str,
    properties: Mapping[str, str],
) -> Go:
    """The `go` record. It depends on the arguments alone, except for its random nonce."""
    completed = Instant(
        requested_time=attempt.instant, action=attempt.plan.action, state=State.COMPLETED, completion_time=completion
    )
    commit = log_compaction_commit if attempt.plan.merges_logs else compaction_commit
    placements = tuple(
        Placement(staged=d.staged, final=d.final, size=d.size, output=d.output)
        for d in done
        if d.staged is not None and d.final is not None
    )
    return Go(
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
