"""One write from its input to its completed delta commit or replacecommit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from phantombase.compactor_daemon.clustering.cancel import settle_dead_clusterings
from phantombase.compactor_daemon.services.options import least_expiry_s
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.timeline.clocks import Stopwatch, doubling_pauses
from phantombase.timeline.errors import ClusteringConflictError, ConflictError, PressureError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.record_key import bucket_of_file_id
from phantombase.timeline.locks.heartbeat import is_live, read_heartbeat, wait_while_wanted
from phantombase.timeline.locks.table_lock import TableLock, table_lock
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.record_index import check_keepable, keys_are_global
from phantombase.timeline.metadata_table.records.keys import RECORD_INDEX
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.in_progress import refuse_buckets_by_partition, refuse_consistent_hashing
from phantombase.timeline.table.table import Snapshot, Table, TableSchema

from ...timeline.record_fields import gathered
from ..commit.compaction import (
    AfterCommit,
    Capacity,
    ClusteringWait,
    after_commit,
    due_at_once,
    remove_leftovers,
    services_after,
)
from ..commit.conflict import WriteSet
from ..commit.place_files import (
    Placed,
    partitions_there,
    place_all,
    refuse_planned,
    replaced_groups,
    undo_only_write,
    write_stat,
)
from ..commit.stream_batches import StreamBatch, begin_batch, check_intended, record_run, written_as
from ..commit.transaction import Transaction, action_of, opening_of, transaction
from ..engine.engine import Engine, Pieces, RowCounts
from ..index.bucket_step import check_recorded_buckets, recorded_buckets
from ..index.global_keys import GlobalKeys, looks_everywhere
from ..index.prepare_step import check_once
from ..options import NO_LIMIT, BackPressure, CompactionOptions, Mode, Operation, Write, WriteOptions
from ..schema.key_generator import refuse_long_partitions
from ..schema.write_schema import refuse_inexact_changes, schema_after, virtual_refusal
from .rows import check_index, needs_only_rows, prepare_rows, stage_rows, write_set

_log = get_logger()
_PAUSE_S = 0.5
_PAUSE_MAX_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Shown):
    """A completed write: counts in rows. `writes`: of its files. `inserts`: rows of keys that no base file had, or that
    were not looked for (`insert`). `updates`: of keys that one had; in a rewritten base file those that win. `deletes`:
    such keys. A key that moves to another partition is deleted in the one and inserted in the other. The three are None
    if it is not known which keys are new: some went into log files under a bucket index, which looks for no keys, or of
    a file group whose logs may have deleted them. `replaced`: file groups that it replaced, whose rows do not count.
    `seconds`: duration of the try that succeeded. `waited_s`: its wait for full file groups (see `back_pressure`)."""

    instant: str
    operation: Operation
    files: int
    bytes_written: int
    writes: int
    inserts: int | None
    updates: int | None
    deletes: int | None
    replaced: int
    seconds: float
    waited_s: float = 0.0
    after: AfterCommit = field(default_factory=AfterCommit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What all tries of one write have in common. `batch`: of a stream. `alone`: the write has made the table, and is
    undone without a rollback as long as there is no other (see `place_files`)."""

    lock: TableLock
    engine: Engine
    write: Write
    batch: StreamBatch | None = None
    alone: bool = False

    @property
    def options(self) -> WriteOptions:
        return self.write.options

    def schema_of(self, table: Snapshot) -> TableSchema:
        return _schema(table, self.engine, self.write)


def write(table: Table, engine: Engine, what: Write, first: Pieces | None = None, *, alone: bool = False) -> Written:
    """Writes the engine's input as one delta commit or replacecommit. `first`: the input as `first_rows` prepared it,
    for the first try. UsageError, UnsupportedError: refused before any change. ConflictError: another process changed
    the same file groups concurrently, and `retries` are used up. PressureError: a file group is full (see
    `back_pressure`). ClusteringConflictError: see `clustering_wait_s`. After each of them the table reads as before."""
    table, lock = _checked(table, engine, what)
    return _retried(table, _Job(lock=lock, engine=engine, write=what, alone=alone), first)


def write_batch(
    table: Table, engine: Engine, what: Write, batch: StreamBatch, first: Pieces | None = None, *, alone: bool = False
) -> Written | None:
    """Writes a part of a stream's batch exactly once; None: an earlier try did. Errors as `write` and `written_as`."""
    table, lock = _checked(table, engine, what)
    job = _Job(lock=lock, engine=engine, write=what, batch=batch, alone=alone)
    # A wrong schema is refused before an earlier try is rolled back.
    job.schema_of(table.snapshot(same_settings=True, cached=False))
    if _is_written(table, job, batch):
        _finish(table, job)  # the try that wrote the batch may have been killed before this step
        return None
    return _retried(table, job, first)


def check(table: Table, engine: Engine, what: Write) -> None:
    """Raises what `write` would raise for the table, its settings and the columns of the rows; changes nothing."""
    _refuse_buckets(table, what)
    _schema(table.snapshot(same_settings=True, cached=False), engine, what)
    if not what.options.drop_metadata_table:
        check_keepable(table)


def _refuse_buckets(table: Table, what: Write) -> None:
    """UnsupportedError: Hudi divides rows into buckets in a way that writes here do not follow."""
    refuse_consistent_hashing(table, "writing")
    if what.options.buckets is not None:
        refuse_buckets_by_partition(table, "writing")


def _schema(table: Snapshot, engine: Engine, what: Write) -> TableSchema:
    """See `schema_after`, `refuse_inexact_changes`, `_refuse_record_index`, `check_recorded_buckets`."""
    schema = schema_after(table, engine.schema, what)
    refuse_inexact_changes(table, schema, what)
    _refuse_record_index(table)
    if what.operation is not Operation.INSERT_OVERWRITE_TABLE:
        check_recorded_buckets(table, what.options)
    return schema


def _refuse_record_index(table: Table) -> None:
    """UnsupportedError: a record index with virtual keys. Its entries are made of the meta columns: Hudi finds no key
    by it, and loses deletes."""
    config = table.config
    if not config.populate_meta_fields and (RECORD_INDEX in config.metadata_partitions or keys_are_global(table)):
        todo = "Drop the index with Hudi, and write with SIMPLE or BUCKET."
        raise virtual_refusal("a record index", RECORD_INDEX, todo)


def _checked(table: Table, engine: Engine, what: Write) -> tuple[Table, TableLock]:
    """The table and its lock. UnsupportedError: see `check_keepable`, `_refuse_buckets`, `_schema`."""
    _refuse_buckets(table, what)
    if what.options.drop_metadata_table or table.config.captures_changes or not table.config.populate_meta_fields:
        _schema(table.snapshot(same_settings=True, cached=False), engine, what)
    options = what.options
    table, lock = table.with_clock(options.clock), what.lock or table_lock(table.storage, options.lock)
    if options.drop_metadata_table:
        table = drop_metadata_table(table, lock)
    check_keepable(table)
    return table, lock


def _retried(table: Table, job: _Job, first: Pieces | None) -> Written:
    left, pauses = job.options.retries, retry_pauses()
    capacity, clusterings = _capacity(table, job), ClusteringWait(table, job.options.clustering_wait_s, retry_pauses())
    while True:
        given, first = first, None
        try:
            with job.engine.described(shown(job.write, table.storage)):
                done = _attempt(table.snapshot(cached=False), job, capacity, given)
            after = _finish(table, job)
            capacity.slow_down()
            waited_s = capacity.waited_s + clusterings.waited_s
            return replace(done, waited_s=waited_s, after=after)
        except PressureError:
            capacity.wait()
        except ConflictError as error:
            if isinstance(error, ClusteringConflictError) and clusterings.wait(error):
                continue
            if not left:
                raise
            _log.info("write_again", retries_left=left, error=str(error))
            left -= 1
            time.sleep(next(pauses))


def shown(what: Write, storage: Storage) -> str:
    """The text under which the jobs of a write are shown."""
    return f"phantombase {what.operation.value.lower().replace('_', ' ')} {storage.base_path}"


def retry_pauses() -> Iterator[float]:
    """Seconds between the tries of a write that conflicts. The first retry needs none, since the conflicting write has
    usually ended; a rollback or a restore in progress takes longer."""
    return chain((0.0,), doubling_pauses(_PAUSE_S, _PAUSE_MAX_S))


def _capacity(table: Table, job: _Job) -> Capacity:
    """Back-pressure is on by default for batches of a stream, since no person watches each batch."""
    own = job.options.compaction

    def relieve(unplanned: bool) -> str:
        _roll_back_dead(table.snapshot(cached=False), job)  # on version 6 the write of a dead writer blocks every plan
        done = _after(table, job, due_at_once(own) if unplanned else own)
        return done.error or done.why

    pressure = job.options.back_pressure or (BackPressure() if job.batch is not None else NO_LIMIT)
    limit = pressure.limit(own.schedule.compaction_trigger)
    return Capacity(table, pressure, limit, relieve, compacts=own.mode is not Mode.WRITE_ONLY)


def _after(table: Table, job: _Job, compaction: CompactionOptions) -> AfterCommit:
    return after_commit(table, job.lock, job.options.lock, job.engine.runner, job.options.output, compaction)


def _finish(table: Table, job: _Job) -> AfterCommit:
    after = _after(table, job, job.options.compaction)
    return services_after(table, job.lock, job.engine.runner, job.options, after)


def _attempt(table: Table, job: _Job, capacity: Capacity, first: Pieces | None) -> Written:
    started = time.monotonic()
    engine, what, batch = job.engine, job.write, job.batch
    now = table.with_timeline(table.load_timeline())
    schema = job.schema_of(now)
    here = needs_only_rows(what, table) and not looks_everywhere(what, table)
    if first is None or now.timeline.has_rows:  # another first write may have given the table other columns
        first = prepare_rows(now, schema, engine, what, here=here)
    with first.kept() as rows:
        counts = rows.row_counts()  # errors in the rows are raised here, before the write is visible
        partitions = frozenset(partition for partition, _ in counts)
        refuse_long_partitions(table.storage, partitions)
        adds = not what.deletes and (what.into is None or what.into.inserts) and what.moved_keys is None
        there = partitions_there(table, partitions) if adds else ()
        if what.into is not None:
            check_once(rows)
        keys = GlobalKeys(rows=rows, slots=engine.slots, schema=schema, write=what)
        seen = keys.check(table)
        check_index(now, schema, counts, engine.slots, what)
        _roll_back_dead(now, job)
        wait_while_wanted(table.storage)  # for a scheduler that needs the timeline without pending writes
        if what.options.buckets is not None and not what.operation.replaces and what.moved_keys is None:
            _check_buckets(capacity, counts)
        opening = opening_of(what.operation, table.layout, counts)
        expiry_s = max(what.options.heartbeat_s, what.options.heartbeat_expiry_s)
        opening = replace(opening, expiry_s=min(opening.expiry_s, expiry_s))
        undone = partial(undo_only_write, job.lock, partitions) if job.alone else None
        with transaction(table, job.lock, what.options.heartbeat_s, opening, undone) as begun:
            if batch is not None:
                begin_batch(begun.table, job.lock, batch, begun.instant)
            schema = _same_schema(table, schema, begun, job)
            seen = keys.check(begun.table, seen)
            replacing = replaced_groups(begun, what, counts)
            files, noted = stage_rows(begun, schema, rows, counts, engine.slots, what, replacing)
            mine = write_set(files, what, replacing, global_keys=seen is not None or what.moved_keys is not None)
            capacity.check((partition for partition, _ in mine.appended), lambda group: group.key in mine.appended)
            begun.check_conflicts(mine, schema.recorded)
            placed = place_all(begun.table, begun.instant, files, there)
            extra = {**recorded_buckets(table.config, what.options), **(batch.metadata if batch is not None else {})}
            measured = {p.path: p.staged.ranges for p in placed if p.staged.ranges is not None}
            metadata = _metadata(begun, schema, placed, what.operation, extra)
            if what.operation.replaces:
                metadata = replace(metadata, partition_to_replace_file_ids=replacing)
            check = partial(_check_still, begun.instant, mine, job)
            begun.complete(mine, metadata, measured, check, noted)
    remove_leftovers(table)
    knows_keys = all(f.counted for f in files)
    done = Written(
        instant=begun.instant,
        operation=what.operation,
        files=len(files),
        bytes_written=sum(f.size for f in files),
        writes=sum(f.writes for f in files),
        inserts=sum(f.inserts for f in files) if knows_keys else None,
        updates=sum(f.updates for f in files) if knows_keys else None,
        deletes=sum(f.deletes for f in files) if knows_keys else None,
        replaced=len(mine.replaced),
        seconds=time.monotonic() - started,
    )
    _log.info("written", instant=done.instant, operation=done.operation.value, files=done.files, rows=done.writes)
    return done


def _check_still(instant: str, mine: WriteSet, job: _Job, table: Table) -> None:
    """ConflictError: see `check_intended` and `refuse_planned`. Called under the lock in which the write completes."""
    if job.batch is not None:
        check_intended(table, job.batch, instant)
    refuse_planned(table, instant, job.write, mine.replaced)


def _check_buckets(capacity: Capacity, counts: RowCounts) -> None:
    """PressureError: a bucket is full. Called before anything is staged; `counts` names the bucket of each new row."""
    buckets = {(partition, int(bucket)) for partition, bucket in counts}
    capacity.check(
        (p for p, _ in buckets), lambda group: (group.partition, bucket_of_file_id(group.file_id)) in buckets
    )


def _roll_back_dead(table: Snapshot, job: _Job) -> None:
    expiry_s = least_expiry_s(table, job.options.heartbeat_expiry_s)
    roll_back_dead_writers(table, job.lock, lazy=job.write.rolls_back_lazily, expiry_s=expiry_s)
    settle_dead_clusterings(table, job.lock)


def _same_schema(table: Table, schema: TableSchema, begun: Transaction, job: _Job) -> TableSchema:
    """The schema, with its columns' names in the files by now. ConflictError: settings or schema have changed."""
    now = job.schema_of(begun.table)
    if begun.table.config != table.config or now.recorded != schema.recorded:
        raise ConflictError(
            "the table's settings or schema changed while the rows were prepared",
            path=table.storage.base_path,
            instant=begun.instant,
            todo="Nothing of this write is visible. Write again (retries=).",
        )
    return now


def _is_written(table: Table, job: _Job, batch: StreamBatch) -> bool:
    """Whether a batch was written already. A pending instant of an earlier try is rolled back. On a file system at
    once: the try was one of the same query, so the process that began it has ended, even if its heartbeat is fresh. If
    the process resumes, its commit fails. On an object store its last request may still be executed, also after an
    `UnknownCommitError`: there the try must count as dead, or complete. A try whose heartbeat continues for twice the
    time after which it would count as dead counts as dead, too."""
    lock, action = job.lock, action_of(job.write.operation)
    found, begun = written_as(table, batch), Stopwatch()
    while found.pending is not None and begun.seconds() <= 2 * job.options.heartbeat_expiry_s:
        if not _may_complete(table, found.pending, job):
            break
        time.sleep(_PAUSE_S)
        found = written_as(table, batch)
    if found.done is not None and found.last is not None:
        # Without a query in its record the batch may be of another query, of Hudi's sink or of an earlier release.
        say = _log.warning if found.last.query is None else _log.info
        say("batch_skipped", stream=batch.name, batch=batch.number, instant=found.done.instant)
        record_run(table, lock, batch, found)
        return True
    pending = table.load_timeline().find(found.pending, action) if found.pending is not None else None
    if pending is not None and not pending.completed:
        roll_back(table, pending, lock)
    return False


def _may_complete(table: Table, instant: str, job: _Job) -> bool:
    """Whether a request of a process that is live, or may be, could complete a write of an earlier try."""
    if table.storage.is_file_system:
        return False
    beat = read_heartbeat(table.storage, instant)
    return is_live(beat, storage_ms(table.storage), job.options.heartbeat_expiry_s)


def _metadata(
    begun: Transaction, schema: TableSchema, placed: list[Placed], operation: Operation, extra: Mapping[str, str]
) -> CommitMetadata:
    table = begun.table
    names_slice = table.layout.slicing is Slicing.BY_BASE_INSTANT or table.config.captures_changes
    stats = ((one.staged.partition, write_stat(one, begun.instant, names_slice=names_slice)) for one in placed)
    return CommitMetadata(
        partition_to_write_stats=gathered(stats),
        extra_metadata={**extra, **schema.recorded},
        operation_type=operation.value,
    )
