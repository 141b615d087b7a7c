"""Updates the metadata table when the data table changes: prepared before the lock, applied inside it.

prepare           outside the lock: the files have their final names and are read there
apply_update      in the lock, before the data table's completed file is put
forget            in the lock, before an uncompleted instant is removed from the data table's timeline"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from ..codec.arrow_schema import project
from ..codec.avro_schema import RECORD_KEY
from ..codec.columns import flat
from ..codec.row_hash import KeyLookup
from ..errors import MalformedError, UnsupportedError
from ..event_log import get_logger
from ..format.commit_metadata import CLUSTER, LEDGER, CommitMetadata
from ..format.file_name import BaseFileName, parse_data_file
from ..format.instant import State
from ..format.ledger import expired_rows
from ..instants.reserved_times import STAGED_INDEX
from ..merge.rule import SliceRules
from ..merge.slice_log import read_logs
from ..merge.slice_stream import SliceStream
from ..merge.spilled_merge import LogSpill
from ..merge.table_rules import slice_rules
from ..storage.contract import Storage
from ..table.table import Snapshot, Table, open_metadata_table
from ..view.view import FileSlice, GroupKey, TableView
from . import commit
from .commit import EncodedRecords, commit_records, newest_schema
from .create import take_out
from .expression_index import followed_expressions
from .index_logs import IndexLogs, RecordedKeys, StagedKeys, cannot_hold, index_file_groups, stage_index_logs
from .measure import Measure, Measured, index_records
from .read import cannot_widen, value_type
from .record_index import followed_indexes, missing_entries, upkeep_of
from .records.entries import PARTITION_STATS as PARTITION_STATS_TYPE
from .records.entries import encoder, entry_keys, file_groups_of
from .records.keys import (
    BLOOM_FILTERS,
    EXPRESSION_INDEX,
    FILES,
    RECORD_INDEX,
    RowIndex,
    RowsChange,
    Sizes,
    Upkeep,
    being_built,
    files_of,
    files_records,
    removed_records,
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
    unknown. `replaced`: file groups that it replaces. `same_rows`: see `upkeep`."""

    instant: str
    files: Sizes
    moves_rows: bool
    schema_text: str | None
    measured: Measured = field(default_factory=dict)
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    removed_partitions: Collection[str] = frozenset()
    keys: RecordedKeys | str = NOT_FOLLOWED
    replaced: frozenset[GroupKey] = frozenset()
    same_rows: bool = False

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
            replaced=metadata.replaced_groups,
            same_rows=metadata.operation_type == CLUSTER,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The update of the metadata table. `upkeep`, `measure`: the partitions and columns that it was prepared for.
    `dropped`: partitions that are removed, also if a file lacks the content that they need. `logs`: the log files of
    indexes of rows that are kept, by partition, if their entries change. `completed`: what was, if a secondary index is
    kept; None: none is."""

    upkeep: Upkeep
    measure: Measure | None
    dropped: tuple[str, ...]
    records: EncodedRecords
    schema_text: str
    logs: Mapping[str, IndexLogs] = field(default_factory=dict)
    completed: frozenset[tuple[str, str]] | None = None


def with_index_logs(table: Table, instant: str, keys: RecordedKeys) -> RecordedKeys:
    """Keys whose log files are made already: outside of the lock. May be repeated."""
    return replace(keys, made=stage_index_logs(table, instant, keys, newest_schema(open_metadata_table(table))))


def prepare(table: Table, change: Change) -> Update | None:
    """The update for a change; None if the metadata table is off. Errors: see `check_keepable`, storage."""
    if not table.config.metadata_partitions:
        return None
    wanted, followed = _wanted(table, change)
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
        types, unheld = defaultdict[str, dict[str, str | None]](dict), set[str]()
        for partition, keyed in indexed:
            if keyed is None:
                unheld.add(partition)
                continue
            records[partition].append(encode(keyed))
            if keyed[1]["type"] == PARTITION_STATS_TYPE:
                types[partition][keyed[0]] = value_type(keyed[1])
        columns = {one.partition: one.column for one in (() if measure is None else measure.expressions)}
        # Hudi's readers fail when they merge bounds of two types.
        unheld |= {name for name, of in types.items() if cannot_widen(table, name, of, columns.get(name, ""))}
        for partition in unheld:
            records.pop(partition, None)
        dropped = (*dropped, *sorted(unheld))
        names = (parse_data_file(name) for names in change.files.values() for name in names)
        base_files = sum(isinstance(name, BaseFileName) for name in names)
        if BLOOM_FILTERS in wanted.kept and len(records[BLOOM_FILTERS]) < base_files:
            del records[BLOOM_FILTERS]  # Hudi's lookup fails on a file without a filter
            if BLOOM_FILTERS in table.config.building_metadata_partitions:
                raise being_built(BLOOM_FILTERS, table.storage.base_path)
            dropped = (*dropped, BLOOM_FILTERS)
    logs, keys, completed = dict[str, IndexLogs](), change.keys, None
    if RECORD_INDEX in wanted.kept and isinstance(keys, RecordedKeys) and keys.ordered:
        index = keys.made
        if index is None or not _fits(table, {RECORD_INDEX: index}):
            index = stage_index_logs(table, change.instant, keys, schema_text)
        logs[RECORD_INDEX] = index
    if secondary := [one for name, one in followed.items() if one is not None and name in wanted.kept]:
        completed = _completed(table)
        for name, changed in _changed_entries(table, change, secondary).items():
            if changed is None:
                dropped = (*dropped, name)
            elif any(one.count for one in changed.ordered):
                logs[name] = stage_index_logs(table, change.instant, changed, schema_text)
    return Update(
        upkeep=wanted,
        measure=measure,
        dropped=dropped,
        records=records,
        schema_text=schema_text,
        logs=logs,
        completed=completed,
    )


def apply_update(table: Table, change: Change, prepared: Update | None) -> None:
    """Records a change in the metadata table; `table`: of a section (`exclusive`). First removes indexes that cannot be
    kept. May be repeated: the records of an earlier attempt are removed. An update `prepared` for other partitions or
    other columns with statistics than the current ones is prepared again. LockError: the lock was lost."""
    if not table.config.metadata_partitions:
        return
    update = prepared
    now = _wanted(table, change)[0], _measure(table, change)
    # What rows were before the write may be different since another one was completed.
    before = None if update is None else update.completed
    is_late = before is not None and before != _completed(table)
    if update is None or is_late or (update.upkeep, update.measure) != now or not _fits(table, update.logs):
        update = prepare(table, change)
    assert update is not None
    if update.dropped:
        why = _why(table, change, update.dropped)
        take_out(table, update.dropped)
        _log.warning(
            "indexes_dropped",
            table=table.storage.base_path,
            instant=change.instant,
            indexes=update.dropped,
            why=why,
            todo="The metadata service, or `compactor-daemon metadata TABLE --create`, builds secondary indexes again "
            "where `check` does not say why not, with --indexes those of expressions; a Hudi writer that has them "
            "enabled the others.",
        )
    logs = [log for of in update.logs.values() for log in of.logs]
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


def _wanted(table: Table, change: Change) -> tuple[Upkeep, Mapping[str, RowIndex | None]]:
    """What a change means for each partition, and the secondary indexes that can be kept up to date."""
    followed = _followed(table, change)
    of_rows = RowsChange(
        moves_rows=change.moves_rows, knows_keys=change.knows_keys, same_rows=change.same_rows, followed=followed
    )
    return upkeep_of(table, of_rows), followed


def _fits(table: Table, logs: Mapping[str, IndexLogs]) -> bool:
    """Whether indexes have the file groups for which log files were made."""
    return all(index.file_ids == index_file_groups(table, name) for name, index in logs.items())


def _measure(table: Table, change: Change) -> Measure | None:
    return None if change.schema_text is None else Measure.of(table, table.schema(change.schema_text))


# Secondary indexes. As in Hudi, the rows of each file group that a write touches are compared with those before it.


def _completed(table: Table) -> frozenset[tuple[str, str]]:
    """What may have changed the value of a key: no compaction."""
    return frozenset(i.identity for i in table.load_timeline().completed if i.family != "commit")


def _followed(table: Table, change: Change) -> dict[str, RowIndex | None]:
    """The secondary indexes whose entries before and after a write can be made: of a column whose type stays; None for
    an expression index that stays exact."""
    names = [name for name in table.config.built_metadata_partitions if name.startswith(EXPRESSION_INDEX)]
    if change.schema_text is None:
        return dict.fromkeys(names)  # no file comes
    if not names and (change.same_rows or not change.knows_keys):
        return {}
    after = table.schema(change.schema_text)
    said = followed_expressions(table, after)
    if change.same_rows or not change.knows_keys:
        return dict.fromkeys(said)
    found = followed_indexes(table)
    types = dict(zip(after.arrow.names, after.arrow.types, strict=True)) if found else {}
    rows = {name: index for name, (index, type_) in found.items() if types.get(index.column) == type_}
    return {**dict.fromkeys(said), **rows}


def _changed_entries(table: Table, change: Change, indexes: Sequence[RowIndex]) -> dict[str, RecordedKeys | None]:
    """The entries that come and go, staged, by index; None: an index cannot hold one, or the slices cannot be merged.
    Memory: entries of a part of a file group, twice."""
    keys, none, unheld = change.keys, ("", ""), set[str]()
    assert isinstance(keys, RecordedKeys)
    with ExitStack() as stack:

        def staged() -> StagedKeys:
            path = f"{keys.folder}/{uuid.uuid4().hex}{STAGED_INDEX}"
            return stack.enter_context(StagedKeys(table.storage, path))

        files = {one.partition: (staged(), staged()) for one in indexes}
        try:
            for number, come, gone in _differences(table, change, keys.memory_limit, indexes):
                name = indexes[number].partition
                files[name][0].add(come)
                files[name][1].add(gone, gone=True)
                if cannot_hold(come):
                    unheld.add(name)
        except (UnsupportedError, MalformedError) as error:
            _log.warning("rows_not_compared", table=table.storage.base_path, error=str(error))
            unheld.update(files)
    return {
        one.partition: None
        if one.partition in unheld
        else replace(keys, files=(added.done(none),), replaced=(gone.done(none),), made=None, index=one)
        for one, (added, gone) in zip(indexes, files.values(), strict=True)
    }


def _differences(
    table: Table, change: Change, memory_limit: int, indexes: Sequence[RowIndex]
) -> Iterator[tuple[int, pa.StringArray, pa.StringArray]]:
    """Entries that come, and that go, for the number of an index: some at a time."""
    assert change.schema_text is not None
    seen, written = table.with_timeline(table.load_timeline()), table.schema(change.schema_text)
    now, others = seen.next_time(), [i for i in seen.timeline.instants if i.requested_time != change.instant]
    mine = [replace(i, state=State.COMPLETED, completion_time=now) for i in seen.timeline.at(change.instant)]
    instants = sorted([*others, *mine], key=lambda i: i.requested_time)
    done = table.with_timeline(replace(seen.timeline, instants=tuple(instants)))
    names = ((partition, parse_data_file(name)) for partition, of in change.files.items() for name in of)
    touched = {(partition, name.file_id) for partition, name in names if name is not None}
    groups = sorted(touched | change.replaced)
    schema = seen.newest_schema() if seen.timeline.completed_writes else written
    before, after = (
        (_slices(of, seen, groups), replace(slice_rules(of, by), memory_bytes=memory_limit))
        for of, by in ((seen, schema), (done, written))
    )
    same_types = schema.file_text == written.file_text
    for group in groups:
        old, new = before[0].get(group), after[0].get(group) if group in touched else None
        keys = _keys_of_logs(table.storage, old, new, after[1]) if same_types else None
        sides = [side for side in (old, new) if side is not None]
        size = sum(file.size for side in sides for file in (side.files if keys is None else side.logs))
        parts = 1 + _SHARE * size // memory_limit
        pending = [(part, parts) for part in range(parts)]
        while pending:
            part = pending.pop()
            lost = _entries(table.storage, old, before[1], indexes, part, keys)
            come = None if lost is None else _entries(table.storage, new, after[1], indexes, part, keys)
            if lost is None or come is None:
                pending += [(part[0], 2 * part[1]), (sum(part), 2 * part[1])]
                continue
            for number, (a, b) in enumerate(zip(lost, come, strict=True)):
                yield number, _without(b, a), _without(a, b)


def _without(some: pa.StringArray, others: pa.StringArray) -> pa.StringArray:
    return some.filter(pc.invert(pc.is_in(some, value_set=others)))


_SHARE = 4
"""Entries of a file group may well take this many times the bytes of its files. Parts with more are halved: a file may
hold a value of many rows once."""
_PARTS_MAX = 1 << 12
"""Each part reads the file group again."""


def _slices(of: Snapshot, seen: Snapshot, groups: Collection[GroupKey]) -> dict[GroupKey, FileSlice]:
    """What a reader of a state merges, in the partitions of these file groups. `seen`: before the write: no file group
    that the write replaces is replaced."""
    facts, found = seen.load_facts(), dict[GroupKey, FileSlice]()
    for partition in sorted({partition for partition, _ in groups}):
        own = of.views.partition_groups(partition, of.timeline, facts)
        found |= {s.key: s for s in TableView(timeline=of.timeline, facts=facts, groups=own).slices()}
    for group in groups:
        if group in found:
            found[group].check_whole(of.storage.base_path)
    return found


def _keys_of_logs(
    storage: Storage, old: FileSlice | None, new: FileSlice | None, rules: SliceRules
) -> KeyLookup | None:
    """The keys of the logs of a slice to which a write added some: other rows are the same before and after it. None:
    the slice has another base file, or the keys do not fit into memory."""
    if old is None or new is None or old.base != new.base or not {*old.logs} <= {*new.logs}:
        return None
    with ExitStack() as stack:
        found, _ = read_logs(storage, new, rules, project(rules.schema, rules.keys.fields), stack)
        return None if isinstance(found, LogSpill) else KeyLookup(found.keys)


def _entries(
    storage: Storage,
    slice_: FileSlice | None,
    rules: SliceRules,
    indexes: Sequence[RowIndex],
    part: tuple[int, int],
    keys: KeyLookup | None,
) -> list[pa.StringArray] | None:
    """The keys of the entries of a slice's rows, for each index. `part`: its number, and how many there are. `keys`:
    those of the rows that count; None: all. None: they do not fit into memory, those of a smaller part may."""
    held, size, rows = [list[pa.Array]() for _ in indexes], 0, 0
    columns = list(dict.fromkeys((RECORD_KEY, *(one.column for one in indexes))))
    for batch in () if slice_ is None else SliceStream(storage, slice_, rules, columns).batches():
        if keys is not None:
            batch = batch.filter(pa.array(keys.find(batch.column(RECORD_KEY)) >= 0))
        if part[1] > 1:
            batch = batch.filter(
                pa.array(file_groups_of(RowIndex(), flat(batch.column(RECORD_KEY)), part[1]) == part[0])
            )
        for index, own in zip(indexes, held, strict=True):
            own.append(flat(entry_keys(index, batch.column(RECORD_KEY), batch.column(index.column))))
            size += own[-1].nbytes
        rows += batch.num_rows
        if size > rules.fold_bytes and rows > 1 and part[1] < _PARTS_MAX:
            return None
    return [flat(pa.chunked_array(own, pa.string())) for own in held]
