"""Rows of a simulated table: base files and log blocks hold the names of rows, and merging is putting them together.

Everything around the rows is real: names, block framing, which blocks count, views, plans, commits, books.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable

from compactor_daemon.execute import Progress
from compactor_daemon.records import SliceDone, attempt_folder
from compactor_daemon.slice_task import SliceTask, _record, input_names
from tests.builders import INSTANT_TIME, PARQUET, SCHEMA, block
from timeline.active import Timeline
from timeline.commit_metadata import CommitMetadata, WriteStat, encode
from timeline.file_name import BaseFileName
from timeline.instant import Instant, State
from timeline.ledger import Ledger
from timeline.log_block import scan_blocks
from timeline.log_scan import Visibility, select_blocks
from timeline.slice_log import count_blocks
from timeline.storage import Storage
from timeline.table import Table
from timeline.table_config import MergeMode
from timeline.view import FileSlice, latest_slice
from writer_hooks.create_table import create_table, partition_metadata
from writer_hooks.new_table import NewTable

PARTITION = "p"
SCHEMA_TEXT = json.dumps(
    {
        "type": "record",
        "name": "row",
        "fields": [{"name": "id", "type": "string"}, {"name": "part", "type": "string"}],
    }
)
_FIRST = "20251201000000000"


def new_table(storage: Storage, version: int, groups: int) -> list[str]:
    """A table of so many file groups, each with a base file of one row; the rows."""
    spec = NewTable(
        name="t",
        version=version,
        key_fields=("id",),
        partition_fields=("part",),
        merge_mode=MergeMode.COMMIT_TIME,
        utc_timezone=True,
    )
    table = create_table(storage, spec)
    storage.put_if_absent(f"{PARTITION}/.hoodie_partition_metadata", partition_metadata(_FIRST, 1))
    stats = []
    for number in range(groups):
        name = BaseFileName(file_id=f"g{number}", token="0-0-0", instant=_FIRST)
        data = base_bytes([f"old-{number}"])
        storage.put_if_absent(f"{PARTITION}/{name}", data)
        stats.append(stat(name.file_id, f"{PARTITION}/{name}", len(data)))
    for state in (State.REQUESTED, State.INFLIGHT):
        path = table.instant_path(Instant(requested_time=_FIRST, action="deltacommit", state=state))
        storage.put_if_absent(path, b"")
    completion = f"{_FIRST[:-1]}1" if table.layout.has_completion_times else None
    done = Instant(requested_time=_FIRST, action="deltacommit", state=State.COMPLETED, completion_time=completion)
    storage.put_if_absent(table.instant_path(done), commit_bytes(table, stats))
    return [f"old-{number}" for number in range(groups)]


def stat(file_id: str, path: str, size: int) -> WriteStat:
    """What a commit says of a file."""
    return WriteStat(
        file_id=file_id, path=path, partition_path=PARTITION, num_writes=1, file_size_in_bytes=size, prev_commit="null"
    )


def metadata(stats: Iterable[WriteStat], *, row: str = "", compacted: bool = False) -> CommitMetadata:
    """A commit of these files; `row`: the one it brings."""
    return CommitMetadata(
        partition_to_write_stats={PARTITION: tuple(stats)},
        compacted=compacted,
        extra_metadata={"schema": SCHEMA_TEXT, "row": row},
        operation_type="COMPACT" if compacted else "UPSERT",
    )


def commit_bytes(table: Table, stats: Iterable[WriteStat], *, compacted: bool = False) -> bytes:
    """A commit of these files as stored."""
    return encode(metadata(stats, compacted=compacted), table.layout.encoding)


def base_bytes(rows: Iterable[str]) -> bytes:
    """A base file."""
    return json.dumps(list(rows)).encode()


def log_bytes(instant: str, row: str) -> bytes:
    """A log file of one block of one row."""
    return block(PARQUET, {INSTANT_TIME: instant, SCHEMA: SCHEMA_TEXT}, row.encode())


def visibility_of(table: Table, timeline: Timeline) -> Visibility:
    """Which blocks a reader of now sees."""
    return Visibility(
        latest="9" * 17,
        completed=frozenset(timeline.completed_writes),
        pending=frozenset(timeline.pending_writes),
        start=timeline.start,
        by_file=table.layout.has_completion_times,
    )


def slice_rows(
    storage: Storage, slice_: FileSlice, visibility: Visibility
) -> tuple[list[str], list[str], tuple[str, ...]]:
    """The rows of a slice's base file, those of its logs, and the instants of blocks that do not count yet."""
    base = json.loads(storage.read(slice_.base.path)) if slice_.base is not None else []
    blocks = []
    data = {}
    for log in slice_.logs:
        data[log.path] = storage.open_input(log.path)
        blocks += list(scan_blocks(data[log.path], log.path))
    selection = select_blocks(blocks, visibility)
    logs = [bytes(data[b.path].read_at(b.content_bytes, b.content_offset)).decode() for b in selection.blocks]
    return base, logs, count_blocks(selection, len(logs)).uncommitted


def snapshot(storage: Storage) -> Counter[str]:
    """Every row a reader sees, by how often."""
    table = Table.on(storage)
    view = table.load_view()
    visibility = visibility_of(table, view.timeline)
    found: Counter[str] = Counter()
    for group in view.groups:
        slice_ = latest_slice(group)
        if slice_ is not None:
            base, logs, _ = slice_rows(storage, slice_, visibility)
            found.update([*base, *logs])
    return found


def merge_slice(storage: Storage, task: SliceTask) -> SliceDone:
    """Stands for `compact_slice`: the same files in the same order of calls."""
    base, logs, uncommitted = slice_rows(storage, task.slice, task.rules.visibility)
    folder = attempt_folder(task.instant, task.attempt)
    staged = f"{folder}/{task.position}-{uuid.uuid4().hex}.parquet"
    data = base_bytes([*base, *logs])
    storage.put_if_absent(staged, data)
    inputs = task.slice
    done = SliceDone(
        position=task.position,
        partition=inputs.partition,
        file_id=inputs.file_id,
        base_instant=inputs.base.name.instant if inputs.base else None,
        base_file=str(inputs.base.name) if inputs.base else None,
        inputs=input_names(inputs),
        fingerprint=task.fingerprint,
        staged=staged,
        final=f"{inputs.partition}/{task.final_name}",
        size=len(data),
        ledger=_books(len(base), len(logs)),
        log_bytes=inputs.log_bytes,
        log_files=len(inputs.logs),
        log_blocks=len(logs),
        corrupt_blocks=0,
        rolled_back_blocks=0,
        skipped={},
        seconds=0.0,
        uncommitted=uncommitted,
    )
    return _record(storage, f"{folder}/{task.position}.ok", done)


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


def run_tasks(storage: Storage, tasks: list[SliceTask], progress: Progress) -> list[SliceDone]:
    """A `Runner`: one slice after the other."""
    done = []
    for number, task in enumerate(tasks):
        progress(number, len(tasks))
        done.append(merge_slice(storage, task))
    return done
