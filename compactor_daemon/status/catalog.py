"""Many tables at once: what needs care on each, or a row for each, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from phantombase.timeline.dashboard.details import as_counted
from phantombase.timeline.dashboard.overview import FLAT
from phantombase.timeline.dashboard.verdict import CheckOptions, TableVerdict, of_error
from phantombase.timeline.errors import PhantombaseError

from ..attempt.failures import CLUSTERING
from ..fleet.pools import Pool, Pools
from .check import CheckMeans, TableCheck, check_table, examined_or_why

_THREADS = 8
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

    with ThreadPoolExecutor(_THREADS) as threads:
        rows = threads.map(row, paths)
        return sorted(rows, key=lambda row: (-row.verdict.health.code, as_counted(row.name)))


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

    with ThreadPoolExecutor(_THREADS) as threads:
        return sorted(threads.map(row, paths), key=lambda one: one.rank)


def unlisted(listing: str, error: PhantombaseError) -> TableCheck:
    """The row of a root or catalog whose tables cannot be listed: how they are is unknown."""
    finding = of_error("not-listed", "the tables cannot be listed: how they are is unknown", error)
    return TableCheck(table=listing, name=listing, verdict=TableVerdict.of([finding], listing))


def worst(rows: Iterable[TableCheck]) -> int:
    """The exit code of `check`."""
    return max((row.verdict.health.code for row in rows), default=0)
