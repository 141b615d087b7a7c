"""Completed compactions whose records are still needed: to finish leftovers, or for their ledger."""

from __future__ import annotations

from collections.abc import Iterator

from phantombase.timeline.audit.ledgers import entries
from phantombase.timeline.errors import LockError, MalformedError, PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Snapshot, Table

from .outcome import decisions
from .pending_clusterings import remove_dead_runs

_log = get_logger()


def tidy(table: Table, lock: TableLock, *, runs: bool = True) -> None:
    """Finishes completed compactions, so that their records are not needed, and removes what dead processes staged for
    a clustering, unless `runs` is False. Errors other than LockError are logged. A stale commit is retracted here:
    until then what it merged must remain."""
    from .finish import finish_completed  # imported here: `status` starts without it

    try:
        finish_completed(table, lock)
        if runs:
            remove_dead_runs(table)
    except LockError:
        raise
    except PhantombaseError as error:
        _log.warning("not_cleaned_up", table=table.storage.base_path, error=str(error))


def unfinished_compactions(table: Snapshot) -> Iterator[str]:
    """The instants whose records are needed; a record that cannot be read is needed."""
    completed = {i.requested_time for i in table.timeline.completed}
    recorded = [i for i in recorded_instants(table.storage) if i in completed]
    if not recorded:
        return
    from .finish import littered_instants  # imported here, as above

    littered = littered_instants(table)
    for instant in recorded:
        if instant in littered or not _is_audited(table, instant):
            yield instant


def _is_audited(table: Table, instant: str) -> bool:
    """Whether its ledger is in the audit log, or phantombase did not execute it. That of a clustering is put before its
    leftovers are removed."""
    try:
        made = [one for one in decisions(table.storage, instant) if not one.replaced]
        return not made or bool(entries(table.storage, instant))
    except MalformedError:
        return False
