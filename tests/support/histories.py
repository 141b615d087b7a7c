"""Timelines of tables that were never written: completed writes that name files of given sizes, with no data file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from phantombase.timeline.format.commit_metadata import CommitMetadata, RuntimeStats, WriteStat, encode
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.new_table import NewTable, create_table

MB = 1 << 20
_BEGAN = datetime(2026, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Made:
    """One completed write: at which second, the bytes of the log files and base files that it made by `partition/id`;
    `work_s`: what its tasks took, of a compaction. `took_s`: from its request to its completion."""

    at_s: float
    logs: Mapping[str, int] = field(default_factory=dict)
    bases: Mapping[str, int] = field(default_factory=dict)
    compaction: bool = False
    work_s: float = 0.0
    took_s: float = 0.0


def instant_of(at_s: float) -> str:
    return format_time(_BEGAN + timedelta(seconds=at_s))


def made_table(path: Path, writes: Iterable[Made], version: int = 9) -> Table:
    """A table whose active timeline has these writes."""
    create_table(
        LocalStorage(str(path)),
        NewTable(name="trips", version=version, key_fields=("id",), partition_fields=("day",), ordering_fields=("ts",)),
    )
    table = Table.open(str(path))
    folder = path / table.config.timeline_folder
    for write in writes:
        done, data = completed(write, table.layout)
        (folder / table.layout.file_name(done)).write_bytes(data)
    return table


def completed(write: Made, layout: Layout) -> tuple[Instant, bytes]:
    """The instant of a write, and its record."""
    time = instant_of(write.at_s)
    done = Instant(
        requested_time=time,
        action="commit" if write.compaction else "deltacommit",
        state=State.COMPLETED,
        completion_time=instant_of(write.at_s + write.took_s) if layout.has_completion_times else None,
    )
    took = RuntimeStats(total_upsert_time=round(write.work_s * 1000))
    stats: dict[str, list[WriteStat]] = {}
    for key, size in (*write.logs.items(), *write.bases.items()):
        partition, _, file_id = key.rpartition("/")
        is_log = key in write.logs
        name = f".{file_id}_{time}.log.1_0-1-0" if is_log else f"{file_id}_0-1-0_{time}.parquet"
        one = WriteStat(
            file_id=file_id,
            path=f"{partition}/{name}",
            partition_path=partition,
            prev_commit="null",
            num_writes=1,
            file_size_in_bytes=size,
            total_write_bytes=size,
            log_version=1 if is_log else None,
            log_offset=0 if is_log else None,
            base_file="" if is_log else None,
            log_files=(name,) if is_log else None,
            runtime_stats=took,
        )
        stats.setdefault(partition, []).append(one)
        took = RuntimeStats()
    metadata = CommitMetadata(
        partition_to_write_stats={p: tuple(of) for p, of in stats.items()},
        compacted=write.compaction,
        operation_type="COMPACT" if write.compaction else "UPSERT",
    )
    return done, encode(metadata, layout.encoding)
