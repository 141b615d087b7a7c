"""Delta commits on the metadata table's own timeline: what Hudi's readers and writers take for the table's truth.

A change to the data table at instant t is told here first, under the table lock, at the same t:

    forget     what an earlier try of t has left here
    t.deltacommit.requested, t.deltacommit.inflight (which file groups), a log file each, then the completed file
    (the caller) the data table's completed file

Readers pass over an instant of this timeline while t pends on the data table's, so a crash at any line changes nothing:
who does t again, or rolls it back, forgets what is here first; Hudi's writers do the same. So t must be forgotten here
before it leaves the data table's timeline: from then on Hudi 1.x would take it for true.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..avro.schema import with_meta_columns, without_meta_columns
from ..errors import ConflictError, MalformedError
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.commit_metadata import encode as encode_commit
from ..format.file_name import LogFileName
from ..format.instant import Instant, State
from ..format.layout import Slicing
from ..format.rollback_plan import decode_rollback_plan
from ..instants.timeline import Timeline
from ..locks.heartbeat import BEAT_S, heartbeat, heartbeat_path
from ..log.encode import hfile_block
from ..table.table import Table
from ..traces.find import traces_of
from ..traces.markers import delete_markers
from ..traces.revoke import revoke
from .location import BUILD_ANEW, open_metadata_table
from .records.hfile_write import encode_hfile, grouped
from .records.keys import file_group_index
from .slices import OpenSlice, open_slices

_ACTION = "deltacommit"
_TRIES = 20
_BLOCK_BYTES = 64 << 20

EncodedRecord: TypeAlias = tuple[str, bytes]
"""A record in Avro and its key."""

EncodedRecords: TypeAlias = Mapping[str, Sequence[EncodedRecord]]
"""Records by partition of the metadata table."""

_SCHEMA = "schema"


def newest_schema(metadata: Table) -> str:
    """The Avro schema of the metadata table's records: that of its newest delta commit, and the meta columns.

    Hudi's log blocks have those, always null; hudi-rs fails on blocks without.
    """
    timeline = metadata.load_timeline()
    for requested in sorted(timeline.completed_writes, reverse=True):
        text = metadata.commit_metadata(timeline.completed_writes[requested]).extra_metadata.get("schema", "")
        if text:
            return with_meta_columns(without_meta_columns(text))
    raise MalformedError(
        "no commit of the metadata table records its schema",
        path=metadata.storage.base_path,
        todo=BUILD_ANEW,
    )


def commit_records(table: Table, instant: str, records: EncodedRecords, schema_text: str) -> None:
    """Makes a delta commit with these records (the caller holds the table lock); may be repeated.

    `table`: the data table. MalformedError: a partition without file groups. ConflictError: another process is making
    the same commit, without the lock.
    """
    metadata = open_metadata_table(table)
    forget(table, instant)
    timeline = metadata.load_timeline()
    slices = {p: open_slices(metadata, p, timeline) for p in records}
    parts: dict[OpenSlice, list[EncodedRecord]] = {}
    for partition, keyed in records.items():
        of_partition = slices[partition]
        for one in keyed:
            parts.setdefault(of_partition[file_group_index(one[0], len(of_partition))], []).append(one)
    with heartbeat(metadata.storage, instant, BEAT_S):  # Hudi 1.2 takes writes here for dead by their heartbeats
        _begin(metadata, instant, parts)
        stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
        for slice_, encoded in parts.items():
            stats[slice_.partition].append(_append(metadata, slice_, instant, encoded, schema_text))
        completion = table.completion_time(table.load_timeline(), also_above=metadata.load_timeline().used_times())
        done = Instant(requested_time=instant, action=_ACTION, state=State.COMPLETED, completion_time=completion)
        said = {_SCHEMA: without_meta_columns(schema_text)}
        _put(metadata, done, _commit(metadata, {p: tuple(s) for p, s in stats.items()}, said))


def forget(table: Table, instant: str) -> None:
    """Takes an instant of the data table out of the metadata table, where it is there (the caller holds the lock).

    May be repeated; after a crash at any line it is done by whoever forgets the instant next.
    """
    metadata = open_metadata_table(table)
    storage, timeline = metadata.storage, metadata.load_timeline()
    _forget_rollbacks(metadata, timeline, instant)
    found = timeline.find(instant, _ACTION)
    if found is None:
        return
    _refuse_compacted(metadata, timeline, found)
    traces = traces_of(metadata, instant, _ACTION, scan=True)
    for slice_ in traces.revoked:
        revoke(metadata, slice_, instant)
    for partition, name in traces.doomed:
        storage.delete(f"{partition}/{name}")
    delete_markers(storage, instant)
    for completed in metadata.files.completed_commits(instant):
        storage.delete(metadata.instant_path(completed))
    for state in (State.INFLIGHT, State.REQUESTED):
        storage.delete(metadata.instant_path(found.at(state)))
    storage.delete(heartbeat_path(instant))


def _forget_rollbacks(metadata: Table, timeline: Timeline, instant: str) -> None:
    """Takes away what Hudi began to undo of the instant here: it would be finished whatever is told by then."""
    for rollback in timeline.pending("rollback"):
        path = metadata.instant_path(rollback.at(State.REQUESTED))
        if decode_rollback_plan(metadata.storage.read(path), path).target == instant:
            for state in (State.INFLIGHT, State.REQUESTED):
                metadata.storage.delete(metadata.instant_path(rollback.at(state)))


def _refuse_compacted(metadata: Table, timeline: Timeline, instant: Instant) -> None:
    """Hudi compacts no instant that pends on the data table; if somebody did, its records cannot be taken out."""
    told = instant.completion_time or instant.requested_time
    for later in timeline.completed:
        if instant.completed and later.action == "commit" and later.requested_time > told:
            raise MalformedError(
                "the metadata table was compacted with an instant that never completed",
                path=metadata.storage.base_path,
                instant=instant.requested_time,
                found=f"compaction {later.requested_time}",
                todo=BUILD_ANEW,
            )


def _begin(metadata: Table, instant: str, slices: Mapping[OpenSlice, Sequence[EncodedRecord]]) -> None:
    """Requested and inflight: Hudi's rollback on version 6 looks in the latter for the file groups written to."""
    planned: defaultdict[str, list[WriteStat]] = defaultdict(list)
    for slice_, records in slices.items():
        planned[slice_.partition].append(
            WriteStat(file_id=slice_.file_id, prev_commit=slice_.base_instant, num_update_writes=len(records))
        )
    begun = Instant(requested_time=instant, action=_ACTION, state=State.REQUESTED)
    _put(metadata, begun, b"")
    _put(metadata, begun.at(State.INFLIGHT), _commit(metadata, {p: tuple(s) for p, s in planned.items()}, {}))


def _commit(metadata: Table, stats: Mapping[str, tuple[WriteStat, ...]], extra: Mapping[str, str]) -> bytes:
    commit = CommitMetadata(partition_to_write_stats=stats, extra_metadata=extra, operation_type="UPSERT_PREPPED")
    return encode_commit(commit, metadata.layout.encoding)


def _put(metadata: Table, instant: Instant, content: bytes) -> None:
    path = metadata.instant_path(instant)
    if not metadata.storage.put_if_absent(path, content):
        raise ConflictError(
            "somebody else is making the same commit of the metadata table",
            path=f"{metadata.storage.base_path}/{path}",
            instant=instant.requested_time,
            todo="All writers of a table must share one lock. Run again.",
        )


def _append(
    metadata: Table, slice_: OpenSlice, instant: str, records: Sequence[EncodedRecord], schema_text: str
) -> WriteStat:
    """A new log file on a slice."""
    # Readers look keys up, and prefixes of keys: that only HFiles can do, and these are in the order of their keys.
    entries = sorted((key.encode(), value) for key, value in records)
    contents = (encode_hfile(some, {_SCHEMA: schema_text.encode()}) for some in grouped(entries, _BLOCK_BYTES))
    blocks = (hfile_block(content, instant=instant, schema_text=schema_text) for content in contents)
    data = b"".join(bytes(part) for block in blocks for part in block)
    by_name = metadata.layout.slicing is Slicing.BY_BASE_INSTANT
    base_instant = slice_.base_instant if by_name else instant
    first = 1 + max((log.version for log in slice_.logs if log.instant == base_instant), default=0)
    # The last part makes the name ours alone: one of a dead try may lie around.
    token = f"0-0-{uuid.uuid4().int % 10**9}"
    for version in range(first, first + _TRIES):
        name = LogFileName(file_id=slice_.file_id, instant=base_instant, version=version, token=token)
        path = f"{slice_.partition}/{name}"
        if metadata.storage.put_if_absent(path, data):
            return WriteStat(
                file_id=slice_.file_id,
                path=path,
                prev_commit=base_instant,
                num_writes=len(records),
                num_update_writes=len(records),
                total_write_bytes=len(data),
                partition_path=slice_.partition,
                file_size_in_bytes=len(data),
                log_version=version,
                log_offset=0,
                base_file=slice_.base_file if by_name else "",
                log_files=(*(str(log) for log in slice_.logs if by_name), str(name)),
            )
    raise ConflictError(
        "no free name for a log file of the metadata table", path=slice_.partition, instant=instant, todo="Run again."
    )
