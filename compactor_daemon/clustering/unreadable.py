"""Takes back plans of clusterings that cannot be read, of phantombase or Hudi, on which no process has begun.

Hudi writes a plan in place: killed there, it leaves an empty or torn file. While one pends, it is unknown which file
groups it names. It may go when no process can have worked by it: it is only requested, has not changed for two minutes,
no heartbeat is fresh, and nothing of its instant is in the table. A process that read it before it was damaged, and has
slept since, makes nothing of it: Hudi's looks for the plan before it makes it inflight, and phantombase's finds the
instant buried (see `complete.take_back`).

On version 6 an empty file is that of a write that replaces file groups: the next write rolls it back.
"""

from __future__ import annotations

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.compaction_plan import pending_clustering_file_groups
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import decode_cluster_plan
from phantombase.timeline.instants.reserved_times import put_tombstone
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import EXPIRY_S, heartbeat_path, is_live, read_heartbeat
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.pending import refuse_half_upgraded, refuse_pending_restore
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import traces_of

_log = get_logger()


def take_back_unreadable(table: Table, lock: TableLock) -> tuple[str, ...]:
    """Takes them back; their instants. ConflictError: a process may work on one, or has begun to."""
    if not _unreadable(table, table.load_timeline()):
        return ()
    with lock.hold("take back an unreadable plan of a clustering") as section:
        table = table.reload()
        refuse_half_upgraded(table)
        timeline = table.load_timeline()
        refuse_pending_restore(table, timeline)
        found = _unreadable(table, timeline)
        for instant in found:
            _refuse_begun(table, instant)
        for instant in found:
            _take_back(table, instant, section)
    return tuple(i.requested_time for i in found)


def _unreadable(table: Table, timeline: Timeline) -> tuple[Instant, ...]:
    return tuple(i for i in timeline.instants if i.family == "replacecommit" and _is_unreadable(table, i))


def _is_unreadable(table: Table, instant: Instant) -> bool:
    if instant.completed:
        return False
    path = table.instant_path(instant.at(State.REQUESTED))
    try:
        data = table.storage.read(path)
        pending_clustering_file_groups(data, path)
        decode_cluster_plan(data, path)
    except MissingFileError:  # completed, or taken back meanwhile
        return False
    except MalformedError:
        return True
    return not data and instant.action == "clustering"


def _refuse_begun(table: Table, instant: Instant) -> None:
    storage, time, path = table.storage, instant.requested_time, table.instant_path(instant.at(State.REQUESTED))
    entry, now_ms = storage.find(path), storage_ms(storage)
    if entry is not None and now_ms - entry.modified_ms < EXPIRY_S * 1000:
        raise ConflictError(
            "a process may still be writing the plan of a clustering, which cannot be read",
            path=path,
            instant=time,
            expected=f"a file that has not changed for {EXPIRY_S:g} s",
            todo="Wait, then run again.",
        )
    begun = "an inflight file" if instant.state > State.REQUESTED else ""
    begun = begun or ("a fresh heartbeat" if is_live(read_heartbeat(storage, time), now_ms) else "")
    doomed = () if begun else traces_of(table, time, instant.family, scan=False).doomed
    begun = begun or (f"{doomed[0][1]}, and {len(doomed) - 1} more files of it" if doomed else "")
    if begun:
        raise ConflictError(
            "a process began on the plan of a clustering that cannot be read any more",
            path=path,
            instant=time,
            found=begun,
            todo="Restore the file from a copy, or the table to an instant before it: `compactor-daemon restore TABLE "
            "--to INSTANT`.",
        )


def _take_back(table: Table, instant: Instant, section: Section) -> None:
    storage, time = table.storage, instant.requested_time
    section.check()
    put_tombstone(storage, time)
    section.check()
    storage.delete_folder(staged_folder(time))
    section.check()
    storage.delete(table.instant_path(instant.at(State.REQUESTED)))
    storage.delete(heartbeat_path(time))
    _log.warning("unreadable_clustering_taken_back", table=storage.base_path, instant=time)
