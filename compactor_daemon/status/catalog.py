"""Many tables at once: what needs care on each, or a row for each, the worst first; and what pages show of them, as
storage has it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from phantombase.timeline.dashboard.details import as_counted
from phantombase.timeline.dashboard.overview import FLAT, Clock, as_json, next_plan
from phantombase.timeline.dashboard.verdict import (
    SILENCED,
    CheckOptions,
    Finding,
    TableFacts,
    TableVerdict,
    care_of,
    of_error,
)
from phantombase.timeline.errors import MalformedError, PhantombaseError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import Row
from phantombase.timeline.view.view import Lag

from ..attempt.failures import CLUSTERING, RetryOptions, read_failures
from ..fleet.pools import Pool, Pools
from ..options import AttemptOptions
from ..services.options import NO_POLICIES, Policies, read_policies
from .check import (
    CheckMeans,
    TableCheck,
    check_table,
    compaction_fact,
    examined_or_why,
    of_policies,
    of_status,
    unfinished_of,
)
from .pending import Claimed, StatusOptions, largest_unfinished, planned_by_daemons
from .snapshot import of_kept, of_service, service_runs
from .status import freshness_of, table_status

_MEANS, _NO_POOLS = CheckMeans(), Pools()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """`read_optimized_lag_s`: how old the oldest row in no base file is; `freshness_goal_s`: how old it may become.
    `oldest_s`: of pending compactions and clusterings. `log_files`, `log_bytes`: in no plan. What is not known, or
    was not asked, is None."""

    name: str
    table: str
    pool: str
    slo_s: float | None
    verdict: TableVerdict = field(metadata=FLAT)
    pending: int | None = None
    oldest_s: float | None = None
    backing_off: int | None = None
    parked: int | None = None
    log_files: int | None = None
    log_bytes: int | None = None
    read_optimized_lag_s: float | None = None
    freshness_goal_s: float | None = None
    last_compaction_s: float | None = None
    last_write_s: float | None = None

    @property
    def rank(self) -> tuple[object, ...]:
        """The worst table has the least; then names are in the order in which people count. Ages are of moments that
        differ by milliseconds."""
        code, name = self.verdict.health.code, as_counted(self.name)
        return -code, -round(self.oldest_s or 0.0), -(self.log_files or 0), name


def _means_of(means: CheckMeans, pool: Pool) -> CheckMeans:
    return means if pool.schedule is None else replace(means, trigger=pool.schedule)


def check_tables(
    paths: Mapping[str, str], options: CheckOptions, means: CheckMeans, pools: Pools = _NO_POOLS
) -> list[TableCheck]:
    """`paths`: of tables, by name. `pools`: their goals, and how plans are requested. The worst first, then by name."""

    def row(name: str) -> TableCheck:
        pool = pools.of(name)
        return check_table(name, paths[name], options, _means_of(means, pool), pool.slo_s)

    return sorted(at_once(paths, row), key=lambda row: (-row.verdict.health.code, as_counted(row.name)))


def catalog_rows(paths: Mapping[str, str], pools: Pools, means: CheckMeans = _MEANS) -> list[CatalogRow]:
    """A row for each table, by name and path, the worst first."""

    def row(name: str) -> CatalogRow:
        pool = pools.of(name)
        by_pool = _means_of(means, pool)
        found = examined_or_why(paths[name], CheckOptions(), by_pool, pool.slo_s)
        made = CatalogRow(
            name=name,
            table=paths[name],
            pool=pool.match,
            slo_s=pool.slo_s,
            verdict=found.verdict,
            log_files=None if found.debt is None else found.debt.log_files_waiting,
            log_bytes=None if found.debt is None else found.debt.log_bytes_waiting,
            read_optimized_lag_s=found.lag_s,
            freshness_goal_s=found.policies.over(by_pool.trigger, means.given).freshness_s,
            last_write_s=found.last_write_s,
        )
        if (status := found.status) is None:
            return made
        works = (*status.pending, *status.clusterings)
        instants = [one for one in works if one.instant != CLUSTERING]
        return replace(
            made,
            pending=len(instants),
            oldest_s=max((one.age_s for one in instants if one.age_s is not None), default=None),
            backing_off=sum(one.state == "backing off" for one in works),
            parked=sum(one.state == "parked" for one in works),
            last_compaction_s=None if status.last_success is None else status.last_success.ago_s,
        )

    return sorted(at_once(paths, row), key=lambda one: one.rank)


_KEPT_S = 30.0
_RECENT = 5
_OF_REPORT = ("paused", SILENCED)
"""Findings that the report of a table has besides."""
_USUAL, _CARE = TriggerOptions(), CheckOptions()


def pending_row(
    table: Table, claims: Claimed, options: StatusOptions, trigger: TriggerOptions, lag: Lag | None, *, whole: bool
) -> Row:
    """See `TableInfo.about`. `trigger`: when a compaction is due."""
    options = replace(options, recent=_RECENT if whole else 0)
    status = from_one_snapshot(lambda: table_status(table.snapshot(), claims, options))
    row: Row = as_json(status)
    seen = tuple(unfinished_of(status))
    odd = TableFacts(kind="", has_logs=True, completed=0, pending=seen, paused=status.paused)
    found = [one for one in care_of(odd, _CARE, options.slo_s) if one.name not in _OF_REPORT]
    row["findings"] = as_json([*found, *of_status(status)])
    timeline = table.snapshot().load_timeline()
    if trigger.freshness_s is not None and lag is not None:
        age_s = 0.0 if lag.oldest is None else max(0.0, Clock.of(table).age(lag.oldest.time) or 0.0)
        row["freshness"] = as_json(freshness_of(lag.oldest, age_s, trigger.freshness_s, timeline, status.pending))
    if whole:
        row |= {"next_plan": as_json(next_plan(timeline, table.now(), trigger)), "requests": None}
        for one in (*row["pending"], *row["clusterings"]):
            one["unfinished"] = largest_unfinished(table, one)
    return row


class StoredInfo:
    """What storage alone shows, for pages of a service without a daemon: see `TableInfo`. What a table keeps is read
    again after a while, and for its own page."""

    def __init__(self, clock: ClockOptions) -> None:
        self._clock = clock
        self._known: dict[str, _Stored] = {}

    def about(self, table: Table, lag: Lag | None = None, *, whole: bool = True) -> Row:
        table = table.with_clock(self._clock)
        stored = self._of(table, again=whole)
        options = StatusOptions(attempt=stored.policies.over(AttemptOptions()))
        row = pending_row(table, None, options, stored.policies.over(_USUAL), lag, whole=whole)
        row["findings"] += as_json(stored.kept)
        return row

    def last_known(self, table: Table) -> Row:
        stored = self._of(table)
        return {"findings": as_json((*stored.kept, *stored.works))}

    def trigger(self, table: Table) -> TriggerOptions:
        return self._of(table).policies.over(_USUAL)

    def slo_s(self, path: str) -> float | None:
        return None

    def _of(self, table: Table, *, again: bool = False) -> _Stored:
        path = table.storage.base_path
        known = self._known.get(path)
        if known is None or again or time.monotonic() - known.at_s > _KEPT_S:
            known = self._known[path] = _stored(table, Clock.of(table))
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What a table keeps. `kept`, `works`: the findings about that, and about services and clusterings of daemons."""

    at_s: float
    policies: Policies
    kept: tuple[Finding, ...]
    works: tuple[Finding, ...]


def _stored(table: Table, clock: Clock) -> _Stored:
    at_s, policies, kept, works = time.monotonic(), NO_POLICIES, list[Finding](), list[Finding]()
    try:
        policies = read_policies(table.storage)
    except MalformedError as error:
        kept.append(of_policies(error))
    if table.config.has_logs:
        kept += from_one_snapshot(lambda: list(of_kept(table.snapshot(), clock, _CARE.patience_s)))
        works += (one for run in service_runs(table.storage, table.load_timeline(), clock) for one in of_service(run))
        planned = planned_by_daemons(read_failures(table.storage, CLUSTERING), None, clock, RetryOptions())
        pending = () if planned is None else (compaction_fact(planned),)
        works += care_of(TableFacts(kind="", has_logs=True, completed=0, pending=pending), _CARE)
    return _Stored(at_s=at_s, policies=policies, kept=tuple(kept), works=tuple(works))


def unlisted(listing: str, error: PhantombaseError) -> TableCheck:
    """The row of a root or catalog whose tables cannot be listed: how they are is unknown."""
    finding = of_error("not-listed", "the tables cannot be listed: how they are is unknown", error)
    return TableCheck(table=listing, name=listing, verdict=TableVerdict.of([finding], listing))


def worst(rows: Iterable[TableCheck]) -> int:
    """The exit code of `check`."""
    return max((row.verdict.health.code for row in rows), default=0)
