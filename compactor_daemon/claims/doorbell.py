"""The doorbell: announces a requested plan, so that an idle daemon claims it at once and not at its next poll."""

from __future__ import annotations

from dataclasses import replace

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.table.table import Table

from ..zookeeper.session import ZooKeeperOptions
from .claims import find_table_id
from .zookeeper_claims import claims_of

_log = get_logger()

_CONNECT_S = 3.0
"""A writer waits no longer than this to reach ZooKeeper: daemons find its plan at their next poll anyway."""


def ring(table: Table, instant: str, zookeeper: ZooKeeperOptions) -> None:
    """Wakes the daemons of a table. Never raises: the plan is on the timeline, and a poll finds it too.

    Does nothing for a table that no fleet has served yet.
    """
    try:
        name = find_table_id(table.storage)
        if name is not None:
            soon = replace(zookeeper, connect_timeout_s=min(zookeeper.connect_timeout_s, _CONNECT_S))
            with claims_of(soon, name) as claims:
                claims.ring(instant)
    except PhantombaseError as error:
        _log.warning("fleet_not_woken", table=table.storage.base_path, instant=instant, error=str(error))
