"""One row for each table of a catalog: what is pending, whether it is late, and what is wrong.

A table that cannot be read is a row too, with its `problem`; the worst rows come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.instants.attempt_names import recorded_instants
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.terminal.plain import Row

from ..catalog.pools import Pools
from ..records.failures import Parked, RetryOptions, Waits, read_failures, readiness

_THREADS = 16


def catalog_rows(
    paths: Mapping[str, str], pools: Pools, options: StorageOptions, clock: ClockOptions, retry: RetryOptions
) -> list[Row]:
    """A row for each table, by name and path. Ages in seconds."""

    def row(named: tuple[str, str]) -> Row:
        name, path = named
        slo_s = pools.of(name).slo_s
        found: Row = {"name": name, "table": path, "pool": pools.of(name).match, "slo_s": slo_s}
        try:
            looked = consistent(lambda: _look(Table.open(path, options).with_clock(clock), retry))
            problem = None
        except PhantombaseError as error:
            looked, problem = _UNKNOWN, str(error)
        except Exception as error:  # of thousands of tables one is in a state that this release does not foresee
            looked, problem = _UNKNOWN, f"internal error: {type(error).__name__}: {error}"
        oldest = looked["oldest_s"]
        return {**found, **looked, "late": bool(slo_s and oldest and oldest > slo_s), "problem": problem}

    with ThreadPoolExecutor(_THREADS) as threads:
        return sorted(threads.map(row, paths.items()), key=_worst_first)


_UNKNOWN: Row = {"pending": None, "oldest_s": None, "backing_off": None, "parked": None}


def _look(table: Table, retry: RetryOptions) -> Row:
    instants = [i.requested_time for i in table.load_timeline().pending_merges]
    recorded = set(recorded_instants(table.storage)) if instants else set()
    now = clock_ms()
    ready = [readiness(read_failures(table.storage, i), now, retry) for i in instants if i in recorded]
    return {
        "pending": len(instants),
        "oldest_s": table.age_s(instants[0]) if instants else None,
        "backing_off": sum(isinstance(one, Waits) for one in ready),
        "parked": sum(isinstance(one, Parked) for one in ready),
    }


def _worst_first(row: Row) -> tuple[bool, bool, bool, float, str]:
    return row["problem"] is None, not row["parked"], not row["late"], -(row["oldest_s"] or 0.0), row["name"]
