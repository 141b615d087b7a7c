"""Recovery from an attempt whose `outcome` cannot be read: it may have decided the compaction (`commit`).

Once the compaction is completed, its commit contains all that the record contained (`decision_of_commit`). Before that
no attempt decides again until an operator, who knows that no compactor works on the compaction, takes the attempt back:
`take_back_unreadable`. Under one hold of the table lock it does this, in this order:

    refuse     if the compaction is completed, a compactor shows a sign of life, or a rollback names the instant
    remove     the placed files that the decision may name: found by the records of finished slices, and by the tokens
               in the names of files
    revoke     the record `revoked` is put: the decision never stands again (`revert_files`). Publishing looks for it
               under the lock
    staged     the staged files are deleted: no file can be placed any more

The `outcome` record itself stays, so that the completion time that it may have decided stays reserved (`reserved`).
A crash before `revoke` changes nothing for other processes: if the decision is published after all, removed files are
placed again from their staged copies. After `revoke` the next attempt may open.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName, parse_data_file
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.reserved_times import attempt_folder, attempts, recorded_instants
from phantombase.timeline.locks.heartbeat import is_live, process_name, read_heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from ..attempt.completed import completed_compaction, finished_slices
from ..attempt.hudi_executors import foreign_trace, refuse_live
from ..attempt.outcome import STAGED_ENDINGS, read_outcome, revoke_decision
from ..attempt.validity import refuse_rollback
from ..options import AttemptOptions

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """An attempt whose decision was revoked, None if every outcome can be read; and its placed files, now deleted."""

    attempt: int | None
    files: tuple[str, ...] = ()


def take_back_unreadable(
    table: Table, instant: str, lock: TableLock, options: AttemptOptions | None = None, *, dry_run: bool = False
) -> TakenBack:
    """Takes back what the last attempt may have decided, if its outcome cannot be read. `lock`: shared by all writers.

    `dry_run`: nothing is changed.
    UsageError: no compaction with records. ConflictError: see `refuse` in the module; nothing was changed then.
    """
    options = options or AttemptOptions()
    with lock.hold("take back an unreadable decision") as section:
        table = table.reload()
        storage = table.storage
        if instant not in recorded_instants(storage):
            raise UsageError("no compaction with records of phantombase", path=storage.base_path, instant=instant)
        numbers = attempts(storage, instant)
        if not numbers or _is_readable(storage, instant, numbers[-1]):
            return TakenBack(attempt=None)
        _refuse_at_work(table, instant, options)
        number = numbers[-1]
        finals = _finals(table, instant)
        if dry_run:
            return TakenBack(attempt=number, files=finals)
        section.check()
        for path in finals:
            storage.delete(path)
        forget(table, instant, section)
        section.check()
        revoke_decision(storage, instant, number, "its record cannot be read", process_name())
        for attempt in numbers:
            folder = attempt_folder(instant, attempt)
            for entry in storage.list(folder):
                if entry.name.endswith(STAGED_ENDINGS):
                    storage.delete(f"{folder}/{entry.name}")
        _log.warning("unreadable_decision_taken_back", instant=instant, attempt=number, files=finals)
        return TakenBack(attempt=number, files=finals)


def _is_readable(storage: Storage, instant: str, attempt: int) -> bool:
    try:
        read_outcome(storage, instant, attempt)
    except MalformedError:
        return False
    return True


def _refuse_at_work(table: Table, instant: str, options: AttemptOptions) -> None:
    done = completed_compaction(table, instant)
    if done is not None:
        raise ConflictError(
            "this compaction is completed, so its unreadable record does no harm",
            path=table.instant_path(done),
            instant=instant,
            todo="Run compactor-daemon compact, or a daemon: it cleans up behind the compaction.",
        )
    beat = read_heartbeat(table.storage, instant)
    if beat is not None and beat.ours and is_live(beat, storage_ms(table.storage), options.heartbeat_expiry_s):
        raise ConflictError(
            "a compactor is at work on this instant",
            path=table.storage.base_path,
            instant=instant,
            expected=f"no heartbeat for {options.heartbeat_expiry_s:g} s",
            found="a fresh heartbeat",
            todo="Stop it, or wait until it has ended.",
        )
    refuse_live(foreign_trace(table, instant, ()), table, instant, options)
    refuse_rollback(table, instant)


def _finals(table: Table, instant: str) -> tuple[str, ...]:
    """The files in the table that a decision on the instant may have placed."""
    finished = finished_slices(table.storage, instant)
    groups: set[GroupKey] = {(d.partition, d.file_id) for d in finished}
    with suppress(MissingFileError):  # the plan is gone: the records name the file groups
        groups |= {(o.partition_path, o.file_id) for o in table.compaction_plan(instant).operations}
    named = {d.final for d in finished if d.final is not None} | set(_with_our_token(table, instant, groups))
    return tuple(sorted(path for path in named if table.storage.find(path) is not None))


def _with_our_token(table: Table, instant: str, groups: Iterable[GroupKey]) -> list[str]:
    """Files of the instant in these file groups whose token is one of phantombase.

    On version 6 a log carries the instant of its slice, so only the records show which logs are meant.
    """
    ids, found = set(groups), list[str]()
    for partition in sorted({partition for partition, _ in ids}):
        with suppress(MissingFileError):
            for entry in table.storage.list(partition):
                name = parse_data_file(entry.name)
                if name is None or name.instant != instant or (partition, name.file_id) not in ids:
                    continue
                is_ours = (name.token or "").endswith(f"-{COMPACTOR}")
                if is_ours and (isinstance(name, BaseFileName) or table.layout.slicing is not Slicing.BY_BASE_INSTANT):
                    found.append(f"{partition}/{entry.name}" if partition else entry.name)
    return found
