"""Plans of rollbacks and cleans of the metadata table that cannot be read (the caller holds the data table's lock).

Hudi writes a plan in place on local disks: killed there, it leaves an empty or torn file. Nothing was done by it: it is
read from the file before its instant becomes inflight. Hudi's next writer removes such a rollback, and an empty plan of
a clean; phantombase's services do, since otherwise no clean and no archiving of the metadata table would go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...errors import MalformedError, MissingFileError
from ...event_log import get_logger
from ...format.clean import decode_clean_plan
from ...format.instant import Instant, State
from ...format.rollback_plan import decode_rollback_plan
from ...instants.timeline import Timeline
from ...locks.heartbeat import may_be_written
from ...locks.section import Section
from ...storage.server_clock import storage_ms
from ...table.table import Table

_log = get_logger()

_DECODE: dict[str, Callable[[bytes, str], object]] = {"rollback": decode_rollback_plan, "clean": decode_clean_plan}


def unreadable(metadata: Table, timeline: Timeline, now_ms: Callable[[], int]) -> tuple[Instant, ...]:
    """Those of a timeline of the metadata table on which no process began, and that none may still be writing.

    `now_ms`: the storage's clock.
    """
    pending = (i for action in _DECODE for i in timeline.pending(action) if i.state is State.REQUESTED)
    found = (i for i in pending if _is_unreadable(metadata, i))
    return tuple(
        i for i in found if not may_be_written(metadata.storage, metadata.instant_path(i), i.requested_time, now_ms())
    )


def forget_unreadable(metadata: Table, section: Section) -> tuple[str, ...]:
    """Removes them; may be repeated. Returns their times. LockError: the lock was lost."""
    storage = metadata.storage
    found = unreadable(metadata, metadata.load_timeline(), cache(lambda: storage_ms(storage)))
    for instant in found:
        section.check()
        storage.delete(metadata.instant_path(instant))
        _log.warning(
            "unreadable_plan_removed", table=storage.base_path, instant=instant.requested_time, action=instant.action
        )
    return tuple(i.requested_time for i in found)


def _is_unreadable(metadata: Table, instant: Instant) -> bool:
    path = metadata.instant_path(instant)
    try:
        _DECODE[instant.action](metadata.storage.read(path), path)
    except MissingFileError:  # it is gone
        return False
    except MalformedError:
        return True
    return False
