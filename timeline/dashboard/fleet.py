"""What became of the work of all daemons: done, failing, parked (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..terminal.plain import Row


def fleet_work(tables: Sequence[Row]) -> Row:
    """`last_hour`: compactions that completed. Of the pending ones: `states`, how many are in each; `errors`: by kind,
    most frequent first; `parked`: those that wait for an operator. `tables`: of `TableRows.all`.
    """
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
    return {
        "error": error,
        "compactions": count,
        "served_as": last["served_as"],
        "instant": last["instant"],
        "what": last["failures"]["what"],
        "last_s": last["failures"]["last_s"],
    }
