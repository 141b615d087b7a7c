"""Makes and drops a table's metadata table.

The metadata table of a new table has the empty partition `files`:

    its folders and hoodie.properties
    <first>.deltacommit.requested, .inflight | a log file | the completed delta commit
    (the caller) hoodie.properties of the table, which names the partition

The last step makes both tables visible. No step depends on the clock or on randomness, so two processes make the same
files, concurrently or after a crash. Hudi fills a partition in the same way under the same artificial time, with a base
file if there are files to list. For a table that is there already, `compactor_daemon.metadata_services.build` fills
them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ..codec.avro_schema import with_meta_columns
from ..errors import LockError, MissingFileError
from ..event_log import get_logger
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.commit_metadata import encode as encode_commit
from ..format.file_name import PARTITION_METADATA, BaseFileName, LogFileName, partition_metadata
from ..format.instant import Instant, State
from ..format.log_encode import group_block, hfile_block
from ..format.merge_settings import EVENT_TIME_STRATEGY
from ..format.table_config import PROPERTIES, TableConfig, checksum, make_table_folders, save_table_config
from ..instants.timeline import Timeline
from ..locks.table_lock import TableLock
from ..storage.contract import PrefixStorage, Storage
from ..storage.folders import METADATA_FOLDER
from ..table.in_progress import READ_INSIDE, Guard, check_lock, exclusive, regardless
from ..table.table import Table, open_metadata_table
from .index_definitions import (
    is_half_dropped,
    keep_definitions,
    put_back_definitions,
    put_definitions,
    take_out_definitions,
)
from .index_logs import IndexLog
from .record_index import mark_global_keys
from .records.entries import encoder, new_schema
from .records.hfile import encode_hfile
from .records.keys import FILES, RowIndex, files_records, new_file_ids
from .valid_instants import ARTIFICIAL

_log = get_logger()
_NO_MATTER = dict.fromkeys(
    (Guard.RESTORE, Guard.ROLLBACK), "both work without it, and an unusable one may be what stops them"
)


def drop_metadata_table(table: Table, lock: TableLock) -> Table:
    """Turns the metadata table off, as a Hudi writer does with `hoodie.metadata.enable=false`; nothing if it is off.
    The property is changed first, since readers obey it. After a crash between the steps, readers ignore the folder,
    and the next call does the rest: until then Hudi would not build the indexes whose definitions were taken out."""
    now = table.snapshot(cached=False)
    if not now.config.metadata_partitions and not is_half_dropped(now):
        return now
    with exclusive(table, lock, "drop the metadata table", {**READ_INSIDE, **_NO_MATTER}) as held:
        return regardless(drop_within(held, "by command"))


def drop_within(table: Table, why: str, *, lost: bool = False) -> Table:
    """`drop_metadata_table` in a section that is held already; `lost`: that was, and another process may be in one."""
    if table.config.metadata_partitions or is_half_dropped(table):
        if table.config.metadata_partitions:
            mark_global_keys(table)
            save_table_config(table.storage, table.config.without_metadata_table())
        if not lost:
            put_back_definitions(table)
        table.storage.delete_folder(METADATA_FOLDER)
        _log.warning("metadata_table_dropped", table=table.storage.base_path, why=why)
    return table.snapshot(cached=False)


def take_out(table: Table, names: Collection[str]) -> None:
    """Takes partitions out of the metadata table; `table`: of a section. LockError: see `save_partitions`."""
    take_out_definitions(table.storage, names)
    save_partitions(table, table.config.without_metadata_partitions(names))


def save_built(
    table: Table, config: TableConfig, indexes: Sequence[RowIndex], expressions: Collection[str] = ()
) -> None:
    """Saves settings that name built partitions, then puts the definitions of the secondary ones of the `indexes` and
    of `expressions`: from then on Hudi's readers use them. `table`: of a section. LockError: the lock was lost. If that
    was before, others may have written without an entry: the definitions are removed again; see `save_partitions`."""
    secondary = [one for one in indexes if one.column]
    keep_definitions(table.storage, secondary)
    save_partitions(table, config)
    put_definitions(table.storage, None, "", secondary, expressions)
    try:
        check_lock(table)
    except LockError:
        take_out_definitions(regardless(table).storage, [*(one.partition for one in secondary), *expressions])
        raise


def save_partitions(table: Table, config: TableConfig) -> None:
    """Saves settings that name other partitions; `table`: of a section. LockError: the lock was lost. If that was
    before the settings were replaced, others may have written without an entry, or dropped the metadata table, since
    then: so it is dropped. A process that dies before that leaves what `timeline validate` shows."""
    try:
        save_table_config(table.storage, config)
    except LockError:
        late = regardless(table).snapshot(cached=False)
        if late.config == config:
            drop_within(late, "the lock was lost before its partitions were saved", lost=True)
        raise


def drop_unrecorded(table: Table, instant: str) -> None:
    """Right after a completed file was put in a section: if the lock was lost before, the metadata table may have been
    built meanwhile, without the files of the instant. Then it is dropped."""
    try:
        check_lock(table)
    except LockError:
        late = regardless(table).snapshot(cached=False)
        if late.config.metadata_partitions:
            with suppress(MissingFileError):  # it is built at this moment
                known = open_metadata_table(late).load_timeline(archived=True)
                if any(i.requested_time == instant for i in (*known.instants, *known.archived)):
                    return
            drop_within(late, f"it was built while {instant} completed without the lock", lost=True)


_CLASSES = "org.apache.hudi.metadata.HoodieTableMetadata"
_FIRST_COMPLETION = "19700101000000000"
"""The completion time of the first delta commit, on versions that have them: before that of any write."""


def make_metadata_table(storage: Storage, config: TableConfig) -> TableConfig:
    """Makes an empty one below the folder of a new table with these settings; returns the settings of the table that
    has it. May be repeated. StorageError: see `Storage`."""
    put_metadata_table(storage, config)
    completion = _FIRST_COMPLETION if config.layout.has_completion_times else None
    make_file_groups(storage, config, fill_time(config, 0), {FILES: new_file_ids(FILES)}, {}, completion)
    return config.with_metadata_partitions((FILES,))


def put_metadata_table(storage: Storage, config: TableConfig) -> None:
    """Makes the metadata table's folders and settings. May be repeated."""
    of_metadata, below = metadata_config(config), PrefixStorage(storage, METADATA_FOLDER)
    make_table_folders(below, of_metadata)
    below.put_if_absent(PROPERTIES, of_metadata.dump())


def fill_time(config: TableConfig, number: int) -> str:
    """The artificial time of the delta commit that is the `number`-th, from 0, of those that fill partitions."""
    return f"{ARTIFICIAL}{number if config.layout.has_completion_times else 10 + number:03}"


def fills_of(config: TableConfig, timeline: Timeline) -> int:
    """How many such times are in use, or before one that is. `timeline`: of the metadata table, with its archive."""
    used = {i.requested_time for i in (*timeline.instants, *timeline.archived)}
    numbers = [int(time[len(ARTIFICIAL) :][:3]) for time in used if time.startswith(ARTIFICIAL)]
    return max(numbers, default=int(fill_time(config, 0)[-3:]) - 1) + 1 - int(fill_time(config, 0)[-3:])


def make_file_groups(
    storage: Storage,
    config: TableConfig,
    time: str,
    file_ids: Mapping[str, Sequence[str]],
    bases: Mapping[tuple[str, str], IndexLog],
    completion: str | None,
) -> None:
    """Makes partitions with these file groups by a delta commit at `time`. `bases`: by partition and file id, staged
    base files; other file groups have no entries, but `files` the list of partitions, which is empty. May be repeated
    with the same arguments. `storage`, `config`: of the data table.

    Log files would not do: their blocks count only while the delta commit is on the active timeline, and an archiver
    takes the earliest times first, whether or not a compaction has merged them."""
    of_metadata, below = metadata_config(config), PrefixStorage(storage, METADATA_FOLDER)
    begun = Instant(requested_time=time, action="deltacommit", state=State.REQUESTED)
    done = replace(begun.at(State.COMPLETED), completion_time=completion)
    below.put_if_absent(_path(of_metadata, begun), b"")
    below.put_if_absent(_path(of_metadata, begun.at(State.INFLIGHT)), b"")
    stats = dict[str, tuple[WriteStat, ...]]()
    for partition, ids in file_ids.items():
        below.put_if_absent(f"{partition}/{PARTITION_METADATA}", partition_metadata(time, 1))
        content = _first_block(config, time) if partition == FILES else group_block(time)
        empty = [one for one in ids if (partition, one) not in bases]
        logs = [LogFileName(file_id=file_id, instant=time, version=1, token="0-0-0") for file_id in empty]
        for log in logs:
            below.put_if_absent(f"{partition}/{log}", content)
        filled = [_based(below, storage, bases[partition, one], time) for one in ids if (partition, one) in bases]
        stats[partition] = (*(_stat(partition, log, len(content)) for log in logs), *filled)
    commit = CommitMetadata(
        partition_to_write_stats=stats,
        extra_metadata={"schema": new_schema(config.layout)},
        operation_type="BULK_INSERT" if not config.layout.has_completion_times else "BULK_INSERT_PREPPED",
    )
    below.put_if_absent(_path(of_metadata, done), encode_commit(commit, config.layout.encoding))


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


def _based(below: Storage, storage: Storage, base: IndexLog, time: str) -> WriteStat:
    """Puts a staged base file. Memory: the file."""
    name = BaseFileName(file_id=base.file_id, token="0-0-0", instant=time, extension=".hfile")
    path = f"{base.partition}/{name}"
    below.put_if_absent(path, storage.read(base.path))
    return WriteStat(
        file_id=base.file_id,
        path=path,
        prev_commit="null",
        num_writes=base.entries,
        num_inserts=base.entries,
        total_write_bytes=base.size,
        partition_path=base.partition,
        file_size_in_bytes=base.size,
    )


def _stat(partition: str, log: LogFileName, size: int) -> WriteStat:
    entries = 1 if partition == FILES else 0
    return WriteStat(
        file_id=log.file_id,
        path=f"{partition}/{log}",
        prev_commit=log.instant,
        num_writes=entries,
        num_inserts=entries,
        total_write_bytes=size,
        partition_path=partition,
        file_size_in_bytes=size,
        log_version=log.version,
        log_offset=0,
        log_files=(str(log),),
    )
