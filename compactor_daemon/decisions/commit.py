"""The commit that a compaction leaves on the timeline: as Hudi 0.15 and 1.2 write it, plus the ledger (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from phantombase.timeline.audit.group_ledger import LEDGER, GroupLedger, encode_ledgers
from phantombase.timeline.format.commit_metadata import LOG_COMPACT, CommitMetadata, RuntimeStats, WriteStat
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.table.table import TableSchema

from ..records.slice_done import SliceDone


def compaction_commit(done: Iterable[SliceDone], schema: TableSchema, properties: Mapping[str, str]) -> CommitMetadata:
    """The completed commit of a compaction. `schema`: of the files written; `properties`: of the user,
    recorded beside it."""
    return _commit(done, schema, properties, "COMPACT", _write_stat)


def log_compaction_commit(
    done: Iterable[SliceDone], schema: TableSchema, properties: Mapping[str, str]
) -> CommitMetadata:
    """The completed delta commit of a log compaction."""
    return _commit(done, schema, properties, LOG_COMPACT, _log_write_stat)


def _commit(
    done: Iterable[SliceDone],
    schema: TableSchema,
    properties: Mapping[str, str],
    operation: str,
    stat: Callable[[SliceDone, str], WriteStat],
) -> CommitMetadata:
    slices = sorted(done, key=lambda d: d.position)
    stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
    for one in slices:
        if one.final is not None:
            stats[one.partition].append(stat(one, one.final))
    ledger = encode_ledgers([_group_ledger(d) for d in slices])
    return CommitMetadata(
        partition_to_write_stats={partition: tuple(s) for partition, s in stats.items()},
        compacted=True,
        extra_metadata={**properties, **schema.recorded, LEDGER: ledger},
        operation_type=operation,
    )


def _group_ledger(done: SliceDone) -> GroupLedger:
    return GroupLedger(
        partition=done.partition,
        file_id=done.file_id,
        inputs=done.inputs,
        output=done.final.rpartition("/")[2] if done.final is not None else None,
        size=done.size,
        ledger=done.ledger,
        skipped=done.skipped,
    )


def _log_write_stat(done: SliceDone, final: str) -> WriteStat:
    """The statistics that a write would give: the rows in the log file, and its deletes."""
    name, ledger = final.rpartition("/")[2], done.ledger
    return replace(
        _write_stat(done, final),
        num_deletes=ledger.deletes_of_absent,
        num_update_writes=ledger.rows_out,
        num_inserts=0,
        log_version=LogFileName.parse(name).version,
        log_offset=0,
        base_file=done.base_file or "",
        log_files=(name,),
    )


def _write_stat(done: SliceDone, final: str) -> WriteStat:
    ledger = done.ledger
    return WriteStat(
        file_id=done.file_id,
        path=final,
        prev_commit=done.base_instant or "null",
        num_writes=ledger.rows_out,
        num_deletes=ledger.deleted,
        num_update_writes=ledger.replaced,
        num_inserts=ledger.inserts,
        total_write_bytes=done.size,
        file_size_in_bytes=done.size,
        partition_path=done.partition,
        total_log_records=ledger.log_entries,
        total_log_files_compacted=done.log_files,
        total_log_size_compacted=done.log_bytes,
        total_updated_records_compacted=ledger.log_keys,
        total_log_blocks=done.log_blocks,
        total_corrupt_log_block=done.corrupt_blocks,
        total_rollback_blocks=done.rolled_back_blocks,
        prev_base_file=done.base_file,
        runtime_stats=RuntimeStats(total_upsert_time=round(done.seconds * 1000)),
    )
