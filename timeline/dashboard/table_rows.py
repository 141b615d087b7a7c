"""The reports of the served tables, and their debt over the last day, as far as this process has sampled it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from ..clocks import clock_ms
from ..errors import PhantombaseError
from ..locks.section import LockSeen
from ..locks.table_lock import STORAGE, inspect_lock
from ..report.debt import Debt
from ..report.health import Health, Word, health_of
from ..report.overview import overview
from ..report.table_report import TableReport, table_report
from ..report.values import Known, as_json
from ..service.served_tables import Held, ServedTable
from ..table.table import Table, from_one_snapshot
from ..terminal.text_table import Row
from .orders import CommandSettings


class FleetInfo(Protocol):
    """Which process works on which table. Called in a thread; PhantombaseError: it cannot be known now."""

    def about(self, table: Table, *, whole: bool = True) -> Row:
        """One table, with the names of `compactor-daemon status --json`. `whole`: also what only its page shows:
        `next_plan`, whether this daemon `requests` compactions, and the `unfinished` file groups of running ones.
        """
        ...

    def slo_s(self, path: str) -> float | None:
        """The table is late if a compaction is pending for longer; None: it never is."""
        ...

    def fleet(self) -> Row:
        """`daemons`: who, host, pid, tables; `zookeeper`: connected, or None without it; `claims` of all tables.

        The first daemon is that of this process; others are known by their claims. `problem`: why the others are
        unknown, if they are.
        """
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
        """The samples, oldest first."""
        return list(self._samples[path])


_SETTINGS = CommandSettings()
_FRESH_S = 5.0


class TableRows:
    """Makes the reports. `slo_s`: a compaction that is pending for longer is late, None: as in `FleetInfo`; `settings`:
    with the lock whose holder is shown.
    """

    def __init__(
        self, slo_s: float | None, fleet_info: FleetInfo | None = None, settings: CommandSettings = _SETTINGS
    ) -> None:
        self._slo_s, self._fleet_info, self._settings = slo_s, fleet_info, settings
        self.trends = Trends()

    async def all(self, tables: Iterable[ServedTable]) -> list[Row]:
        """All tables, worst first, then by name."""
        rows = await asyncio.gather(*(self.one(table) for table in tables))
        order = [word.value for word in Word]
        return sorted(rows, key=lambda row: (order.index(row["health"]), row["served_as"]))

    async def one(self, table: ServedTable, *, whole: bool = False, lock: bool = False) -> Row:
        """The report of one table as JSON. `whole`: all that its page shows; `lock`: also the holder of its lock."""
        try:
            held = await table.load() if whole else await recent(table)
            found = await asyncio.to_thread(self._report, table, held, whole)
            found = replace(found, lock=await asyncio.to_thread(self._lock, table.table)) if lock else found
        except PhantombaseError as error:
            found = await asyncio.to_thread(self._unread, table, error)
        row: Row = as_json(found)
        return row

    def _unread(self, table: ServedTable, why: PhantombaseError) -> TableReport:
        """A table whose files cannot be read. If a plan is the reason, the table is stuck: a plan can be cancelled."""
        broken = Health(Word.BROKEN, str(why))
        found = TableReport(served_as=table.name, path=table.path, health=broken, slo_s=self._slo_of(table.path))
        try:
            opened = table.opened()
            pending = from_one_snapshot(lambda: overview(opened.snapshot(), pending_only=True)).pending
        except PhantombaseError:
            return found
        health = health_of(pending, None)
        health = health if health.health is Word.STUCK else broken
        return replace(found, health=health, pending=pending, name=opened.config.name)

    def _report(self, served: ServedTable, held: Held, whole: bool) -> TableReport:
        table, path = served.table, served.path
        found = table_report(
            served.name, table, held.state, self._slo_of(path), lambda: self._about(table, whole), whole=whole
        )
        if found.debt is not None:
            self.trends.add(path, time.time(), found.debt)
        return (
            found
            if found.details is None
            else replace(found, details=replace(found.details, trend=self.trends.of(path)))
        )

    def _lock(self, table: Table) -> LockSeen:
        given = self._settings.lock_of(table.config.name)
        if given is None and self._settings.sole_writer:
            given = STORAGE
        return inspect_lock(table.storage, given, table.config.properties, clock_ms())

    def _slo_of(self, path: str) -> float | None:
        return self._slo_s if self._slo_s is not None or self._fleet_info is None else self._fleet_info.slo_s(path)

    def _about(self, table: Table, whole: bool) -> Known[Row]:
        try:
            return Known(fact=None if self._fleet_info is None else self._fleet_info.about(table, whole=whole))
        except PhantombaseError as error:
            return Known(problem=error)


async def recent(table: ServedTable) -> Held:
    """A state that was loaded within the last seconds."""
    held = table.newest
    return held if held is not None and time.monotonic() - held.loaded_s < _FRESH_S else await table.load()
