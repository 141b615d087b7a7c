"""Makes, lists and deletes savepoints as Hudi does: its cleaner, archiver and restore respect them.

    lock   t.savepoint.inflight, empty
           t.savepoint: the files of the state at t. From here on it holds

A savepoint with only an inflight file holds nothing; making the savepoint again completes it. It is deleted in the
other order, so that it holds as long as it is visible."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, MalformedError, UsageError, in_table
from phantombase.timeline.format.clean import Savepoint, decode_savepoint, encode_savepoint
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.option import check_text
from phantombase.timeline.read.windows import check_as_of
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.in_progress import READ_INSIDE, Guard, exclusive
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import TableView, input_names, is_replaced, latest_slice

ACTION = "savepoint"
_NO_CLEAN = dict.fromkeys(
    (Guard.RESTORE, Guard.ROLLBACK), "only cleans depend on a savepoint, and these are refused until both have ended"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSavepoint(Shown):
    """One savepoint of a table: the instant whose state it keeps, and its record."""

    instant: str
    savepoint: Savepoint


def create_savepoint(
    table: Table, lock: TableLock, instant: str | None, *, user: str, comment: str, dry_run: bool = False
) -> KeptSavepoint:
    """Keeps the state at a completed write, by default the newest one before all pending writes. An existing savepoint
    is returned as it is. `dry_run`: nothing is changed. UsageError: no such write, or a state that is not complete any
    more, or may still change. ConflictError: a clean is pending, and may be removing files of that state."""
    check_text("the user of a savepoint", user)
    check_text("the comment of a savepoint", comment)
    with exclusive(table, lock, "make a savepoint", READ_INSIDE, cached=True) as table:
        instant = instant or _newest(table)
        if (there := _completed(table.timeline, instant)) is not None:
            return _read(table, there)
        _refuse(table, instant)
        view = table.load_view(as_of=instant)
        for group in view.groups:
            if not is_replaced(group, view.facts, instant) and (kept := latest_slice(group, instant)) is not None:
                kept.check_whole(table.storage.base_path)
        files = state_files(view, instant)
        made = Savepoint(user=user, comment=comment, made_ms=clock_ms(), files=files)
        if dry_run:
            if table.layout.has_completion_times:
                table.times.check_zone(table.timeline)
            return KeptSavepoint(instant=instant, savepoint=made)
        completion = table.completion_time()
        table.storage.put_if_absent(table.instant_path(_of(instant, State.INFLIGHT)), b"")
        done = _of(instant, State.COMPLETED, completion)
        table.storage.put_if_absent(table.instant_path(done), encode_savepoint(made))
    return KeptSavepoint(instant=instant, savepoint=made)


def delete_savepoint(table: Table, lock: TableLock, instant: str, *, dry_run: bool = False) -> None:
    """Deletes a savepoint: its files may be cleaned. `dry_run`: nothing is changed. UsageError: there is none at this
    instant."""
    with exclusive(table, lock, "delete a savepoint", {**READ_INSIDE, **_NO_CLEAN}, cached=True) as table:
        found = [i for i in table.timeline.instants if (i.action, i.requested_time) == (ACTION, instant)]
        if not found:
            raise UsageError(
                "no such savepoint",
                path=table.storage.base_path,
                instant=instant,
                todo="`compactor-daemon savepoint list TABLE` lists them.",
            )
        if dry_run:
            return
        table.storage.delete(table.instant_path(_of(instant, State.INFLIGHT)))
        for one in found:
            if one.completed:
                table.storage.delete(table.instant_path(one))


def savepoints(table: Snapshot) -> tuple[KeptSavepoint, ...]:
    """The savepoints of a table, earliest first. MalformedError: one of them cannot be read."""
    return tuple(_read(table, i) for i in table.timeline.instants if i.action == ACTION and i.completed)


def state_files(view: TableView, instant: str) -> dict[str, tuple[str, ...]]:
    """Names of the files that a read as of an instant needs, by partition (pure). All log files of a file slice are
    named: later blocks in them are no part of the state, and do no harm."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for group in view.groups:
        slice_ = None if is_replaced(group, view.facts, instant) else latest_slice(group, instant)
        if slice_ is not None:
            found[group.partition] += input_names(slice_)
    return {partition: tuple(names) for partition, names in sorted(found.items()) if names}


def _newest(table: Snapshot) -> str:
    timeline = table.timeline
    pending = min((i.requested_time for i in timeline.inflight_writers), default=None)
    found = [time for time in timeline.completed_writes if pending is None or time < pending]
    if not found:
        raise UsageError(
            "there is no completed write whose state could be kept",
            path=table.storage.base_path,
            found="no write at all" if pending is None else f"pending: {pending}",
            todo="Make it after the first write is completed.",
        )
    return max(found)


def _refuse(table: Snapshot, instant: str) -> None:
    if instant not in table.timeline.completed_writes:
        raise UsageError(
            "only the state at a completed write of the active timeline can be kept",
            path=table.storage.base_path,
            instant=instant,
            todo="`timeline show TABLE` lists the instants.",
        )
    if pending := table.timeline.pending("clean"):
        raise ConflictError(
            "a clean is pending, and may be removing files of this state",
            path=table.storage.base_path,
            instant=pending[0].requested_time,
            todo="Let it be finished: by the next Hudi writer, or by `compactor-daemon clean`.",
        )
    check_as_of(table, instant)


def _completed(timeline: Timeline, instant: str) -> Instant | None:
    found = timeline.find(instant, ACTION)
    return found if found is not None and found.completed else None


def _of(instant: str, state: State, completion: str | None = None) -> Instant:
    return Instant(requested_time=instant, action=ACTION, state=state, completion_time=completion)


def _read(table: Table, instant: Instant) -> KeptSavepoint:
    path, time = table.instant_path(instant), instant.requested_time
    try:
        return KeptSavepoint(instant=time, savepoint=decode_savepoint(table.storage.read(path), path))
    except MalformedError as error:
        raise MalformedError(
            "a savepoint cannot be read: it is not known which files it keeps",
            path=path,
            instant=time,
            found=error.found or error.what,
            todo=f"Restore the file from a copy. Without one, `compactor-daemon savepoint delete TABLE {time}`, then "
            f"`savepoint create TABLE --instant {time}`, which refuses a state that is not whole any more.",
        ) from error


def refuse_cleaned(table: Snapshot, target: str) -> None:
    """UsageError: files of the state may have been removed. A savepoint keeps its files; each of them must exist. Log
    files of later writes, which a savepoint names too (see `state_files`), need not exist: their undo removes them."""
    kept = next((k for k in savepoints(table) if k.instant == target), None)
    if kept is None:
        check_as_of(table, target)
        return
    for partition, names in kept.savepoint.files.items():
        there = {entry.name for entry in table.storage.list(partition)}
        lost = ((name, parse_data_file(name)) for name in sorted(set(names) - there))
        if gone := [name for name, parsed in lost if parsed is None or parsed.instant <= target]:
            raise UsageError(
                "a file of the savepoint is gone",
                path=in_table(join(partition, gone[0])),
                instant=target,
                found=f"{len(gone)} of {len(names)} files of this partition are gone",
                todo="Put the file back from a copy, or restore to another instant.",
            )
