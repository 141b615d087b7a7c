"""Takes the newest completed write back where it is a clustering: the file groups that it replaced count again.

    lock   what must not be is refused, see `undo.rollback`
           the instant is buried: nothing completes it again, and nothing is built upon it, also where this process
           sleeps and loses the lock before the next step (see `half_taken_back`). If it is lost already, the burial
           goes again: others may have built upon it
           the completed file goes: from here on it is a pending clustering, which is taken back, see `complete`

If the process dies before the completed file goes, the next writer of its machine digs the instant up, else this
command goes on. Behind that, the next write, clustering or rollback takes it back. Hudi's rollback of a clustering
leaves its plan pending instead: its next clustering executes it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantombase.timeline.audit.ledgers import CLUSTERED, GroupLedger, decode_ledgers
from phantombase.timeline.errors import UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.reserved_times import has_tombstone, put_tombstone, remove_tombstone
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import first_beat, heartbeat_path
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.create import drop_within
from phantombase.timeline.table.pending import refuse_half_upgraded, refuse_pending_restore
from phantombase.timeline.table.table import Table

from ..clustering.complete import remove
from ..clustering.pending import PendingClustering, planned_clustering
from .plan_put import is_own, refuse_stale, stale_plan_removed
from .refusals import refuse_work
from .rollback import is_merged, refuse_built_upon, refuse_cleaned, refuse_last
from .undo import unpublish

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclustered:
    """`files`: that count again. `metadata_dropped`: the metadata table, which had been compacted since, is gone."""

    instant: str
    files: int
    metadata_dropped: bool = False


def is_clustering(table: Table, instant: str) -> bool:
    """Whether an instant is a clustering of phantombase that `roll_back_clustering` takes back, or goes on with."""
    found = table.load_timeline().find(instant, "replacecommit")
    if found is None or planned_clustering(table, found) is None:
        return False
    return has_tombstone(table.storage, instant) if not found.completed else bool(_ledgers(table, found))


def roll_back_clustering(table: Table, lock: TableLock, instant: str, *, dry_run: bool = False) -> Unclustered:
    """Takes a completed clustering back that nothing was built upon. `dry_run`: everything is checked, nothing changed.

    UsageError: another write, plan or savepoint came later, or a file that it joined is gone. ConflictError: a process
    is at work, or Hudi executes it. LockError, StorageError: run again.
    """
    with stale_plan_removed(table, lock, _dig_up_late), lock.hold(f"take {instant} back") as section:
        table = table.reload()
        refuse_half_upgraded(table)
        timeline = table.load_timeline()
        refuse_pending_restore(table, timeline)
        found, pending = _found(table, timeline, instant)
        files = 0
        if found.completed:
            refuse_work(table, timeline)
            refuse_last(table, timeline, found)
            refuse_cleaned(table, timeline, found)
            refuse_built_upon(table, timeline, found)
            files = _refuse_lost(table, found)
        drops = is_merged(table, found)
        if dry_run:
            table.times.check_zone(timeline)
            return Unclustered(instant=instant, files=files, metadata_dropped=drops)
        table.next_time(timeline, (), {instant})  # a clock that is wrong is refused before anything is hidden
        if drops:
            _log.warning(
                "metadata_table_dropped", table=table.storage.base_path, why="a compaction of it holds this clustering"
            )
            drop_within(table, section)
            table = table.reload()
        if found.completion_time is not None:  # as in a rollback of a write: it stays in use
            section.check()
            put_tombstone(table.storage, found.completion_time)
        _bury(table, found, section)
        unpublish(table, found, section.check)
        remove(table, pending, section)
    _log.info("clustering_rolled_back", table=table.storage.base_path, instant=instant)
    return Unclustered(instant=instant, files=files, metadata_dropped=drops)


def _bury(table: Table, found: Instant, section: Section) -> None:
    """From here on nothing is built upon the clustering. LockLostPlanError: something may have been."""
    time = found.requested_time
    if has_tombstone(table.storage, time):
        if found.completed:  # two may be at work on it: no process digs it up now
            table.storage.delete(heartbeat_path(time))
        return
    with first_beat(table.storage, time):
        section.check()
        put_tombstone(table.storage, time)
    refuse_stale(section, time)


def _dig_up_late(table: Table, instant: str, section: Section) -> None:
    """Unless another process goes on with the rollback."""
    found = table.load_timeline().find(instant, "replacecommit")
    if found is not None and found.completed and is_own(table, instant):
        section.check()
        remove_tombstone(table.storage, instant)
        table.storage.delete(heartbeat_path(instant))


def _found(table: Table, timeline: Timeline, instant: str) -> tuple[Instant, PendingClustering]:
    found = timeline.find(instant, "replacecommit")
    pending = None if found is None else planned_clustering(table, found)
    if found is None or pending is None:
        raise UsageError("no such clustering", path=table.storage.base_path, instant=instant)
    return found, pending


def _ledgers(table: Table, done: Instant) -> list[GroupLedger]:
    """Of a clustering that phantombase completed; empty of one that Hudi executed."""
    text = table.commit_metadata(done).extra_metadata.get(CLUSTERED)
    return [] if text is None else decode_ledgers(text, table.instant_path(done))


def _refuse_lost(table: Table, done: Instant) -> int:
    """How many files were joined. UsageError: one of them is not there any more, so its rows would be lost."""
    joined = [one.path(name) for one in _ledgers(table, done) for name in one.inputs]
    for path in joined:
        if table.storage.find(path) is None:
            raise UsageError(
                "a file that this clustering joined is gone",
                path=path,
                instant=done.requested_time,
                todo="The clustering must stay: its files have all rows.",
            )
    return len(joined)
