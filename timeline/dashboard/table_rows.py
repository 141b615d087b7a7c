"""The reports of the served tables: each made once from a snapshot and what the daemons know; JSON, pages and metrics
draw it. Its trend is its debt over the last day, as far as this process has sampled it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from ..clocks import clock_ms
from ..errors import PhantombaseError
from ..event_log import get_logger
from ..instants.triggers import TriggerOptions
from ..locks.pause import silence
from ..locks.section import LockSeen
from ..locks.table_lock import STORAGE, inspect_lock
from ..service.served_tables import Held, ServedTable
from ..service.table_state import ServedState
from ..storage.open_storage import open_storage
from ..table.history import history_rows, read_history, sums
from ..table.table import Table, from_one_snapshot
from ..terminal.text_table import Row
from ..view.view import Lag
from .compactions import CompletedCompaction, Debt, completed_compactions
from .details import by_need
from .look import Activity, Checked, MetadataLooks, activity_of, lag_s, look
from .orders import CommandSettings
from .overview import (
    FLAT,
    OPTIONAL,
    Clock,
    Known,
    NextPlan,
    Overview,
    PendingReport,
    as_json,
    next_plan,
    overview,
    table_pauses,
    unfinished,
)
from .verdict import CheckOptions, Finding, Freshness, Severity, TableFacts, TablePause, TableVerdict, care_of, of_error

_COMPACTIONS, _WORK = 10, 20
_log = get_logger()
_TRIGGER, _CARE = TriggerOptions(), CheckOptions()


def verdict_of(
    facts: TableFacts,
    shown: Overview,
    fleet: Known[Row],
    slo_s: float | None,
    paused: tuple[TablePause, ...],
    said: Callable[[], str] = str,
    more: Sequence[Finding] = (),
) -> TableVerdict:
    """`fleet`: `findings` of the daemons. They know more of pending instants than the timeline shows. `said`: see
    `TableVerdict.of`. `more`: of the metadata table."""
    listed = None if fleet.fact is None else fleet.fact.get("findings")
    facts = replace(
        facts,
        pending=tuple(map(unfinished, shown.pending)) if listed is None else (),
        metadata_commits=shown.table.metadata_commits_since_compaction or 0,
        metadata_problem=None if more else shown.table.metadata_problem,
        paused=paused,
    )
    known = [Finding(**{**one, "severity": Severity(one["severity"])}) for one in listed or ()]
    return TableVerdict.of([*care_of(facts, _CARE, slo_s), *known, *more], shown.table.path, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetails:
    """What only a table's page shows. `now`: in its zone. `trend`: of a day. `fleet_info`: of `status --json`.
    `work_done`: the last units of work, the newest first, as rows of the history; `work_sums`: of these, by kind."""

    overview: Overview = field(metadata=FLAT)
    timezone: str
    now: str
    compactions: tuple[CompletedCompaction, ...]
    trend: Sequence[Row] = ()
    work_done: Sequence[Row] = ()
    work_sums: Sequence[Row] = ()
    next_plan: NextPlan | Row
    fleet_info: Row | None
    fleet_info_problem: PhantombaseError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """A served table. `debt`, `activity`, `work`: None if it cannot be read; then `name` and `pending` as far as known.
    `work`: what daemons know of its pending compactions. `pool`, `served_by`: see `TablePlace`. `lock`: which process
    holds the table lock. `read_optimized_lag_s`: see `look.lag_s`. `file_groups_left_out`: those that no compaction can
    read; `file_groups_unchecked`: not looked into yet."""

    served_as: str
    path: str
    verdict: TableVerdict = field(metadata=FLAT)
    slo_s: float | None
    read_optimized_lag_s: float | None = None
    file_groups_left_out: int = 0
    file_groups_unchecked: int = 0
    debt: Debt | None = field(default=None, metadata=FLAT)
    activity: Activity | None = field(default=None, metadata=FLAT)
    work: Sequence[Row] | None = field(default=None, metadata=OPTIONAL)
    details: TableDetails | None = field(default=None, metadata=FLAT)
    name: str | None = field(default=None, metadata=OPTIONAL)
    pool: str | None = field(default=None, metadata=OPTIONAL)
    served_by: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    pending: tuple[PendingReport, ...] | None = field(default=None, metadata=OPTIONAL)
    lock: LockSeen | None = field(default=None, metadata=OPTIONAL)


def table_report(
    served_as: str,
    table: Table,
    state: ServedState,
    facts: TableFacts,
    trigger: TriggerOptions,
    slo_s: float | None,
    about: Callable[[bool], Known[Row]],
    *,
    whole: bool,
    more: Sequence[Finding] = (),
) -> TableReport:
    """`facts`: of the state, by the `trigger`. `more`: see `verdict_of`. `about`: what is known of the table besides,
    asked now if the argument says so. `whole`: with `details`. PhantombaseError: it cannot be read."""
    kinds = state.kinds if whole else None
    shown = from_one_snapshot(lambda: overview(table.snapshot(), pending_only=not whole, kinds=kinds))
    clock = Clock.of(table)
    fleet = about(whole or bool(shown.pending))
    work = (fleet.fact or {}).get("pending", ())
    behind_s, fresh = lag_s(facts, clock), (fleet.fact or {}).get("freshness") or {}
    if (goal_s := trigger.freshness_s) is not None and behind_s is not None:
        facts = replace(facts, freshness=Freshness(lag_s=behind_s, goal_s=goal_s, why=fresh.get("why")))
    asks = shown.pending or facts.due is not None or facts.freshness is not None
    paused = tuple(table_pauses(table, clock)) if asks else ()
    report = TableReport(
        served_as=served_as,
        path=table.storage.base_path,
        verdict=verdict_of(facts, shown, fleet, slo_s, paused, partial(silence, lambda: table.storage), more),
        slo_s=slo_s,
        read_optimized_lag_s=behind_s,
        file_groups_left_out=len(facts.flaws) + len(facts.unmergeable),
        file_groups_unchecked=facts.unchecked,
        debt=facts.debt,
        activity=activity_of(state.timeline, state.kinds, [(p.action, p.instant) for p in shown.pending], clock),
    )
    if not whole:
        return replace(report, work=work)
    done = _work_done(table)
    details = TableDetails(
        overview=shown,
        timezone="UTC" if table.config.utc_timezone else table.clock.timezone,
        now=clock.now.strftime("%Y-%m-%d %H:%M:%S"),
        compactions=completed_compactions(table.with_timeline(state.timeline), _COMPACTIONS),
        work_done=done[::-1],
        work_sums=sums(done),
        next_plan=(fleet.fact or {}).get("next_plan") or next_plan(state.timeline, clock.now, trigger),
        fleet_info=fleet.fact,
        fleet_info_problem=fleet.problem,
    )
    return replace(report, details=details)


def _work_done(table: Table) -> list[Row]:
    """The last rows of the history; none, where it cannot be read: the page has the rest."""
    try:
        return history_rows(read_history(table.storage, last=_WORK))
    except PhantombaseError as error:
        _log.warning("history_not_read", table=table.storage.base_path, error=str(error))
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Where a table belongs. `pool`: None without pools. `served_by`: the daemons. `own`: that of this process, too."""

    pool: str | None
    served_by: tuple[str, ...]
    own: bool


class TableInfo(Protocol):
    """What is known of tables beside their timelines. Called in a thread; PhantombaseError: it cannot be known now."""

    def about(self, table: Table, lag: Lag | None = None, *, whole: bool = True) -> Row:
        """One table, with the names of `compactor-daemon status --json`, its `findings` too. `lag`: see `TableFacts`.
        `whole`: also what only its page shows: `next_plan`, whether this daemon `requests` compactions, None without
        one, and the `unfinished` file groups of running ones."""
        ...

    def last_known(self, table: Table) -> Row | None:
        """The `findings` of a table when it was last looked at; None: unknown."""
        ...

    def trigger(self, table: Table) -> TriggerOptions:
        """When a compaction of the table is due."""
        ...

    def slo_s(self, path: str) -> float | None:
        """The table is late if a compaction is pending for longer; None: it never is."""
        ...


class FleetInfo(TableInfo, Protocol):
    """Which process works on which table, too."""

    def placed(self, path: str) -> TablePlace:
        """Which pool and which daemons a table has."""
        ...

    def fleet(self, busy: Sequence[str] = ()) -> Row:
        """`daemons`: who, host, pid, tables, the address of its `pages`, and what it is `running`; `zookeeper`:
        connected, or None without it; `pools`: what each daemon uses; `claims` on the tables of this daemon and on the
        `busy` ones. The first daemon is that of this process. `problem`: why others are unknown."""
        ...


_EVERY_S = 60.0
_KEPT = 24 * 60
_NAMES = ("log_bytes", "log_files", "read_amplification")


class Trends:
    """One sample a minute, for a day."""

    def __init__(self) -> None:
        self._samples: defaultdict[str, deque[Row]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def add(self, path: str, at_s: float, debt: Debt) -> None:
        """Adds a sample, unless the last sample is younger than a minute."""
        samples = self._samples[path]
        if not samples or at_s - samples[-1]["at_s"] >= _EVERY_S:
            samples.append({"at_s": round(at_s, 3), **{name: getattr(debt, name) for name in _NAMES}})

    def of(self, path: str) -> list[Row]:
        return list(self._samples[path])


_SETTINGS = CommandSettings()
_FRESH_S = 5.0
_AT_ONCE, _PASS_S = 200, 1.0
"""Of more tables a page waits for this many seconds for new rows."""
_CHECKED, _CHECKED_WHOLE = 4, 64
"""How many file groups of a table are looked into for all tables, and for its own page; the next time as many more."""


class TableRows:
    """`slo_s`: a compaction pending for longer is late, None: as in `TableInfo`; `settings`: with the lock to show.
    `placed`: as in `FleetInfo`."""

    def __init__(
        self,
        slo_s: float | None,
        info: TableInfo | None = None,
        settings: CommandSettings = _SETTINGS,
        placed: Callable[[str], TablePlace] | None = None,
    ) -> None:
        self._slo_s, self._info, self._settings, self._placed = slo_s, info, settings, placed
        self._checked: dict[str, Checked] = {}
        self._metadata = MetadataLooks()
        self._listed: tuple[float, list[Row]] | None = None
        self._listing: asyncio.Task[None] | None = None
        self.trends = Trends()

    async def all(self, tables: Iterable[ServedTable]) -> list[Row]:
        """All tables, worst first, then by the logs of a file group, then by name."""
        return sorted(await asyncio.gather(*(self.one(table) for table in tables)), key=by_need)

    async def listed(self, tables: Sequence[ServedTable]) -> tuple[list[Row], float | None]:
        """As `all`, and the age of the rows in seconds. Of many tables they are those of the last complete pass, and
        the next one goes on meanwhile; none and None: the first pass takes a while."""
        if len(tables) <= _AT_ONCE:
            return await self.all(tables), 0.0
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._list(tables))
        await asyncio.wait([self._listing], timeout=_PASS_S)
        if self._listing.done():
            self._listing.result()  # raises what it has raised
        return ([], None) if self._listed is None else (self._listed[1], time.monotonic() - self._listed[0])

    async def _list(self, tables: Sequence[ServedTable]) -> None:
        began = time.monotonic()
        self._listed = began, await self.all(tables)

    async def one(self, table: ServedTable, *, whole: bool = False, lock: bool = False) -> Row:
        """The report of one table as JSON. `whole`: all that its page shows; `lock`: also the holder of its lock."""
        try:
            held = await table.load() if whole else await recent(table)
            found = await asyncio.to_thread(self._report, table, held, whole)
            found = replace(found, lock=await asyncio.to_thread(self._lock, table.table)) if lock else found
        except PhantombaseError as error:
            found = await asyncio.to_thread(self._unread, table, error)
        if self._placed is not None:
            placed = await asyncio.to_thread(self._placed, table.path)
            found = replace(found, pool=placed.pool, served_by=placed.served_by)
        row: Row = as_json(found)
        return row

    def _unread(self, table: ServedTable, why: PhantombaseError) -> TableReport:
        """A table whose files cannot be read; a plan may be the reason, which can be cancelled."""
        findings = [of_error("unreadable", "the table cannot be read", why)]
        said = partial(silence, partial(open_storage, table.path, table.storage_options))
        found = TableReport(
            served_as=table.name,
            path=table.path,
            verdict=TableVerdict.of(findings, table.path, said),
            slo_s=self._slo_of(table.path),
        )
        try:
            opened = table.opened()
            pending = from_one_snapshot(lambda: overview(opened.snapshot(), pending_only=True)).pending
        except PhantombaseError:
            return found
        odd = TableFacts(kind="", has_logs=True, completed=0, pending=tuple(map(unfinished, pending)))
        verdict = TableVerdict.of([*care_of(odd, _CARE), *findings], table.path, said)
        return replace(found, verdict=verdict, pending=pending, name=opened.config.name)

    def _report(self, served: ServedTable, held: Held, whole: bool) -> TableReport:
        table, path, info = served.table, served.path, self._info
        trigger = _TRIGGER if info is None else info.trigger(table)
        known, most = self._checked.get(path, {}), _CHECKED_WHOLE if whole else _CHECKED
        facts, self._checked[path] = look(table, held.state, trigger, known, most)
        about = partial(self._about, table, facts.lag, whole)
        more = self._metadata.of(table, held.state, facts, asks=whole)
        slo_s = self._slo_of(path)
        found = table_report(served.name, table, held.state, facts, trigger, slo_s, about, whole=whole, more=more)
        if found.debt is not None:
            self.trends.add(path, clock_ms() / 1000, found.debt)
        if found.details is not None:
            found = replace(found, details=replace(found.details, trend=self.trends.of(path)))
        return found

    def _lock(self, table: Table) -> LockSeen:
        given = self._settings.lock_of(table.config.name)
        if given is None and self._settings.sole_writer:
            given = STORAGE
        return inspect_lock(table.storage, given, table.config.properties, clock_ms())

    def _slo_of(self, path: str) -> float | None:
        return self._slo_s if self._slo_s is not None or self._info is None else self._info.slo_s(path)

    def _about(self, table: Table, lag: Lag | None, whole: bool, asks: bool) -> Known[Row]:
        info = self._info
        if info is None:
            return Known()
        return Known.of(partial(info.about, table, lag, whole=whole) if asks else partial(info.last_known, table))


async def recent(table: ServedTable) -> Held:
    """A state that was loaded within the last seconds."""
    held = table.newest
    return held if held is not None and time.monotonic() - held.loaded_s < _FRESH_S else await table.load()
