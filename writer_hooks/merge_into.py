"""A `MERGE INTO` that sets some columns: which columns its rows have, and which tables and statements it takes (pure).

Source: seen with Hudi 1.2.0 (Spark SQL, versions 8 and 9). Its log block has the meta columns and the set columns, and
is marked partial; with merges by event time it refuses a statement that does not set the ordering columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import META_COLUMNS, project_text
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.merge_settings import FIRST_OF_1X, PROPERTIES, USE_HUDI
from phantombase.timeline.format.table_config import MergeMode, TableConfig
from phantombase.timeline.merge.rule import IS_DELETED
from phantombase.timeline.table.table import TableSchema

DELETE = "_hoodie_row_deletes"
"""The column of a merge's rows that says which of them delete. A table that has one of this name takes no deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInto:
    """One statement. `sets`: (column of the table, column of the source that gives its new value). `on`: the columns by
    which rows match, None for the record key. `inserts`: rows of other keys become rows of the table. `delete`: the
    column of the source that is true in rows that delete."""

    sets: tuple[tuple[str, str], ...]
    on: tuple[str, ...] | None = None
    inserts: bool = False
    delete: str | None = None

    @staticmethod
    def of(
        on: str | Iterable[str] | None,
        update: Iterable[str],
        sets: Mapping[str, str] | None,
        *,
        inserts: bool,
        delete: str | None,
    ) -> MergeInto:
        """UsageError: no column is set, or one is set twice. `update`: columns set from those of the same name."""
        listed = () if isinstance(update, str) or not isinstance(update, Iterable) else tuple(update)
        if (not listed and update != ()) or not all(isinstance(name, str) for name in listed):
            raise UsageError("not a list of columns", expected="update=[name, ...]", found=repr(update))
        by_name = {} if sets is None else sets
        if not isinstance(by_name, Mapping) or not all(
            isinstance(name, str) for pair in by_name.items() for name in pair
        ):
            raise UsageError("not columns by name", expected='set={"column": "column of the source"}', found=repr(sets))
        pairs = (*((name, name) for name in listed), *by_name.items())
        names = [name for name, _ in pairs]
        if not names or len(set(names)) < len(names):
            raise UsageError(
                "merge_into sets some columns, each once",
                expected='update=["column"], or set={"column": "column of the source"}',
                found=", ".join(names) or "no column",
                todo=None if names else "To write whole rows, use upsert; to delete rows, use delete.",
            )
        keys = None if on is None else (on,) if isinstance(on, str) else tuple(on)
        return MergeInto(sets=pairs, on=keys, inserts=inserts, delete=delete)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.sets)

    def lacking(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(name for name in schema.names if name not in self.columns and name not in META_COLUMNS)

    def log_schema(self, schema: TableSchema) -> TableSchema:
        """The schema of a log block of updates: Hudi's meta columns and the columns that are set."""
        kept = [name for name in schema.arrow.names if name in META_COLUMNS or name in self.columns]
        text = project_text(schema.file_text, kept)
        return TableSchema(commit_text=schema.commit_text, file_text=text)

    def row_schema(self, own: pa.Schema, config: TableConfig) -> pa.Schema:
        """The columns of the rows of this write. `own`: the table's, without meta columns."""
        needed = {*_named(config), *self.columns}
        fields = [f for f in own if self.inserts or f.name in needed]
        return pa.schema([*fields, pa.field(DELETE, pa.bool_())] if self.delete is not None else fields)

    def source_columns(self, own: pa.Schema, config: TableConfig, source: Iterable[str]) -> dict[str, str]:
        """Which column of the source gives which column of the write's rows. UsageError: the source lacks one. Other
        columns of the source are left out, as in SQL. A row that is inserted has what an update would set."""
        given, sets = set(source), dict(self.sets)
        chosen = {f.name: sets.get(f.name, f.name) for f in self.row_schema(own, config)}
        needed = {*_named(config), *self.columns}
        if self.delete is not None:
            chosen[DELETE] = self.delete
            needed.add(DELETE)
        missing = sorted({name for target, name in chosen.items() if target in needed} - given)
        if missing:
            raise UsageError(
                "the source lacks columns that the merge needs", expected=", ".join(missing), found=", ".join(given)
            )
        return {target: name for target, name in chosen.items() if name in given}

    def check(self, config: TableConfig, own: pa.Schema) -> None:
        """UnsupportedError, UsageError: this table does not take such a statement, or not this one."""
        _check_table(config)
        keys = config.record_key_fields
        if self.on is not None and sorted(self.on) != sorted(keys):
            raise UnsupportedError(
                "merge_into matches rows by the record key only", expected=", ".join(keys), found=", ".join(self.on)
            )
        unknown = sorted(self.columns - set(own.names))
        if unknown:
            raise UsageError("the table has no such columns", expected=", ".join(own.names), found=", ".join(unknown))
        if self.delete is not None and DELETE in own.names:
            raise UnsupportedError(
                "merge_into cannot delete rows of a table with this column",
                expected=f"no column {DELETE}",
                found=DELETE,
                todo="Name the rows to delete with delete(); update the others with merge_into.",
            )
        if IS_DELETED in own.names:
            # Seen with Hudi's own MERGE INTO: it loses rows of Parquet blocks, and cannot read Avro ones.
            raise UnsupportedError(
                "merge_into of a table with this column is not supported: Hudi 1.2 loses the rows, or cannot read them",
                expected=f"no column {IS_DELETED}",
                found=IS_DELETED,
                todo="Write whole rows with upsert.",
            )
        fixed = sorted(self.columns & _named(config))
        if fixed:
            raise UnsupportedError(
                "merge_into cannot set these columns",
                expected="no key and no partition column",
                found=", ".join(fixed),
                todo="Write whole rows with upsert, or name the rows to delete with delete=.",
            )
        there = frozenset(own.names)
        ordering = [name for name in config.ordering_fields if name in there]
        unset = [name for name in ordering if name not in self.columns]
        if config.merge_settings.mode is MergeMode.EVENT_TIME and unset:
            raise UsageError(
                "a table that merges by event time needs new ordering values with each update",
                expected=", ".join(ordering),
                found=", ".join(sorted(self.columns)),
                todo="Set these columns, too; Hudi asks for them as well.",
            )


def _named(config: TableConfig) -> set[str]:
    """The columns that name a row, or hold the record that does: of its key and of its partition."""
    return {name.partition(".")[0] for name in (*config.record_key_fields, *config.partition_fields)}


def _check_table(config: TableConfig) -> None:
    """UnsupportedError: Hudi's readers would merge the rows of this table in another way than its own writers."""
    if config.version < FIRST_OF_1X:
        raise UnsupportedError(
            "merge_into needs updates of some columns, which this table version does not have",
            path=PROPERTIES,
            expected=f"version {FIRST_OF_1X} or newer",
            found=str(config.version),
            todo="Write whole rows with upsert.",
        )
    config.check_mergeable()
    settings = config.merge_settings
    if settings.not_given is not None or settings.marker is not None or settings.deletes_win:
        raise UnsupportedError(
            "merge_into of a table with rules of its own for missing values or deletes is not supported",
            path=PROPERTIES,
            expected="merges by commit time or event time alone",
            found=config.properties.get("hoodie.table.partial.update.mode")
            or config.properties.get("hoodie.compaction.payload.class")
            or "a payload class",
            todo=USE_HUDI,
        )
