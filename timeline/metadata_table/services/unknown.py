"""Pending delta commits of the metadata table that the data table does not know (the caller holds its lock).

A process sleeps before it puts a file of one, and loses the lock. Others roll its write back, or take its stitching
back, and forget the instant here. Then it puts the file, finds that the lock is lost, and ends. No process of
phantombase would complete or forget that delta commit, and services would wait for it for ever. Hudi's next writer
rolls back all that are pending here.

A living process makes its instant visible on the data table's timeline first, and keeps it there until it is done
here. So one that is neither there nor archived is over. These are left alone:

    made-up times, and those of version 6's own services     they are not of the data table
    a fresh heartbeat                                        a process of Hudi may not share the lock
    all, while a restore is pending                          Hudi 1.2 tells this table of a restore at a new time
    all, while the table is upgraded                         half of the timeline is elsewhere
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...event_log import get_logger
from ...format.instant import Instant
from ...instants.timeline import Timeline
from ...locks.heartbeat import is_live, read_heartbeat
from ...locks.section import Section
from ...storage.server_clock import storage_ms
from ...table.half_upgraded import refuse_half_upgraded
from ...table.table import Table
from ..commit import forget
from ..location import open_metadata_table
from ..valid_instants import MADE_UP

_log = get_logger()

_DIGITS = 17


def unknown(table: Table, metadata: Timeline, now_ms: Callable[[], int]) -> tuple[Instant, ...]:
    """Those of a timeline of the metadata table, earliest first. `now_ms`: the storage's clock, see `is_live`.

    ConflictError: the table is being upgraded. MalformedError, UnknownStateError: its archive cannot be read.
    """
    pending = [i for i in metadata.pending("deltacommit") if _is_of_data(i.requested_time)]
    if not pending:
        return ()
    # The data table's timeline is read after this one: an instant that is here was there before.
    data = table.load_timeline()
    active = {i.requested_time for i in data.instants}
    if data.pending("restore") or active.issuperset(i.requested_time for i in pending):
        return ()
    refuse_half_upgraded(table)
    known = active | {i.requested_time for i in table.with_archive(data).archived}
    storage = open_metadata_table(table).storage
    gone = [i for i in pending if i.requested_time not in known]
    beats = {i: read_heartbeat(storage, i.requested_time) for i in gone}
    return tuple(i for i in gone if beats[i] is None or not is_live(beats[i], now_ms()))


def forget_unknown(table: Table, section: Section) -> tuple[str, ...]:
    """Forgets them; may be repeated. Returns their times. LockError: the lock was lost."""
    found = unknown(table, open_metadata_table(table).load_timeline(), cache(lambda: storage_ms(table.storage)))
    for instant in found:
        forget(table, instant.requested_time, section)
        _log.warning(
            "metadata_entry_forgotten",
            table=table.storage.base_path,
            instant=instant.requested_time,
            why="the table does not know this instant",
        )
    return tuple(i.requested_time for i in found)


def _is_of_data(time: str) -> bool:
    return len(time) == _DIGITS and not time.startswith(MADE_UP)
