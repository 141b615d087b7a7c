"""Delta commits on the metadata table's own timeline, which defines its content for Hudi's readers and writers.

A change to the data table at instant t is recorded here first, under the table lock, at the same instant t:

    forget     the files of an earlier attempt of t
    t.deltacommit.requested, t.deltacommit.inflight (names the file groups), a log file for each, the completed file
    (the caller) the data table's completed file

Readers ignore an instant of this timeline while t is pending on the data table's timeline, so a crash at any line has
no effect. The process that repeats t, or rolls it back, first removes t here; Hudi's writers do the same. So t must be
removed here before it is removed from the data table's timeline: from then on Hudi 1.x would treat it as valid."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ..codec.avro_schema import with_meta_columns, without_meta_columns
from ..errors import ConflictError, LockError, MalformedError
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.commit_metadata import encode as encode_commit
from ..format.file_name import LogFileName
from ..format.instant import Instant, State
from ..format.layout import Slicing
from ..format.log_encode import hfile_block
from ..locks.heartbeat import BEAT_S, heartbeat
from ..record_fields import gathered
from ..storage.contract import Storage
from ..storage.folders import METADATA_FOLDER
from ..storage.staged_file import place_staged
from ..table.in_progress import check_lock, forget_rollbacks, refuse_half_upgraded, regardless
from ..table.table import BUILD_AGAIN, Snapshot, Table, advising_rebuild, open_metadata_table
from ..table.traces import revokes, traces_of, undo
from .index_logs import IndexLog
from .read import OpenSlice, open_slices
from .records.entries import usable_schema
from .records.hfile import encode_hfile, grouped
from .records.keys import file_group_index

_ACTION = "deltacommit"
_SAME = "makes the same commit of the metadata table"
_TRIES = 20
_BLOCK_BYTES = 64 << 20
_COMPARED_BYTES = 16 << 20

EncodedRecord: TypeAlias = tuple[str, bytes]
"""A record in Avro, with its key."""

EncodedRecords: TypeAlias = Mapping[str, Sequence[EncodedRecord]]
"""Records by partition of the metadata table."""

_SCHEMA = "schema"


def newest_schema(metadata: Snapshot) -> str:
    """The Avro schema of the metadata table's records: the schema of its newest delta commit, with the meta columns.
    Hudi's log blocks have these columns, always null; hudi-rs fails on blocks without them."""
    with advising_rebuild(metadata):
        writes = metadata.timeline.completed_writes
    for requested in sorted(writes, reverse=True):
        with advising_rebuild(metadata):
            text = metadata.commit_metadata(writes[requested]).extra_metadata.get("schema", "")
        if text:
            with advising_rebuild(metadata):
                return usable_schema(
                    with_meta_columns(without_meta_columns(text)), metadata.files.path(writes[requested])
                )
    raise MalformedError(
        "no commit of the metadata table records its schema", path=metadata.storage.base_path, todo=BUILD_AGAIN
    )


def commit_records(
    table: Table, instant: str, records: EncodedRecords, schema_text: str, index_logs: Sequence[IndexLog] = ()
) -> None:
    """Makes a delta commit with these records; may be repeated. `table`: the data table, of a section (`exclusive`).
    `index_logs`: staged log files. MalformedError: a partition without file groups. ConflictError:
    another process makes the same commit, without the lock. LockError: the lock was lost."""
    metadata = open_metadata_table(table)
    by_name = not metadata.layout.has_completion_times
    if by_name and _is_recorded(table, metadata, instant, records, schema_text, index_logs):
        return  # a dead process has recorded the same
    _forget(metadata, instant)
    metadata = metadata.snapshot(same_settings=True, cached=False)
    parts, staged = _by_slice(metadata, records), _index_slices(metadata, index_logs)
    # Without a heartbeat Hudi 1.2 treats writes here as dead.
    with heartbeat(regardless(metadata).storage, instant, BEAT_S):
        _begin(
            metadata, instant, {s: len(of) for s, of in parts.items()} | {s: log.entries for s, log in staged.items()}
        )
        written = [(s.partition, _append(metadata, s, instant, of, schema_text)) for s, of in parts.items()]
        written += [(s.partition, _place(table, metadata, s, instant, log)) for s, log in staged.items()]
        completion = completion_above(table, metadata)
        done = Instant(requested_time=instant, action=_ACTION, state=State.COMPLETED, completion_time=completion)
        content = _commit(metadata, gathered(written), {_SCHEMA: without_meta_columns(schema_text)})
        put_alone(metadata, done, content, _SAME)
    try:
        check_lock(table)
    except LockError:
        _withdraw_stale(table, regardless(metadata), instant)
        raise


def _withdraw_stale(table: Table, metadata: Table, instant: str) -> None:
    """Removes an instant that was recorded after the lock was lost, if the data table no longer has it.
    Another process has rolled it back since, before it was recorded. ConflictError: the table is being upgraded."""
    refuse_half_upgraded(table)
    if all(i.requested_time != instant for i in table.load_timeline().instants):
        _forget(metadata.snapshot(same_settings=True, cached=False), instant)


def completion_above(table: Table, metadata: Table) -> str | None:
    """`Table.completion_time` now, above the times that the metadata table uses: for a completed file of that table."""
    data = table.load_timeline()
    used = metadata.load_timeline().used_times(table.times.going(data))
    return table.with_timeline(data).completion_time(also_above=used)


def _by_slice(metadata: Snapshot, records: EncodedRecords) -> dict[OpenSlice, list[EncodedRecord]]:
    parts: dict[OpenSlice, list[EncodedRecord]] = {}
    for partition, keyed in records.items():
        slices = open_slices(metadata, partition)
        for one in keyed:
            parts.setdefault(slices[file_group_index(one[0], len(slices))], []).append(one)
    return parts


def _index_slices(metadata: Snapshot, logs: Sequence[IndexLog]) -> dict[OpenSlice, IndexLog]:
    """The slices to which staged log files belong."""
    partitions = sorted({log.partition for log in logs})
    slices = {(s.partition, s.file_id): s for partition in partitions for s in open_slices(metadata, partition)}
    return {slices[log.partition, log.file_id]: log for log in logs}


def _is_recorded(
    table: Table,
    metadata: Snapshot,
    instant: str,
    records: EncodedRecords,
    schema_text: str,
    index_logs: Sequence[IndexLog],
) -> bool:
    """Whether a dead process has recorded exactly these records and keys at the instant; used only on version 6.
    On version 6 the completed file of each attempt has the same name. A process that stalls before it removes such a
    file might, once it resumes, remove that of another process."""
    timeline = metadata.timeline
    found = timeline.find(instant, _ACTION)
    if found is None or not found.completed or timeline.pending("rollback"):  # Hudi would finish it, see `forget`
        return False
    written = {s.path: s for of in metadata.commit_metadata(found).partition_to_write_stats.values() for s in of}
    parts, staged = _by_slice(metadata, records), _index_slices(metadata, index_logs)
    if len(written) != len(parts) + len(staged):
        return False
    for slice_ in (*parts, *staged):
        ours = [log for log in slice_.logs if f"{slice_.partition}/{log}" in written]
        if len(ours) != 1:
            return False
        path = f"{slice_.partition}/{ours[0]}"
        if slice_ in parts and metadata.storage.read(path) != _log(parts[slice_], instant, schema_text):
            return False
        if slice_ in staged and not _is_same(table.storage, staged[slice_].path, f"{METADATA_FOLDER}/{path}"):
            return False
        behind = (log for log in slice_.logs if log.version >= ours[0].version and log != ours[0])
        if any(revokes(metadata, f"{slice_.partition}/{log}", instant) for log in behind):
            return False
    return True


def _is_same(storage: Storage, one: str, other: str) -> bool:
    """Whether two files have the same bytes: log files of the same keys have. Memory: two pieces."""
    with storage.open_input(one) as left, storage.open_input(other) as right:
        if left.size() != right.size():
            return False
        while piece := left.read(_COMPARED_BYTES):
            if right.read(_COMPARED_BYTES) != piece:
                return False
    return True


def _log(records: Sequence[EncodedRecord], instant: str, schema_text: str) -> bytes:
    """A log file; the same bytes for the same records."""
    # Readers look up keys and prefixes of keys. Only HFiles allow that, and they are in the order of their keys.
    entries = sorted((key.encode(), value) for key, value in records)
    contents = (encode_hfile(some, {_SCHEMA: schema_text.encode()}) for some in grouped(entries, _BLOCK_BYTES))
    blocks = (hfile_block(content, instant=instant, schema_text=schema_text) for content in contents)
    return b"".join(bytes(part) for block in blocks for part in block)


def forget(table: Table, instant: str) -> None:
    """Removes an instant of the data table from the metadata table, if it is there. `table`: of a section.
    May be repeated; after a crash at any line the next process that forgets the instant completes the removal. Another
    process may have committed the instant here since the lock was lost. So all files are listed first, then the lock is
    asked, then they are removed: files of that process have other names. LockError: the lock was lost."""
    _forget(open_metadata_table(table), instant)


def _forget(metadata: Snapshot, instant: str) -> None:
    forget_rollbacks(metadata, {instant})
    found = metadata.timeline.find(instant, _ACTION)
    if found is None:
        return
    _refuse_compacted(metadata, found)
    traces = traces_of(metadata, instant, _ACTION, scan=True)
    undo(metadata, found, lambda: traces)


def _refuse_compacted(metadata: Snapshot, instant: Instant) -> None:
    """Raises if a compaction merged the instant's records, since these can no longer be removed.
    Hudi never compacts an instant that is pending on the data table."""
    written = instant.completion_time or instant.requested_time
    for later in metadata.timeline.completed:
        if instant.completed and later.action == "commit" and later.requested_time > written:
            raise MalformedError(
                "the metadata table was compacted with an instant that never completed",
                path=metadata.storage.base_path,
                instant=instant.requested_time,
                found=f"compaction {later.requested_time}",
                todo=BUILD_AGAIN,
            )


def _begin(metadata: Table, instant: str, slices: Mapping[OpenSlice, int]) -> None:
    """Puts requested and inflight; Hudi's rollback on version 6 reads file groups from it. `slices`: their entries."""
    planned = gathered(
        (s.partition, WriteStat(file_id=s.file_id, prev_commit=s.base_instant, num_update_writes=entries))
        for s, entries in slices.items()
    )
    begun = Instant(requested_time=instant, action=_ACTION, state=State.REQUESTED)
    put_alone(metadata, begun, b"", _SAME)
    put_alone(metadata, begun.at(State.INFLIGHT), _commit(metadata, planned, {}), _SAME)


def _commit(metadata: Table, stats: Mapping[str, tuple[WriteStat, ...]], extra: Mapping[str, str]) -> bytes:
    commit = CommitMetadata(partition_to_write_stats=stats, extra_metadata=extra, operation_type="UPSERT_PREPPED")
    return encode_commit(commit, metadata.layout.encoding)


def put_alone(metadata: Table, instant: Instant, content: bytes, does: str) -> None:
    """Puts a file of an instant of the metadata table. ConflictError: see `without_lock`."""
    path = metadata.instant_path(instant)
    if not metadata.storage.put_if_absent(path, content):
        raise without_lock(metadata, path, instant.requested_time, does)


def without_lock(metadata: Table, path: str, instant: str, does: str) -> ConflictError:
    """The error if a file exists that only another process, without the lock, can have put; `does`: its work."""
    return ConflictError(
        f"another process {does}",
        path=f"{metadata.storage.base_path}/{path}",
        instant=instant,
        todo="All writers of a table must share one lock. Run again.",
    )


def _append(
    metadata: Table, slice_: OpenSlice, instant: str, records: Sequence[EncodedRecord], schema_text: str
) -> WriteStat:
    """Puts a new log file on a slice."""
    data = _log(records, instant, schema_text)

    def put(path: str) -> bool:
        return metadata.storage.put_if_absent(path, data)

    return _named(metadata, slice_, instant, put, (len(records), len(data)))


def _place(table: Table, metadata: Table, slice_: OpenSlice, instant: str, log: IndexLog) -> WriteStat:
    """Gives a staged log file its name on a slice. StorageError: it does not exist, or has another size."""

    def put(path: str) -> bool:
        if metadata.storage.find(path) is not None:
            return False
        place_staged(table.storage, log.path, f"{METADATA_FOLDER}/{path}", log.size)
        return True

    return _named(metadata, slice_, instant, put, (log.entries, log.size))


def _named(
    metadata: Table, slice_: OpenSlice, instant: str, put: Callable[[str], bool], counts: tuple[int, int]
) -> WriteStat:
    """Puts a log file under the first free name. `put`: False if the name is taken. `counts`: entries and bytes."""
    entries, size = counts
    by_name = metadata.layout.slicing is Slicing.BY_BASE_INSTANT
    base_instant = slice_.base_instant if by_name else instant
    first = 1 + max((log.version for log in slice_.logs if log.instant == base_instant), default=0)
    # The last part makes the name unique: a file of a dead attempt may still exist.
    token = f"0-0-{uuid.uuid4().int % 10**9}"
    for version in range(first, first + _TRIES):
        name = LogFileName(file_id=slice_.file_id, instant=base_instant, version=version, token=token)
        path = f"{slice_.partition}/{name}"
        if put(path):
            return WriteStat(
                file_id=slice_.file_id,
                path=path,
                prev_commit=base_instant,
                num_writes=entries,
                num_update_writes=entries,
                total_write_bytes=size,
                partition_path=slice_.partition,
                file_size_in_bytes=size,
                log_version=version,
                log_offset=0,
                base_file=slice_.base_file if by_name else "",
                log_files=(*(str(log) for log in slice_.logs if by_name), str(name)),
            )
    raise ConflictError(
        "no free name for a log file of the metadata table", path=slice_.partition, instant=instant, todo="Run again."
    )
