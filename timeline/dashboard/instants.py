"""One instant, decoded: what its files say."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..errors import PhantombaseError, UsageError
from ..format.clean import decode_clean_plan
from ..format.instant import MERGES, Instant, State
from ..format.rollback_plan import decode_rollback_plan
from ..service.states.table_state import TableState
from ..table.table import Table
from ..terminal.plain import Row

_FILES = 200
_TEXT = 2000


def instant_page(table: Table, state: TableState, time: str) -> Row:
    """Every action at a requested time. UsageError: the active timeline has none."""
    found = [i for i in state.timeline.instants if i.requested_time == time]
    if not found:
        raise UsageError("no such instant on the active timeline", found=repr(time))
    return {"instant": time, "actions": [_action(table, state, i) for i in found]}


def _action(table: Table, state: TableState, instant: Instant) -> Row:
    row: Row = {
        "action": instant.action,
        "kind": state.kinds.get(instant.identity, instant.action),
        "state": instant.state.name.lower(),
        "completion_time": instant.completion_time,
        "file": table.instant_path(instant),
        "operation": None,
        "extra": {},
        "counts": {},
        "files": [],
        "files_left_out": 0,
        "problem": None,
    }
    try:
        row.update(_content(table, instant))
    except PhantombaseError as error:
        row["problem"] = str(error)
    row["files_left_out"] = max(0, len(row["files"]) - _FILES)
    row["files"] = row["files"][:_FILES]
    return row


def _content(table: Table, instant: Instant) -> Row:
    if instant.is_write and instant.completed:
        return _written(table, instant)
    if instant.action in MERGES:
        plan = table.compaction_plan(instant.requested_time)
        files = [
            {
                "partition": o.partition_path,
                "file_id": o.file_id,
                "file": o.data_file_path,
                "log_files": len(o.delta_file_paths),
                "metrics": dict(o.metrics or {}),
            }
            for o in plan.operations
        ]
        extra = {**(plan.extra_metadata or {}), **({} if plan.strategy is None else asdict(plan.strategy))}
        return {"files": files, "extra": _short(extra), "counts": {"file_groups": len(files)}}
    path = table.instant_path(instant.at(State.REQUESTED))
    if instant.action == "clean":
        clean = decode_clean_plan(table.storage.read(path), path)
        gone = [{"partition": p, "file": name} for p, names in clean.files.items() for name in names]
        extra = {"policy": clean.policy, "retained": clean.retained and clean.retained[0]}
        return {"files": gone, "extra": _short(extra), "counts": {"files": clean.count}}
    if instant.action == "rollback":
        undone = decode_rollback_plan(table.storage.read(path), path)
        gone = [{"partition": p, "file": name} for p, name in undone.doomed]
        return {"files": gone, "extra": {"undoes": undone.target}, "counts": {"files": len(gone)}}
    return {}


def _written(table: Table, instant: Instant) -> Row:
    metadata = table.commit_metadata(instant)
    stats = [s for stats in metadata.partition_to_write_stats.values() for s in stats]
    return {
        "operation": metadata.operation_type,
        "extra": _short(dict(metadata.extra_metadata)),
        "counts": {
            "files": len(stats),
            "partitions": len(metadata.partition_to_write_stats),
            "rows_written": sum(s.num_writes for s in stats),
            "inserts": sum(s.num_inserts for s in stats),
            "updates": sum(s.num_update_writes for s in stats),
            "deletes": sum(s.num_deletes for s in stats),
            "bytes": sum(s.file_size_in_bytes or s.total_write_bytes for s in stats),
            "replaced_file_groups": len(metadata.replaced_groups),
        },
        "files": [
            {
                "partition": s.partition_path or "",
                "file_id": s.file_id,
                "file": (s.path or "").rpartition("/")[2],
                "rows": s.num_writes,
                "bytes": s.file_size_in_bytes or s.total_write_bytes,
            }
            for s in stats
        ],
    }


def _short(extra: dict[str, Any]) -> dict[str, str]:
    """Settings as text; long ones, such as schemas and ledgers, are cut."""
    texts = {name: str(value) for name, value in extra.items() if value is not None}
    return {name: text if len(text) <= _TEXT else f"{text[:_TEXT]} ..." for name, text in texts.items()}
