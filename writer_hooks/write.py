"""One write from its input to its completed delta commit."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import structlog

from compactor_daemon.records import reserved_times
from timeline.active import Timeline
from timeline.avro_schema import arrow_schema, project
from timeline.commit_metadata import CommitMetadata, WriteStat
from timeline.dead_writers import roll_back_dead_writers
from timeline.errors import ConflictError, PhantombaseError, UnsupportedError, UsageError
from timeline.gate import wait_while_wanted
from timeline.layout import RECORDS, Slicing
from timeline.lock import FileLock, TableLock, parse_lock
from timeline.markers import delete_markers
from timeline.read import slice_rules
from timeline.rollback import roll_back
from timeline.schedule import drop_metadata_table, refuse_metadata_table
from timeline.table import Table, TableSchema
from timeline.table_config import TableConfig
from writer_hooks.after_commit import AfterCommit, after_commit
from writer_hooks.bucket import KeySplit
from writer_hooks.bucket_step import BucketStep
from writer_hooks.conflict import Footprint
from writer_hooks.engine import Engine, Pieces
from writer_hooks.key_encoding import one_field_prefixed
from writer_hooks.key_generator import KeyGenerator
from writer_hooks.key_index import KeyIndex
from writer_hooks.new_files_step import NewFilesStep
from writer_hooks.options import Operation, WriteOptions
from writer_hooks.placing import Placed, place_all, write_stat
from writer_hooks.prepare import BySource, PrepareRows, Route, ToBucket, ToSlot
from writer_hooks.staging import FileKind, StagedFile
from writer_hooks.stream import StreamBatch, read_intent, written_as
from writer_hooks.table_schema import evolve, new_schema
from writer_hooks.transaction import ACTION, Transaction, transaction
from writer_hooks.work import WRITES, WriteWork, staging_folder

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A completed write: counts in rows (updates: rows of keys that exist, or may exist under a bucket index)."""

    instant: str
    operation: Operation
    files: int
    bytes_written: int
    writes: int
    inserts: int
    updates: int
    deletes: int
    seconds: float
    after: AfterCommit = field(default_factory=AfterCommit)


def table_lock(path: str, lock: str | None) -> TableLock:
    """The lock all processes of a table share: the one that is named, else a file in the table."""
    return parse_lock(lock) if lock is not None else FileLock(os.path.join(path, RECORDS, "table.lock"))


def write(table: Table, engine: Engine, operation: Operation, options: WriteOptions) -> Written:
    """Writes the engine's input as one delta commit.

    UsageError, UnsupportedError: refused, nothing was touched. ConflictError: somebody else changed the same meanwhile,
    and `retries` are used up; the table reads as before.
    """
    table, lock = _checked(table, engine, operation, options)
    return _retried(table, lock, engine, operation, options, None)


def write_batch(
    table: Table, engine: Engine, operation: Operation, options: WriteOptions, batch: StreamBatch
) -> Written | None:
    """Writes a batch of a stream exactly once: None when an earlier try has written it. Errors as `write`."""
    table, lock = _checked(table, engine, operation, options)
    if _is_written(table, lock, batch):
        _after(table, lock, engine, options)  # the try that wrote it may have died before
        return None
    return _retried(table, lock, engine, operation, options, batch)


def _checked(table: Table, engine: Engine, operation: Operation, options: WriteOptions) -> tuple[Table, TableLock]:
    """The table and its lock; refuses what does not fit before anything is visible."""
    lock = table_lock(table.storage.base_path, options.lock)
    if options.drop_metadata_table:
        table = drop_metadata_table(table, lock)
    refuse_metadata_table(table)
    _schema(table, table.load_timeline(), engine.schema, operation, options)
    return table, lock


def _retried(
    table: Table,
    lock: TableLock,
    engine: Engine,
    operation: Operation,
    options: WriteOptions,
    batch: StreamBatch | None,
) -> Written:
    for left in reversed(range(options.retries + 1)):
        try:
            done = _attempt(table, lock, engine, operation, options, batch)
            return replace(done, after=_after(table, lock, engine, options))
        except ConflictError as error:
            if not left:
                raise
            _log.info("write_again", retries_left=left, error=str(error))
    raise AssertionError("unreachable")


def _after(table: Table, lock: TableLock, engine: Engine, options: WriteOptions) -> AfterCommit:
    return after_commit(table, lock, options.lock, engine.runner, options.output, options.compaction)


def _attempt(
    table: Table,
    lock: TableLock,
    engine: Engine,
    operation: Operation,
    options: WriteOptions,
    batch: StreamBatch | None,
) -> Written:
    started = time.monotonic()
    lazy = options.lazy_rollback if options.lazy_rollback is not None else options.lock is not None
    roll_back_dead_writers(
        table,
        lock,
        lazy=lazy,
        now_ms=round(time.time() * 1000),
        expiry_s=options.heartbeat_expiry_s,
        reserved=reserved_times,
    )
    wait_while_wanted(table.storage)
    with transaction(table, lock, options.heartbeat_s) as begun:
        if batch is not None:
            batch.intend(begun.table.storage, begun.instant)
        work = _work(begun, engine, operation, options)
        files = _stage(work, engine, operation, options)
        mine = footprint(files, operation, options)
        begun.check_conflicts(mine)
        placed = place_all(begun.table, begun.instant, files)
        begun.complete(mine, _metadata(work, placed, operation, batch.metadata if batch is not None else {}))
    _remove_traces(table)
    done = _written(begun, operation, files, time.monotonic() - started)
    _log.info("written", instant=done.instant, operation=operation.value, files=done.files, rows=done.writes)
    return done


def _is_written(table: Table, lock: TableLock, batch: StreamBatch) -> bool:
    """Whether a batch needs no writing. What an earlier try of it left pending is rolled back at once.

    A stream has one query, so whoever began that try is gone, whatever its heartbeat says; should it wake up, its
    commit fails.
    """
    done = written_as(table, batch)
    if done is not None:
        _log.info("batch_skipped", stream=batch.name, batch=batch.number, instant=done)
        return True
    intent = read_intent(table.storage, batch)
    pending = table.load_timeline().find(intent.instant, ACTION) if intent is not None else None
    if pending is not None and not pending.completed:
        roll_back(table, pending, lock, reserved_times)
    return False


def _schema(
    table: Table, timeline: Timeline, incoming: pa.Schema, operation: Operation, options: WriteOptions
) -> TableSchema:
    """The table's schema after this write; UsageError where the input does not fit it."""
    config = table.config
    is_new = not timeline.completed_writes and not config.create_schema
    own = None if is_new else table.schema_text(timeline)
    return table.schema(checked_schema(config, own, incoming, operation, options))


def checked_schema(
    config: TableConfig, own: str | None, incoming: pa.Schema, operation: Operation, options: WriteOptions
) -> str:
    """The table's Avro schema after a write of `incoming`; `own`: the one before, None for a table without rows.

    UsageError: a column that does not fit, that lacks, or of which no key or path can be made. UnsupportedError: a
    table without Hudi's meta columns.
    """
    if not config.populate_meta_fields:
        raise UnsupportedError(
            "tables without Hudi's meta columns (virtual keys) not supported for writing",
            expected="hoodie.populate.meta.fields=true",
            found="false",
            todo="Write this table with Hudi.",
        )
    needed = {*config.record_key_fields, *config.partition_fields}
    if operation is Operation.DELETE:
        incoming = pa.schema([f for f in incoming if f.name in needed])
    else:
        needed |= set(config.ordering_fields)
    missing = sorted(name for name in needed if name.partition(".")[0] not in incoming.names)
    if missing:
        raise UsageError(
            "the rows lack columns the table needs",
            expected=", ".join(missing),
            found=", ".join(incoming.names) or "no columns",
        )
    text = own if own is not None and operation is Operation.DELETE else None
    if text is None:
        text = new_schema(config.name, incoming) if own is None else evolve(own, incoming)
    empty = project(arrow_schema(text), [n for n in arrow_schema(text).names if n in incoming.names]).empty_table()
    keys = KeyGenerator.of(config, one_field_prefixed=False, writer=dict(options.times))
    keys.keys(empty)
    keys.partition_paths(empty)
    return text


def _work(begun: Transaction, engine: Engine, operation: Operation, options: WriteOptions) -> WriteWork:
    schema = _schema(begun.table, begun.timeline, engine.schema, operation, options)
    rules = slice_rules(begun.table, begun.timeline, schema)
    combine = options.combine if options.combine is not None else operation in (Operation.UPSERT, Operation.DELETE)
    return WriteWork(
        table=begun.table,
        timeline=begun.timeline,
        facts=begun.facts,
        clustering=begun.clustering,
        instant=begun.instant,
        schema=schema,
        merge=rules.merge,
        ordering_fields=rules.ordering_fields,
        output=options.output,
        log_format=options.log_format,
        combine=combine,
        deletes=operation is Operation.DELETE,
        file_bytes=options.file_bytes,
    )


def _stage(work: WriteWork, engine: Engine, operation: Operation, options: WriteOptions) -> list[StagedFile]:
    config = work.table.config
    columns = list(work.data_schema.names)
    if work.deletes:
        columns = [name for name in columns if name in {*config.record_key_fields, *config.partition_fields}]
    slots, prefixed = engine.slots, one_field_prefixed(work.table)
    keys = KeyGenerator.of(config, one_field_prefixed=prefixed, writer=dict(options.times))

    def prepared(route: Route) -> Pieces:
        return engine.prepare(
            PrepareRows(
                keys=keys,
                data_schema=project(work.data_schema, columns),
                ordering_fields=work.ordering_fields,
                route=route,
                key_only=work.deletes,
                batch_bytes=options.batch_bytes,
            )
        )

    any_slot = ToSlot(slots) if work.combine else BySource(slots)  # rows of one key have to meet
    if options.buckets is not None:
        fields = options.bucket_fields or config.record_key_fields
        route = ToBucket(options.buckets, fields, KeySplit.of(config.layout))
        done = prepared(route).regroup(BucketStep(work, options.buckets)).collect()
    elif operation is Operation.BULK_INSERT:
        done = prepared(any_slot).regroup(NewFilesStep(work)).collect()
    elif operation is Operation.INSERT:
        done = KeyIndex(work, options, slots).insert(prepared(any_slot))
    else:
        done = KeyIndex(work, options, slots).upsert(prepared(ToSlot(slots)))
    return [StagedFile.from_json(data) for data in done]


def footprint(files: list[StagedFile], operation: Operation, options: WriteOptions) -> Footprint:
    """What these files change."""
    bases = [f for f in files if f.kind is FileKind.BASE]
    unique = operation is Operation.UPSERT and options.buckets is None
    return Footprint(
        appended=frozenset(f.key for f in files if f.kind is FileKind.LOG),
        rewritten=frozenset(f.key for f in bases if f.base_instant is not None),
        buckets=frozenset((f.partition, f.file_id[:8]) for f in bases) if options.buckets is not None else frozenset(),
        inserts=frozenset(f.partition for f in bases if f.inserts) if unique else frozenset(),
    )


def _metadata(work: WriteWork, placed: list[Placed], operation: Operation, extra: Mapping[str, str]) -> CommitMetadata:
    by_name = work.table.layout.slicing is Slicing.BY_BASE_INSTANT
    stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
    for one in placed:
        stats[one.staged.partition].append(write_stat(one, work.instant, by_name=by_name))
    return CommitMetadata(
        partition_to_write_stats={partition: tuple(s) for partition, s in stats.items()},
        extra_metadata={**extra, "schema": work.schema.commit_text},
        operation_type=operation.value,
    )


def _remove_traces(table: Table) -> None:
    """Removes markers and staged files of finished and dead writes. What fails here is left to the next write."""
    try:
        _remove_all_traces(table)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", error=str(error))


def _remove_all_traces(table: Table) -> None:
    """Listed first: a write is on the timeline before it stages."""
    storage = table.storage
    if storage.find(WRITES) is None:
        return
    staged = [e.name for e in storage.list(WRITES) if e.is_folder]
    pending = table.load_timeline().pending_writes
    for instant in staged:
        if instant not in pending:
            delete_markers(storage, instant)  # first: the staging folder tells that there may be some
            storage.delete_folder(staging_folder(instant))


def _written(begun: Transaction, operation: Operation, files: list[StagedFile], seconds: float) -> Written:
    return Written(
        instant=begun.instant,
        operation=operation,
        files=len(files),
        bytes_written=sum(f.size for f in files),
        writes=sum(f.writes for f in files),
        inserts=sum(f.inserts for f in files),
        updates=sum(f.updates for f in files),
        deletes=sum(f.deletes for f in files),
        seconds=seconds,
    )
