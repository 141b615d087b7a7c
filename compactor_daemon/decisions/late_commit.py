"""A completed commit that came too late: its process slept under the lock, between its last check and the put.

No storage can prevent such a put, and other processes have gone on meanwhile. So the process checks again right after
the put. If it died before that, the next run withdraws the commit, if its decision was taken back.
In either case the commit stays where other processes have built upon it (`built_upon`): rows that were restored away
are back then, but no row that was written since is lost.
"""

from __future__ import annotations

from collections.abc import Collection

from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.locks.section import REGARDLESS
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table

from ..records.fate import Go, is_revoked
from .built_upon import is_built_upon
from .completed import completed_commits, completed_compaction, is_ours
from .standing import Ruling, Standing, refuse, standing_of
from .take_back import refuse_revoked, take_back

_log = get_logger()


def look_back(table: Table, go: Go, path: str) -> None:
    """Deletes the completed file that was just put at `path`, or may have been put, if it must not be there.

    ConflictError: the plan, or a write that was merged, is gone, or the decision was taken back. If another compactor
    has completed the instant, only its commit stays.
    """
    theirs = [i for i in completed_commits(table, go.instant) if not is_ours(table, i, go)]
    if theirs:
        if table.storage.find(path) is not None and path not in {table.instant_path(i) for i in theirs}:
            table.storage.delete(path)
        return
    ruling = standing_of(table, go)
    is_over = ruling.standing in (Standing.PAST, Standing.FALLEN)
    if not is_over and not is_revoked(table.storage, go.instant, go.attempt):
        return
    if ruling.standing is not Standing.PAST and _stays(table, go, ruling):
        return
    table.storage.delete(path)
    if ruling.standing is Standing.FALLEN:
        take_back(table, go, ruling.why, REGARDLESS)
    refuse(table, go.instant, ruling)
    refuse_revoked(table, go)


def late_commit(table: Table, done: Instant, made: Collection[Go]) -> Go | None:
    """The decision that a completed commit carried out, if all decisions of its instant were taken back."""
    if not all(is_revoked(table.storage, go.instant, go.attempt) for go in made):
        return None
    return next((go for go in made if is_ours(table, done, go)), None)


def withdraw(table: Table, go: Go, lock: TableLock) -> bool:
    """Deletes the completed commit of a `late_commit`, if that decision has fallen; whether it did."""
    with lock.hold("withdraw a late commit") as section:
        table = table.still()
        done, ruling = completed_compaction(table, go.instant), standing_of(table, go)
        if done is None or not is_ours(table, done, go) or ruling.standing is not Standing.FALLEN:
            return False
        # A pending write of version 6 may be about to write a log that is named after the commit.
        is_awaited = table.layout.slicing is Slicing.BY_BASE_INSTANT and table.load_timeline().pending_delta_commits
        if is_awaited or _stays(table, go, ruling):
            return False
        section.check()
        table.storage.delete(table.instant_path(done))
        take_back(table, go, ruling.why, section)
        return True


def _stays(table: Table, go: Go, ruling: Ruling) -> bool:
    if not is_built_upon(table, go, stands=ruling.standing is not Standing.FALLEN):
        return False
    _log.error("late_commit_stays", instant=go.instant, attempt=go.attempt, why=ruling.why)
    return True
