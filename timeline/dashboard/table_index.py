"""The index of tables: which of them a page shows, in which order, with totals and the pools they belong to (pure).

The parameters of the page, all optional: `find`, a part of a name or path; `state`; `pool`; `sort`; `page`, from 1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ..errors import UsageError
from ..terminal.text_table import Row
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
