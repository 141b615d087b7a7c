"""Stages the files of a write, under names that readers ignore.

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

from phantombase.timeline.codec.avro_schema import COMMIT_SEQNO, COMMIT_TIME, FILE_NAME, PARTITION_PATH, RECORD_KEY
from phantombase.timeline.codec.columns import Ordering
from phantombase.timeline.codec.parquet_write import write_base_file
from phantombase.timeline.format.file_name import WRITER, BaseFileName, LogFileName
from phantombase.timeline.format.log_encode import BLOCK_BYTES, data_block, delete_block, split_rows
from phantombase.timeline.merge.rule import HUDI_0X
from phantombase.timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from phantombase.timeline.metadata_table.index_logs import FileKeys, stage_keys
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice, GroupKey

from .stored_keys import NOT_NOTED, KeyNotes
from .task_context import WriteWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts for a file: the rows written in all, and the batch's keys inserted, updated and deleted."""

    writes: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The entries of a log for some keys: rows, and keys to delete with ordering values. A delete without ordering
    values deletes all earlier rows. `partial`: the rows are updates of some columns."""

    rows: pa.Table
    deleted: pa.Array
    ordering: Ordering
    partial: bool = False


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

    def log(self, slice_: FileSlice, parts: Iterable[LogPart], notes: KeyNotes) -> StagedFile:
        """Stages a log file on a slice: the rows of all parts, then their keys to delete, in Hudi's order."""
        work, deletes = self._work, list[LogPart]()
        head = {"instant": work.instant, "schema_text": work.schema.file_text}
        some = None if work.into is None else work.into.log_schema(work.schema)
        written = 0
        path = self._path(".log")
        with staged_output(work.table.storage, path) as file:
            for part in parts:
                written += part.rows.num_rows
                deletes += [replace(part, rows=part.rows.slice(0, 0))] if len(part.deleted) else []
                schema = some if part.partial and some is not None else work.schema
                for rows in split_rows(part.rows, BLOCK_BYTES):
                    full = self.with_meta_columns(rows, slice_.partition, slice_.file_id, schema.arrow)
                    block = data_block(
                        full,
                        instant=work.instant,
                        schema_text=schema.file_text,
                        log_format=work.log_format,
                        codec=work.output.codec.value,
                        partial=part.partial,
                    )
                    file.writelines(block)
            for part in deletes:
                paths = pa.repeat(pa.scalar(slice_.partition), len(part.deleted))
                old = work.merge.mode in HUDI_0X
                file.writelines(delete_block(part.deleted, paths, part.ordering, hudi_0x=old, **head))
        counts = Counts(writes=written, updates=written, deletes=sum(len(part.deleted) for part in deletes))
        return self._done(FileKind.LOG, slice_.key, slice_, path, None, counts, notes)

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
