"""Executes a compaction of the metadata table, as its plan fixes it (the caller holds the data table's lock).

    plan (requested) | inflight | removal of Hudi's files of this instant | base files | the completed commit

Every step may be repeated: the content of a base file follows from the plan, and its name from the plan's instant. So
an existing base file of a dead process of phantombase is kept: a process that unknowingly lost the lock must not remove
what another one has completed since. Readers see no base file before the completed commit. The inflight file is put
before any base file: because of it Hudi removes the files of a dead process before it executes the plan again."""

from __future__ import annotations

from collections import defaultdict

from phantombase.timeline.codec.avro_schema import without_meta_columns
from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, encode
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, encode_plan
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.log_block import Visibility
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import BEAT_S, heartbeat
from phantombase.timeline.metadata_table.commit import completion_above, newest_schema, put_alone, without_lock
from phantombase.timeline.metadata_table.read import Completeness, slice_entries
from phantombase.timeline.metadata_table.records.entries import encode_base, encoder
from phantombase.timeline.metadata_table.valid_instants import refuse_uncompleted, valid_instants
from phantombase.timeline.table.in_progress import regardless
from phantombase.timeline.table.table import BUILD_AGAIN, Snapshot, Table, advising_rebuild, open_metadata_table
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.log_blocks import visibility_of
from phantombase.timeline.view.view import DataFile, FileSlice

_ACTION = "compaction"
_SAME = "works on the same compaction of the metadata table"
_TOKEN = f"0-0-{COMPACTOR}"


def request(metadata: Table, instant: str, plan: CompactionPlan) -> None:
    """Makes a plan visible. ConflictError: another process, without the lock, put one at this instant."""
    requested = Instant(requested_time=instant, action=_ACTION, state=State.REQUESTED)
    put_alone(metadata, requested, encode_plan(plan), _SAME)


def execute(table: Table, instant: str) -> CommitMetadata:
    """Executes the pending plan at `instant` of the metadata table of `table`: one of phantombase or of Hudi.
    MissingFileError: a file of the plan was removed. MalformedError, UnsupportedError: one cannot be read.
    ConflictError: another process works on it, without the lock."""
    data = table.with_timeline(table.load_timeline())
    metadata = open_metadata_table(table)
    timeline = metadata.timeline
    with advising_rebuild(metadata):
        plan = metadata.compaction_plan(instant)
    schema_text = newest_schema(metadata)
    refuse_uncompleted(data, metadata)
    valid, visibility = valid_instants(data, timeline), visibility_of(timeline)
    complete = Completeness(metadata, below=instant)
    # Without a heartbeat Hudi 1.2 treats a compaction here as dead.
    with heartbeat(regardless(metadata).storage, instant, BEAT_S):
        inflight = Instant(requested_time=instant, action=_ACTION, state=State.INFLIGHT)
        metadata.storage.put_if_absent(metadata.instant_path(inflight), b"")  # if it exists: of a dead process
        _remove_leftovers(metadata, instant, plan)
        stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
        for operation in plan.operations:
            slice_ = _planned_slice(metadata, operation)
            if len(slice_.logs) > len(operation.delta_file_paths):
                _refuse_undecided(metadata, data.timeline, instant)
            written = _write(metadata, slice_, instant, schema_text, (visibility, valid), complete)
            stats[operation.partition_path].append(written)
        commit = CommitMetadata(
            partition_to_write_stats={partition: tuple(of) for partition, of in stats.items()},
            compacted=True,
            extra_metadata={"schema": without_meta_columns(schema_text)},
            operation_type="COMPACT",
        )
        completion = completion_above(table, metadata)
        done = Instant(requested_time=instant, action="commit", state=State.COMPLETED, completion_time=completion)
        put_alone(metadata, done, encode(commit, metadata.layout.encoding), _SAME)
    return commit


def _remove_leftovers(metadata: Table, instant: str, plan: CompactionPlan) -> None:
    """Removes base files of this instant that a dead Hudi process left; the plan is still pending."""
    for partition in sorted({operation.partition_path for operation in plan.operations}):
        for entry, name in data_files(metadata, partition):
            if isinstance(name, BaseFileName) and name.instant == instant and name.token != _TOKEN:
                metadata.storage.delete(f"{partition}/{entry.name}")


def _planned_slice(metadata: Table, operation: CompactionOperation) -> FileSlice:
    """The file slice that an operation names. MissingFileError: one of its files was removed. On version 6 with all log
    files that name its base instant: a process that unknowingly lost the lock may have put the plan after a delta
    commit unknown to it, and no reader would find again what the base file lacks."""
    partition = operation.partition_path
    sizes = {entry.name: entry.size for entry in metadata.storage.list(partition)}
    logs = {str(log): log for log in map(LogFileName.parse, operation.delta_file_paths)}
    if metadata.layout.slicing is Slicing.BY_BASE_INSTANT:
        of_slice = (operation.file_id, operation.base_instant_time)
        for name in filter(None, map(parse_data_file, sizes)):
            if isinstance(name, LogFileName) and (name.file_id, name.instant) == of_slice:
                logs[str(name)] = name

    def size(name: str) -> int:
        if name not in sizes:
            raise MissingFileError(
                "a file of a pending compaction of the metadata table is gone",
                path=f"{metadata.storage.base_path}/{partition}/{name}",
                todo=BUILD_AGAIN,
            )
        return sizes[name]

    base = operation.data_file_path
    return FileSlice(
        partition=partition,
        file_id=operation.file_id,
        base_instant=operation.base_instant_time or "",
        base=None if base is None else DataFile(partition=partition, name=BaseFileName.parse(base), size=size(base)),
        logs=tuple(
            DataFile(partition=partition, name=log, size=size(name))
            for name, log in sorted(logs.items(), key=lambda one: one[1].sort_key)
        ),
    )


def _refuse_undecided(metadata: Snapshot, data: Timeline, instant: str) -> None:
    """ConflictError: a log file that the plan does not name may be of a pending instant of the data table. If merged,
    its entries could not be removed any more; if left out, they would be lost."""
    done = {i.requested_time for i in metadata.timeline.completed}
    if undecided := sorted(i.requested_time for i in data.instants if not i.completed and i.requested_time in done):
        raise ConflictError(
            "a compaction of the metadata table waits for an instant of the table",
            path=metadata.storage.base_path,
            instant=instant,
            expected=f"{undecided[0]} completed or rolled back",
            found="pending",
            todo="The next write to the table completes it or rolls it back. Then run again.",
        )


def _write(
    metadata: Table,
    slice_: FileSlice,
    instant: str,
    schema_text: str,
    seen: tuple[Visibility, frozenset[str]],
    complete: Completeness,
) -> WriteStat:
    """Puts the base file of one slice. Memory: its entries."""
    encoded = encoder(schema_text)
    merged = slice_entries(metadata.storage, slice_, *seen, complete=complete)
    base = encode_base(map(encoded, merged), schema_text)
    content = base.data
    name = BaseFileName(file_id=slice_.file_id, token=_TOKEN, instant=instant, extension=".hfile")
    path = f"{slice_.partition}/{name}"
    if not metadata.storage.put_if_absent(path, content) and metadata.storage.read(path) != content:
        metadata.storage.delete(path)  # of a dead process with another schema or HFile layout
        # Also after the lock was lost meanwhile: the file may have been another process's, which needs it.
        if not regardless(metadata).storage.put_if_absent(path, content):
            raise without_lock(metadata, path, instant, _SAME)
    return WriteStat(
        file_id=slice_.file_id,
        path=path,
        prev_commit=slice_.base_instant,
        num_writes=base.count,
        num_update_writes=base.count,
        total_write_bytes=len(content),
        partition_path=slice_.partition,
        total_log_files_compacted=len(slice_.logs),
        total_log_size_compacted=slice_.log_bytes,
        file_size_in_bytes=len(content),
        prev_base_file=str(slice_.base.name) if slice_.base and metadata.layout.has_completion_times else None,
    )
