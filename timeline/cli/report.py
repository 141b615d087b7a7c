"""What the `timeline` command reports about a table, as plain dicts (pure), used for JSON and for terminal tables.

Sizes are bytes, instants are digit strings as on disk; None means unknown or not applicable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import MissingFileError
from ..format.compaction_plan import CompactionOperation, CompactionPlan, _path, planned_paths
from ..format.instant import Instant
from ..terminal.text_table import Row
from ..view.view import FileGroup, FileSlice, TableView, is_replaced, slice_before

if TYPE_CHECKING:  # what `show` does not need to start
    from ..audit.audit import InstantAudit
    from ..audit.modification_times import Mistimed, Retimed
    from ..metadata_table.validate import Validation
    from ..table.table import Table

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
    MissingFileError: names the first planned file that is missing."""
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
    executors are all busy for as long as the largest slice takes; more of them would only wait. The result is at most
    the number of slices, and 0 for an empty plan."""
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
    found: Validation,
    metadata_commits: int | None,
    wrong: Sequence[Mistimed],
    view: TableView,
    strays: Sequence[str],
    unnamed: Sequence[str],
    table: Table,
) -> Row:
    """The results of `timeline validate`. `metadata_commits`: see `TableSettings`; None if there is no metadata table.
    `view`: with archived writes. `strays`: of the view of now. `unnamed`: see `counted_by_name`."""
    flaws = [f for g in view.groups if not is_replaced(g, view.facts) for f in g.flaws]
    return {
        "table": table.storage.base_path,
        "good": not found.differences and not wrong and not flaws and not unnamed,
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
        "lost": [
            {"file": f.path, "instant": f.instant, "expected_bytes": f.expected, "found_bytes": f.found} for f in flaws
        ],
        "unreadable_commits": sorted(view.facts.witness.unread),
        "strays": list(strays),
        "unnamed": list(unnamed),
    }


def repair_report(files: Sequence[Retimed], table_path: str, *, dry_run: bool) -> Row:
    """The times that `timeline repair-times` set, or would set."""
    return {"table": table_path, "dry_run": dry_run, "files": [{"file": f.path, "time": f.time} for f in files]}
