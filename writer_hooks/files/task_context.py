"""The data that the tasks of one write need. Picklable, and unchanged while they run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import META_COLUMNS, RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ClusteringConflictError, UnsupportedError
from phantombase.timeline.format.log_deletes import Deletes
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.merge.log_fold import LogFold
from phantombase.timeline.merge.rule import Keyed, MergeRule, SliceRules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.table.table import Table, TableSchema
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, ViewFacts, is_replaced, latest_slice

from ..merge_into import DELETE, MergeInto
from .stored_keys import KEY_FIELD


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
        return self.rules.merge

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
