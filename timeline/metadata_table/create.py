"""Makes and drops a table's metadata table.

A new metadata table has the empty partition `files`:

    its folders and hoodie.properties
    <first>.deltacommit.requested, .inflight | a log file | the completed delta commit
    (the caller) hoodie.properties of the table, which names the partition

The last step makes both tables visible. No step depends on the clock or on randomness, so two processes make the same
files, concurrently or after a crash. Hudi fills a partition in the same way under the same artificial time, with a base
file if there are files to list."""

from __future__ import annotations

from ..codec.avro_schema import with_meta_columns
from ..event_log import get_logger
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.commit_metadata import encode as encode_commit
from ..format.file_name import LogFileName, partition_metadata
from ..format.instant import Instant, State
from ..format.log_encode import hfile_block
from ..format.merge_settings import EVENT_TIME_STRATEGY
from ..format.table_config import PROPERTIES, TableConfig, checksum, make_table_folders, save_table_config
from ..locks.table_lock import TableLock
from ..storage.contract import Storage
from ..storage.folders import METADATA_FOLDER
from ..storage.forwarding import PrefixStorage
from ..table.in_progress import READ_INSIDE, Guard, exclusive, regardless
from ..table.table import Table
from .record_index import mark_global_keys
from .records.entries import encoder, new_schema
from .records.hfile import encode_hfile
from .records.keys import files_records
from .valid_instants import ARTIFICIAL

_log = get_logger()
_NO_MATTER = dict.fromkeys(
    (Guard.RESTORE, Guard.ROLLBACK), "both work without it, and an unusable one may be what stops them"
)


def drop_metadata_table(table: Table, lock: TableLock) -> Table:
    """Turns the metadata table off, as a Hudi writer does with `hoodie.metadata.enable=false`; nothing if it is off.
    The property is changed first, since readers obey it. After a crash between the steps, readers ignore the folder."""
    if not (now := table.snapshot(cached=False)).config.metadata_partitions:
        return now
    with exclusive(table, lock, "drop the metadata table", {**READ_INSIDE, **_NO_MATTER}) as held:
        return regardless(drop_within(held, "by command"))


def drop_within(table: Table, why: str) -> Table:
    """`drop_metadata_table` in a section that is held already."""
    if table.config.metadata_partitions:
        mark_global_keys(table)
        save_table_config(table.storage, table.config.without_metadata_table())
        table.storage.delete_folder(METADATA_FOLDER)
        _log.warning("metadata_table_dropped", table=table.storage.base_path, why=why)
    return table.snapshot(cached=False)


_PARTITION, _FILE_ID = "files", "files-0000-0"
_CLASSES = "org.apache.hudi.metadata.HoodieTableMetadata"
_FIRST_COMPLETION = "19700101000000000"
"""The completion time of the first delta commit, on versions that have them: before that of any write."""


def make_metadata_table(storage: Storage, config: TableConfig) -> TableConfig:
    """Makes it below the folder of a table with these settings; returns the settings of the table that has it.
    May be repeated. StorageError: see `Storage`."""
    of_metadata, below = metadata_config(config), PrefixStorage(storage, METADATA_FOLDER)
    make_table_folders(below, of_metadata)
    below.put_if_absent(PROPERTIES, of_metadata.dump())
    time = f"{ARTIFICIAL}000" if config.layout.has_completion_times else f"{ARTIFICIAL}010"
    log = LogFileName(file_id=_FILE_ID, instant=time, version=1, token="0-0-0")
    content = _first_block(config, time)
    begun = Instant(requested_time=time, action="deltacommit", state=State.REQUESTED)
    completion = _FIRST_COMPLETION if config.layout.has_completion_times else None
    done = Instant(requested_time=time, action="deltacommit", state=State.COMPLETED, completion_time=completion)
    for path, data in (
        (_path(of_metadata, begun), b""),
        (_path(of_metadata, begun.at(State.INFLIGHT)), b""),
        (f"{_PARTITION}/.hoodie_partition_metadata", partition_metadata(time, 1)),
        (f"{_PARTITION}/{log}", content),
        (_path(of_metadata, done), _first_commit(config, log, len(content))),
    ):
        below.put_if_absent(path, data)
    return config.with_metadata_partition(_PARTITION)


def metadata_config(config: TableConfig) -> TableConfig:
    """The settings of the metadata table of a table, as Hudi 0.15.0 (version 6) and 1.2.0 make them (pure)."""
    name = f"{config.name}_metadata"
    common = {
        "hoodie.compaction.payload.class": "org.apache.hudi.metadata.HoodieMetadataPayload",
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.populate.meta.fields": "false",
        "hoodie.table.base.file.format": "HFILE",
        "hoodie.table.checksum": str(checksum("", name)),
        "hoodie.table.name": name,
        "hoodie.table.recordkey.fields": "key",
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.table.version": str(config.version),
    }
    if not config.layout.has_completion_times:
        own = {
            "hoodie.archivelog.folder": "archived",
            "hoodie.compaction.record.merger.strategy": EVENT_TIME_STRATEGY,
            "hoodie.table.keygenerator.class": f"{_CLASSES}KeyGenerator",
            "hoodie.timeline.layout.version": "1",
        }
    else:
        own = {
            "hoodie.archivelog.folder": "history",
            "hoodie.record.merge.mode": "CUSTOM",
            "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
            "hoodie.table.initial.version": str(config.version),
            "hoodie.table.keygenerator.type": "HOODIE_TABLE_METADATA",
            "hoodie.timeline.history.path": "history",
            "hoodie.timeline.layout.version": "2",
            "hoodie.timeline.path": "timeline",
        }
    return TableConfig(properties={**common, **own})


def _path(of_metadata: TableConfig, instant: Instant) -> str:
    return f"{of_metadata.timeline_folder}/{of_metadata.layout.file_name(instant)}"


def _first_block(config: TableConfig, time: str) -> bytes:
    """A block with the list of partitions, which is empty."""
    text = with_meta_columns(new_schema(config.layout))
    entries = [(key.encode(), value) for key, value in map(encoder(text), files_records({}))]
    content = encode_hfile(entries, {"schema": text.encode()})
    return b"".join(bytes(part) for part in hfile_block(content, instant=time, schema_text=text))


def _first_commit(config: TableConfig, log: LogFileName, size: int) -> bytes:
    stat = WriteStat(
        file_id=_FILE_ID,
        path=f"{_PARTITION}/{log}",
        prev_commit=log.instant,
        num_writes=1,
        num_inserts=1,
        total_write_bytes=size,
        partition_path=_PARTITION,
        file_size_in_bytes=size,
        log_version=log.version,
        log_offset=0,
        log_files=(str(log),),
    )
    commit = CommitMetadata(
        partition_to_write_stats={_PARTITION: (stat,)},
        extra_metadata={"schema": new_schema(config.layout)},
        operation_type="BULK_INSERT" if not config.layout.has_completion_times else "BULK_INSERT_PREPPED",
    )
    return encode_commit(commit, config.layout.encoding)
