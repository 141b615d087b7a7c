"""What a metadata table says about a state of its table, and log files that lead from one state to the next.

A state is what readers see: the files of completed writes, as the file-system view shows them, with their sizes, and
the newest slice of each file group. The log files are staged; each is one file group's, and memory holds the records of
one block of each. The first difference, from the empty state, is all of the table. A later one holds what completed
since, like the delta commits of the writes themselves: files that are there now, and files that are gone.

    files              the names of each partition that changed
    column_stats, bloom_filters   new and larger files; entries of files that are gone stay, and no reader asks for them
    partition_stats    the ranges of new files: bounds are widened, never narrowed, as Hudi's writers do
    expr_index_*       both of the last two, of the values of an expression
    indexes of rows    no log file: the keys of each slice are staged, and their base files are made of those of the
                       last state

The record index says one place for each key, a secondary index one value. That no key has two rows is counted over all
rows first, then over the keys that came and went: a key that comes while another group still has it is an error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import IO, TypeAlias
from uuid import uuid4

import numpy as np

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import Hashes
from phantombase.timeline.codec.row_hash import hash_keys
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.format.file_name import BaseFileName, parse_data_file
from phantombase.timeline.format.log_block import scan_blocks
from phantombase.timeline.format.log_encode import hfile_block
from phantombase.timeline.format.record_key import refuse_buckets
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_stream import SliceStream
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.index_logs import (
    FileKeys,
    IndexLog,
    RecordedKeys,
    StagedKeys,
    cannot_hold,
    opened_keys,
    read_keys,
    stage_index_bases,
)
from phantombase.timeline.metadata_table.measure import KeyedRecord, Measure, index_records
from phantombase.timeline.metadata_table.records.entries import (
    MetadataEntry,
    block_entries,
    encode_base,
    encoder,
    entry_keys,
    fold,
    merge,
)
from phantombase.timeline.metadata_table.records.hfile import encode_hfile
from phantombase.timeline.metadata_table.records.keys import (
    BLOOM_FILTERS,
    FILES,
    MetadataRecord,
    RowIndex,
    Sizes,
    file_group_index,
    files_records,
    refuse_unordered,
    removed_records,
)
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.terminal.text_table import plural
from phantombase.timeline.view.view import FileSlice

from ..clustering.rows_in import KeyTally
from .runs import FILES_AT_ONCE, ListedState, SliceKeys, grown

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is done, how much of it is done, and how much there is."""
_STAGED = ".index"
_SHARE = 8
"""Encoded records may take this part of the memory limit: Python's own bytes, and the copy in the HFile, come to it."""
_RECORD_BYTES = 200


@dataclass(slots=True, kw_only=True)
class Filling:
    """How partitions of the metadata table are filled. `file_ids`: of each partition. `schema_text`: of its records.
    `folder`: where log files are staged. `memory_limit`: bytes, approximately. `indexes`: of rows. `keys`: of their
    entries and the last state, and record keys in any case; `tally`: of these, once a state was whole; `stack`: its."""

    file_ids: Mapping[str, Sequence[str]]
    schema_text: str
    folder: str
    memory_limit: int
    indexes: tuple[RowIndex, ...] = ()
    keys: SliceKeys = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)
    tally: KeyTally | None = None

    def stage(
        self,
        table: Snapshot,
        instant: str,
        states: tuple[ListedState, ListedState],
        measure: Measure | None,
        progress: Progress,
        *,
        is_whole: bool = True,
    ) -> tuple[IndexLog, ...]:
        """Stages the log files of the delta commit at `instant` that leads from the first state to the second one.
        `is_whole`: that is all of the table, no step on the way. UnsupportedError: a base file has no bloom filter, or
        an expression index cannot hold a value."""
        before, after = states
        refuse_unordered(after.files, table.storage.base_path)
        with _Blocks(table.storage, instant, self) as blocks:
            added = grown(before.files, after.files)
            if FILES in self.file_ids:
                for keyed in _listed(added, before.files, after.files):
                    blocks.add(FILES, keyed)
            wanted = self.file_ids.keys() - {FILES, *(one.partition for one in self.indexes)}
            done, total = 0, sum(map(len, added.values()))
            for part in _parts(added) if wanted else ():
                filters = 0
                for partition, found in index_records(table, part, instant, measure, wanted, {}):
                    if found is None:
                        what = f"{partition} cannot hold the values of a file: Hudi could not find its rows"
                        todo = "Build other indexes, or this one with Hudi: CREATE INDEX."
                        raise UnsupportedError(what, path=table.storage.base_path, todo=todo)
                    blocks.add(partition, found)
                    filters += partition == BLOOM_FILTERS
                if BLOOM_FILTERS in wanted:
                    _check_filters(table, part, filters)
                done += sum(map(len, part.values()))
                progress("measured files", done, total)
            blocks.write()
        if self.indexes:
            self._stage_index(table, states, progress, is_whole=is_whole)
        return blocks.logs()

    def _stage_index(
        self, table: Snapshot, states: tuple[ListedState, ListedState], progress: Progress, *, is_whole: bool
    ) -> None:
        """Stages the keys of the slices that changed. UnsupportedError: an index cannot hold them. ConflictError: keys
        moved."""
        before, after = states
        if any(one.column for one in self.indexes):
            what = "a bucket-indexed table cannot have a secondary index: the next write of Hudi would fail"
            todo = "Build other indexes: --indexes without secondary_index_NAME."
            refuse_buckets([file_id for _, file_id in after.marks], what, table.storage.base_path, todo)
        changed = before.changed(after)
        kept = {of: one for of, one in self.keys.items() if before.marks.get(of[1]) == after.marks.get(of[1])}
        old = _record_keys({of: one for of, one in self.keys.items() if of not in kept})
        seen = table.newest_schema() if changed else None
        rules = None if seen is None else replace(slice_rules(table, seen), memory_bytes=self.memory_limit)
        new: SliceKeys = {}
        for number, key in enumerate(changed, start=1):
            assert rules is not None
            new |= self._stage_keys(table, after.slices[key], rules)
            progress("read the keys of file groups", number, len(changed))
        if is_whole:
            self._check_unique(table, old, new, kept)
        # Only now: from a state that a writer or cleaner changed meanwhile nothing stays: all is read again.
        self.keys.clear()
        self.keys.update(kept | new)

    def stage_base_files(self, table: Table, logs: Iterable[IndexLog]) -> dict[tuple[str, str], IndexLog]:
        """Stages the base file of each file group: of its staged log files, in their order; of an index of rows, of the
        keys of the last state. Memory: entries of a base file; for an index of rows, see `stage_index_bases`."""
        found = _of_logs(table.storage, logs, self.schema_text, self.folder)
        for index in self.indexes:
            own = tuple(one for of, one in self.keys.items() if of[0] == index.partition)
            keys = RecordedKeys(files=own, memory_limit=self.memory_limit, folder=self.folder, index=index)
            for base, content in stage_index_bases(table, keys, self.schema_text, self.file_ids[index.partition]):
                table.storage.put_if_absent(base.path, content)
                found[base.partition, base.file_id] = base
        return found

    def _stage_keys(self, table: Snapshot, slice_: FileSlice, rules: SliceRules) -> SliceKeys:
        """The keys of the rows of a slice. Their entries name a completed write: Hudi believes no others."""
        times = {file.name.instant for file in slice_.files}
        written = max(
            (t for t in times if table.timeline.is_committed(t)), default=min(table.timeline.completed_writes)
        )

        indexes = tuple(dict.fromkeys((_KEYS, *self.indexes)))
        columns = dict.fromkeys((RECORD_KEY, *(one.column for one in indexes if one.column)))
        with ExitStack() as stack:
            paths = [f"{self.folder}/{uuid4().hex}{_STAGED}" for _ in indexes]
            staged = [stack.enter_context(StagedKeys(table.storage, path)) for path in paths]
            for batch in SliceStream(table.storage, slice_, rules, list(columns)).batches():
                for index, file in zip(indexes, staged, strict=True):
                    keys = batch.column(RECORD_KEY)
                    keys = entry_keys(index, keys, batch.column(index.column)) if index.column else keys
                    if why := cannot_hold(keys):
                        what = f"{index.partition} cannot hold the keys: {why}"
                        raise UnsupportedError(what, path=slice_.files[0].path)
                    file.add(keys)
        moment = table.times.milliseconds(written)
        files = (replace(file.done(slice_.key), written_ms=moment) for file in staged)
        return {(index.partition, slice_.key): one for index, one in zip(indexes, files, strict=True)}

    def _check_unique(self, table: Snapshot, old: Sequence[FileKeys], new: SliceKeys, kept: SliceKeys) -> None:
        if self.tally is None:
            tally = KeyTally(self.stack, self.memory_limit // 4, None)
            for one in _record_keys(kept | new):
                for keys, _ in read_keys(opened_keys(table.storage, one.path), one.path):
                    tally.add(hash_keys(keys, _SEED))
            self.tally, old = tally, ()
        else:
            lost, come = (_hashed(table.storage, of) for of in (old, _record_keys(new)))
            self.tally.add(np.setdiff1d(come, lost))
            self.tally.add(come[:0] if len(np.unique(come)) == len(come) else np.repeat(come[:1], 2))
        if repeated := self.tally.repeated():
            what = "an index of rows cannot be built: keys are in two file groups"
            if old:
                todo = "They may have moved while it was built. Run again, while less is written."
                raise ConflictError(what, path=table.storage.base_path, found=plural(repeated, "row"), todo=todo)
            todo = "Run with --create, and --indexes without record_index: such a table cannot have an index of rows."
            raise UnsupportedError(what, path=table.storage.base_path, found=plural(repeated, "row"), todo=todo)


_SEED = 47
_KEYS = RowIndex()


def _record_keys(of: SliceKeys) -> list[FileKeys]:
    return [one for (partition, _), one in of.items() if partition == _KEYS.partition]


def _hashed(storage: Storage, of: Sequence[FileKeys]) -> Hashes:
    read = (read_keys(opened_keys(storage, one.path), one.path) for one in of)
    return np.concatenate([np.empty(0, np.uint64), *(hash_keys(keys, _SEED) for one in read for keys, _ in one)])


def _of_logs(
    storage: Storage, logs: Iterable[IndexLog], schema_text: str, folder: str
) -> dict[tuple[str, str], IndexLog]:
    of_group = defaultdict[tuple[str, str], list[IndexLog]](list)
    for log in logs:
        of_group[log.partition, log.file_id].append(log)
    found, encoded = dict[tuple[str, str], IndexLog](), encoder(schema_text)
    for group, own in sorted(of_group.items()):
        merged = merge((), fold(entry for log in own for entry in _entries(storage, log.path)))
        content = encode_base(map(encoded, merged), schema_text)
        path = f"{folder}/{uuid4().hex}{_STAGED}"
        storage.put_if_absent(path, content.data)
        found[group] = replace(own[0], path=path, size=len(content.data), entries=content.count)
    return {group: base for group, base in found.items() if base.entries}


def _entries(storage: Storage, path: str) -> Iterator[MetadataEntry]:
    with storage.open_input(path) as source:
        for block in scan_blocks(source, path):
            yield from block_entries(block, source)


def _listed(added: Sizes, before: Sizes, after: Sizes) -> Iterator[KeyedRecord]:
    """The records of `files`, one for each key."""
    removed = {p: sorted(names.keys() - after.get(p, {}).keys()) for p, names in before.items()}
    found = dict[str, MetadataRecord](files_records(added)) if added else {}
    for key, record in removed_records(removed, before.keys() - after.keys()):
        named = {**found.get(key, record)["filesystemMetadata"], **record["filesystemMetadata"]}
        found[key] = {**record, "filesystemMetadata": named}
    yield from found.items()


def _parts(added: Sizes) -> Iterator[Sizes]:
    """The files, some whole partitions at a time: the ranges of a partition are one record."""
    part, size = dict[str, Mapping[str, int]](), 0
    for partition, names in added.items():
        part[partition], size = names, size + len(names)
        if size >= FILES_AT_ONCE:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _check_filters(table: Snapshot, part: Sizes, filters: int) -> None:
    names = [(p, n) for p, of in part.items() for n in of if isinstance(parse_data_file(n), BaseFileName)]
    if filters < len(names):
        raise UnsupportedError(
            f"{len(names) - filters} of {len(names)} base files have no bloom filter, so Hudi's look-ups would fail",
            path=f"{table.storage.base_path}/{names[0][0]}",
            todo="Run with --create, and --indexes without bloom_filters.",
        )


class _Blocks(ExitStack):
    """The log files of one delta commit while they are written, block by block."""

    def __init__(self, storage: Storage, instant: str, filling: Filling) -> None:
        super().__init__()
        self._storage, self._instant, self._filling = storage, instant, filling
        self._encode = encoder(filling.schema_text)
        self._held = defaultdict[tuple[str, int], list[tuple[bytes, bytes]]](list)
        self._bytes = 0
        self._open: dict[tuple[str, int], tuple[str, IO[bytes]]] = {}
        self._entries = defaultdict[tuple[str, int], int](int)

    def add(self, partition: str, keyed: KeyedRecord) -> None:
        """Adds a record; each key once."""
        key, value = self._encode(keyed)
        group = file_group_index(key, len(self._filling.file_ids[partition]))
        self._held[partition, group].append((key.encode(), value))
        self._bytes += len(key) + len(value) + _RECORD_BYTES
        if self._bytes >= self._filling.memory_limit // _SHARE:
            self.write()

    def write(self) -> None:
        """Writes the blocks of what is held."""
        schema = self._filling.schema_text
        for place, entries in sorted(self._held.items()):
            if place not in self._open:
                path = f"{self._filling.folder}/{uuid4().hex}{_STAGED}"
                self._open[place] = path, self.enter_context(staged_output(self._storage, path))
            content = encode_hfile(sorted(entries), {"schema": schema.encode()})
            self._open[place][1].writelines(hfile_block(content, instant=self._instant, schema_text=schema))
            self._entries[place] += len(entries)
        self._held.clear()
        self._bytes = 0

    def logs(self) -> tuple[IndexLog, ...]:
        """The written log files, after they were closed."""
        found = []
        for (partition, group), (path, _) in sorted(self._open.items()):
            entry = self._storage.find(path)
            size, file_id = entry.size if entry else 0, self._filling.file_ids[partition][group]
            log = IndexLog(
                partition=partition, file_id=file_id, path=path, size=size, entries=self._entries[partition, group]
            )
            found.append(log)
        return tuple(found)
