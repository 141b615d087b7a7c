"""What pages show of many tables, and of one in detail: the index of tables, its totals and pools; one instant decoded,
the file groups of a table in pages, the work of the fleet.

The parameters of the index, all optional: `find`, a part of a name or path; `state`; `pool`; `sort`; `page`, from 1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, TypeAlias

from ..errors import PhantombaseError, UsageError
from ..format.clean import decode_clean_plan
from ..format.instant import MERGES, Instant, State
from ..format.rollback_plan import decode_rollback_plan
from ..service.table_state import ServedState
from ..table.table import Table
from ..terminal.text_table import Row
from ..view.view import GroupDebt
from .compactions import amplification
from .verdict import Health, is_silenced

PAGE = 200
"""Tables on a page."""
PARAMETERS = ("find", "state", "pool", "sort", "page")
_Key: TypeAlias = tuple[object, ...]
_NUMBER = re.compile(r"([0-9]+)")
_STATES = tuple(one.value for one in Health)
_SUMS = ("pending_compactions", "log_files", "log_bytes", "log_bytes_waiting", "base_bytes", "writes_last_hour",
         "compactions_last_hour")  # fmt: skip


def as_counted(name: str) -> _Key:
    """A name as a key that sorts as people count: `table2` comes before `table10`."""
    parts = _NUMBER.split(name.casefold())
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name


def by_need(row: Row) -> _Key:
    """Worst first, then by the logs of a file group, then by name."""
    return _STATES.index(row["health"]), -(row.get("log_files_max") or 0), as_counted(row["served_as"])


def _greatest(key: str) -> Callable[[Row], _Key]:
    """Greatest first, then by name; unknown ones last."""

    def order(row: Row) -> _Key:
        value = row.get(key)
        return value is None, -(value or 0), as_counted(row["served_as"])

    return order


SORTS: Mapping[str, Callable[[Row], _Key]] = {
    "need": by_need,
    "name": lambda row: as_counted(row["served_as"]),
    "lag": _greatest("read_optimized_lag_s"),
    "pending": _greatest("oldest_pending_s"),
    "deltas": _greatest("delta_commits_since_compaction"),
    "log_files": _greatest("log_files"),
    "log_bytes": _greatest("log_bytes"),
    "reads": _greatest("read_amplification"),
    "last_write": _greatest("seconds_since_write"),
}


def tables_index(rows: Sequence[Row], given: Mapping[str, str]) -> Row:
    """One page of the index. `rows`: of `TableRows.all`. `given`: see the module. `counts`, `silenced`, `pools`: of all
    tables; `totals`: of those that match. UsageError: no such state, pool, order or page."""
    pools = sorted({pool for row in rows if (pool := row.get("pool"))}, key=as_counted)
    find, sort = given.get("find", "").strip(), given.get("sort") or "need"
    state, pool = given.get("state") or None, given.get("pool") or None
    for name, value, known in (("state", state, _STATES), ("pool", pool, pools), ("order", sort, SORTS)):
        if value is not None and value not in known:
            raise UsageError(f"no such {name}", expected=", ".join(known) or f"no {name}", found=repr(value))
    wanted = find.casefold()
    found = [
        row
        for row in rows
        if (state is None or row["health"] == state)
        and (pool is None or row.get("pool") == pool)
        and (wanted in row["served_as"].casefold() or wanted in row["path"].casefold())
    ]
    found.sort(key=SORTS[sort])
    pages = max(1, -(-len(found) // PAGE))
    page = page_number(given.get("page") or "1", pages)
    return {
        "find": find,
        "state": state,
        "pool": pool,
        "sort": sort,
        "page": page,
        "pages": pages,
        "all": len(rows),
        "count": len(found),
        "counts": {one: count for one in _STATES if (count := Counter(row["health"] for row in rows)[one])},
        "silenced": sum(map(is_silenced, rows)),
        "totals": {name: sum(row.get(name) or 0 for row in found) for name in _SUMS},
        "pools": [_pool(one, [row for row in rows if row.get("pool") == one]) for one in pools],
        "tables": found[(page - 1) * PAGE : page * PAGE],
    }


def _pool(name: str, rows: Sequence[Row]) -> Row:
    ages = [age for row in rows if (age := row.get("oldest_pending_s")) is not None]
    return {
        "pool": name,
        "tables": len(rows),
        "troubled": sum(row["health"] != Health.WELL.value for row in rows),
        "pending": sum(row.get("pending_compactions") or 0 for row in rows),
        "oldest_pending_s": max(ages, default=None),
        "slo_s": rows[0]["slo_s"],
        "log_bytes": sum(row.get("log_bytes") or 0 for row in rows),
    }


def page_number(text: str, pages: int) -> int:
    """UsageError: no such page."""
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= pages):
        raise UsageError("no such page", expected=f"1 to {pages}", found=repr(text))
    return int(text)


_FILES = 200
_TEXT = 2000


def instant_page(table: Table, state: ServedState, time: str) -> Row:
    """All actions at a requested time. UsageError: the active timeline has none."""
    found = [i for i in state.timeline.instants if i.requested_time == time]
    if not found:
        raise UsageError(
            "no such instant on the active timeline",
            found=repr(time),
            todo="`timeline show TABLE` lists the instants, with --archived those of the archive, too.",
        )
    return {"instant": time, "actions": [_action(table, state, i) for i in found]}


def _action(table: Table, state: ServedState, instant: Instant) -> Row:
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
    """Settings as text; long values, such as schemas and ledgers, are truncated."""
    texts = {name: str(value) for name, value in extra.items() if value is not None}
    return {name: text if len(text) <= _TEXT else f"{text[:_TEXT]} ..." for name, text in texts.items()}


_GROUPS = 50
_ORDERS = ("log_bytes", "log_files", "base_bytes", "read_amplification", "partition")


def groups_page(state: ServedState, given: Mapping[str, str]) -> Row:
    """One page of file groups. `given`: the parameters `sort` (a column, greatest first), `partition`, `page` (from 1).
    UsageError: no such column, page or partition."""
    order, partition = given.get("sort", _ORDERS[0]), given.get("partition") or None
    if order not in _ORDERS:
        raise UsageError("not a column to sort by", expected=", ".join(_ORDERS), found=repr(order))
    if partition is not None and partition not in state.partitions:
        raise UsageError(
            "no such partition", found=repr(partition), todo="The page /t/NAME/groups names the partitions."
        )
    found = _ordered(_Same(state), order, partition)
    pages = max(1, -(-len(found) // _GROUPS))
    page = page_number(given.get("page", "1"), pages)
    return {
        "sort": order,
        "partition": partition,
        "page": page,
        "pages": pages,
        "count": len(found),
        "groups": [_row(d) for d in found[(page - 1) * _GROUPS : page * _GROUPS]],
    }


class _Same:
    """A state as a cache key, compared by identity."""

    def __init__(self, state: ServedState) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self.state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.state is other.state


@lru_cache(maxsize=4)
def _ordered(key: _Same, order: str, partition: str | None) -> list[GroupDebt]:
    """All file groups in order; cached, so that each state is sorted once, not once per page."""
    partitions = key.state.partitions
    chosen = partitions.values() if partition is None else [partitions[partition]]
    debts = [d for files in chosen for d in files.debts]
    if order == "partition":
        return sorted(debts, key=lambda d: (d.partition, d.file_id))
    return sorted(debts, key=lambda d: (-_value(d, order), d.partition, d.file_id))


def _value(debt: GroupDebt, order: str) -> float:
    if order == "read_amplification":
        return amplification(debt.base_bytes, debt.log_bytes) or float("inf")
    return float(getattr(debt, order))


def _row(debt: GroupDebt) -> Row:
    return {**asdict(debt), "read_amplification": amplification(debt.base_bytes, debt.log_bytes)}


def fleet_work(tables: Sequence[Row]) -> Row:
    """`last_hour`: completed compactions. Of the pending ones: `states`, the number in each; `errors`, by kind, most
    frequent first; `parked`, those that wait for an operator. `tables`: of `TableRows.all`."""
    pending = [{"served_as": row["served_as"], **one} for row in tables for one in row.get("work", ())]
    failed = [one for one in pending if one["failures"]]
    kinds = Counter(one["failures"]["error"] for one in failed).most_common()
    return {
        "last_hour": sum(row.get("compactions_last_hour", 0) for row in tables),
        "states": dict(Counter(one["state"] for one in pending).most_common()),
        "errors": [_kind(error, count, failed) for error, count in kinds],
        "parked": [one for one in pending if one["state"] == "parked"],
    }


def _kind(error: str, count: int, failed: Iterable[Row]) -> Row:
    """One kind of error, with its newest failure."""
    last = min(
        (one for one in failed if one["failures"]["error"] == error), key=lambda one: one["failures"]["last_s"] or 0.0
    )
    row = {"error": error, "compactions": count, "served_as": last["served_as"], "instant": last["instant"]}
    return {**row, "what": last["failures"]["what"], "last_s": last["failures"]["last_s"]}
