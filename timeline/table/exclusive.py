"""Opens every section under the table lock: `exclusive`.

The section gets the table as it is under the lock, and changes it through a storage that asks, before each change,
whether the lock is still held. Before it begins, every guard is asked:

    SETTINGS   the table has the version that it had for the caller: an upgrade renames the timeline's files
    UPGRADE    no upgrade or downgrade moves the timeline: a missing instant may be in the other folder
    RESTORE    no restore is pending: it may remove what the section depends on
    ROLLBACK   no rollback of a completed write is pending: what is built upon that write would block it

A guard that does not apply to a section is named where the section is opened, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from ..errors import TableChangedError
from ..instants.timeline import Timeline
from ..locks.table_lock import TableLock
from ..storage.guarded import GuardedStorage, check_guard, unguarded
from .in_progress import refuse_half_rolled_back, refuse_half_upgraded, refuse_pending_restore
from .table import Table


class Guard(Enum):
    """What a section is refused for, see the module."""

    SETTINGS = auto()
    UPGRADE = auto()
    RESTORE = auto()
    ROLLBACK = auto()


Allowed: TypeAlias = Mapping[Guard, str]
"""Guards that do not apply, with the reasons."""
NONE: Allowed = MappingProxyType({})
READ_INSIDE: Allowed = MappingProxyType({Guard.SETTINGS: "all that the section depends on is read inside it"})
"""For sections that take nothing but names and options from outside."""


@dataclass(frozen=True)
class OpenSection:
    """An open section. `table`: with the settings under the lock; its storage asks the lock before each change."""

    table: Table

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline, loaded once under the lock."""
        return self.table.load_timeline()


@contextmanager
def exclusive(
    table: Table, lock: TableLock, purpose: str, allow: Allowed = NONE, *, snapshot: bool = False
) -> Iterator[OpenSection]:
    """Holds the lock for the `with` block; `purpose`: for messages, as "schedule a compaction". `allow`: guards that
    are not asked. `snapshot`: `OpenSection.table` is a snapshot, see `Table.snapshot`. LockError: the lock did not
    become free, or was lost before a change. ConflictError, TableChangedError: refused by a guard; nothing was changed.
    After the block nothing can be changed through its table (LockError)."""
    with lock.hold(purpose) as section:
        is_open = True
        asked = replace(section, is_held=lambda: is_open and section.is_held())
        guarded = replace(table, storage=GuardedStorage(unguarded(table.storage), asked.check))
        held = OpenSection(guarded.snapshot() if snapshot else guarded.reload())
        try:
            if Guard.SETTINGS not in allow:
                check_version(held.table, table.config.version)
            _refuse(held.table, lambda: held.timeline, allow)
            yield held
        finally:
            is_open = False


def refuse_in_progress(table: Table, timeline: Timeline, allow: Allowed = NONE) -> None:
    """The guards of a section without a section, as in a dry run. ConflictError: one of them refuses."""
    _refuse(table, lambda: timeline, allow)


def _refuse(table: Table, timeline: Callable[[], Timeline], allow: Allowed) -> None:
    if Guard.UPGRADE not in allow:
        refuse_half_upgraded(table)
    if Guard.RESTORE not in allow:
        refuse_pending_restore(table, timeline())
    if Guard.ROLLBACK not in allow:
        refuse_half_rolled_back(table, timeline())


def check_version(table: Table, version: int, instant: str | None = None, todo: str | None = None) -> None:
    """TableChangedError: the table no longer has the version that it had when an action began."""
    if table.config.version != version:
        raise TableChangedError(
            "the table was upgraded or downgraded since this action began",
            path=table.storage.base_path,
            instant=instant,
            expected=f"table version {version}",
            found=f"table version {table.config.version}",
            todo=todo or "Run again.",
        )


def regardless(table: Table) -> Table:
    """The table with a storage that does not ask the lock: for steps that revert only what this process did, for
    heartbeats, which show that it works, and for what follows a section."""
    return replace(table, storage=unguarded(table.storage))


def check_lock(table: Table) -> None:
    """LockError: the lock of the section was lost. Only for questions after a change, since each asks before it."""
    check_guard(table.storage)
