"""Columns and files of a Hudi table in the terms of Iceberg: the schema, the partitioning, and what footers say.

All columns are optional: older files may lack any of them. Files have no field ids; readers find columns by the name
mapping of the table. A partition column is one of Iceberg (`identity`) if its values make the folders, since each file
has one of them then. With other key generators, and from the first file on that has several, new files are in no
partition of Iceberg, and engines go by the bounds of their columns."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.codec.calendar import old_calendar
from phantombase.timeline.codec.parquet_read import open_parquet, readable
from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.format.commit_metadata import TableSchema
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.storage.contract import Storage, open_listed
from phantombase.timeline.view.view import BaseFile

_SURE = 32
"""Characters: writers may shorten longer texts in the statistics of a file."""


def iceberg_columns(schema: TableSchema, where: str, *, meta_columns: bool) -> pa.Schema:
    """The columns of the table. UnsupportedError: Iceberg has no such type, or columns were renamed."""
    if schema.evolved is not None:
        raise UnsupportedError(
            "columns that evolve on read cannot be published to Iceberg: files have other names for them",
            path=where,
            expected="a table without hoodie.schema.on.read.enable",
            found="a history of columns in its newest write",
            todo="Read it by Hudi's own readers.",
        )
    fields = [f for f in schema.arrow if meta_columns or f.name not in META_COLUMNS]
    for one in fields:
        as_iceberg(pa.schema([one]), f"{where}.{one.name}")
    return pa.schema([_optional(one) for one in fields])


def as_iceberg(schema: pa.Schema, where: str) -> Any:
    """The schema in types of Iceberg, with ids of its own. UnsupportedError: it has no such type."""
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    try:
        return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))
    except (UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
        raise UnsupportedError(
            "Iceberg has no such type",
            path=where,
            expected="a type of Iceberg's tables of version 2",
            found=", ".join(str(kind) for kind in schema.types),
            todo="Leave the column out of the table, or give it another type.",
        ) from error


def _optional(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(kind.field(i)) for i in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_optional(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _optional(kind.item_field))
    return pa.field(field.name, kind)


def partition_columns(config: TableConfig, columns: pa.Schema) -> tuple[str, ...]:
    """The columns of identity partitions; empty: there are none."""
    fields, there = config.partition_fields, frozenset(columns.names)
    kinds = [columns.field(name).type for name in fields if name in there]
    simple = config.key_generator in ("SIMPLE", "COMPLEX") and len(kinds) == len(fields)
    return fields if simple and all(k in _PARTITION_TYPES for k in kinds) else ()


_PARTITION_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32())


def misfit(found: Any, wanted: Any, defaults: Collection[tuple[str, ...]] = (), at: tuple[str, ...] = ()) -> str | None:
    """Why values of the Iceberg type `found` cannot be read as `wanted`; None: they can. `defaults`: parts that have a
    default, which Iceberg does not give to files that lack them."""
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import BinaryType, DecimalType, FloatType, IntegerType, ListType, MapType, StructType

    if isinstance(wanted, StructType) and isinstance(found, StructType):
        own = {field.name: field.field_type for field in found.fields}
        for field in wanted.fields:
            here = (*at, field.name)
            if field.name in own:
                why = misfit(own[field.name], field.field_type, defaults, here)
            else:
                why = f"{'.'.join(here)} is missing and has a default" if here in defaults else None
            if why is not None:
                return why
        return None
    if isinstance(wanted, ListType) and isinstance(found, ListType):
        return misfit(found.element_type, wanted.element_type, defaults, (*at, "element"))
    if isinstance(wanted, MapType) and isinstance(found, MapType):
        return misfit(found.value_type, wanted.value_type, defaults, (*at, "value"))
    fits = found == wanted
    if not fits and isinstance(found, IntegerType | FloatType | DecimalType | BinaryType):
        with suppress(ResolveError):
            fits = promote(found, wanted) == wanted and getattr(found, "scale", 0) == getattr(wanted, "scale", 0)
    return None if fits else f"{'.'.join(at)} of type {found}, which is not read as {wanted}"


def changed_columns(schema: Any, columns: pa.Schema, where: str) -> tuple[str, ...]:
    """The columns of an Iceberg schema, or parts of them, that are new, become wider, or go. UnsupportedError: Iceberg
    cannot widen one so."""
    wanted = as_iceberg(columns, where)
    had, has = ({name: of.find_type(name) for name in of.column_names} for of in (schema, wanted))
    wider = set()
    for name in had.keys() & has.keys():
        if misfit(has[name], had[name]) is not None:  # otherwise it is as wide already
            if misfit(had[name], has[name]) is not None:
                raise UnsupportedError(
                    "Iceberg cannot give a column this type",
                    path=f"{where}.{name}",
                    expected=str(had[name]),
                    found=str(has[name]),
                    todo="Drop the table from the catalog, which removes no data, and sync again: that makes a new "
                    "one, if all files have the new type.",
                )
            wider |= {name} if has[name].is_primitive else set()
    return tuple(sorted({*(has.keys() ^ had.keys()), *wider}))


def evolve(transaction: Any, columns: pa.Schema, where: str) -> None:
    kept = set(as_iceberg(columns, where).column_names)
    gone = [name for name in transaction.table_metadata.schema().column_names if name not in kept]
    with transaction.update_schema() as update:
        update.union_by_name(columns)
        for name in gone:
            if not any(name.startswith(f"{other}.") for other in gone):
                update.delete_column(tuple(name.split(".")))


def name_others(transaction: Any, others: Mapping[str, Any]) -> None:
    """Gives ids to columns that files have and the table lacks: some readers want one for each column of a file."""
    mapped = transaction.table_metadata.name_mapping()._field_by_name
    new = {tuple(name.split(".")): kind for name, kind in others.items() if name not in mapped}
    for adds in (True, False) if new else ():
        with transaction.update_schema() as update:
            for path, kind in new.items():
                update.add_column(path, kind) if adds else update.delete_column(path)


NAME_MAPPING = "schema.name-mapping.default"


def set_name_mapping(transaction: Any) -> None:
    """Names the elements of lists as Hudi's writer does, too: it writes lists of two levels, `tags.array`."""
    from pyiceberg.table.name_mapping import MappedField, NameMapping
    from pyiceberg.types import ListType

    metadata = transaction.table_metadata
    types = {number: one.field_type for number, one in metadata.schema()._lazy_id_to_field.items()}

    def named(one: MappedField, of: Any) -> MappedField:
        names = ["element", "array"] if isinstance(of, ListType) else list(one.names)
        below = [named(part, types.get(one.field_id)) for part in one.fields]
        return one.model_copy(update={"names": names, "fields": below})

    known = metadata.name_mapping() or metadata.schema().name_mapping
    text = NameMapping([named(one, None) for one in known]).model_dump_json()
    if metadata.properties.get(NAME_MAPPING) != text:
        transaction.set_properties({NAME_MAPPING: text})


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A base file of the state. `rows`: as its write recorded it; 0: it did not."""

    file: BaseFile
    rows: int


class _Lenient(dict[Any, Any]):
    """Columns that a file has and the table lacks have no statistics."""

    def __init__(self, found: Mapping[Any, Any], other: Any) -> None:
        super().__init__(found)
        self.other = other

    def __missing__(self, _: Any) -> Any:
        return self.other


_NONE = -1


@dataclass(frozen=True)
class FileReader:
    """Makes the entries of base files in Iceberg's manifests from their footers. `base`: the URI of the table's folder.
    `metadata`: of the Iceberg table. `defaults`: see `misfit`. `others`: columns that files have and the table lacks,
    with their types."""

    storage: Storage
    base: str
    metadata: Any
    defaults: Collection[tuple[str, ...]]
    others: dict[str, Any] = field(default_factory=dict)

    def entries(self, files: Collection[PublishedFile]) -> list[Any]:
        """A `DataFile` each; the partition of those with several values is None. MalformedError, UnsupportedError: see
        `_entry`."""
        return at_once(files, self._entry)

    @cached_property
    def _plans(self) -> tuple[_Lenient, ...]:
        """What is taken from statistics: all, or if a value of them cannot be had, counts."""
        from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, StatisticsCollector, compute_statistics_plan
        from pyiceberg.types import DoubleType, FloatType, StringType

        full = compute_statistics_plan(self.metadata.schema(), self.metadata.properties)
        counts = {n: replace(one, mode=MetricsMode(MetricModeTypes.COUNTS)) for n, one in full.items()}
        # Whether bounds of a file cover its NaN depends on the writer.
        full = {
            n: counts[n] if isinstance(one.iceberg_type, FloatType | DoubleType) else one for n, one in full.items()
        }
        nothing = StatisticsCollector(_NONE, StringType(), MetricsMode(MetricModeTypes.NONE), "")
        return tuple(_Lenient(plan, nothing) for plan in (full, counts))

    @cached_property
    def _ids(self) -> _Lenient:
        from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

        return _Lenient(parquet_path_to_id_mapping(self.metadata.schema()), _NONE)

    @cached_property
    def _types(self) -> Any:
        return self.metadata.schema().as_struct()

    def _entry(self, one: PublishedFile) -> Any:
        """MalformedError: another number of rows than its write recorded. UnsupportedError: its columns are not as
        Iceberg reads them."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        path = one.file.path
        where = f"{self.storage.base_path}/{path}"
        with open_listed(self.storage, path, one.file.size, whole=False) as source, readable("base file", where):
            size, file = source.size(), open_parquet(source)
            if one.rows and file.metadata.num_rows != one.rows:
                raise MalformedError(
                    "a base file has another number of rows than its write recorded",
                    path=where,
                    expected=f"{one.rows} rows",
                    found=f"{file.metadata.num_rows} rows",
                    todo="Restore the file from a copy: rows may be lost.",
                )
            self._check(file, where)
            values = list(self._partition(file))
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.base}/{path}",
            file_format=FileFormat.PARQUET,
            partition=None if None in values else _record([value[0] for value in values if value]),
            file_size_in_bytes=size,
            spec_id=self.metadata.default_spec_id,
            **self._statistics(file.metadata),
        )

    def _check(self, file: pq.ParquetFile, where: str) -> None:
        names = {of.name for of in self._types.fields}
        found = as_iceberg(pa.schema([f for f in file.schema_arrow if f.name in names]), where)
        every = as_iceberg(file.schema_arrow, where)
        lacks = set(every.column_names) - set(self.metadata.schema().column_names)
        for name in sorted(lacks):
            if name.rpartition(".")[0] not in lacks:
                self.others[name] = every.find_type(name)
        why = misfit(found.as_struct(), self._types, self.defaults)
        if old_calendar(file) is not None:
            why = "dates or times of the old calendar, which Iceberg's readers take for those of the new one"
        if why is not None:
            raise UnsupportedError(
                "a base file cannot be published to Iceberg",
                path=where,
                found=why,
                todo="Let a clustering or compaction rewrite the file with the columns of today, then sync again.",
            )

    def _statistics(self, metadata: pq.FileMetaData) -> dict[str, Any]:
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata

        silent = set(self._without(metadata))  # pyiceberg would log each
        for plan in self._plans:
            some = _Lenient({n: one for n, one in plan.items() if n not in silent}, plan.other)
            try:
                made = data_file_statistics_from_parquet_metadata(metadata, some, self._ids).to_serialized_dict()
            except Exception as error:  # values that Python's types lack, as the year 10000
                failed = error
                continue
            for counts in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"):
                made[counts].pop(_NONE, None)
            return dict(made)
        raise failed

    def _without(self, metadata: pq.FileMetaData) -> Iterator[int]:
        """The columns that a row group has no statistics of, or not all: writers leave out the bounds of long values,
        and pyiceberg takes those of the other row groups for all."""
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for at in range(metadata.num_columns):
                column = row_group.column(at)
                known = column.statistics
                bounded = known is not None and (known.has_min_max or known.null_count == column.num_values)
                if known is None or not known.has_null_count or not bounded:
                    yield self._ids[column.path_in_schema]

    def _partition(self, file: pq.ParquetFile) -> Iterator[tuple[Any] | None]:
        """The value of each partition column in all rows of a file; None: it has several, or is another program's."""
        from pyiceberg.transforms import IdentityTransform

        schema = self.metadata.schema()
        for one in self.metadata.spec().fields:
            own = isinstance(one.transform, IdentityTransform)
            yield _only_value(file, schema.find_column_name(one.source_id)) if own else None


def _only_value(file: pq.ParquetFile, name: str) -> tuple[Any] | None:
    if name not in file.schema_arrow.names:
        return (None,)
    at = file.schema_arrow.names.index(name)
    at = next(i for i in range(at, file.metadata.num_columns) if file.metadata.schema.column(i).path == name)
    found = set[Any]()
    for group in range(file.metadata.num_row_groups):
        chunk = file.metadata.row_group(group).column(at)
        known = chunk.statistics
        if known is None or not known.has_null_count or known.null_count not in (0, chunk.num_values):
            break
        if known.null_count:
            found.add(None)
        elif not known.has_min_max or (isinstance(known.min, str) and len(known.min) >= _SURE):
            break
        else:
            found |= {known.min, known.max}
    else:
        return (_internal(found.pop()),) if len(found) == 1 else None
    values = file.read(columns=[name]).column(0).unique().to_pylist()
    return (_internal(values[0]),) if len(values) == 1 else None


def _internal(value: Any) -> Any:
    """As in Iceberg's manifests."""
    return (value - datetime.date(1970, 1, 1)).days if isinstance(value, datetime.date) else value


def _record(values: list[Any]) -> Any:
    from pyiceberg.typedef import Record

    return Record(*values)
