"""Which instants' log blocks count in a metadata table, and the progress of its compactions.

The metadata table is committed before the data table's own completed file appears. So a completed delta commit in the
metadata table alone is not sufficient. Hudi counts the blocks of:

    instants completed on the data table's active timeline, of any action
    delta commits of the metadata table that have no instant there: indexing, and on version 6 its own table services
    instants that completed rollbacks and restores of the data table have undone: their entries were undone with them
    rollbacks and restores of the metadata table, and the artificial delta commits that fill it at first

Source: HoodieTableMetadataUtil.getValidInstantTimestamps of Hudi 0.15.0 (version 6) and 1.2.0 (versions 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import MissingFileError
from ..format.instant import Instant, State
from ..format.rollback_plan import decode_rollback_plan, restored_instants, rolled_back_instants
from ..instants.timeline import Timeline
from ..table.table import BUILD_AGAIN, Snapshot, Table, open_metadata_table


def compacted_after(table: Table, time: str) -> bool:
    """Whether a data table's metadata table, if it has one, has a compaction with an instant after `time`."""
    if not table.config.metadata_partitions:
        return False
    instants = open_metadata_table(table).timeline.instants
    return any(i.family == "commit" and i.requested_time > time for i in instants)


ARTIFICIAL = "00000000000000"
"""The times of delta commits that fill a new partition of the metadata table begin with these digits."""

_UNDOING = ("rollback", "restore")
_OWN_TIME_CHARACTERS = 20  # an instant of the data table, and three digits for the purpose
_SERVICE_SUFFIXES = frozenset({"001", "002", "003", "004", "005", "006"})
_FIRST_FILLING_SUFFIX = "010"


def valid_instants(table: Snapshot, metadata: Timeline) -> frozenset[str]:
    """Requested times of the log blocks that count. `metadata`: of its metadata table."""
    data = table.timeline
    pending = {i.requested_time for i in data.instants if not i.completed}
    valid = {i.requested_time for i in data.instants if i.completed}
    valid |= {
        i.requested_time
        for i in metadata.instants
        if i.completed and i.action == "deltacommit" and _counts_alone(metadata, i.requested_time, pending)
    }
    since = min(valid, default=ARTIFICIAL)
    if metadata.layout.has_completion_times:
        # Effects of rollbacks before the last compaction are in its base files.
        since = max([since, *(i.requested_time for i in metadata.instants if i.action == "commit" and i.completed)])
    for instant in data.instants:
        if instant.completed and instant.action in _UNDOING and instant.requested_time > since:
            valid |= set(_undone(table, instant))
    for own in metadata.instants:
        fills = own.action == "deltacommit" and own.requested_time.startswith(ARTIFICIAL)
        if own.completed and (fills or own.action in _UNDOING):
            valid.add(own.requested_time)
    return frozenset(valid)


def refuse_uncompleted(table: Snapshot, metadata: Snapshot) -> None:
    """MissingFileError if a delta commit of the metadata table lacks its completed file: its entries would not count.
    The timeline of `table` was loaded before that of `metadata`, its metadata table. An instant of the data table
    completes after its delta commit here, so one that is completed or archived there cannot be pending here.
    UnknownStateError: the archive cannot be read."""
    data, pending = table.timeline, {i.requested_time: i for i in metadata.timeline.pending("deltacommit")}
    if not pending or data.pending("restore"):
        return
    done = {i.requested_time for i in data.instants if i.completed}
    known = {i.requested_time for i in data.instants}
    if any(ARTIFICIAL < time < data.start and time not in known for time in pending):
        done |= {i.requested_time for i in table.with_archive(data).archived}
    for time in sorted(pending.keys() & done):
        raise MissingFileError(
            "the completed file of a delta commit of the metadata table is missing",
            path=f"{metadata.storage.base_path}/{metadata.instant_path(pending[time])}",
            instant=time,
            expected="a completed delta commit, since the table has completed this instant",
            found="a pending one",
            todo=f"Restore the completed file from a copy. {BUILD_AGAIN}",
        )


def _counts_alone(metadata: Timeline, time: str, pending: set[str]) -> bool:
    """Whether a completed delta commit of the metadata table counts although the data table does not complete it."""
    if metadata.layout.has_completion_times:
        return time not in pending
    suffix = time[-3:]
    own = len(time) == _OWN_TIME_CHARACTERS
    return own and (suffix in _SERVICE_SUFFIXES or suffix >= _FIRST_FILLING_SUFFIX)


def _undone(table: Table, instant: Instant) -> Iterable[str]:
    path = table.instant_path(instant)
    data = table.storage.read(path)
    if instant.action == "restore":
        return restored_instants(data, path)
    if data:
        return rolled_back_instants(data, path)
    requested = table.instant_path(instant.at(State.REQUESTED))  # Hudi may leave the completed file empty
    return (decode_rollback_plan(table.storage.read(requested), requested).target,)


_ENDS_LOG_COMPACTION = (
    "a writer of Hudi executes it after its next commit; without one, `compactor-daemon compact TABLE "
    "--drop-metadata-table` ends it with the metadata table"
)


def blocked_by(metadata: Timeline) -> str | None:
    """The pending instant that blocks compactions of the metadata table, and what ends it; None: no instant (pure)."""
    pending = (*metadata.pending("deltacommit"), *metadata.pending("logcompaction"))
    if not pending:
        return None
    first = pending[0]
    why = f"{first.action} {first.requested_time} of the metadata table is pending"
    return f"{why}: {_ENDS_LOG_COMPACTION}" if first.action == "logcompaction" else why
