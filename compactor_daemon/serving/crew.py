"""What the pages of the timeline service show of this daemon and its fleet."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.terminal.plain import Row

from ..claims.claims import Claim, find_table_id
from ..claims.zookeeper_claims import ZooKeeperClaims
from ..daemon.loop import Daemon
from ..daemon.table_on_storage import Settings
from ..status.snapshot import Claimed, look_at_table
from ..status.status import Clock, claim_rows, status_report
from ..zookeeper.session import ZooKeeperSession

_RECENT = 5


class DaemonCrew:
    """See `phantombase.timeline.dashboard.crew.Crew`. `session`: of its own; None without ZooKeeper."""

    def __init__(
        self,
        daemon: Daemon,
        settings: Settings,
        session: ZooKeeperSession | None,
    ) -> None:
        self._daemon, self._settings, self._session = daemon, settings, session

    def about(self, table: Table) -> Row:
        """The names of `compactor-daemon status --json`."""
        table = table.with_clock(self._settings.clock)
        claimed = self._claimed(table)
        seen = consistent(lambda: look_at_table(table.still(), claimed, recent=_RECENT))
        clock = Clock(clock_ms(), table.now())
        return status_report(seen, clock, attempt=self._settings.attempt, retry=self._settings.retry)

    def fleet(self) -> Row:
        """This daemon, and the claims on its tables. PhantombaseError: ZooKeeper does not answer."""
        me = {
            "who": self._settings.who,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "tables": len(self._daemon.paths),
            "running": [f"{path} {instant}" for path, instant in self._daemon.at_work],
        }
        row: Row = {
            "zookeeper": None if self._session is None else self._session.connected,
            "daemons": [me],
            "lanes": [{"lane": use.lane, "running": use.running} for use in self._daemon.lanes],
            "claims": [],
        }
        if self._session is not None:
            for path in self._daemon.paths:
                table = Table.open(path, self._settings.storage_options).with_clock(self._settings.clock)
                row["claims"] += claim_rows(path, self._held(table), Clock(clock_ms(), table.now()))
        return row

    def _claimed(self, table: Table) -> Claimed:
        try:
            return None if self._session is None else self._held(table)
        except PhantombaseError as error:
            return error

    def _held(self, table: Table) -> Mapping[str, Claim]:
        assert self._session is not None
        name = find_table_id(table.storage)
        return ZooKeeperClaims(self._session, name, "service").all() if name is not None else {}
