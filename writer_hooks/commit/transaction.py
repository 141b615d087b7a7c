"""A write, a delta commit or replacecommit, from its instant to its completed file.

    begin      under the lock: choose the instant t, start its heartbeat, make t visible as requested and inflight
    (load)     then load the timeline and pending plans. A plan made before t is seen. On version 6 no plan can be made
               while t is pending; a plan that is made without the lock is found when t completes
    (stage)    tasks stage files that no reader sees
    complete   place the files, after Hudi's markers. Under the lock: check that t was not rolled back, and that no
               other process changed the same file groups; then put the completed file by put-if-absent

If the process is killed before the last step, t is dead: the next writer, phantombase's or Hudi's, rolls it back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.timeline.errors import (
    ClusteringConflictError,
    ConflictError,
    LockError,
    PhantombaseError,
    StorageError,
    UnknownCommitError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CLUSTER, LATEST_SCHEMA, LOG_COMPACT, CommitMetadata, WriteStat
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.replace_request import encode_replace_request
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import EXPIRY_S, Heartbeats, heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.create import drop_unrecorded
from phantombase.timeline.metadata_table.index_logs import RecordedKeys
from phantombase.timeline.metadata_table.measure import Measured
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.metadata_table.update import NOT_FOLLOWED, Change, apply_update, prepare
from phantombase.timeline.read.windows import retained_since
from phantombase.timeline.table.evolved_schema import carry_history
from phantombase.timeline.table.in_progress import (
    READ_INSIDE,
    check_lock,
    clustered_file_groups,
    completed_rollback_of,
    exclusive,
    pending_rollbacks,
    refuse_in_progress,
    regardless,
)
from phantombase.timeline.table.table import Snapshot, Table, put_completed
from phantombase.timeline.table.traces import traces_of, undo_files
from phantombase.timeline.view.view import GroupKey, ViewFacts

from ..engine.engine import RowCounts
from ..options import Operation
from .conflict import (
    WriteSet,
    conflict_with_clusterings,
    conflict_with_commit,
    conflict_with_plans,
    conflict_with_schema,
)

DELTA_COMMIT, REPLACE_COMMIT = "deltacommit", "replacecommit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The action of a write, and the content of its requested and inflight file. `expiry_s`: the seconds without a
    heartbeat after which the write counts as dead: Hudi's default, which other writers may use, or less."""

    action: str = DELTA_COMMIT
    requested: bytes = b""
    inflight: bytes = b""
    expiry_s: float = EXPIRY_S


def action_of(operation: Operation) -> str:
    """The action under which a write is on the timeline."""
    return REPLACE_COMMIT if operation.replaces else DELTA_COMMIT


def opening_of(operation: Operation, layout: Layout, counts: RowCounts) -> Opening:
    """How a write begins. `counts`: of its rows. As in Hudi, a replacecommit is requested without a plan, and its
    inflight file has the number of rows of each partition."""
    if not operation.replaces:
        return Opening()
    rows = Counter[str]()
    for (partition, _), count in counts.items():
        rows[partition] += count
    stats = {p: (WriteStat(file_id="", prev_commit="null", num_inserts=n),) for p, n in rows.items()}
    named = {} if operation is Operation.DELETE_PARTITION else stats
    profile = CommitMetadata(partition_to_write_stats=named, operation_type=operation.value)
    return Opening(
        action=REPLACE_COMMIT,
        requested=encode_replace_request(operation.value, names_deletes=layout.has_completion_times),
        inflight=encode_commit(profile, layout.encoding),
    )


_log = get_logger()
_Conflict: TypeAlias = tuple[type[ConflictError], str]
"""The error, and what it found."""
_DELTA_COMMIT = Opening()


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """A write in progress. `table` and `facts` were loaded after `instant` was visible under `action`. `clustering`:
    file groups of pending clusterings. `heartbeats`: of this write's heartbeat. `earlier_rollbacks`: rollbacks that
    were pending before `instant` was visible, so that none of them can undo it. `expiry_s`: the time without a
    heartbeat after which other writers may count it as dead."""

    table: Snapshot
    lock: TableLock
    instant: str
    action: str
    facts: ViewFacts
    clustering: frozenset[GroupKey]
    heartbeats: Heartbeats
    earlier_rollbacks: frozenset[str]
    expiry_s: float = EXPIRY_S

    @property
    def timeline(self) -> Timeline:
        return self.table.timeline

    def check_conflicts(self, mine: WriteSet, schema: Mapping[str, str]) -> None:
        """ConflictError: another process has rolled back this write, or changed what it changes. `schema`: what the
        write records of the table's schema."""
        now = self.table.with_timeline(self.table.load_timeline())
        refuse_in_progress(now)
        self._check_conflicts(now, mine, schema)

    def _check_conflicts(self, now: Snapshot, mine: WriteSet, schema: Mapping[str, str]) -> None:
        self._check_still_ours()
        self._check_ground(now.timeline)
        if (conflict := self._conflict(now, mine, schema)) is not None:
            error, found = conflict
            raise self._invisible("another write or a plan changed what this write changes", found, error)

    def _check_ground(self, now: Timeline) -> None:
        """ConflictError: a write that this one has seen, and may build upon, was undone. A process that stalls right
        before it begins a write, and loses the lock, begins concurrently with a restore or rollback."""
        gone = _names(self.timeline.completed) - _names(now.completed)
        if gone and (gone := gone - _names(self.table.with_archive(now).archived)):
            what = "a write that this one has seen was undone since then"
            raise self._invisible(what, f"no {min(gone)[1]} {min(gone)[0]} any more")

    def _invisible(self, what: str, found: str, error: type[ConflictError] = ConflictError) -> ConflictError:
        todo = "Nothing of this write is visible. Write again (retries=)."
        return error(what, path=self.table.storage.base_path, instant=self.instant, found=found, todo=todo)

    def _conflict(self, seen: Snapshot, mine: WriteSet, schema: Mapping[str, str]) -> _Conflict | None:
        now = seen.timeline
        by_name = not self.table.layout.has_completion_times
        known = {i.requested_time for i in self.timeline.pending_compactions}
        before = _names(self.timeline.completed)
        for instant in now.completed:
            requested, is_ours = instant.requested_time, instant.requested_time == self.instant
            # One with a later instant may have completed before the load: a base file rewritten here would be older.
            if is_ours and instant.family == self.action:
                continue
            if requested < self.instant and (requested, instant.family) in before:
                continue
            metadata = self.table.commit_metadata(instant)
            if metadata.operation_type == LOG_COMPACT:
                continue  # it only repeats what other writes wrote, below any later log
            if not metadata.compacted:
                found = conflict_with_commit(mine, metadata) or conflict_with_schema(schema, metadata)
            elif requested in known:
                continue
            else:
                found = conflict_with_plans(mine, metadata.written_groups, logs_too=by_name)
            if found is not None:
                is_clustering = metadata.operation_type == CLUSTER
                return ClusteringConflictError if is_clustering else ConflictError, f"{instant.file_name}: {found}"
        if (found := self._archived_conflict(now, mine, schema)) is not None:
            return ConflictError, found
        # Hudi would archive it while the files that it replaces still exist, see `attempt.pending_clusterings`.
        if self.action == "replacecommit" and (retained := retained_since(seen)) > self.instant:
            return ConflictError, f"a clean that retained commits from {retained} on"
        planned = {k for k, c in self.table.facts.pending_plans(now).items() if c not in known}
        if (found := conflict_with_plans(mine, planned, logs_too=by_name)) is not None:
            return ConflictError, found
        found = conflict_with_clusterings(mine, clustered_file_groups(seen))
        return None if found is None else (ClusteringConflictError, found)

    def _archived_conflict(self, now: Timeline, mine: WriteSet, schema: Mapping[str, str]) -> str | None:
        """The conflict with a write that completed since then and was archived: Hudi's archiver goes up to the last
        write before the earliest pending one, also past writes that completed since that one began."""
        active = _names(now.instants)
        if active >= _names(i for i in self.timeline.instants if i.is_write):
            return None
        known, pending = active | _names(self.timeline.completed), _names(self.timeline.inflight_writers)
        late = [
            i
            for i in self.table.with_archive(now).archived
            if i.is_write
            and (name := i.identity) not in known
            and (name in pending or (i.completion_time or "") > self.instant)
        ]
        commits = self.table.archived_commits(late)
        for write in late:
            metadata, found = commits.get(write), "what it wrote is not known"
            if metadata is not None:
                if metadata.compacted or metadata.operation_type == LOG_COMPACT:
                    continue  # requested before this write, whose snapshot has its plan
                found = conflict_with_commit(mine, metadata) or conflict_with_schema(schema, metadata) or ""
            if found:
                return f"{write.action} {write.requested_time}, which was archived since then: {found}"
        return None

    def complete(
        self,
        mine: WriteSet,
        metadata: CommitMetadata,
        measured: Measured | None = None,
        check: Callable[[Table], None] = lambda _: None,
        keys: RecordedKeys | str = NOT_FOLLOWED,
    ) -> Instant:
        """Makes the write visible; its files are placed already. ConflictError: nothing of it is visible. `measured`:
        known column ranges of the files, for the metadata table; other files are read for it. `check`: called under the
        lock; an error that it raises stops the write from completing. `keys`: see `Change`."""
        change = replace(Change.of(self.instant, metadata, measured or {}), keys=keys)
        now = self.table.snapshot(cached=False)  # the metadata table may have been dropped since then
        update = prepare(now, change)
        with exclusive(self.table, self.lock, f"complete a {self.action}") as table:
            self._check_conflicts(table, mine, metadata.extra_metadata)
            check(table)
            if change.knows_keys and self._others(table, everywhere=mine.everywhere):
                change = replace(change, keys="another write was completed since then, which may have the same keys")
            completion = table.with_timeline(table.load_timeline()).completion_time((self.instant,))
            done = Instant(
                requested_time=self.instant, action=self.action, state=State.COMPLETED, completion_time=completion
            )
            apply_update(table, change, update)
            if LATEST_SCHEMA in metadata.extra_metadata:
                carry_history(table.files, table.timeline, done)
            path = table.instant_path(done)
            data = encode_commit(metadata, table.layout.encoding)
            made = put_completed(table, path, data, partial(self._unknown, path))
            if not made and table.storage.read(path) != data:
                raise StorageError("the completed commit does not read back as written", path=path)
            self._look_back(table, path)
            return done

    def _look_back(self, table: Table, path: str) -> None:
        """A process that slept between its last check and its put counts as dead: others may have removed its files.
        ConflictError: they roll this write back; its completed file is removed again. `path`: of that file, which is
        gone if the write was archived since then; an archiver removes it last."""
        with suppress(LockError):
            check_lock(table)
            if not self.heartbeats.lapsed(self.expiry_s):
                return
        try:
            undone = self._undone()
            if undone is None or self.table.storage.find(path) is None or self._is_archived():
                drop_unrecorded(table, self.instant)
                return
            self.table.storage.delete(path)
        except PhantombaseError as error:
            raise self._unknown(path, error) from error
        raise undone

    def _is_archived(self) -> bool:
        return (self.instant, self.action) in _names(self.table.with_archive(self.table.load_timeline()).archived)

    def _others(self, table: Table, *, everywhere: bool) -> bool:
        """Whether another write has completed since this one began: the record index may hold keys of both. One with a
        later instant may have completed before the load: on versions 8 and 9 its log of the index counts after that of
        this write. `everywhere`: one with rows was a conflict already, one that only replaces was none. A clustering
        has no key of this write: it is a conflict to replace a file group of it."""
        before, now = _names(self.timeline.instants), table.load_timeline()
        if not everywhere and not before <= _names(now.instants):
            return True  # archived since then: what has ended is unknown
        done = _names(i for i in self.timeline.completed if i.requested_time < self.instant)
        late = [i for i in now.completed if i.is_write and i.identity not in done]
        found = (table.commit_metadata(i) for i in late if i.identity != (self.instant, self.action))
        writes = (m for m in found if not m.compacted and m.operation_type not in (LOG_COMPACT, CLUSTER))
        return any(not everywhere or m.replaced_groups for m in writes)

    def _unknown(self, path: str, error: PhantombaseError) -> UnknownCommitError:
        """The completed file could not be put, and does not exist. An abandoned request to an object store may still be
        executed. If the write were rolled back now, it could complete without its files."""
        return UnknownCommitError(
            "whether this write is completed is not known: the storage did not answer, and it may complete yet",
            path=path,
            instant=self.instant,
            found=str(error),
            todo="Do not write the same rows again before its instant is completed or rolled back: once its heartbeat "
            f"is {EXPIRY_S:g} s old, the next write rolls it back.",
        )

    def _check_still_ours(self) -> None:
        if (undone := self._undone()) is not None:
            raise undone
        if self.heartbeats.lapsed(self.expiry_s):
            raise ConflictError(
                "this write had no heartbeat for too long",
                path=self._inflight_path,
                instant=self.instant,
                expected=f"one every {self.expiry_s:g} s at least",
                todo="Another process may consider it dead and be rolling it back. Write again.",
            )

    @property
    def _inflight_path(self) -> str:
        inflight = Instant(requested_time=self.instant, action=self.action, state=State.INFLIGHT)
        return self.table.instant_path(inflight)

    def _undone(self) -> ConflictError | None:
        """The error with which this write ends, if others roll it back or may do so."""
        # The inflight file is checked after the rollbacks: a rollback removes the file before it completes.
        rollbacks = pending_rollbacks(self.table)
        if any(r.target == self.instant for r in rollbacks) or self.table.storage.find(self._inflight_path) is None:
            return _rolled_back(self.table, self.instant)
        # A rollback has its target before it has a file: one that existed before this write cannot undo it.
        for rollback in rollbacks:
            if isinstance(rollback, Torn) and rollback.time not in self.earlier_rollbacks:
                return ConflictError(
                    "a rollback that may undo this write is pending, and its plan cannot be read",
                    path=rollback.path,
                    instant=self.instant,
                    todo="Nothing of this write is visible. Write again (retries=): later writes do not wait for it. "
                    f"Compactions do. {rollback.todo}",
                )
        return None


def _names(instants: Iterable[Instant]) -> set[tuple[str, str]]:
    """The identity of each instant: the same in all its states, and in the archive."""
    return {i.identity for i in instants}


def _rolled_back(table: Table, time: str) -> ConflictError:
    return ConflictError(
        "another process rolled this write back",
        path=table.storage.base_path,
        instant=time,
        todo="It looked dead: no heartbeat for too long. Write again.",
    )


@contextmanager
def transaction(
    table: Table,
    lock: TableLock,
    heartbeat_s: float,
    opening: Opening = _DELTA_COMMIT,
    undone: Callable[[Table, Instant], bool] | None = None,
) -> Iterator[Transaction]:
    """Begins a write; rolls it back if the block fails, so that the table reads as before. UnknownCommitError: it may
    still complete, so it is not rolled back; its heartbeat expires. UnsupportedError: see `check_keepable`. Errors
    before the first file leave no files. `undone`: undoes the pending write in another way; False: it has not."""
    with ExitStack() as stack:
        with exclusive(table, lock, f"begin a {opening.action}", READ_INSIDE) as table:
            timeline = table.timeline
            check_keepable(table)
            time = table.next_time()
            earlier_rollbacks = frozenset(i.requested_time for i in timeline.pending("rollback"))
            free = regardless(table)
            heartbeats = stack.enter_context(heartbeat(free.storage, time, heartbeat_s))
            check_lock(table)  # before the write counts as begun: then it is rolled back, and its heartbeat kept
            heartbeats.keep_on_error = True
            begun = list[State]()
            stack.enter_context(_rolled_back_on_failure(free, lock, time, opening.action, undone, begun))
            for state, content in ((State.REQUESTED, opening.requested), (State.INFLIGHT, opening.inflight)):
                path = table.instant_path(Instant(requested_time=time, action=opening.action, state=state))
                if not table.storage.put_if_absent(path, content):
                    raise ConflictError(
                        "another process began a write at the same instant",
                        path=path,
                        instant=time,
                        todo="All writers of a table must share one lock. Write again.",
                    )
                begun.append(state)
        seen = free.snapshot(same_settings=True, cached=False)
        facts = seen.load_facts()
        yield Transaction(
            table=seen,
            lock=lock,
            instant=time,
            action=opening.action,
            facts=facts,
            clustering=frozenset(clustered_file_groups(seen)),
            heartbeats=heartbeats,
            earlier_rollbacks=earlier_rollbacks,
            expiry_s=opening.expiry_s,
        )


@contextmanager
def _rolled_back_on_failure(
    table: Table,
    lock: TableLock,
    time: str,
    action: str,
    undone: Callable[[Table, Instant], bool] | None,
    begun: Sequence[State],
) -> Iterator[None]:
    try:
        yield
    except UnknownCommitError:
        raise
    except (Exception, KeyboardInterrupt) as first:
        taken_over = False
        # After an error in this block the next writer rolls back. The first error is raised.
        try:
            now = table.snapshot(
                cached=False
            )  # a process that has dropped an index since then has changed the settings
            table = now if now.config.version == table.config.version else table
            # A rollback that cannot be read has undone nothing yet: see `pending_rollbacks`.
            taken_over = any(r.target == time for r in pending_rollbacks(table))
            taken_over = taken_over or completed_rollback_of(table, time) is not None
            timeline = table.load_timeline()
            pending = timeline.find(time, action)
            if pending is None and begun and not taken_over:
                # A restore removes a pending instant too, and leaves no rollback of it.
                taken_over = not table.with_archive(timeline).is_committed(time)
            if pending is not None and not pending.completed:
                if undone is None or not undone(table, pending):
                    roll_back(table, pending, lock)
            elif taken_over:  # files placed after the rollback would count once the write's time is archived
                undo_files(table, time, partial(traces_of, table, time, action, scan=False))
        except PhantombaseError as error:
            _log.warning("rollback_failed", instant=time, error=str(error))
        if taken_over and isinstance(first, PhantombaseError) and not isinstance(first, ConflictError | LockError):
            raise _rolled_back(table, time) from first  # the rollback removed files that the write still used
        raise
