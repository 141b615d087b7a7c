"""The doorbell: announces a requested plan, so that an idle daemon claims it at once and not at its next poll.

Claims on storage: one compactor process works on an instant. They save work; no safety rests on them.

.hoodie/.phantombase/claim.lock     file systems: a lock file, the claim on all instants of the table
.hoodie/.phantombase/<C>/claim      object stores: a lease on one instant
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from phantombase.timeline.errors import ClaimedError, PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.attempt_names import instant_folder
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table

from ..zookeeper.session import ZooKeeperOptions
from .claims import find_table_id
from .zookeeper_claims import claims_of


def claim_path(table: Table, instant: str) -> str:
    """What is held while a process works on an instant."""
    return f"{RECORDS}/claim.lock" if table.storage.is_file_system else f"{instant_folder(instant)}/claim"


def claim(table: Table, instant: str, wait_s: float = 0.0) -> AbstractContextManager[Callable[[], bool]]:
    """Holds the claim on an instant; gives whether it is still held, see `Storage.hold`.

    ClaimedError: another process of phantombase holds it for longer than `wait_s`.
    """
    path = claim_path(table, instant)
    busy = ClaimedError(
        f"another compactor is at work on this {'table' if table.storage.is_file_system else 'instant'}",
        path=f"{table.storage.base_path}/{path}",
        todo="Wait until it ends, or run with --wait SECONDS.",
    )
    return table.storage.hold(path, wait_s, busy)


def claim_all(table: Table, wait_s: float = 0.0) -> AbstractContextManager[object]:
    """Holds the claim on all instants together where there is one, see the module; elsewhere does nothing."""
    return claim(table, "", wait_s) if table.storage.is_file_system else nullcontext()


def claim_one(table: Table, instant: str, wait_s: float = 0.0) -> AbstractContextManager[object]:
    """Holds the claim on an instant, unless `claim_all` holds it with the others."""
    return nullcontext() if table.storage.is_file_system else claim(table, instant, wait_s)


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
