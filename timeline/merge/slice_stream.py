"""One file slice as a stream of merged batches: reads its files and merges them.

The log side is decoded and folded first; then the base file is streamed in batches, so memory holds the winning log
rows and one batch. Log entries above a memory limit are spilled to disk. Only the requested columns, and those that
merging needs, are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..codec.arrow_schema import project
from ..codec.avro_schema import OPERATION, changelog
from ..codec.calendar import old_calendar
from ..codec.columns import Hashes, counted
from ..codec.conform import NO_DEFAULTS, Defaults, check_conformable, conform
from ..codec.parquet_read import Share, fetched_at_once, open_parquet, parquet_batches, readable
from ..codec.stored_names import SAME_NAMES, Names, names_in, stored
from ..format.ledger import Identity, Ledger
from ..format.log_block import BlockKind, LogBlock
from ..format.log_decode import count_entries, decode_rows
from ..prefetch import Threads
from ..record_fields import gathered
from ..storage.contract import Storage, open_listed
from ..view.view import FileSlice
from .log_fold import Winners
from .rule import NO_CHANGES, Changes, Keyed, MergeRule, SliceRules, Where, expired
from .slice_log import LogCounts, check_slice, read_logs
from .slice_merge import IdentityTally, SliceMerge, identity_columns, identity_sum
from .spilled_merge import LogSpill, SpilledMerge, spill_folder


class Needed(Enum):
    """Which rows of the base file a step needs: all, those that the filter can match, or those that a merge changes."""

    ALL = 1
    MATCHING = 2
    MERGED = 3


RowGroups: TypeAlias = Callable[[pq.ParquetFile], Sequence[int] | None]
"""The row groups of a file to read, None for all."""


class SliceStream:
    """Iterate `batches()` once; afterwards `ledger()`, `log_counts` and `base_rows` hold the results."""

    def __init__(
        self,
        storage: Storage,
        slice_: FileSlice,
        rules: SliceRules,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        share: Share | None = None,
        opened: Callable[[], pa.NativeFile] | None = None,
    ) -> None:
        """`columns`: the columns of the batches, None for all. `where`: only matching rows; for reads, since the ledger
        then counts only the merged rows. `share`: only this part of the base file; the slice must have no logs, whose
        inserts would be in each share. `opened`: opens the base file the first time, None for `open_listed`."""
        assert share is None or not slice_.logs, "a slice with logs is merged as a whole"
        self._storage, self._slice, self._rules = storage, slice_, rules
        self._where, self._share = where, share
        self._schema = rules.schema if columns is None else project(rules.schema, columns)
        self._out = project(rules.schema, [*self._schema.names, *(where.columns if where else ())])
        self._base_schema = project(rules.schema, [*self._out.names, *rules.keys.fields, *rules.ordering_fields])
        self._merge: SliceMerge | SpilledMerge | None = None
        self._opened = opened
        self._tally = IdentityTally() if rules.identity else None
        self.log_counts = LogCounts()
        self.base_rows = self._expired = 0

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Merged rows: in the base file's order, then inserts."""
        with ExitStack() as stack:
            self._open_ahead(stack)
            logs, self.log_counts = read_logs(self._storage, self._slice, self._rules, self._out, stack, self._where)
            for table in self._spilled(logs, stack) if isinstance(logs, LogSpill) else self._in_memory(logs):
                yield from (
                    self._matching(self._in_time(table))
                    .combine_chunks()
                    .to_batches(max_chunksize=self._rules.batch_rows)
                )

    def _open_ahead(self, stack: ExitStack) -> None:
        """Fetches the base file while the logs are read, if it is fetched in one request and certainly read."""
        base, storage, rules = self._slice.base, self._storage, self._rules
        is_prefetched = self._opened is not None or storage.is_file_system
        if base is None or self._where is not None or self._share is not None or is_prefetched:
            return
        if fetched_at_once(base.size, len(self._base_schema.names), len(rules.schema.names)):
            pool = stack.enter_context(Threads(1))
            self._opened = pool.submit(open_listed, storage, base.path, base.size).result

    def _in_time(self, rows: pa.Table) -> pa.Table:
        """Without the rows that are past their time."""
        if self._rules.expiry is None:
            return rows
        gone = expired(rows, self._rules.expiry)
        count = pc.sum(gone).as_py() or 0
        if count and self._tally is not None:
            self._tally.left_out(rows.filter(gone))
        self._expired += count
        return rows.filter(pc.invert(gone)) if count else rows

    def _matching(self, rows: pa.Table) -> pa.Table:
        return rows if self._where is None else self._where.rows(rows).select(self._schema.names)

    @property
    def _rule(self) -> MergeRule:
        """After the logs were read."""
        every = self._rules.merge.every_duplicate or self.log_counts.by_position
        return replace(self._rules.merge, every_duplicate=every)

    def _in_memory(self, won: Winners) -> Iterator[pa.Table]:
        merge = self._merge = SliceMerge(self._rule, won, hashed=self._rules.identity)
        if not won.entries:  # nothing to merge, so keys and ordering values are not needed
            for table in self._base_tables(self._out, Needed.MATCHING):
                merge.untouched(table.num_rows)
                yield from self._changed(table, NO_CHANGES)
            return
        if self._nothing_matches(won):
            return
        for table in self._base_tables(self._base_schema, Needed.MERGED):
            keyed = self._rules.keyed(table, self._out.names, self._slice.file_id)
            keyed = keyed if self._where is None else self._where.keyed(keyed)
            yield from self._changed(keyed.rows, merge.changes(keyed))
        _, rows, hashes = merge.inserts()
        yield self._inserted(rows, hashes)

    def _spilled(self, spill: LogSpill, stack: ExitStack) -> Iterator[pa.Table]:
        rules = self._rules
        folder = stack.enter_context(spill_folder(rules.spill_folder))
        merge = self._merge = SpilledMerge(self._rule, spill, self._out, folder, hashed=rules.identity)
        needed = project(rules.schema, [*rules.keys.fields, *rules.ordering_fields])
        if spill.gaps is not None or rules.merge.unset is not None:
            needed = self._base_schema  # base rows complete the rows of the logs

        def keys() -> Iterator[Keyed]:
            for table in self._base_tables(needed, Needed.ALL):
                yield self._rules.keyed(table, self._out.names, self._slice.file_id)

        merge.decide(keys, max(1, rules.batch_rows // len(spill)))
        for table in self._base_tables(self._out, Needed.ALL):
            yield from self._changed(table, merge.changes(table.num_rows))
        for rows, hashes in merge.inserts(rules.batch_rows):
            yield self._inserted(rows, hashes)

    def _changed(self, rows: pa.Table, changes: Changes) -> Iterator[pa.Table]:
        if self._tally is not None:
            self._tally.merged(rows, changes)
        return changes.pieces(rows)

    def _inserted(self, rows: pa.Table, hashes: Hashes) -> pa.Table:
        if self._tally is not None:
            self._tally.inserted(hashes)
        return rows

    def base_batches(self) -> Iterator[pa.RecordBatch]:
        """Only the base file's rows (read-optimized): no logs, no merge."""
        self._slice.check_whole(self._storage.base_path)
        for table in self._base_tables(self._out, Needed.MATCHING):
            yield from self._matching(table).combine_chunks().to_batches()

    def ledger(self, rows_out: int, hash_out: int | None = None) -> Ledger:
        """The ledger, after `batches()` is exhausted. `hash_out`: of the rows read back, see `Identity`."""
        assert self._merge is not None, "ledger() comes after batches()"
        ledger = self._merge.ledger(rows_out)
        if self._expired:
            ledger = replace(ledger, expired=self._expired, expiry=self._rules.expiry)
        if self._tally is None or hash_out is None:
            return ledger
        return replace(ledger, identity=self._tally.finish(hash_out))

    def _nothing_matches(self, won: Winners) -> bool:
        """Whether no base row can match and no winner matches, before they are merged."""
        base, where = self._slice.base, self._where
        if where is None or won.lacking is not None:  # a row merged from two rows may match although neither does
            return False
        if where.rows(won.rows).num_rows:
            return False
        if base is None:
            return True
        with open_listed(self._storage, base.path, base.size, whole=False) as source, readable("base file", base.path):
            return not where.row_groups(open_parquet(source), self._rules.names.at(base.name.instant))

    def _base_tables(self, schema: pa.Schema, needed: Needed) -> Iterator[pa.Table]:
        """The base file's rows under a schema; reads only its columns. Empty without a base file."""
        base = self._slice.base
        if base is not None:
            self.base_rows = 0
            names, batch_rows = self._rules.names.at(base.name.instant), self._rules.batch_rows
            groups = self._groups(needed, names)
            whole = self._share is None and fetched_at_once(base.size, len(schema.names), len(self._rules.schema.names))
            opened = self._opened or partial(open_listed, self._storage, base.path, base.size, whole=whole)
            self._opened = None  # it is opened once
            rules = self._rules
            for table, rows in base_tables(
                self._storage, base.path, schema, batch_rows, groups, opened, names, rules.defaults
            ):
                self.base_rows = rows
                yield table

    def _groups(self, needed: Needed, names: Names) -> RowGroups:
        chosen: RowGroups = _all_groups
        if self._where is not None and needed is not Needed.ALL:
            of_filter = self._where.row_groups if needed is Needed.MATCHING else self._where.merged_row_groups
            chosen = partial(of_filter, names=names)
        share = self._share
        if share is None:
            return chosen
        return lambda file: share.of_groups(file.metadata.num_row_groups, chosen(file))


def _all_groups(file: pq.ParquetFile) -> None:
    return None


def base_tables(
    storage: Storage,
    path: str,
    schema: pa.Schema,
    batch_rows: int,
    groups: RowGroups = _all_groups,
    open_source: Callable[[], AbstractContextManager[pa.NativeFile]] | None = None,
    names: Names = SAME_NAMES,
    defaults: Defaults = NO_DEFAULTS,
) -> Iterator[tuple[pa.Table, int]]:
    """A Parquet base file's rows under a schema, by batches, each with the number of rows in the footer.
    MalformedError: not a readable file. UnsupportedError: a file of a changelog table, whose operations would be lost.
    Reads only the columns of the schema, and the row groups that `groups` chooses. `open_source`: opens the file, None
    for `Storage.open_input`. `names`: of the columns in the file. `defaults`: of the columns of the schema."""
    with (open_source or partial(storage.open_input, path))() as source, readable("base file", path):
        file, wanted = _opened(source, path, schema, names)
        for batch in parquet_batches(source, file, wanted, batch_rows, groups(file)):
            yield conform(counted(batch), schema, path, names=names, defaults=defaults), file.metadata.num_rows


def check_inputs(storage: Storage, merged: FileSlice, rules: SliceRules, *, footer: bool) -> None:
    """The error with which a compaction of the slice would fail, by the headers of its logs, and the footer of its base
    file if that is asked for."""
    check_slice(storage, merged, rules)
    if footer and merged.base is not None:
        check_base(storage, merged.base.path, rules, rules.names.at(merged.base.name.instant))


def check_base(storage: Storage, path: str, rules: SliceRules, names: Names) -> None:
    """Raises the errors of `base_tables` for a base file that a compaction merges, as far as its footer shows them.
    One request on an object store. `names`: of the columns in the file."""
    schema = rules.schema
    with storage.open_input(path, whole=False) as source, readable("base file", path):
        file, wanted = _opened(source, path, schema, names)
        old_calendar(file)
        whole = file.schema_arrow
        there = pa.schema([whole.field(name) for name in wanted])
        rows = file.metadata.num_rows
        check_conformable(there, schema, path, names=names, defaults=rules.defaults, rows=rows > 0)
        for name, column in _extremes(file, there, schema, names):
            conform(pa.table({name: column}), project(schema, [name]), path)


def _opened(source: pa.NativeFile, path: str, schema: pa.Schema, names: Names) -> tuple[pq.ParquetFile, list[str]]:
    file = open_parquet(source)
    there = frozenset(file.schema_arrow.names)
    if OPERATION in there:
        raise changelog(path)
    return file, stored(schema.names, names, there)


def _extremes(
    file: pq.ParquetFile, there: pa.Schema, schema: pa.Schema, names: Names
) -> Iterator[tuple[str, pa.Array]]:
    """The least and greatest values of columns of another type than the schema's, where the footer has them, by name.
    They show whether the values of a decimal fit into another decimal type."""
    metadata = file.metadata
    named = names_in(schema.names, names, there.names)
    ours = {named.get(name, name): name for name in schema.names}
    at = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for field in there:
        if (
            field.name not in at
            or not pa.types.is_decimal(field.type)
            or field.type == schema.field(ours[field.name]).type
        ):
            continue
        chunks = [metadata.row_group(g).column(at[field.name]) for g in range(metadata.num_row_groups)]
        known = [chunk.statistics for chunk in chunks if chunk.is_stats_set and chunk.statistics.has_min_max]
        if known:
            yield ours[field.name], pa.array([value for one in known for value in (one.min, one.max)], field.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTotals:
    """Rows of data blocks, entries of delete blocks, and the sum of the rows' identities (see `identity_sum`)."""

    rows: int
    deletes: int
    identity: int


def log_totals(storage: Storage, blocks: Iterable[LogBlock], rules: SliceRules) -> LogTotals:
    """The totals of some blocks. Reads only the columns of data blocks that identify a row."""
    by_path = gathered((block.path, block) for block in blocks)
    schema = project(rules.schema, identity_columns(rules.schema))
    text, part_bytes = rules.float_text_in_logs, rules.part_bytes
    rows = deletes = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal rows, deletes
        for path, some in by_path.items():
            with storage.open_input(path) as source:
                for block in some:
                    count = count_entries(block, source)
                    if block.kind is BlockKind.DELETE:
                        deletes += count
                        continue
                    rows += count
                    partial = block.is_partial  # its columns identify the rows: Hudi writes the meta columns
                    yield from decode_rows(
                        block, source, schema, float_as_text=text, part_bytes=part_bytes, partial=partial
                    )

    identity = identity_sum(tables())
    return LogTotals(rows=rows, deletes=deletes, identity=identity)


def copied_ledger(taken: LogTotals, out: LogTotals) -> Ledger:
    """The ledger of log entries copied without merging: each counts as a separate, new key."""
    return Ledger(
        base_rows=0,
        untouched=0,
        kept=0,
        replaced=0,
        deleted=0,
        duplicate_hits=0,
        log_entries=taken.rows + taken.deletes,
        log_keys=taken.rows + taken.deletes,
        update_keys=taken.rows,
        update_keys_in_base=0,
        delete_keys_in_base=0,
        inserts=taken.rows,
        deletes_of_absent=taken.deletes,
        rows_out=out.rows,
        identity=Identity(base=0, removed=0, added=taken.identity, out=out.identity),
    )
