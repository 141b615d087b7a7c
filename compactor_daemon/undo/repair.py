"""Repairs records of a compaction that cannot be read: its completed file (`write_anew`), the `outcome` of an attempt.

The completed file. Hudi writes it in place on local disks, after all base files are written, those of failed tasks are
removed and the metadata table has the new ones. So the file's name decides: the compaction is completed, and Hudi
0.15.0 and 1.2.0 continue to read, write and compact, whatever the file contains (seen). Its content follows from the
plan and the base files:

    verify  each planned file group has one complete base file of the instant, with exactly the rows that merging the
            planned files gives, by counts and hashes of all rows; outside the lock
            where a completed clean has removed the planned files, the base file is complete: the clean itself counts
            the compaction as completed, and no other file has those rows any more
    write   under the lock: if the file is still torn, and its plan and time are unchanged, one step replaces it

Nothing else changes, so what Hudi has built upon the compaction since then is valid. On version 6 the file keeps its
modification time, which is a completion time for Hudi 1.x; if the process dies right before that is set,
`timeline repair-times` sets it.

The `outcome` of an attempt. It may contain the decision (`commit`). A completed compaction contains it in its commit
(`decision_of_commit`). Before that no attempt decides again until an operator, who knows that no compactor works on the
compaction, cancels the attempt. Its steps, in this order, under one hold of the table lock:

    refuse     if the compaction is completed, a compactor may be live, or a rollback names the instant
    remove     the placed files that the decision may name: found by the records of finished slices, and by the tokens
               in file names
    revoke     the record `revoked` is put: the decision is never valid again. Publishing checks for it under the lock
    staged     the staged files are deleted: from here on no file can be placed

The `outcome` record itself is kept, so that the completion time that it may have decided is still reserved
(`reserved`).
A crash before `revoke` changes nothing for other processes: if the decision is published, removed files are placed
again from their staged copies. After `revoke` the next attempt may open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError, LedgerError, MalformedError, MissingFileError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.clean import decode_clean_plan
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, decode, encode
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.archived_timeline import archived_clean_plans
from phantombase.timeline.instants.instant_files import StateFile, load_state_files
from phantombase.timeline.instants.reserved_times import attempts, recorded_instants
from phantombase.timeline.locks.heartbeat import is_live, process_name, read_heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_stream import SliceStream
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.in_progress import READ_INSIDE, Guard, exclusive, refuse_in_progress, regardless
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.torn import still_written
from phantombase.timeline.table.traces import data_files, delete_markers
from phantombase.timeline.view.view import DataFile, FileSlice, GroupKey

from ..attempt.compaction import merge_rules
from ..attempt.hudi_executors import foreign_trace, refuse_live
from ..attempt.outcome import read_outcome, revoke_decision
from ..attempt.pending_clusterings import PendingClustering, every_pending, has_begun
from ..attempt.slice_record import completed_compaction, finished_slices, named_staged_files
from ..attempt.slice_task import read_back
from ..attempt.validity import refuse_rollback
from ..options import AttemptOptions

_log = get_logger()
_BY_NAME = {Guard.ROLLBACK: "one that concerns this compaction, or may, is refused by name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """The attempt whose decision was revoked, None if every outcome can be read; and its placed files, now deleted."""

    attempt: int | None
    files: tuple[str, ...] = ()


def cancel_unreadable_attempt(
    table: Table, instant: str, lock: TableLock, options: AttemptOptions | None = None, *, dry_run: bool = False
) -> TakenBack:
    """Revokes what the last attempt may have decided, if its outcome cannot be read. `lock`: shared by all writers.
    `dry_run`: nothing is changed. UsageError: no compaction or clustering with records. ConflictError: see `refuse` in
    the module; nothing was changed."""
    options = options or AttemptOptions()
    with exclusive(table, lock, "cancel an unreadable decision", {**READ_INSIDE, **_BY_NAME}) as table:
        storage = table.storage
        if instant not in recorded_instants(storage):
            raise UsageError(
                "no compaction or clustering with records of phantombase",
                path=storage.base_path,
                instant=instant,
                todo="`timeline show TABLE` lists the instants: name a compaction or clustering.",
            )
        numbers = attempts(storage, instant)
        if not numbers or _is_readable(storage, instant, numbers[-1]):
            return TakenBack(attempt=None)
        clustering = None
        if all(one.requested_time != instant for one in table.timeline.pending_merges):  # else no plan need be readable
            clustering = next((one for one in every_pending(table) if one.time == instant), None)
        _refuse_at_work(table, instant, options, clustering)
        number = numbers[-1]
        finals = _finals(table, instant)
        if dry_run:
            return TakenBack(attempt=number, files=finals)
        staged = named_staged_files(storage, instant)  # once it is revoked, the next attempt may stage others
        storage.delete_all(finals)
        forget(table, instant)
        revoke_decision(storage, instant, number, "its record cannot be read", process_name())
        storage.delete_all(staged)
        if clustering is not None and has_begun(table, clustering.requested):
            delete_markers(storage, instant)
            storage.delete(table.instant_path(clustering.requested.at(State.INFLIGHT)))  # last, see `give_up`
        _log.warning("unreadable_decision_cancelled", instant=instant, attempt=number, files=finals)
        return TakenBack(attempt=number, files=finals)


def _is_readable(storage: Storage, instant: str, attempt: int) -> bool:
    try:
        read_outcome(storage, instant, attempt)
    except MalformedError:
        return False
    return True


def _refuse_at_work(table: Table, instant: str, options: AttemptOptions, clustering: PendingClustering | None) -> None:
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
    if clustering is not None:
        has_begun(table, clustering.requested)
    else:
        refuse_live(foreign_trace(table, instant, ()), table, instant, options)
    refuse_rollback(table, instant)


def _finals(table: Table, instant: str) -> tuple[str, ...]:
    """The files in the table that a decision on the instant may have placed."""
    made = [(d.partition, file) for d in finished_slices(table.storage, instant) for file in d.files]
    groups: set[GroupKey] = {(partition, file.file_id) for partition, file in made}
    with suppress(MissingFileError):  # the plan was removed: the records name the file groups
        groups |= {(o.partition_path, o.file_id) for o in table.compaction_plan(instant).operations}
    named = {file.final for _, file in made} | set(_with_our_token(table, instant, groups))
    return tuple(sorted(path for path in named if table.storage.find(path) is not None))


def _with_our_token(table: Table, instant: str, groups: Iterable[GroupKey]) -> list[str]:
    """Files of the instant in these file groups whose token is one of phantombase. On version 6 a log carries the
    instant of its slice, so only the records show such logs."""
    ids, found = set(groups), list[str]()
    for partition in sorted({partition for partition, _ in ids}):
        for entry, name in data_files(table, partition):
            if name.instant != instant or (partition, name.file_id) not in ids:
                continue
            is_ours = (name.token or "").endswith(f"-{COMPACTOR}")
            if is_ours and (isinstance(name, BaseFileName) or table.layout.slicing is not Slicing.BY_BASE_INSTANT):
                found.append(join(partition, entry.name))
    return found


_OTHERWISE = (
    "Restore the completed file from a copy, or the table to a state before it: `compactor-daemon restore TABLE --to "
    "INSTANT`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAnew:
    """`path`: of the completed file. `file_groups`: how many it names, with `rows` in their base files."""

    instant: str
    path: str
    file_groups: int
    rows: int


def write_anew(table: Table, instant: str, lock: TableLock, *, dry_run: bool = False) -> WrittenAnew:
    """Writes the completed file of a compaction again. `dry_run`: everything is verified, nothing is changed.
    UsageError: there is no such compaction, or its completed file can be read. ConflictError: a process may still be
    writing it, or a restore or a rollback is pending. MissingFileError, LedgerError: its content cannot be verified."""
    table = table.snapshot(cached=False)
    refuse_in_progress(table, _BY_NAME)
    torn, plan = _torn(table, instant)
    pending = table.timeline.with_pending(table.files.requested_merge(instant))
    schema = table.with_timeline(pending).newest_schema(before=instant)
    rules = merge_rules(table, schema, OutputOptions())
    stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
    cleaned = _cleaned(table, instant)
    for operation in plan.operations:
        if (stat := _prove(table, operation, instant, rules, cleaned)) is not None:
            stats[operation.partition_path].append(stat)
    content = CommitMetadata(
        partition_to_write_stats={partition: tuple(of) for partition, of in stats.items()},
        compacted=True,
        extra_metadata=schema.recorded,
        operation_type="COMPACT",
    )
    written = [stat for of in stats.values() for stat in of]
    done = WrittenAnew(
        instant=instant, path=torn.path, file_groups=len(written), rows=sum(stat.num_writes for stat in written)
    )
    if dry_run:
        return done
    with exclusive(table, lock, "write a completed file again", _BY_NAME) as table:
        if _torn(table, instant) != (torn, plan):
            raise ConflictError(
                "the completed file of a compaction changed while it was looked at",
                path=torn.path,
                instant=instant,
                todo="Run again.",
            )
        table.storage.overwrite(torn.path, encode(content, table.layout.encoding))
        if table.layout.slicing is Slicing.BY_BASE_INSTANT:
            regardless(table).storage.set_modified(torn.path, torn.modified_ms)  # as the file is complete now
    _log.warning(
        "completed_file_written_anew", table=table.storage.base_path, instant=instant, file_groups=len(written)
    )
    return done


def _torn(table: Table, instant: str) -> tuple[StateFile, CompactionPlan]:
    """The completed file, which cannot be read, and the plan. Errors: see `write_anew`."""
    files = load_state_files(table.storage, table.config).of.get((instant, "commit"), ())
    found = [one for one in files if one.instant.completed]
    if len(found) != 1:
        raise UsageError(
            "no completed compaction",
            path=table.storage.base_path,
            instant=instant,
            expected="one completed file of a compaction, which cannot be read",
            found=f"{len(found)} completed files",
            todo="`timeline show TABLE` lists the instants.",
        )
    (torn,) = found
    try:
        decode(table.storage.read(torn.path), torn.path)
    except MalformedError:
        pass
    else:
        raise UsageError(
            "this completed file can be read: nothing is to be done",
            path=torn.path,
            instant=instant,
            todo="`compactor-daemon status TABLE` says what the table needs.",
        )
    what = "be writing the completed file of this compaction"
    if (refused := still_written(table.storage, torn.path, instant, what, storage_ms(table.storage))) is not None:
        raise refused
    refuse_rollback(table, instant)
    try:
        return torn, table.compaction_plan(instant)
    except MissingFileError as error:
        raise _lost("the plan of this compaction is gone", error.path or torn.path, instant) from error


def _cleaned(table: Table, instant: str) -> frozenset[tuple[str, str]]:
    """What completed cleans later than an instant have removed, archived ones too: (partition, name)."""
    timeline = table.with_archive(table.load_timeline())
    cleans = (clean for clean in timeline.instants if clean.action == "clean")
    later = [clean for clean in cleans if clean.completed and clean.requested_time > instant]
    found = (table.files.plan_there(clean, decode_clean_plan) for clean in later)
    plans = [plan for plan in found if plan is not None]
    archived = [i for i in timeline.archived if i.requested_time > instant]
    plans += (plan for _, plan in archived_clean_plans(table.storage, table.config, archived))
    return frozenset((partition, name) for plan in plans for partition, names in plan.files.items() for name in names)


def _prove(
    table: Table, operation: CompactionOperation, instant: str, rules: SliceRules, cleaned: frozenset[tuple[str, str]]
) -> WriteStat | None:
    """The statistics of one planned file group's base file; None: there were no rows, so Hudi wrote none."""
    slice_, outputs, gone = _files(table, operation, instant)
    if gone:
        return _trust(table, operation, instant, rules, outputs, gone, cleaned)
    stream = SliceStream(table.storage, slice_, rules)
    for _ in stream.batches():
        pass
    if not outputs and not stream.log_counts.entries:
        return None
    path = _only(operation, instant, outputs, "not one base file of this compaction is there for a planned file group")
    rows, hash_out, size = read_back(table.storage, path, rules)
    ledger = stream.ledger(rows, hash_out)
    try:
        ledger.check(
            footer_rows_in=stream.base_rows, header_entries=stream.log_counts.entries, footer_rows_out=rows, where=path
        )
    except LedgerError as error:
        raise error.advising(f"The base file is not what merging the planned files gives. {_OTHERWISE}") from error
    return replace(
        _stat(operation, path, ledger.rows_out, size),
        num_deletes=ledger.deleted,
        num_update_writes=ledger.replaced,
        num_inserts=ledger.inserts,
        total_log_records=ledger.log_entries,
        total_log_size_compacted=slice_.log_bytes,
        total_updated_records_compacted=ledger.log_keys,
        total_log_blocks=stream.log_counts.blocks,
    )


def _only(operation: CompactionOperation, instant: str, outputs: list[str], problem: str) -> str:
    """The path of the base file that the compaction made of the group. MissingFileError: there is not exactly one."""
    if len(outputs) != 1:
        where = join(operation.partition_path, operation.file_id)
        raise _lost(problem, where, instant, found=", ".join(outputs) or "none")
    return join(operation.partition_path, outputs[0])


def _trust(
    table: Table,
    operation: CompactionOperation,
    instant: str,
    rules: SliceRules,
    outputs: list[str],
    gone: list[str],
    cleaned: frozenset[tuple[str, str]],
) -> WriteStat:
    """The statistics where inputs were removed. MissingFileError: not by a clean, or there is not one base file."""
    partition = operation.partition_path
    if lost := [name for name in gone if (partition, name) not in cleaned]:
        raise _lost("a file that this compaction merged is gone", join(partition, lost[0]), instant)
    path = _only(
        operation,
        instant,
        outputs,
        "not one base file of this compaction is there for a planned file group, whose other files were cleaned",
    )
    rows, _, size = read_back(table.storage, path, rules)
    return _stat(operation, path, rows, size)


def _files(table: Table, operation: CompactionOperation, instant: str) -> tuple[FileSlice, list[str], list[str]]:
    """The planned file slice, the base files of the instant, and the inputs that were removed."""
    partition, file_id, base = operation.partition_path, operation.file_id, operation.data_file_path
    sizes = {e.name: e.size for e in table.storage.list(partition) if not e.is_folder}
    inputs = [*operation.merged_logs, *([] if base is None else [base])]
    gone = sorted(set(inputs) - sizes.keys())
    slice_ = FileSlice(
        partition=partition,
        file_id=file_id,
        base_instant=operation.base_instant_time or "",
        base=None
        if base is None
        else DataFile(partition=partition, name=BaseFileName.parse(base), size=sizes.get(base, 0)),
        logs=tuple(
            DataFile(partition=partition, name=log, size=sizes.get(str(log), 0))
            for log in sorted(map(LogFileName.parse, operation.merged_logs), key=lambda log: log.sort_key)
        ),
    )
    named = ((text, parse_data_file(text)) for text in sizes)
    outputs = [
        text for text, n in named if isinstance(n, BaseFileName) and (n.file_id, n.instant) == (file_id, instant)
    ]
    return slice_, sorted(outputs), gone


def _stat(operation: CompactionOperation, path: str, rows: int, size: int) -> WriteStat:
    return WriteStat(
        file_id=operation.file_id,
        path=path,
        prev_commit=operation.base_instant_time or "null",
        num_writes=rows,
        total_write_bytes=size,
        file_size_in_bytes=size,
        partition_path=operation.partition_path,
        total_log_files_compacted=len(operation.delta_file_paths),
        prev_base_file=operation.data_file_path,
    )


def _lost(what: str, path: str, instant: str, found: str | None = None) -> MissingFileError:
    return MissingFileError(what, path=path, instant=instant, found=found, todo=_OTHERWISE)
