"""Rows of a simulated table: base files and log blocks hold the names of rows, and merging is putting them together.

Everything around the rows is real: names, Parquet footers, block framing, which blocks count, views, plans, commits,
books."""

from __future__ import annotations

import json
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.compactor_daemon.attempt.slice_record import OutputFile, SliceDone, leave_record
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, SliceTask, Tasks, _base_instant, _merged
from phantombase.compactor_daemon.clustering.choice import ClusteringWindow, planned
from phantombase.compactor_daemon.clustering.outputs import Made, OutputFileSpec
from phantombase.compactor_daemon.clustering.rows_in import LogsRead
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, encode
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file, partition_metadata
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.ledger import Identity, Ledger
from phantombase.timeline.format.log_block import Visibility, scan_blocks, select_blocks
from phantombase.timeline.format.replace_request import ClusterGroup
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.merge.slice_log import LogCounts, count_blocks
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Marker, log_marker_kind, make_marker
from phantombase.timeline.view.view import FileSlice, input_names, is_replaced, latest_slice
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.builders import COMPACTED_BLOCK_TIMES, INSTANT_TIME, PARQUET, SCHEMA, block

PARTITIONS = ("p", "q")
SCHEMA_TEXT = json.dumps(
    {"type": "record", "name": "row", "fields": [{"name": "id", "type": "string"}, {"name": "part", "type": "string"}]}
)
_PADDING = {"padding": " " * 3600}
FIRST = "20251201000000000"
FIRST_FILE = f"_{FIRST}.parquet"
"""How the names of a new table's base files end."""


def partition_of(file_id: str) -> str:
    """Where a file group lies: its id tells."""
    return file_id[0]


def new_group(partition: str, number: object) -> str:
    """The id of a file group."""
    return f"{partition}{number}"


def new_table(storage: Storage, version: int, groups: int, partitions: int = 1) -> dict[str, str]:
    """A table of so many file groups, each with a base file of one row; the rows, with their file groups."""
    spec = NewTable(
        name="t",
        version=version,
        key_fields=("id",),
        partition_fields=("part",),
        merge_mode=MergeMode.COMMIT_TIME,
        utc_timezone=True,
    )
    table = create_table(storage, spec)
    for partition in PARTITIONS[:partitions]:
        storage.put_if_absent(f"{partition}/.hoodie_partition_metadata", partition_metadata(FIRST, 1))
    stats, rows = [], {}
    for number in range(groups):
        file_id = new_group(PARTITIONS[number % partitions], number)
        name = BaseFileName(file_id=file_id, token="0-0-0", instant=FIRST)
        rows[f"old-{number}"] = file_id
        data = base_bytes([f"old-{number}"])
        storage.put_if_absent(f"{partition_of(file_id)}/{name}", data)
        stats.append(stat(file_id, f"{partition_of(file_id)}/{name}", len(data)))
    for state in (State.REQUESTED, State.INFLIGHT):
        path = table.instant_path(Instant(requested_time=FIRST, action="deltacommit", state=state))
        storage.put_if_absent(path, b"")
    completion = f"{FIRST[:-1]}1" if table.layout.has_completion_times else None
    done = Instant(requested_time=FIRST, action="deltacommit", state=State.COMPLETED, completion_time=completion)
    storage.put_if_absent(table.instant_path(done), commit_bytes(table, stats))
    return rows


def stat(file_id: str, path: str, size: int) -> WriteStat:
    """What a commit says of a file."""
    return WriteStat(
        file_id=file_id,
        path=path,
        partition_path=partition_of(file_id),
        num_writes=1,
        file_size_in_bytes=size,
        prev_commit="null",
    )


def metadata(
    stats: Iterable[WriteStat],
    *,
    rows: Mapping[str, str] | None = None,
    operation: str = "UPSERT",
    replaced: Iterable[str] | None = None,
) -> CommitMetadata:
    """A commit of these files. `rows`: what it brings, or moves, with its file groups; `replaced`: file groups."""
    written: defaultdict[str, list[WriteStat]] = defaultdict(list)
    for one in stats:
        written[partition_of(one.file_id)].append(one)
    gone: defaultdict[str, list[str]] = defaultdict(list)
    for file_id in replaced or ():
        gone[partition_of(file_id)].append(file_id)
    return CommitMetadata(
        partition_to_write_stats={p: tuple(of) for p, of in written.items()},
        compacted=operation == "COMPACT",
        extra_metadata={"schema": SCHEMA_TEXT, "rows": json.dumps(rows or {})},
        operation_type=operation,
        partition_to_replace_file_ids=None if replaced is None else {p: tuple(ids) for p, ids in gone.items()},
    )


def rows_in(commit: CommitMetadata) -> dict[str, str]:
    """The rows a commit brings or moves, with their file groups; none for services of ours."""
    found: dict[str, str] = json.loads(commit.extra_metadata.get("rows", "{}"))
    return found


def commit_bytes(table: Table, stats: Iterable[WriteStat], *, compacted: bool = False) -> bytes:
    """A commit of these files as stored."""
    return encode(metadata(stats, operation="COMPACT" if compacted else "UPSERT"), table.layout.encoding)


def commit_bytes_of(table: Table, commit: CommitMetadata) -> bytes:
    """A commit as stored."""
    return encode(commit, table.layout.encoding)


def rows_of_files(storage: Storage, commit: CommitMetadata) -> dict[str, str]:
    """The rows of the base files that a commit names and that are there, with their file groups."""
    stats = [stat_ for of in commit.partition_to_write_stats.values() for stat_ in of]
    homes = {s.path: s.file_id for s in stats if s.path and storage.find(s.path) is not None}
    return {row: file_id for path, file_id in homes.items() for row in base_rows(storage.read(path))}


def base_bytes(rows: Iterable[str]) -> bytes:
    """A base file, much larger than a log file: log files alone are merged where that is asked for."""
    return _parquet(tuple(rows))


@lru_cache(maxsize=1 << 12)
def _parquet(rows: tuple[str, ...]) -> bytes:
    columns = {"id": pa.array(rows, pa.string()), "part": pa.repeat(PARTITIONS[0], len(rows))}
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="none", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(_PADDING)
    return bytes(sink.getvalue())


@lru_cache(maxsize=1 << 12)
def base_rows(data: bytes) -> tuple[str, ...]:
    """The names of the rows of a base file."""
    return tuple(pq.read_table(pa.BufferReader(data), columns=["id"])["id"].to_pylist())


def log_bytes(instant: str, row: str) -> bytes:
    """A log file of one block of one row."""
    return block(PARQUET, {INSTANT_TIME: instant, SCHEMA: SCHEMA_TEXT}, row.encode())


def place_log(table: Table, instant: str, row: str, file_id: str) -> tuple[str, bytes]:
    """A log file of one row, where a writer puts it that sees the table now; its path and content."""
    version, named, partition = 1, instant, partition_of(file_id)
    if not table.layout.has_completion_times:
        timeline = table.load_timeline()
        groups = table.views.partition_groups(partition, timeline, table.with_timeline(timeline).load_facts())
        group = next((g for g in groups if g.file_id == file_id and g.slices), None)
        if group is None:
            raise ConflictError("the file group is gone", path=f"{partition}/{file_id}")
        named = group.pending_compaction or group.slices[-1].base_instant
        logs = [parse_data_file(e.name) for e in table.storage.list(partition)]
        mine = [n for n in logs if isinstance(n, LogFileName) and (n.file_id, n.instant) == (file_id, named)]
        version += max((n.version for n in mine), default=0)
    name = str(LogFileName(file_id=file_id, instant=named, version=version, token=f"0-0-{instant}"))
    make_marker(table.storage, instant, Marker(partition=partition, file=name, kind=log_marker_kind(table.layout)))
    data = log_bytes(instant, row)
    table.storage.put_if_absent(f"{partition}/{name}", data)
    return f"{partition}/{name}", data


def visibility_of(table: Table, timeline: Timeline) -> Visibility:
    """Which blocks a reader of now sees."""
    return Visibility(
        latest="9" * 17,
        completed=frozenset(timeline.completed_writes),
        pending=frozenset(timeline.pending_writes),
        start=timeline.start,
        by_file=table.layout.has_completion_times,
    )


def slice_rows(storage: Storage, slice_: FileSlice, visibility: Visibility) -> tuple[list[str], list[str], LogCounts]:
    """The rows of a slice's base file, those of its logs, and which blocks count."""
    base = list(base_rows(storage.read(slice_.base.path))) if slice_.base is not None else []
    blocks = []
    data = {}
    for log in slice_.logs:
        data[log.path] = storage.open_input(log.path)
        blocks += list(scan_blocks(data[log.path], log.path))
    selection = select_blocks(blocks, visibility)
    texts = [bytes(data[b.path].read_at(b.content_bytes, b.content_offset)).decode() for b in selection.blocks]
    logs = [row for text in texts for row in text.split("\n")]
    return base, logs, count_blocks(selection, len(logs))


def snapshot(storage: Storage) -> Counter[str]:
    """Every row a reader sees, by how often."""
    table = Table.on(storage)
    view = table.load_view()
    visibility = visibility_of(table, view.timeline)
    found: Counter[str] = Counter()
    for group in view.groups:
        slice_ = None if is_replaced(group, view.facts) else latest_slice(group)
        if slice_ is not None:
            base, logs, _ = slice_rows(storage, slice_, visibility)
            found.update([*base, *logs])
    return found


def merge_slice(storage: Storage, task: SliceTask) -> SliceDone:
    """Stands for `compact_slice`: the same files in the same order of calls."""
    base, logs, counts = slice_rows(storage, task.slice, task.rules.visibility)
    folder, inputs = attempt_folder(task.instant, task.attempt), task.slice
    staged: str | None = f"{folder}/{task.position}-{uuid.uuid4().hex}.{'parquet' if task.log is None else 'log'}"
    data = base_bytes([*base, *logs]) if task.log is None else _merged_log(storage, task, logs)
    if inputs.base is None and not logs:
        staged, data = None, b""  # nothing is written
    if staged is not None:
        storage.put_if_absent(staged, data)
    done = SliceDone(
        position=task.position,
        partition=inputs.partition,
        file_id=inputs.file_id,
        base_instant=_base_instant(task),
        base_file=str(inputs.base.name) if inputs.base else None,
        inputs=input_names(inputs),
        fingerprint=task.fingerprint,
        staged=staged,
        final=f"{inputs.partition}/{task.final_name}" if staged is not None else None,
        size=len(data),
        ledger=_books(len(base), len(logs)),
        log_bytes=inputs.log_bytes,
        log_files=len(inputs.logs),
        log_blocks=len(logs),
        corrupt_blocks=0,
        rolled_back_blocks=0,
        skipped={},
        seconds=0.0,
        uncommitted=counts.uncommitted,
        merged=_merged(inputs, counts),
    )
    return leave_record(storage, f"{folder}/{task.position}.ok", done)


def planned_group(window: ClusteringWindow) -> ClusterGroup:
    """Stands for `planned.planned`: the id of the file group shows its partition."""
    group = planned(window)
    return replace(group, file_id=new_group(window.partition, group.file_id))


def make_clustered(
    storage: Storage, recipe: OutputFileSpec, names: Sequence[BaseFileName], inputs: tuple[FileSlice, ...]
) -> Made:
    """Stands for `made.make`."""
    merged = [slice_rows(storage, one, recipe.rules.visibility) for one in inputs]
    found = [row for base, logs, _ in merged for row in (*base, *logs)]
    logs_read = LogsRead(
        merged=tuple(sorted({i for _, _, counts in merged for i in counts.merged})),
        uncommitted=tuple(sorted({i for _, _, counts in merged for i in counts.uncommitted})),
    )
    staged, data = f"{recipe.folder}/{uuid.uuid4().hex}.parquet", base_bytes(found)
    storage.put_if_absent(staged, data)
    partition = inputs[0].partition
    hash_ = _hash(found)
    file = OutputFile(
        file_id=names[0].file_id,
        staged=staged,
        final=f"{partition}/{names[0]}",
        size=len(data),
        rows=len(found),
        hash=f"{hash_:016x}",
    )
    ledger = replace(_books(0, len(found)), identity=Identity(base=0, removed=0, added=hash_, out=hash_))
    return Made(partition=partition, inputs=inputs, files=(file,), ledger=ledger, seconds=0.0, logs=logs_read)


def _hash(found: Iterable[str]) -> int:
    return sum(zlib.crc32(row.encode()) for row in found)


def _merged_log(storage: Storage, task: SliceTask, rows: list[str]) -> bytes:
    """One block of all rows that names the instants it stands for."""
    blocks = [b for log in task.slice.logs for b in scan_blocks(storage.open_input(log.path), log.path)]
    chosen = select_blocks(blocks, task.rules.visibility).blocks
    stands_for = ",".join(dict.fromkeys(b.instant for b in chosen))
    headers = {INSTANT_TIME: task.instant, SCHEMA: SCHEMA_TEXT, COMPACTED_BLOCK_TIMES: stands_for}
    return block(PARQUET, headers, "\n".join(rows).encode())


def _books(base: int, logs: int) -> Ledger:
    return Ledger(
        base_rows=base,
        untouched=base,
        kept=0,
        replaced=0,
        deleted=0,
        duplicate_hits=0,
        log_entries=logs,
        log_keys=logs,
        update_keys=logs,
        update_keys_in_base=0,
        delete_keys_in_base=0,
        inserts=logs,
        deletes_of_absent=0,
        rows_out=base + logs,
    )


def run_tasks(storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
    """A `Runner`: one slice after the other."""
    done = []
    for number, task in enumerate(tasks):
        progress(number, len(tasks))
        done.append(merge_slice(storage, task) if isinstance(task, SliceTask) else task.run(storage))
    return done
