"""Sections under the table lock (`exclusive`), and the actions in progress, or left to Hudi, that refuse a step.

A section gets the table as it is under the lock, and changes it through a storage that asks, before each change,
whether the lock is still held. Before it begins, every guard is asked. One that does not apply is named where the
section is opened, with the reason:

    SETTINGS   the table has the version that it had for the caller: an upgrade renames the timeline's files
    UPGRADE    no upgrade or downgrade moves the timeline: a missing instant may be in the other folder
    RESTORE    no restore is pending: it may remove what the section depends on
    ROLLBACK   no rollback of a completed write is pending: what is built upon that write would block it

Hudi writes `<R>.rollback.requested` in place: a process that is killed while it writes leaves an empty or incomplete
file. The target of such a rollback is unknown, and each caller decides what to do. These facts are known:
    nothing has been undone   Hudi reads the plan from the file before it undoes anything
    Hudi's next writer        removes the file if the rollback is only requested; it ignores an inflight one
    its possible targets      any instant that existed before the file did: the target is chosen first

Left to Hudi, and refused by name before anything changes:
    consistent-hashing buckets   only Hudi reads and changes the hashing metadata that assigns keys to buckets; such
                                 tables are read, compacted, cleaned and archived; rows are neither added nor moved to
                                 other file groups, and file groups that a resize has replaced are not restored
    change data capture          Hudi's CDC query finds changes in the files that the statistics of a commit name, so
                                 no row is moved to another file group, and no completed write is rolled back"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import TypeAlias

from ..errors import ConflictError, MalformedError, MissingFileError, TableChangedError, UnsupportedError
from ..format.instant import SERVICES, Instant, State
from ..format.layout import LAYOUT_1, LAYOUT_2
from ..format.replace_request import pending_clustering_file_groups
from ..format.rollback_plan import (
    RestorePlan,
    RollbackPlan,
    decode_restore_plan,
    decode_rollback_plan,
    rolled_back_instants,
)
from ..format.table_config import PROPERTIES, load_table_config
from ..instants.instant_files import Torn
from ..instants.reserved_times import has_tombstone, reserved_path
from ..instants.timeline import Timeline
from ..locks.table_lock import POLICIES, StorageLock, TableLock, is_holdable_first, refuse_other_lock
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import HOODIE
from ..storage.snapshot import GuardedStorage, check_guard, unguarded
from ..view.facts import HASHING_METADATA, is_consistently_hashed
from ..view.view import GroupKey
from .table import Snapshot, Table


def merges_no_logs(table: Table) -> bool:
    """Whether log files must not be merged with each other. From version 8 on Hudi names the log files of buckets that
    a resize creates after the resize: these names do not show which writes were merged."""
    return table.layout.has_completion_times and is_consistently_hashed(table.storage)


def refuse_left_to_hudi(table: Table, what: str) -> None:
    """UnsupportedError for tables of both kinds; `what`: what is refused, such as "writing"."""
    refuse_consistent_hashing(table, what)
    refuse_change_capture(table, what)


def refuse_consistent_hashing(table: Table, what: str) -> None:
    """UnsupportedError for tables with consistent-hashing buckets."""
    if is_consistently_hashed(table.storage):
        raise _refusal(what, "the consistent-hashing bucket index", f"{table.storage.base_path}/{HASHING_METADATA}")


BUCKETS_BY_PARTITION = f"{HOODIE}/.bucket_index/partition_bucket_index_meta/configs"
"""Since 1.1 Hudi may give partitions numbers of buckets of their own, by rules in the newest of these files."""


def refuse_buckets_by_partition(table: Table, what: str) -> None:
    """UnsupportedError for tables whose partitions have different numbers of buckets."""
    if listed_if_there(table.storage, BUCKETS_BY_PARTITION):
        kind = "numbers of buckets by partition (hoodie.bucket.index.partition.expressions)"
        raise _refusal(what, kind, f"{table.storage.base_path}/{BUCKETS_BY_PARTITION}")


def refuse_change_capture(table: Table, what: str) -> None:
    """UnsupportedError for tables with change data capture."""
    if table.config.captures_changes:
        raise _refusal(what, "change data capture", f"{table.storage.base_path}/{PROPERTIES}")


def _refusal(what: str, kind: str, path: str) -> UnsupportedError:
    return UnsupportedError(f"{what} a table with {kind} is not supported", path=path, todo="Use Hudi for that.")


def refuse_half_upgraded(table: Table) -> None:
    """ConflictError while an upgrade or downgrade moves the timeline: a missing instant may be in the other folder.
    Hudi moves the files first, and changes the version in hoodie.properties last."""
    for folder in sorted({HOODIE, f"{HOODIE}/{LAYOUT_2.default_timeline_folder}"} - {table.config.timeline_folder}):
        try:
            names = [e.name for e in table.storage.list(folder) if not e.is_folder]
        except MissingFileError:
            continue
        found = next((n for n in names if LAYOUT_1.parse(n) or LAYOUT_2.parse(n)), None)
        if found is not None:
            raise ConflictError(
                "the table is being upgraded or downgraded",
                path=f"{table.storage.base_path}/{folder}",
                expected=f"all instants in {table.config.timeline_folder}",
                found=found,
                todo="Let Hudi finish it, then run again. If no upgrade or downgrade is running, move this file away.",
            )


def clustered_file_groups(table: Snapshot) -> Iterable[GroupKey]:
    """File groups in pending clusterings: no process may write to them."""
    for instant in table.timeline.instants:
        if instant.family == "replacecommit" and not instant.completed:
            yield from _clustered(table, instant)


def pending_replacing_writes(table: Snapshot) -> tuple[Instant, ...]:
    """Pending writes that will replace file groups, like insert overwrites. Only their commits will name the groups."""
    return tuple(i for i in table.timeline.pending("replacecommit") if not any(_clustered(table, i)))


def _clustered(table: Table, instant: Instant) -> Iterable[GroupKey]:
    """The file groups that a clustering names in its plan. MalformedError: it is torn."""
    return table.files.plan_there(instant, pending_clustering_file_groups) or ()


def is_pending_service(table: Table, instant: Instant) -> bool:
    """Whether a pending write is an attempt at a table service: Hudi must handle it, since its requested file is kept.
    A clustering of version 6 is a replace commit whose requested file names file groups."""
    return instant.action in SERVICES or (instant.family == "replacecommit" and any(_clustered(table, instant)))


def may_be_service(table: Table, instant: Instant) -> bool:
    """`is_pending_service` for a restore, which undoes services and writes alike: true also for unreadable plans."""
    try:
        return is_pending_service(table, instant)
    except MalformedError:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRestore:
    """A restore at instant `instant` that has not completed yet."""

    instant: str
    plan: RestorePlan

    def at(self, state: State) -> Instant:
        return Instant(requested_time=self.instant, action="restore", state=state)


def pending_restore(table: Snapshot) -> PendingRestore | None:
    """The earliest pending restore, of Hudi or phantombase. MalformedError: its plan cannot be read."""
    for instant in table.timeline.pending("restore"):
        plan = table.files.needed_plan(instant, decode_restore_plan)
        return PendingRestore(instant=instant.requested_time, plan=plan)
    return None


def refuse_pending_restore(table: Snapshot) -> None:
    """ConflictError while a restore is pending."""
    for instant in table.timeline.pending("restore"):
        raise ConflictError(
            "a restore of the table is in progress",
            path=table.storage.base_path,
            instant=instant.requested_time,
            todo="`compactor-daemon restore TABLE` finishes it, and so does Hudi's restore to the same instant.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRollback:
    """A rollback at instant `instant` that has not completed yet."""

    instant: str
    plan: RollbackPlan

    @property
    def target(self) -> str:
        return self.plan.target

    def at(self, state: State) -> Instant:
        """The rollback's own instant in a state."""
        return Instant(requested_time=self.instant, action="rollback", state=state)


def pending_rollbacks(table: Table) -> tuple[PendingRollback | Torn, ...]:
    """Every pending rollback, of Hudi or phantombase: readable ones, latest target first, then torn ones."""
    readable, torn = list[PendingRollback](), list[Torn]()
    for instant in table.load_timeline().pending("rollback"):
        plan = table.files.plan(instant, decode_rollback_plan)
        if isinstance(plan, Torn):
            torn.append(plan)
        else:
            readable.append(PendingRollback(instant=instant.requested_time, plan=plan))
    return (*sorted(readable, key=lambda r: r.target, reverse=True), *torn)


def forget_rollbacks(table: Snapshot, targets: Collection[str]) -> None:
    """Removes the pending rollbacks of instants that are undone otherwise: Hudi would complete them, whatever these
    instants are by then. A torn one is kept: Hudi removes or ignores it."""
    for rollback in table.timeline.pending("rollback"):
        if table.files.plan(rollback, decode_rollback_plan).target in targets:
            for state in (State.INFLIGHT, State.REQUESTED):
                table.storage.delete(table.instant_path(rollback.at(state)))


def refuse_half_rolled_back(table: Snapshot) -> None:
    """ConflictError while a rollback of a completed write or clustering is pending. A write after it would block this
    rollback, and the rollback of all other writes."""
    if (error := rollback_in_progress(table)) is not None:
        raise error


def rollback_in_progress(table: Snapshot) -> ConflictError | None:
    """The error that `refuse_half_rolled_back` raises; None: no such rollback is in progress."""
    for rollback in rollbacks_of_completed(table):
        return half_rolled_back(table, rollback)
    clustering = clustering_in_rollback(table)
    return None if clustering is None else _clustering_in_progress(table, clustering)


def clustering_in_rollback(table: Snapshot) -> Instant | None:
    """The completed clustering for which `undo.rollback` has put a tombstone, and that is not hidden yet. Such a
    clustering is the newest write. If other writes started after it, the tombstone is stale: its process has lost the
    lock. A clustering without its plan was completed after its rollback (see `clustering.cancel`)."""
    newest = max((i for i in table.timeline.instants if i.is_write), key=lambda i: i.requested_time, default=None)
    if newest is None or newest.family != "replacecommit" or not newest.completed:
        return None
    if not has_tombstone(table.storage, newest.requested_time):
        return None
    plan = table.instant_path(replace(newest.at(State.REQUESTED), action=table.layout.pending_clustering))
    return newest if table.storage.find(plan) is not None else None


def rollbacks_of_completed(table: Snapshot) -> tuple[PendingRollback, ...]:
    """The pending rollbacks of completed writes, which have undone nothing yet."""
    found = pending_rollbacks(table) if table.timeline.pending("rollback") else ()
    return tuple(r for r in found if isinstance(r, PendingRollback) and undoes_completed(table.timeline, r))


def undoes_completed(timeline: Timeline, rollback: PendingRollback) -> bool:
    """Whether the target is completed: then the rollback has undone nothing yet."""
    target = timeline.find(rollback.target, rollback.plan.instant.family)
    return target is not None and target.completed


def half_rolled_back(table: Table, rollback: PendingRollback) -> ConflictError:
    """The error of a pending rollback whose target is completed."""
    return ConflictError(
        "the rollback of a completed write is in progress",
        path=table.storage.base_path,
        instant=rollback.target,
        found=f"rollback {rollback.instant}, of Hudi or phantombase",
        todo=f"`compactor-daemon rollback TABLE {rollback.target}`, or Hudi, finishes it. If something was built upon "
        "the write since then, that command says how to keep it; `compactor-daemon restore` to a state before it "
        "undoes all of it.",
    )


def _clustering_in_progress(table: Table, clustering: Instant) -> ConflictError:
    time = clustering.requested_time
    return ConflictError(
        "the rollback of a clustering is in progress",
        path=table.instant_path(clustering),
        instant=time,
        todo=f"`compactor-daemon rollback TABLE {time}` finishes it. To keep the clustering instead, stop all "
        f"processes that roll back, and remove {reserved_path(time, 0, time)} by hand.",
    )


def completed_rollback_of(table: Table, target: str) -> str | None:
    """The completed rollback that undid an instant, if the active timeline contains it."""
    done = (i for i in table.load_timeline().instants if i.action == "rollback" and i.completed)
    later = (i for i in done if i.requested_time > target)
    return next((i.requested_time for i in later if target in _undone_by(table, i)), None)


def _undone_by(table: Table, rollback: Instant) -> tuple[str, ...]:
    """The instants that a rollback undid, by its record, by its plan if that is torn; else empty."""
    path = table.instant_path(rollback)
    try:
        return rolled_back_instants(table.storage.read(path), path)
    except MalformedError:
        plan = table.files.plan(rollback, decode_rollback_plan)
    return () if isinstance(plan, Torn) else (plan.target,)


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


@contextmanager
def exclusive(
    table: Table,
    lock: TableLock,
    purpose: str,
    allow: Allowed = NONE,
    *,
    cached: bool = False,
    also: Collection[str] = (),
) -> Iterator[Snapshot]:
    """Holds the lock for the `with` block, and gives a snapshot made under the lock; its storage asks the lock before
    each change. `purpose`: for messages, as "schedule a compaction". `allow`: guards that are not asked. `cached`,
    `also`: see `Table.snapshot`. LockError: the lock did not become free, is not the table's any more, or was lost
    before a change. ConflictError, TableChangedError: refused by a guard; nothing was changed. After the block nothing
    can be changed through the snapshot (LockError)."""
    if isinstance(lock, StorageLock) and lock.storage.is_file_system and lock.storage.find(HOODIE) is None:
        load_table_config(lock.storage)  # raises the error: a lock in a folder that was removed would make it again
    with lock.hold(purpose) as section:
        is_open = True
        asked = replace(section, is_held=lambda: is_open and section.is_held())
        guarded = replace(table, storage=GuardedStorage(unguarded(table.storage), asked.check))
        held = guarded.snapshot(cached=cached, also=also, reads=(POLICIES,))
        try:
            refuse_other_lock(held.storage, lock, table.config.name)
            if Guard.SETTINGS not in allow:
                check_version(held, table.config.version)
            _refuse(held, allow)
            yield held
        finally:
            is_open = False


@contextmanager
def making_a_table(lock: TableLock, storage: Storage) -> Iterator[None]:
    """As `exclusive`, while there is no table whose guards could be asked, or to remove it again. A lock that lies in
    the table is not held (`is_holdable_first`). LockError: the lock does not work, or did not become free."""
    with lock.hold("make a table") if is_holdable_first(lock, storage) else nullcontext():
        yield


def refuse_in_progress(table: Snapshot, allow: Allowed = NONE) -> None:
    """The guards of a section without a section, as in a dry run. ConflictError: one of them refuses. The timeline is
    loaded first: without the lock an upgrade may begin right after the question, and move a part of it."""
    _refuse(table.with_timeline(table.timeline), allow)


def _refuse(table: Snapshot, allow: Allowed) -> None:
    if Guard.UPGRADE not in allow:
        refuse_half_upgraded(table)
    if Guard.RESTORE not in allow:
        refuse_pending_restore(table)
    if Guard.ROLLBACK not in allow:
        refuse_half_rolled_back(table)


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
    return table.on_storage(unguarded(table.storage))


def check_lock(table: Table) -> None:
    """LockError: the lock of the section was lost. Only for questions after a change, since each asks before it."""
    check_guard(table.storage)
