"""Reads of a table to Arrow: snapshot, read-optimized, and either as of an instant.

A read selects file slices (pure, `scan_slices`), then streams each. Columns that are not requested, and partitions
outside the filter, are neither listed nor read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

import fastavro
import pyarrow as pa

from ..avro.schema import project
from ..errors import MalformedError, UnsupportedError, UsageError
from ..format.layout import Slicing
from ..format.record_key import KeySource
from ..format.table_config import PROPERTIES, MergeMode
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..log.visibility import Visibility
from ..merge.rule import IS_DELETED, MergeRule
from ..merge.slice_rules import SliceRules
from ..table.table import Table, TableSchema, consistent
from ..view.view import FileSlice, TableView, is_replaced, latest_base, latest_slice
from .slice_stream import SliceStream


class Query(Enum):
    """What a reader sees."""

    SNAPSHOT = "snapshot"
    READ_OPTIMIZED = "read-optimized"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """One read. `as_of`: an instant time; `partition`: at or under this path; `threads`: slices to read in parallel."""

    query: Query = Query.SNAPSHOT
    as_of: str | None = None
    columns: tuple[str, ...] | None = None
    partition: str | None = None
    threads: int = 2
    batch_rows: int = 65_536


@dataclass(frozen=True)
class Scan:
    """What one read will read: slices of one view, under one schema."""

    table: Table
    slices: tuple[FileSlice, ...]
    rules: SliceRules
    options: ReadOptions

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        columns = self.options.columns
        return self.rules.schema if columns is None else project(self.rules.schema, columns)

    def slice_batches(self, slice_: FileSlice) -> Iterator[pa.RecordBatch]:
        """The batches of one slice."""
        stream = SliceStream(self.table.storage, slice_, self.rules, self.options.columns)
        return stream.base_batches() if self.options.query is Query.READ_OPTIMIZED else stream.batches()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, one slice after the other. MissingFileError: a file was cleaned meanwhile."""
        for slice_ in self.slices:
            yield from self.slice_batches(slice_)

    def to_table(self) -> pa.Table:
        """All rows, slices read in parallel."""
        with ThreadPoolExecutor(self.options.threads) as pool:
            parts = list(pool.map(lambda s: list(self.slice_batches(s)), self.slices))
        return pa.Table.from_batches([batch for part in parts for batch in part], schema=self.schema)


def plan_read(table: Table, options: ReadOptions) -> Scan:
    """Loads a view and selects the slices; UsageError for unknown columns."""
    seen = table.still(reload=False)
    view = seen.load_view(options.partition)
    if options.as_of is not None:
        check_as_of(table, view.timeline, options.as_of)
    schema = seen.schema(seen.schema_text(view.timeline))
    unknown = set(options.columns or ()) - set(schema.arrow.names)
    if unknown:
        raise UsageError("no such column", expected=", ".join(schema.arrow.names), found=", ".join(sorted(unknown)))
    rules = slice_rules(table, view.timeline, schema, as_of=options.as_of, batch_rows=options.batch_rows)
    return Scan(table, scan_slices(view, options), rules, options)


def scan_slices(view: TableView, options: ReadOptions) -> tuple[FileSlice, ...]:
    """The slices that a reader merges; for read-optimized, the base files as slices without logs (pure)."""
    groups = [g for g in view.groups if not is_replaced(g, view.facts, options.as_of)]
    if options.query is Query.SNAPSHOT:
        found = (latest_slice(g, options.as_of) for g in groups)
        return tuple(s for s in found if s is not None)
    bases = ((g, latest_base(g, options.as_of)) for g in groups)
    return tuple(
        FileSlice(partition=g.partition, file_id=g.file_id, base_instant=b.name.instant, base=b, logs=())
        for g, b in bases
        if b is not None
    )


def read_table(table: Table, options: ReadOptions | None = None) -> pa.Table:
    """All rows of a read as an Arrow table; reads everything again if a file was removed meanwhile."""
    chosen = options or ReadOptions()
    return consistent(lambda: plan_read(table.reload(), chosen).to_table())


def slice_rules(
    table: Table,
    timeline: Timeline,
    schema: TableSchema,
    *,
    as_of: str | None = None,
    every_duplicate: bool = False,
    batch_rows: int = 65_536,
) -> SliceRules:
    """The rules for merging this table's slices for one reader."""
    config = table.config
    fields = _ordering_fields(config.ordering_fields, schema.arrow)
    keys = KeySource.of(config.populate_meta_fields, config.record_key_fields)
    if not keys.fields or not set(keys.fields) <= set(schema.arrow.names):
        raise MalformedError(
            "the table's record key is not among its columns",
            path=PROPERTIES,
            expected=", ".join(schema.arrow.names),
            found=f"hoodie.table.recordkey.fields={','.join(keys.fields)}",
        )
    if IS_DELETED in schema.arrow.names and schema.arrow.field(IS_DELETED).type != pa.bool_():
        # Hudi 0.15 ignores such a column, 1.2 fails.
        raise UnsupportedError(
            f"a column {IS_DELETED} of another type than boolean is not supported",
            path=table.storage.base_path,
            found=str(schema.arrow.field(IS_DELETED).type),
        )
    mode = config.merge_mode
    return SliceRules(
        schema=schema.arrow,
        keys=keys,
        ordering_fields=fields if mode is not MergeMode.COMMIT_TIME else (),
        merge=MergeRule(
            mode=mode,
            ordering_types=tuple(schema.arrow.field(f).type for f in fields)
            if mode is not MergeMode.COMMIT_TIME
            else (),
            every_duplicate=every_duplicate,
        ),
        visibility=visibility_of(timeline, as_of=as_of),
        float_text_in_logs=table.layout.float_text_in_logs,
        batch_rows=batch_rows,
    )


def visibility_of(timeline: Timeline, *, as_of: str | None = None) -> Visibility:
    """Which instants' log blocks one reader sees."""
    return Visibility(
        latest=as_of or UNKNOWN_COMPLETION,
        completed=frozenset(timeline.completed_writes)
        | frozenset(i.requested_time for i in timeline.archived if i.is_write),
        pending=frozenset(timeline.pending_writes),
        start=timeline.start,
        by_file=timeline.layout.slicing is Slicing.BY_COMPLETION_TIME,
    )


def _ordering_fields(names: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Ordering fields that are columns. A field without a column has no values: Hudi then merges by commit time."""
    nested = [name for name in names if "." in name and name not in schema.names]
    if nested:
        raise UnsupportedError("ordering fields inside records are not supported", found=", ".join(nested))
    return tuple(name for name in names if name in schema.names)


def check_as_of(table: Table, timeline: Timeline, as_of: str) -> None:
    """Refuses a point in time whose result would be incomplete or could still change, as Hudi does."""
    pending = [i.requested_time for i in timeline.inflight_writers]
    if pending and as_of >= min(pending):
        raise UsageError(
            "the as-of point is not before the first pending write",
            instant=as_of,
            expected=f"before {min(pending)}",
            found="a write that may still complete at or before it",
        )
    cleans = [i for i in timeline.instants if i.action == "clean" and i.completed]
    if not cleans:
        return
    path = table.instant_path(cleans[-1])
    try:
        metadata = next(iter(fastavro.reader(io.BytesIO(table.storage.read(path)))))
        retained = str(metadata.get("earliestCommitToRetain") or "")  # type: ignore[union-attr]
    except (ValueError, StopIteration, EOFError, IndexError, KeyError) as error:
        raise MalformedError("unreadable clean metadata", path=path, found=str(error)) from error
    retained = retained or min(timeline.completed_writes, default="")
    if as_of < retained:
        raise UsageError(
            "files of that point in time may have been cleaned",
            instant=as_of,
            expected=f"{retained} or later",
        )
