"""Stages the files of a write, under names that readers ignore; and the data that its tasks need (`WriteWork`).

Only files that the driver later places become part of the table: a retried or speculative task leaves nothing in it."""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import repeat, takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import (
    COMMIT_SEQNO,
    COMMIT_TIME,
    FILE_NAME,
    META_COLUMNS,
    PARTITION_PATH,
    RECORD_KEY,
)
from phantombase.timeline.codec.columns import Ordering, flat
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_write import write_base_file
from phantombase.timeline.errors import ClusteringConflictError, UnsupportedError
from phantombase.timeline.format.file_name import WRITER, BaseFileName, LogFileName
from phantombase.timeline.format.log_deletes import Deletes
from phantombase.timeline.format.log_encode import (
    BLOCK_BYTES,
    BaseRows,
    LogFormat,
    data_block,
    delete_block,
    split_rows,
)
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.merge.log_fold import LogFold
from phantombase.timeline.merge.rule import HUDI_0X, Keyed, MergeRule, SliceRules
from phantombase.timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from phantombase.timeline.metadata_table.index_logs import FileKeys, stage_keys
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.table.table import Table, TableSchema
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, ViewFacts, is_replaced, latest_slice

from ..merge_into import DELETE, MergeInto
from .stored_keys import KEY_FIELD, NOT_NOTED, KeyNotes


@dataclass(frozen=True, kw_only=True)
class WriteWork:
    """One write at `instant`, on the table as it was when the write began. `clustering`: file groups of pending
    clusterings, to which no write is allowed. `combine`: of several rows of a key keep one, by the merge rule.
    `deletes`: the rows are keys to delete. `file_bytes`: the size after which a new base file ends and the next one
    begins. `measure`: see `Measure`, None if the metadata table has no statistics. `replaced`: file groups that the
    write replaces, so that it puts no row into them. `into`: see `Write`. `notes_keys`: the table has a record index,
    which needs the keys that each file adds and deletes. `notes_updates`: also those that are updated. Under a bucket
    index they may be new; and a key that two partitions hold may leave one."""

    table: Table
    timeline: Timeline
    facts: ViewFacts
    clustering: frozenset[GroupKey]
    instant: str
    schema: TableSchema
    rules: SliceRules
    output: OutputOptions
    log_format: LogFormat
    combine: bool
    deletes: bool
    file_bytes: int
    measure: Measure | None = None
    replaced: frozenset[GroupKey] = frozenset()
    into: MergeInto | None = None
    notes_keys: bool = False
    notes_updates: bool = False

    @property
    def merge(self) -> MergeRule:
        """The rule among the rows of the write: 0.15 compares their decimals as numbers, unlike those in logs."""
        return replace(self.rules.merge, of_batch=True)

    @property
    def data_schema(self) -> pa.Schema:
        return pa.schema([f for f in self.schema.arrow if f.name not in META_COLUMNS])

    @property
    def row_schema(self) -> pa.Schema:
        """The columns sent to the tasks that write files: the record key and, unless deleting, the table's own. The
        rows of an update of some columns may lack some of these."""
        own = self.data_schema
        own = own if self.into is None else self.into.row_schema(own, self.table.config)
        return pa.schema([KEY_FIELD] if self.deletes else [KEY_FIELD, *own])

    @property
    def inserts(self) -> bool:
        """Whether rows of keys that the table does not have become rows of the table."""
        return not self.deletes and (self.into is None or self.into.inserts)

    def are_leaving(self, rows: pa.Table) -> bool:
        """Whether these rows of a write are keys that it moves to other partitions (`place_keys`)."""
        return not self.deletes and rows.column_names == [RECORD_KEY]

    def groups(self, partition: str) -> list[FileGroup]:
        """The partition's file groups that hold data, or should, and were not replaced."""
        found = self.table.views.partition_groups(partition, self.timeline, self.facts)
        return [g for g in found if g.slices and not is_replaced(g, self.facts)]

    def appended(self, group: FileGroup) -> FileSlice:
        """The slice to which a log file of the group is added. With change data capture it has all files that a reader
        merges; with a pending plan also those below the plan: Hudi's CDC query finds the rows before the write in the
        files that its statistics name. UnsupportedError: none of these is a base file, without which that query
        fails."""
        last = group.slices[-1]
        if not self.table.config.captures_changes:
            return last
        merged = latest_slice(group)
        if merged is None or merged.base is None:
            raise without_base(group.key, self.instant)
        return replace(merged, base_instant=last.base_instant)

    def refuse_unchangeable(self, group: FileGroup) -> None:
        """ClusteringConflictError: a clustering of it is pending. MissingFileError, MalformedError: it has a flaw."""
        for slice_ in group.slices:
            slice_.check_whole(self.table.storage.base_path)
        if group.key in self.clustering:
            raise ClusteringConflictError(
                "a pending clustering holds a file group this write would change",
                path="/".join(group.key),
                instant=self.instant,
                todo="Wait until the clustering has finished (clustering_wait_s=), or cancel it, then write again.",
            )

    def fold(self) -> LogFold:
        return LogFold(self.merge, self.row_schema)

    def add(self, fold: LogFold, rows: pa.Table) -> None:
        """Adds rows of the batch, or keys to delete, to a fold, in order."""
        keys = flat(rows.column(RECORD_KEY))
        if self.deletes or self.are_leaving(rows):
            fold.add_deletes(Deletes(keys=keys, ordering=(), natural=pa.repeat(True, len(keys))))
        else:
            fold.add_rows(self.keyed(rows))

    def keyed(self, rows: pa.Table, stored_in: str | None = None) -> Keyed:
        """Rows with what merging needs; marked ones delete. `stored_in`: the file of the rows, None: of the write."""
        keys = flat(rows.column(RECORD_KEY)) if stored_in is None else self.rules.keys.keys(rows, stored_in)
        rule = replace(self.merge, marker=self.table.config.merge_settings.marker)
        keyed = Keyed.of(rows, keys, self.rules.ordering_fields, rows.column_names, rule)
        if self.into is None or self.into.delete is None or DELETE not in rows.column_names:
            return keyed
        named = np.asarray(pc.fill_null(rows.column(DELETE), False).to_numpy(), np.bool_)
        return replace(keyed, deleted=named if keyed.deleted is None else named | keyed.deleted)


def without_base(key: GroupKey, instant: str) -> UnsupportedError:
    """A file group of log files only, in a table with change data capture."""
    return UnsupportedError(
        "Hudi's CDC query cannot read what changes a file group without a base file",
        path="/".join(key),
        instant=instant,
        expected="a base file",
        found="log files only",
        todo="Nothing of this write is visible. Compact the table, then write again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts for a file: the rows written in all, and the batch's keys inserted, updated and deleted. `counted`: False
    where some that count as updated or deleted may not have been there."""

    writes: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The entries of a log for some keys: rows, and keys to delete with ordering values. A delete without ordering
    values deletes all earlier rows. `partial`: the rows are updates of some columns. `changed`, `gone`: the rows of the
    base file that the rows and the deletes change, if the blocks name them; `entries` are the numbers of the rows in
    that order, some of them several times."""

    rows: pa.Table
    deleted: pa.Array
    ordering: Ordering
    partial: bool = False
    entries: pa.Array | None = None
    changed: BaseRows | None = None
    gone: BaseRows | None = None


class FileKind(Enum):
    LOG = "log"
    BASE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile(Counts):
    """One file of a write: sizes in bytes, counts in rows. `base_instant`: of the slice to which the file belongs, None
    for a new file group; `base_file` and `log_files`: names of the files of that slice. `name`: the base file's final
    name; a log file gets its version when it is placed. `ranges`: of the file's columns, if the metadata table has
    statistics. `keys`: for the record index, those that the file adds to its file group or deletes; `keys_unknown`: why
    they are not complete."""

    kind: FileKind
    partition: str
    file_id: str
    base_instant: str | None
    base_file: str | None
    log_files: tuple[str, ...]
    staged: str
    name: str | None
    size: int
    ranges: tuple[ColumnRange, ...] | None = None
    keys: FileKeys | None = None
    keys_unknown: str = ""

    @property
    def key(self) -> GroupKey:
        return self.partition, self.file_id

    def to_json(self) -> bytes:
        """The record as it is sent to the driver."""
        ranges = ranges_to_json(self.ranges)
        return json.dumps({**asdict(replace(self, ranges=None)), "kind": self.kind.value, "ranges": ranges}).encode()

    @staticmethod
    def from_json(data: bytes) -> StagedFile:
        fields = json.loads(data)
        made = {
            "kind": FileKind(fields["kind"]),
            "log_files": tuple(fields["log_files"]),
            "ranges": ranges_from_json(fields["ranges"]),
            "keys": FileKeys.from_json(fields["keys"]),
        }
        return StagedFile(**{**fields, **made})


class Stager:
    """Stages files for one task. `slot`: the task's number, which makes sequence numbers unique."""

    def __init__(self, work: WriteWork, slot: int) -> None:
        self._work = work
        self._slot = slot
        self._numbered = 0

    def log(self, slice_: FileSlice, parts: Iterable[LogPart], notes: KeyNotes, *, counted: bool) -> StagedFile:
        """Stages a log file on a slice: the rows of all parts, then their keys to delete, in Hudi's order."""
        work, deletes = self._work, list[LogPart]()
        head = {"instant": work.instant, "schema_text": work.schema.file_text}
        some = None if work.into is None else work.into.log_schema(work.schema)
        written = 0
        path = self._path(".log")
        with staged_output(work.table.storage, path) as file:
            for part in parts:
                start = 0
                deletes += [replace(part, rows=part.rows.slice(0, 0))] if len(part.deleted) else []
                schema = some if part.partial and some is not None else work.schema
                for full in self._full(part, slice_, schema.arrow):
                    block = data_block(
                        full,
                        instant=work.instant,
                        schema_text=schema.file_text,
                        log_format=work.log_format,
                        codec=work.output.codec.value,
                        partial=part.partial,
                        changed=part.changed and part.changed.slice(start, full.num_rows),
                    )
                    start, written = start + full.num_rows, written + full.num_rows
                    file.writelines(block)
            for part in deletes:
                paths = pa.repeat(pa.scalar(slice_.partition), len(part.deleted))
                old = work.merge.mode in HUDI_0X
                file.writelines(
                    delete_block(part.deleted, paths, part.ordering, hudi_0x=old, changed=part.gone, **head)
                )
        gone = sum(len(part.deleted) for part in deletes)
        counts = Counts(writes=written, updates=written, deletes=gone, counted=counted)
        return self._done(FileKind.LOG, slice_.key, slice_, path, None, counts, notes)

    def _full(self, part: LogPart, slice_: FileSlice, schema: pa.Schema) -> Iterator[pa.Table]:
        """The entries of each block of rows. Those of one row have one sequence number."""
        if part.entries is not None:
            full = self.with_meta_columns(part.rows, slice_.partition, slice_.file_id, schema)
            yield from split_rows(full.take(part.entries), BLOCK_BYTES)
        else:
            for rows in split_rows(part.rows, BLOCK_BYTES):
                yield self.with_meta_columns(rows, slice_.partition, slice_.file_id, schema)

    def base(
        self,
        key: GroupKey,
        tables: Iterator[pa.Table],
        counts: Callable[[int], Counts],
        notes: KeyNotes,
        kept: FileSlice | None = None,
        *,
        until: float = math.inf,
    ) -> StagedFile:
        """Stages a base file of rows that have their meta columns. `counts`: of the number of rows. `kept`: the slice
        that it replaces. `until`: bytes after which no further table is taken from the iterator."""
        work = self._work
        token = f"{self._slot}-{WRITER}-{random.randrange(10**9)}"
        name = str(BaseFileName(file_id=key[1], token=token, instant=work.instant))
        path = self._path(".parquet")
        with staged_output(work.table.storage, path) as file:
            full = takewhile(lambda _: file.tell() < until, repeat(None))
            rows = write_base_file(
                file,
                (batch for _, table in zip(full, tables, strict=False) for batch in table.to_batches()),
                name=name,
                schema=work.schema.arrow,
                schema_text=work.schema.file_text,
                key_column=RECORD_KEY if work.table.config.populate_meta_fields else None,
                output=work.output,
            )
        return self._done(FileKind.BASE, key, kept, path, name, counts(rows), notes)

    def with_meta_columns(
        self, rows: pa.Table, partition: str, file_name: str, schema: pa.Schema | None = None
    ) -> pa.Table:
        """Brings rows, which have a record key column, into the table's schema, with Hudi's five meta columns first. A
        table with virtual keys has none of them, nor the key column. In a keyless table a row's key is its sequence
        number, as with Hudi: no other row of the table has it, since the driver places the file of only one try of a
        task. `schema`: another one than the table's, with some of its columns."""
        count = rows.num_rows
        numbers = pa.array(np.arange(self._numbered, self._numbered + count)).cast(pa.string())
        self._numbered += count
        instant = self._work.instant
        meta = {
            COMMIT_TIME: pa.repeat(pa.scalar(instant), count),
            COMMIT_SEQNO: pc.binary_join_element_wise(f"{instant}_{self._slot}", numbers, "_"),
            PARTITION_PATH: pa.repeat(pa.scalar(partition), count),
            FILE_NAME: pa.repeat(pa.scalar(file_name), count),
        }
        if self._work.table.config.is_keyless:
            meta[RECORD_KEY] = meta[COMMIT_SEQNO]
        schema = schema or self._work.schema.arrow
        columns = [meta[f.name] if f.name in meta else rows.column(f.name) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def _path(self, suffix: str) -> str:
        return f"{staged_folder(self._work.instant)}/{uuid.uuid4().hex}{suffix}"

    def _done(
        self,
        kind: FileKind,
        key: GroupKey,
        slice_: FileSlice | None,
        path: str,
        name: str | None,
        counts: Counts,
        notes: KeyNotes,
    ) -> StagedFile:
        storage, measure = self._work.table.storage, self._work.measure
        notes.check()
        entry = storage.find(path)
        partition, file_id = key
        log = LogFileName(file_id=file_id, instant=self._work.instant, version=1)
        return StagedFile(
            kind=kind,
            partition=partition,
            file_id=file_id,
            base_instant=slice_.base_instant if slice_ else None,
            base_file=str(slice_.base.name) if slice_ and slice_.base else None,
            log_files=tuple(str(log.name) for log in slice_.logs) if slice_ else (),
            staged=path,
            name=name,
            size=entry.size if entry else 0,
            ranges=measure.file(storage, path, name or str(log)) if measure is not None else None,
            keys=self._keys(key, notes),
            keys_unknown=notes.unknown if self._work.notes_keys else NOT_NOTED,
            **asdict(counts),
        )

    def _keys(self, key: GroupKey, notes: KeyNotes) -> FileKeys | None:
        """The staged keys of the file, if the table has a record index and there are any."""
        if not self._work.notes_keys or notes.unknown or not notes:
            return None
        return stage_keys(self._work.table.storage, key, self._path(".keys"), notes.added, notes.deleted)
