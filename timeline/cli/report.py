"""What the `timeline` command reports about a table, as plain dicts (pure), used for JSON and for terminal tables.

Sizes are bytes, instants are digit strings as on disk; None stands for unknown or not applicable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from ..audit.audit import InstantAudit
from ..errors import MissingFileError, PhantombaseError
from ..format.compaction_plan import TOTAL_LOG_FILES_SIZE, CompactionOperation, CompactionPlan, _path, planned_paths
from ..format.instant import Instant
from ..format.table_config import TableConfig
from ..instants.timeline import Timeline
from ..locks.heartbeat import EXPIRY_S
from ..metadata_table.validate import Validation
from ..recovery.modification_times import Mistimed, Retimed
from ..terminal.plain import Row, moment
from ..view.view import FileGroup, FileSlice, TableView, slice_before

# --- show --------------------------------------------------------------------------------------------------------


def table_facts(config: TableConfig, path: str, metadata_commits: int | PhantombaseError | None = None) -> Row:
    """The settings of the table.

    `metadata_commits`: delta commits of its metadata table since the last compaction there, or why that is unknown.
    """
    return {
        "name": config.name,
        "database": config.database or None,
        "path": path,
        "version": config.version,
        "type": config.properties["hoodie.table.type"],
        "merge_mode": config.merge_mode.value,
        "ordering_fields": list(config.ordering_fields),
        "record_key_fields": list(config.record_key_fields),
        "partition_fields": list(config.partition_fields),
        "metadata_table": bool(config.metadata_partitions),
        "metadata_partitions": list(config.metadata_partitions),
        "metadata_commits_since_compaction": metadata_commits if isinstance(metadata_commits, int) else None,
        "metadata_problem": str(metadata_commits) if isinstance(metadata_commits, PhantombaseError) else None,
        "timezone": "UTC" if config.utc_timezone else "LOCAL",
    }


def instant_rows(timeline: Timeline, *, pending_only: bool = False) -> list[Row]:
    """The loaded instants, archived ones included, by requested time."""
    active = {(i.requested_time, i.family) for i in timeline.instants}
    # Hudi archives by copying, then deleting: in between an instant is in both places.
    archived = [i for i in timeline.archived if (i.requested_time, i.family) not in active]
    both = [*((i, True) for i in archived), *((i, False) for i in timeline.instants)]
    both.sort(key=lambda pair: (pair[0].requested_time, pair[0].family))
    return [_instant_row(i, gone, timeline) for i, gone in both if not (pending_only and i.completed)]


def _instant_row(instant: Instant, archived: bool, timeline: Timeline) -> Row:
    legacy = timeline.legacy_completions.get(instant.requested_time) if instant.completed else None
    return {
        "requested_time": instant.requested_time,
        "action": instant.action,
        "state": instant.state.name.lower(),
        "completion_time": instant.completion_time or legacy,
        "archived": archived,
    }


def pending_rows(
    timeline: Timeline,
    now: datetime,
    plans: Mapping[str, CompactionPlan | PhantombaseError],
    heartbeat_ages_s: Mapping[str, float],
) -> list[Row]:
    """The pending instants, oldest first: since when, and what is known about their process.

    `now` is in the zone of the table's instants. `plans`: of compactions and log compactions, by requested time;
    an unreadable plan becomes the `problem` of its row and does not hide the other rows.
    """
    return [
        _pending_row(i, now, plans.get(i.requested_time), heartbeat_ages_s.get(i.requested_time))
        for i in timeline.instants
        if not i.completed
    ]


def _pending_row(
    instant: Instant, now: datetime, plan: CompactionPlan | PhantombaseError | None, heartbeat_s: float | None
) -> Row:
    since = moment(instant.requested_time)
    return {
        "requested_time": instant.requested_time,
        "action": instant.action,
        "state": instant.state.name.lower(),
        "age_s": None if since is None else round((now.replace(tzinfo=None) - since).total_seconds(), 3),
        "plan": _plan_summary(plan) if isinstance(plan, CompactionPlan) else None,
        "heartbeat": heartbeat_state(heartbeat_s),
        "heartbeat_age_s": None if heartbeat_s is None else round(heartbeat_s, 3),
        "problem": str(plan) if isinstance(plan, PhantombaseError) else None,
    }


def heartbeat_state(age_s: float | None) -> str:
    """'none', 'fresh' or 'stale'."""
    if age_s is None:
        return "none"
    return "fresh" if age_s <= EXPIRY_S else "stale"


def _plan_summary(plan: CompactionPlan) -> Row:
    sizes = [(o.metrics or {}).get(TOTAL_LOG_FILES_SIZE) for o in plan.operations]
    known = [int(size) for size in sizes if size is not None]
    return {
        "file_groups": len(plan.operations),
        "log_files": sum(len(o.delta_file_paths) for o in plan.operations),
        "log_bytes": sum(known) if len(known) == len(sizes) else None,
    }


# --- slices ------------------------------------------------------------------------------------------------------


def slices_report(view: TableView, path: str) -> Row:
    """Every visible file slice, replaced ones included, with totals."""
    rows = [_slice_row(s, g, view) for g in view.groups for s in g.slices]
    totals = {
        "file_groups": len(view.groups),
        "slices": len(rows),
        "phantom_slices": sum(row["base"] == "phantom" for row in rows),
        "base_bytes": sum(row["base_bytes"] or 0 for row in rows),
        "log_files": sum(row["log_files"] for row in rows),
        "log_bytes": sum(row["log_bytes"] for row in rows),
    }
    return {"table": path, "slices": rows, "totals": totals}


def _slice_row(slice_: FileSlice, group: FileGroup, view: TableView) -> Row:
    pending = group.pending_compaction
    planned = slice_before(group, pending) if pending else None
    phantom = slice_.base is None and slice_.base_instant == pending
    return {
        "partition": slice_.partition,
        "file_id": slice_.file_id,
        "base_instant": slice_.base_instant,
        "base": "file" if slice_.base else "phantom" if phantom else "none",
        "base_file": str(slice_.base.name) if slice_.base else None,
        "base_bytes": slice_.base.size if slice_.base else None,
        "log_files": len(slice_.logs),
        "log_bytes": slice_.log_bytes,
        "pending_plan": pending if slice_ == planned else None,
        "replaced_by": view.facts.replaced.get(slice_.key),
    }


# --- plan --------------------------------------------------------------------------------------------------------


def plan_report(plan: CompactionPlan, instant: Instant, sizes: Mapping[str, int | None], table_path: str) -> Row:
    """A plan's operations with the current sizes of their files (`sizes`: by path, None for a missing file).

    MissingFileError: names the first planned file that is missing.
    """
    for path in planned_paths(plan):
        if sizes.get(path) is None:
            raise MissingFileError(
                "a planned file is missing",
                path=path,
                instant=instant.requested_time,
                found=f"the compaction is {instant.state.name.lower()}",
                todo="A cleaner may have removed it after the compaction."
                if instant.completed
                else "Restore the file: the plan cannot be executed without it.",
            )
    known = {path: size for path, size in sizes.items() if size is not None}
    rows = [_operation_row(operation, known) for operation in plan.operations]
    return {
        "table": table_path,
        "instant": instant.requested_time,
        "state": instant.state.name.lower(),
        "operations": rows,
        "totals": {
            "operations": len(rows),
            "base_bytes": sum(row["base_bytes"] or 0 for row in rows),
            "log_files": sum(len(row["logs"]) for row in rows),
            "log_bytes": sum(row["log_bytes"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
        },
        "recommended_executors": recommended_executors([row["bytes"] for row in rows]),
    }


def _operation_row(operation: CompactionOperation, sizes: Mapping[str, int]) -> Row:
    base = operation.data_file_path
    logs = [{"name": n, "bytes": sizes[_path(operation, n)]} for n in operation.delta_file_paths]
    base_bytes = sizes[_path(operation, base)] if base else None
    log_bytes = sum(sizes[_path(operation, n)] for n in operation.delta_file_paths)
    return {
        "partition": operation.partition_path,
        "file_id": operation.file_id,
        "base_instant": operation.base_instant_time,
        "base_file": base,
        "base_bytes": base_bytes,
        "logs": logs,
        "log_bytes": log_bytes,
        "bytes": (base_bytes or 0) + log_bytes,
    }


def recommended_executors(slice_bytes: Sequence[int]) -> int:
    """How many executors finish a plan soonest: ceil(total bytes / largest slice's bytes).

    One file slice is one task and cannot be divided, so a plan takes at least as long as its largest slice. This many
    executors are all busy for as long as the largest slice takes; more of them would only wait.
    The result is at most the number of slices, and 0 for an empty plan.
    """
    largest = max(slice_bytes, default=0)
    if largest == 0:
        return min(1, len(slice_bytes))
    return min(-(-sum(slice_bytes) // largest), len(slice_bytes))


# --- audit -------------------------------------------------------------------------------------------------------


def audit_report(audits: Sequence[InstantAudit], table_path: str) -> Row:
    """The results of `timeline audit`, earliest instant first."""
    return {
        "table": table_path,
        "good": all(a.good for a in audits),
        "instants": [
            {
                "instant": a.instant,
                "good": a.good,
                "file_groups": len(a.groups),
                "rows": sum(g.rows for g in a.groups),
                "verdicts": dict(Counter(g.verdict.value for g in a.groups)),
                "problems": [*a.problems, *(f"{g.file_id}: {p}" for g in a.groups for p in g.problems)],
                "leftovers": list(a.leftovers),
            }
            for a in audits
        ],
    }


# --- validate ----------------------------------------------------------------------------------------------------


def validation_report(
    found: Validation, metadata_commits: int | None, wrong: Sequence[Mistimed], table_path: str
) -> Row:
    """The results of `timeline validate`. `metadata_commits`: see `table_facts`; None if there is no metadata table."""
    return {
        "table": table_path,
        "good": not found.differences and not wrong,
        "partitions": found.partitions,
        "files": found.files,
        "metadata_commits_since_compaction": metadata_commits,
        "differences": [
            {
                "partition": d.partition,
                "file": d.name,
                "what": d.what,
                "storage_bytes": None if d.name is None else d.storage_bytes,
                "metadata_bytes": None if d.name is None else d.metadata_bytes,
            }
            for d in found.differences
        ],
        "mistimed": [{"instant": m.instant, "file": m.path, "modified": m.modified, "why": m.why} for m in wrong],
    }


def repair_report(files: Sequence[Retimed], table_path: str, *, dry_run: bool) -> Row:
    """The times that `timeline repair-times` set, or would set."""
    return {
        "table": table_path,
        "dry_run": dry_run,
        "files": [{"file": f.path, "time": f.time} for f in files],
    }
