"""Whether other processes depend on a plan that must be taken back: Hudi executors, writers, rollbacks.

A dead Hudi executor has left an inflight file, and perhaps base files that no commit names. Both are removed with the
plan: the base files first, then the inflight file. So no crash leaves base files without the file that shows who made
them. An executor that wakes up after all cannot complete without its inflight file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from phantombase.timeline.errors import BarrierError, ConflictError
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from ..attempt.hudi_executors import foreign_trace, inflight_path, is_live
from ..attempt.outcome import decisions
from ..attempt.validity import refuse_rollback
from ..options import AttemptOptions

_OTHERWISE = (
    "If it cannot be executed because of some file groups, write their partitions anew by insert_overwrite: replaced "
    "file groups are passed over, and the others are compacted. Or restore the missing files, or the table to an "
    "instant before they were written: `compactor-daemon restore TABLE --to INSTANT`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadExecutor:
    """What a dead Hudi executor left: the path of its inflight file, and its base files."""

    inflight: str
    files: tuple[str, ...]


def refuse_touched(table: Table, instant: str, plan: CompactionPlan, options: AttemptOptions) -> DeadExecutor | None:
    """ConflictError, BarrierError: another process has begun, or may be about to begin, work that depends on the plan.

    Otherwise returns what a dead executor left, which must be removed with the plan. A plan without operations stands
    for an unreadable plan: then any file of the instant counts.
    """
    storage = table.storage
    trace = foreign_trace(table, instant, table.views.planned_partitions([plan]))
    if is_live(trace, table, options):
        raise _at_work(
            table,
            instant,
            "a recent inflight file, or recent files of its work"
            if trace.inflight_ms is not None
            else "a fresh heartbeat",
            options,
        )
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    is_dead = trace.inflight_ms is not None
    if is_dead and plan.merges_logs and by_base:
        raise ConflictError(
            "a Hudi compactor began this log compaction; file names do not show what it wrote",
            path=storage.base_path,
            instant=instant,
            todo="Let Hudi roll it back or execute it.",
        )
    refuse_rollback(table, instant)
    pending = table.load_timeline().pending_delta_commits
    if by_base and pending and not plan.merges_logs:
        raise BarrierError(
            "a pending write may be about to write logs on this plan",
            path=storage.base_path,
            instant=instant,
            expected="no pending delta commit",
            found=", ".join(i.requested_time for i in pending),
            todo="Wait until it has completed or was rolled back, then run again.",
        )
    left = _refuse_files(table, instant, plan, is_dead=is_dead)
    return DeadExecutor(inflight=inflight_path(table, instant), files=left) if is_dead else None


def written_groups(table: Table, instant: str, plan: CompactionPlan) -> frozenset[GroupKey]:
    """The file groups of a pending compaction that must stay in its plan: a write has put a log onto it (version 6).

    Without the plan no reader would find such a log below the base file of its file group. Empty where the plan is of
    log compactions, and from version 8 on.
    """
    if table.layout.slicing is not Slicing.BY_BASE_INSTANT or plan.merges_logs:
        return frozenset()
    found = ((path, name) for path, name in _files_of(table, instant, plan) if isinstance(name, LogFileName))
    return frozenset((path.rpartition("/")[0], name.file_id) for path, name in found)


def refuse_inflight(table: Table, instant: str, path: str, options: AttemptOptions) -> None:
    """ConflictError: an inflight file is there (`path`), although that of the dead executor was removed."""
    if table.storage.find(path) is not None:
        raise _at_work(table, instant, "an inflight file", options)


def _at_work(table: Table, instant: str, found: str, options: AttemptOptions) -> ConflictError:
    return ConflictError(
        "a Hudi compactor is or was at work on this instant",
        path=table.storage.base_path,
        instant=instant,
        expected=f"no heartbeat for {options.heartbeat_expiry_s:g} s, silence for {options.foreign_grace_s:g} s",
        found=found,
        todo="Wait until it has ended or counts as dead, then run again.",
    )


def _refuse_files(table: Table, instant: str, plan: CompactionPlan, *, is_dead: bool) -> tuple[str, ...]:
    """The base files of a dead executor. ConflictError: other files of the instant, which depend on the plan."""
    placed = {p.final for decision in decisions(table.storage, instant) for p in decision.placements}
    # From version 8 on, a log of the instant may belong to a writer that takes no lock and began in the same
    # millisecond. If there is no such write, the log was written under the plan while the table had version 6.
    is_shared = table.load_timeline().find(instant, "deltacommit") is not None
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    logs_too = by_base or plan.merges_logs or not plan.operations or not is_shared
    left = []
    for path, name in _files_of(table, instant, plan):
        if path in placed or not (logs_too or isinstance(name, BaseFileName)):
            continue
        if is_dead and isinstance(name, BaseFileName) and plan.operations and not plan.merges_logs:
            left.append(path)
            continue
        raise ConflictError(
            "a file of this instant is in the table; without the plan its rows would be lost or hide others",
            path=path,
            instant=instant,
            todo=f"Execute this compaction (compactor-daemon compact): that keeps every row. {_OTHERWISE}",
        )
    return tuple(left)


def _files_of(table: Table, instant: str, plan: CompactionPlan) -> Iterator[tuple[str, BaseFileName | LogFileName]]:
    groups = plan.groups
    partitions: Collection[str] = table.views.planned_partitions([plan]) if groups else table.partitions()
    for partition in sorted(partitions):
        for entry in table.storage.list(partition):
            name = parse_data_file(entry.name)
            if name is None or name.instant != instant or (groups and (partition, name.file_id) not in groups):
                continue
            yield f"{partition}/{entry.name}" if partition else entry.name, name
