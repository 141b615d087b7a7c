"""Undoes one instant: rolls back a pending write in Hudi's way (`roll_back`), or an instant of a restore (`undo`).

A rollback R of a pending write t; Hudi and phantombase can finish each other's:

    lock   R.rollback.requested: the plan                  R greater than every time on storage
           R.rollback.inflight; staged files of t are deleted: a live writer of t can place no more files
           a second listing of files, then the files:
             version 6      base files of t deleted; log files of t revoked by a command block in a new log file after
             versions 8, 9  base and log files of t deleted: their names carry t
           markers of t
    lock   t.inflight and t.requested deleted, R.rollback
           heartbeat of t

Files of t are found by its markers and by listing. Once the plan is visible, it contains the remaining work, so the
markers may be removed before R completes. The heartbeat is kept until then: Hudi's single writers undo an instant with
later completed commits only while its heartbeat, fresh or stale, exists.

A restore undoes its instants in the order of its plan, the newest first. It removes of each: the completed files, so
that no reader sees the instant; its data files, as above; markers and staged files; the inflight file, then the
requested one. Between two instants the table is in the state after those that are left.

Any process may repeat every step at any time; after a crash anywhere, a repeated run leads to the same state.

`refuse_moved`: keys that writers put into another file group because of a pending plan; if that is removed, the next
upsert duplicates them.

    F    a file group; its base file holds key k, and the plan's logs delete k
    C    a pending compaction of F: an upsert of k under the key index does not find k (F's next base file will lack
         it) and puts it into a new or small base file G
    C unscheduled: the base files of F and of G both hold k. Reads are still right, since F's log deletes k. But the
         key index reads base files only: the next upsert of k is written to F and to G, and F has a row of k again

Hudi's SIMPLE and BLOOM indexes do the same. While C, or a later plan on F, is pending or executed, k is in G alone.

A base file of G that was superseded or replaced since counts, too: after C is removed, a restore or rollback may make
it visible again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import BarrierError, ConflictError, MalformedError, UsageError
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.format.instant import SERVICES, Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_metadata, encode_rollback_plan
from phantombase.timeline.locks.heartbeat import BEAT_S, first_beat, heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_stream import SliceStream, base_tables
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.metadata_table.records.keys import files_of_rollback
from phantombase.timeline.metadata_table.update import Change, apply_update, forget, prepare
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.in_progress import (
    Guard,
    PendingRollback,
    completed_rollback_of,
    exclusive,
    half_rolled_back,
    pending_rollbacks,
    regardless,
    undoes_completed,
)
from phantombase.timeline.table.table import Snapshot, Table, put_requested
from phantombase.timeline.table.traces import (
    Undone,
    data_files,
    delete_markers,
    instants_in,
    revoked_slices,
    traces_of,
    undo_files,
)
from phantombase.timeline.view.view import BaseFile, FileSlice, TableView, slice_before

_ENDS = dict.fromkeys(
    (Guard.RESTORE, Guard.ROLLBACK), "the undone write is pending: its rollback is what others, and they, wait for"
)


def roll_back(table: Table, instant: Instant, lock: TableLock) -> str:
    """Undoes a pending write and returns the rollback's instant. May be repeated. The caller decides whether the writer
    is dead. A pending rollback of the write is finished. ConflictError: the write completed, or is unknown. UsageError:
    the instant of a table service. UnsupportedError: see `check_keepable`."""
    check_keepable(table, moves_rows=False)
    if instant.action in SERVICES or not instant.is_write:
        raise UsageError(
            "only a write can be rolled back",
            instant=instant.requested_time,
            found=instant.action,
            todo="`timeline show TABLE` lists the writes.",
        )
    target = instant.requested_time
    found = pending_rollback_of(table, target)
    if found is None and table.load_timeline().find(target, instant.family) is None:
        done = completed_rollback_of(table, target)
        if done is not None:
            for time_ in (target, done):
                table.storage.delete(heartbeat_path(time_))
            return done
    rollback = found or _request(table, instant, lock)
    if rollback is None:
        raise _not_pending(table, instant)
    return _finish(table, rollback, lock, scan=found is not None)


def pending_rollback_of(table: Table, target: str) -> PendingRollback | None:
    """The pending rollback of an instant. An unreadable one may be of it too: then two processes repeat the steps."""
    readable = (r for r in pending_rollbacks(table) if isinstance(r, PendingRollback))
    return next((r for r in readable if r.target == target), None)


# --- the plan ------------------------------------------------------------------------------------------------------


def _request(table: Table, instant: Instant, lock: TableLock) -> PendingRollback | None:
    """Makes the rollback visible, or finds it; None if the instant is no longer pending."""
    target = instant.requested_time
    plan = traces_of(table, target, instant.action, scan=instant.state is State.INFLIGHT)
    with exclusive(table, lock, f"request the rollback of {target}", _ENDS) as table:
        found = pending_rollback_of(table, target)
        if found is not None:
            return found
        current = table.timeline.find(target, instant.family)
        if current is None or current.completed:
            return None
        rollback = PendingRollback(instant=table.next_time((), {target}), plan=plan)
        with first_beat(regardless(table).storage, rollback.instant):
            put_requested(table, rollback.at(State.REQUESTED), encode_rollback_plan(plan, table.storage.base_path))
        return rollback


def _with_traces(table: Table, plan: RollbackPlan, *, scan: bool) -> RollbackPlan:
    """A plan, extended by files that it lacks; `scan`: another process may have made it."""
    pending = table.load_timeline().find(plan.target, plan.instant.family)
    traces = traces_of(table, plan.target, plan.action, scan=scan and pending is not None and not plan.revoked)
    return plan.with_all_of(traces)


# --- its execution -------------------------------------------------------------------------------------------------


def _finish(table: Table, rollback: PendingRollback, lock: TableLock, *, scan: bool) -> str:
    """Executes the plan and completes the rollback; every step may have been done before."""
    storage, start, target = table.storage, time.monotonic(), rollback.target
    _check(table, rollback)  # before the heartbeat: that of `compactor-daemon rollback` shows if it stalls
    # With the heartbeat, Hudi 1.2's multi-writers leave the rollback to phantombase.
    with heartbeat(storage, rollback.instant, BEAT_S):
        storage.put_if_absent(table.instant_path(rollback.at(State.INFLIGHT)), b"")
        undone = undo_files(table, target, lambda: _with_traces(table, rollback.plan, scan=scan))
        delete_markers(storage, rollback.instant)  # Hudi puts markers of its command blocks under the rollback
        took_ms = int((time.monotonic() - start) * 1000)
        done = encode_rollback_metadata(undone.plan, rollback.instant, took_ms, undone.commands, storage.base_path)
        _complete(table, rollback, done, _left_behind(rollback.instant, undone), lock)
    storage.delete(heartbeat_path(target))
    return rollback.instant


def _check(table: Table, rollback: PendingRollback) -> None:
    """Refuses to delete files that must never be deleted, whatever the plan contains."""
    plan = rollback.plan
    if undoes_completed(table.load_timeline(), rollback):
        raise half_rolled_back(table, rollback)
    for partition, text in plan.doomed:
        name = parse_data_file(text)
        if name is None or name.instant != plan.target:
            raise MalformedError(
                "rollback plan with a file of another instant",
                path=join(partition, text),
                instant=plan.target,
                todo="Let Hudi finish this rollback.",
            )


def _left_behind(instant: str, undone: Undone) -> Change:
    """Log files that are kept: revoked and revoking ones; the metadata table may not know their instant."""
    revoked: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for slice_ in undone.plan.revoked:
        revoked[slice_.partition] |= slice_.logs
    files = files_of_rollback(undone.commands, revoked)
    return Change(instant=instant, files=files, moves_rows=False, schema_text=None)


def _complete(table: Table, rollback: PendingRollback, content: bytes, left: Change, lock: TableLock) -> None:
    """Removes the instant from the timeline and completes the rollback, in one section."""
    plan, update = rollback.plan, prepare(table, left) if left.files else None
    with exclusive(table, lock, f"complete the rollback of {plan.target}", _ENDS) as table:
        found = table.timeline.find(rollback.instant, "rollback")
        if found is None:
            raise ConflictError("a pending rollback is gone", instant=rollback.instant, todo="Run again.")
        if found.completed:
            return
        if undoes_completed(table.timeline, rollback):
            raise half_rolled_back(table, rollback)
        if left.files:
            apply_update(table, left, update)
        forget(table, plan.target)
        for state in (State.INFLIGHT, State.REQUESTED):
            table.storage.delete(table.instant_path(plan.instant.at(state)))
        completion = table.completion_time((), {plan.target})
        done = replace(rollback.at(State.COMPLETED), completion_time=completion)
        table.storage.put_if_absent(table.instant_path(done), content)


def _not_pending(table: Table, instant: Instant) -> ConflictError:
    now = table.load_timeline().find(instant.requested_time, instant.family)
    completed = now is not None and now.completed
    return ConflictError(
        "a write that was to be rolled back is no longer pending",
        path=table.storage.base_path,
        instant=instant.requested_time,
        expected=f"a pending {instant.action}",
        found="it has completed" if completed else "it is not on the active timeline",
        todo="If its rows are to go: `compactor-daemon rollback` takes the newest write back, `restore` all after one."
        if completed
        else "`timeline show TABLE` shows a rollback of it, if another process has done it.",
    )


def traces_of_all(table: Snapshot, undone: Collection[tuple[str, str]]) -> dict[tuple[str, str], RollbackPlan]:
    """The files of instants, (time, action), by one listing of the table. ConflictError: on version 6 a log file to be
    removed holds blocks of a write that is kept."""
    times = frozenset(time for time, _ in undone)
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    doomed: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    logs: defaultdict[str, dict[tuple[str, str, str], dict[str, int]]] = defaultdict(dict)
    for partition in table.partitions():
        for entry, name in data_files(table, partition):
            goes = name.instant in times
            if goes:
                doomed[name.instant].append((partition, entry.name))
            if not by_base or not isinstance(name, LogFileName):
                continue
            path = join(partition, entry.name)
            for write in sorted(set(instants_in(table, path))):
                if goes and write not in times and table.timeline.is_committed(write):
                    raise ConflictError(
                        "a log file that would go holds rows of a write that stays",
                        path=path,
                        instant=write,
                        todo="Restore the table with Hudi, or to an earlier instant.",
                    )
                if not goes and write in times:
                    key = (partition, name.file_id, name.instant)
                    logs[write].setdefault(key, {})[entry.name] = entry.size
    return {
        (time, action): RollbackPlan(
            target=time, action=action, doomed=tuple(doomed[time]), revoked=revoked_slices(logs[time])
        )
        for time, action in undone
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MovableKeys:
    """Where keys may have been moved from and to. Equal values give equal answers. `sources`: slices below the plan
    that have a base file and a log that may delete. `targets`: base files younger than the plan, superseded and
    replaced ones too, by partition of the sources. `pending`: delta commits that may still add targets, if there is a
    source."""

    sources: tuple[FileSlice, ...]
    targets: Mapping[str, tuple[BaseFile, ...]]
    pending: tuple[str, ...]


def movable_keys(view: TableView, instant: str, deletes: Callable[[str], bool]) -> MovableKeys:
    """The movable keys of a plan, by a view (pure). `deletes`: whether the log file at a path may delete."""
    under = (slice_before(g, instant) for g in view.groups if g.pending_compaction == instant)
    sources = tuple(s for s in under if s is not None and s.base and any(deletes(log.path) for log in s.logs))
    targets: defaultdict[str, list[BaseFile]] = defaultdict(list)
    for group in view.groups:
        bases = (s.base for s in group.slices if s.base is not None)
        targets[group.partition] += (base for base in bases if base.name.instant > instant)
    partitions = {s.partition for s in sources}
    return MovableKeys(
        sources=sources,
        targets={p: tuple(of) for p, of in targets.items() if p in partitions},
        pending=tuple(i.requested_time for i in view.timeline.pending_delta_commits) if sources else (),
    )


def refuse_moved(table: Table, view: TableView, instant: str, keys: MovableKeys) -> None:
    """ConflictError: a deleted key of a source is in a target. BarrierError: a pending write may put one there. Reads
    key columns only, with the keys of one base file in memory at a time. Too slow to call under the lock."""
    if not (keys.pending or keys.targets):
        return
    seen = table.with_timeline(view.timeline)
    rules = slice_rules(seen, seen.newest_schema())
    for source in keys.sources:
        targets = keys.targets.get(source.partition, ())
        if not (keys.pending or targets):
            continue
        gone = _deleted_keys(table, source, rules)
        if len(gone) and keys.pending:
            raise BarrierError(
                "a pending write may put keys that this plan deletes into another file group",
                path=f"{source.partition}/{source.file_id}",
                instant=instant,
                expected="no pending delta commit",
                found=", ".join(keys.pending),
                todo="Wait until it has completed or was rolled back, then run again.",
            )
        lookup = KeyLookup(gone)
        for target in targets if len(gone) else ():
            for batch in _keys_of(table, target, rules):
                at = lookup.find(batch)
                if (at >= 0).any():
                    raise ConflictError(
                        "keys that this plan deletes are now in another file group; without the plan they would double",
                        path=target.path,
                        instant=instant,
                        expected=f"no key in it that {source.base.path if source.base else source.file_id} holds too",
                        found=repr(gone[int(at[at >= 0][0])].as_py()),
                        todo="Execute this compaction (compactor-daemon compact): then each key is in one place.",
                    )


def _deleted_keys(table: Table, source: FileSlice, rules: SliceRules) -> pa.StringArray:
    """Keys of a slice's base file that its logs delete."""
    assert source.base is not None
    chunks = list(_keys_of(table, source.base, rules))
    held = pc.unique(pa.chunked_array(chunks, pa.string()))
    lookup, lives = KeyLookup(held), np.zeros(len(held), np.bool_)
    for batch in SliceStream(table.storage, source, rules, rules.keys.fields).batches():
        at = lookup.find(rules.keys.keys(pa.Table.from_batches([batch]), source.file_id))
        lives[at[at >= 0]] = True
    return held.filter(pa.array(~lives))


def _keys_of(table: Table, base: BaseFile, rules: SliceRules) -> Iterator[pa.StringArray]:
    schema = project(rules.schema, rules.keys.fields)
    for rows, _ in base_tables(table.storage, base.path, schema, rules.batch_rows):
        yield rules.keys.keys(rows, base.path)
