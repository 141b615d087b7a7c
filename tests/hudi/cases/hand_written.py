"""A delta commit of ours that is made by hand: any log blocks on the newest file slices of a shared table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, encode
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.instant import Instant, State, next_time
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.log_encode import Parts
from phantombase.timeline.table.table import Table, TableSchema
from phantombase.timeline.view.view import FileSlice, latest_slice
from tests.hudi.cases.shared_table import SharedTable

__all__ = ["Blocks", "commit", "with_meta"]

Blocks = Callable[[FileSlice, str, TableSchema], Iterable[Parts]]
"""(file slice, instant, schema) -> the blocks of the slice's log file."""


def commit(table: SharedTable, blocks: Blocks) -> None:
    """A delta commit by hand: one log file on the newest slice of each file group."""
    opened = table.open()
    view = opened.load_view()
    time = next_time(opened.now(), view.timeline.used_times())
    schema = opened.with_timeline(view.timeline).newest_schema()
    for state in (State.REQUESTED, State.INFLIGHT):
        place(opened, Instant(requested_time=time, action="deltacommit", state=state), b"")
    stats: dict[str, tuple[WriteStat, ...]] = {}
    for slice_ in (latest_slice(group) for group in view.groups):
        assert slice_ is not None
        by_base = opened.layout.slicing is Slicing.BY_BASE_INSTANT
        instant = slice_.base_instant if by_base else time
        version = 1 + max((log.name.version for log in slice_.logs), default=0)
        name = LogFileName(file_id=slice_.file_id, instant=instant, version=version, token="1-0-1")
        path = f"{slice_.partition}/{name}".removeprefix("/")
        with opened.storage.open_output(path) as file:
            for block in blocks(slice_, time, schema):
                file.writelines(block)
        stat = WriteStat(file_id=slice_.file_id, path=path, prev_commit=instant, partition_path=slice_.partition)
        stats[slice_.partition] = (*stats.get(slice_.partition, ()), stat)
    metadata = CommitMetadata(
        partition_to_write_stats=stats, extra_metadata={"schema": schema.commit_text}, operation_type="UPSERT"
    )
    completion = next_time(opened.now(), [time]) if opened.layout.has_completion_times else None
    done = Instant(requested_time=time, action="deltacommit", state=State.COMPLETED, completion_time=completion)
    place(opened, done, encode(metadata, opened.layout.encoding))


def place(table: Table, instant: Instant, data: bytes) -> None:
    """An instant's file."""
    assert table.storage.put_if_absent(table.instant_path(instant), data)


def with_meta(rows: pa.Table, slice_: FileSlice, time: str, schema: TableSchema) -> pa.Table:
    """Those of the slice's partition, as records of a log."""
    mine = rows.filter(pa.array([p == slice_.partition for p in rows["p"].to_pylist()]))
    count = mine.num_rows
    meta = [
        [time] * count,
        [f"{time}_0_{i}" for i in range(count)],
        mine["id"],
        [slice_.partition] * count,
        [slice_.file_id] * count,
    ]
    columns = dict(zip(schema.arrow.names, [*meta, *(mine[n] for n in schema.arrow.names[5:])], strict=True))
    return pa.table(columns, schema=schema.arrow)
