"""Updates the metadata table when the data table changes: prepared before the lock, applied inside it.

check_keepable    before any change: no partition of the metadata table would become wrong
prepare           outside the lock: the files have their final names and are read there
apply_update      in the lock, before the data table's completed file is put
forget            in the lock, before an uncompleted instant is removed from the data table's timeline"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import MalformedError, MissingFileError
from ..event_log import get_logger
from ..format.commit_metadata import LEDGER, CommitMetadata
from ..format.file_name import BaseFileName, parse_data_file
from ..format.ledger import expired_rows
from ..table.table import Table, open_metadata_table
from . import commit
from .commit import EncodedRecords, commit_records, newest_schema
from .create import save_partitions
from .index_logs import IndexLogs, RecordedKeys, index_file_groups, stage_index_logs
from .measure import Measure, Measured, index_records
from .read import read_entries
from .record_index import has_one_record_index, missing_entries
from .records.entries import encoder
from .records.keys import (
    BLOOM_FILTERS,
    FILES,
    PARTITION_STATS,
    RECORD_INDEX,
    MetadataRecord,
    Sizes,
    Upkeep,
    being_built,
    files_of,
    files_records,
    removed_records,
    upkeep,
)

_log = get_logger()

NOT_FOLLOWED = "phantombase does not maintain them"
"""The reason for the removal of indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change that `instant` makes. `files`: the new files. `moves_rows`: see `upkeep`. `schema_text`: of the files'
    newest rows, as commits record it; None: record nothing about their content. `measured`: ranges of the files that
    are known already. `removed`: of a clean, names of the removed files, by partition, and removed partitions; a clean
    adds no files. `keys`: of a write or clustering, the keys that its files add and delete; a text: why they are
    unknown."""

    instant: str
    files: Sizes
    moves_rows: bool
    schema_text: str | None
    measured: Measured = field(default_factory=dict)
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    removed_partitions: Collection[str] = frozenset()
    keys: RecordedKeys | str = NOT_FOLLOWED

    @property
    def knows_keys(self) -> bool:
        """Whether the record index can be kept."""
        return not isinstance(self.keys, str)

    @staticmethod
    def of(instant: str, metadata: CommitMetadata, measured: Measured) -> Change:
        """The change made by a delta commit, compaction or log compaction."""
        return Change(
            instant=instant,
            files=files_of(metadata),
            moves_rows=not metadata.compacted or bool(expired_rows(metadata.extra_metadata.get(LEDGER), instant)),
            schema_text=metadata.extra_metadata["schema"],
            measured=measured,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The update of the metadata table. `upkeep`, `measure`: the partitions and columns that it was prepared for.
    `dropped`: partitions that are removed, also if a file lacks the content that they need. `index`: the log files of
    the record index, if it is kept and keys change their location."""

    upkeep: Upkeep
    measure: Measure | None
    dropped: tuple[str, ...]
    records: EncodedRecords
    schema_text: str
    index: IndexLogs | None = None


def with_index_logs(table: Table, instant: str, keys: RecordedKeys) -> RecordedKeys:
    """Keys whose log files are made already: outside of the lock. May be repeated."""
    return replace(keys, made=stage_index_logs(table, instant, keys, newest_schema(open_metadata_table(table))))


def check_keepable(table: Table, *, moves_rows: bool = True) -> None:
    """UnsupportedError if a change would make a partition of the metadata table wrong, see `upkeep`."""
    upkeep_of(table, moves_rows)


def prepare(table: Table, change: Change) -> Update | None:
    """The update for a change; None if the metadata table is off. Errors: see `check_keepable`, storage."""
    if not table.config.metadata_partitions:
        return None
    wanted = _upkeep(table, change)
    schema_text = newest_schema(open_metadata_table(table))
    encode = encoder(schema_text)
    if change.removed or change.removed_partitions:
        listed = removed_records(change.removed, change.removed_partitions)
    else:
        listed = files_records(change.files)
    records = defaultdict(list, {FILES: [encode(keyed) for keyed in listed]})
    dropped, measure = wanted.dropped, _measure(table, change)
    if change.schema_text is not None:
        indexed = index_records(table, change.files, change.instant, measure, wanted.kept, change.measured)
        types: dict[str, str] = {}
        for partition, keyed in indexed:
            records[partition].append(encode(keyed))
            if partition == PARTITION_STATS and (kind := _value_type(keyed[1])) is not None:
                types[keyed[0]] = kind
        if types and _other_types(table, types):
            del records[PARTITION_STATS]  # Hudi's readers fail when they merge bounds of two types
            dropped = (*dropped, PARTITION_STATS)
        names = (parse_data_file(name) for names in change.files.values() for name in names)
        base_files = sum(isinstance(name, BaseFileName) for name in names)
        if BLOOM_FILTERS in wanted.kept and len(records[BLOOM_FILTERS]) < base_files:
            del records[BLOOM_FILTERS]  # Hudi's lookup fails on a file without a filter
            if BLOOM_FILTERS in table.config.building_metadata_partitions:
                raise being_built(BLOOM_FILTERS, table.storage.base_path)
            dropped = (*dropped, BLOOM_FILTERS)
    index, keys = None, change.keys
    if RECORD_INDEX in wanted.kept and isinstance(keys, RecordedKeys) and keys.ordered:
        index = keys.made
        if index is None or not _fits(table, index):
            index = stage_index_logs(table, change.instant, keys, schema_text)
    return Update(
        upkeep=wanted, measure=measure, dropped=dropped, records=records, schema_text=schema_text, index=index
    )


def apply_update(table: Table, change: Change, prepared: Update | None) -> None:
    """Records a change in the metadata table; `table`: of a section (`exclusive`). First removes indexes that cannot be
    kept. May be repeated: the records of an earlier attempt are removed. An update `prepared` for other partitions or
    other columns with statistics than the current ones is prepared again. LockError: the lock was lost."""
    if not table.config.metadata_partitions:
        return
    update = prepared
    now = _upkeep(table, change), _measure(table, change)
    if update is None or (update.upkeep, update.measure) != now or not _fits(table, update.index):
        update = prepare(table, change)
    assert update is not None
    if update.dropped:
        why = _why(table, change, update.dropped)
        save_partitions(table, table.config.without_metadata_partitions(update.dropped))
        _log.warning(
            "indexes_dropped",
            table=table.storage.base_path,
            instant=change.instant,
            indexes=update.dropped,
            why=why,
            todo="A Hudi writer that has them enabled builds them again.",
        )
    logs = () if update.index is None else update.index.logs
    commit_records(table, change.instant, update.records, update.schema_text, logs)


def _why(table: Table, change: Change, dropped: Collection[str]) -> str:
    """Why indexes are removed."""
    if RECORD_INDEX in dropped and (missing := missing_entries(table)):
        return f"the record index lacks entries of rows: {missing}"
    return str(change.keys) if tuple(dropped) == (RECORD_INDEX,) and not change.knows_keys else NOT_FOLLOWED


def forget(table: Table, instant: str) -> None:
    """Removes an instant that will not complete from the metadata table, if there is one. LockError: the lock was lost.
    The records are kept if another action has completed at the same instant, since they belong to that action."""
    if not table.config.metadata_partitions:
        return
    if all(i.requested_time != instant for i in table.load_timeline().completed):
        commit.forget(table, instant)


def upkeep_of(table: Table, moves_rows: bool, *, knows_keys: bool = False) -> Upkeep:
    """What a change means for each partition of the metadata table, see `upkeep`. UnsupportedError: see there."""
    config = table.config
    return upkeep(
        config.built_metadata_partitions,
        config.building_metadata_partitions,
        moves_rows=moves_rows,
        where=table.storage.base_path,
        knows_keys=knows_keys and has_one_record_index(table),
    )


def _upkeep(table: Table, change: Change) -> Upkeep:
    return upkeep_of(table, change.moves_rows, knows_keys=change.knows_keys)


def _fits(table: Table, index: IndexLogs | None) -> bool:
    """Whether the record index has the file groups for which its log files were made."""
    return index is None or index.file_ids == index_file_groups(table)


def _measure(table: Table, change: Change) -> Measure | None:
    return None if change.schema_text is None else Measure.of(table, table.schema(change.schema_text))


def _value_type(record: MetadataRecord) -> str | None:
    bound = (record.get("ColumnStatsMetadata") or {}).get("minValue")
    return None if bound is None else str(bound[0])


def _other_types(table: Table, types: Mapping[str, str]) -> bool:
    """Whether older records of these keys have bounds of another type, from before the column was widened, or cannot be
    read."""
    if PARTITION_STATS not in table.config.built_metadata_partitions:
        return False
    try:
        older = list(read_entries(table, PARTITION_STATS, types.keys()))
    except (MalformedError, MissingFileError) as error:  # readers then go without it, which is exact
        _log.warning("partition_statistics_damaged", table=table.storage.base_path, error=str(error))
        return True
    return any(key in types and _value_type(record) not in (None, types[key]) for key, record in older)
