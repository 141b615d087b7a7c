"""A DataFrame that is a bare scan of Parquet files: tasks read the files by pyarrow, and no row passes the JVM.

Spark's plan and the footers decide whether both ways give the same rows. What is not known to be the same goes the
usual way, and the log says why (`not_a_bare_scan`, at debug level). A bare scan is

    the plan         one scan of files, whole columns; no filter, no partition column, nothing cached, no table of a
                     catalog, no option of the reader, nothing that skips files
    the files        on this machine if all tasks run here, or in the bucket of the table, which tasks enter in any case
    the footers      of writers that count dates in the new calendar, without encryption, all with the schema of the
                     plan, names and order included; types of `_KINDS`; lists and maps in three levels

Tasks take row groups, by number. A file that has changed since Spark listed it goes the usual way; one that changes
later ends the write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.compactor_daemon.execution.spark_session import arrow_of_spark, threads_of
from phantombase.timeline.codec.calendar import old_calendar
from phantombase.timeline.codec.parquet_footer import is_encrypted
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches, readable
from phantombase.timeline.errors import MalformedError, StorageError, decoding, reason_of
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.prefetch import at_once, computed_ahead
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import open_little
from phantombase.timeline.storage.open_storage import open_storage, storage_beside

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_log = get_logger()
_BATCH_ROWS = 65_536
_FILES_MAX = 1000
"""Spark is asked for the time of each file, which takes a millisecond."""
_SQL = "org.apache.spark.sql."
_FIXED_CONF = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
_CALENDAR = "spark.sql.parquet.datetimeRebaseModeInRead"
_OPTIONS = {"path", "mergeschema"}
"""Options of the reader that change nothing where all files have one schema."""
_MODERN = re.compile(r"parquet-mr version 1\.1\d\.|parquet-cpp-arrow version \d|parquet-rs version \d")
_CODECS = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"}
_ROOT = re.compile(r"file:|[a-z0-9]+://[^/]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNREADABLE = "Nothing of this write is visible. Write the file again; or write `frame.cache()`: Spark reads it then."


class _NotBareError(Exception):
    """Why a frame goes the usual way."""


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise _NotBareError(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedFile:
    """A file as Spark listed it, relative to the storage of the scan. `groups`: the row groups that are read; `rows`,
    `bytes`: of each group of the file, the latter decompressed."""

    path: str
    size: int
    modified_ms: int
    rows: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetScan:
    """The files and the row groups of each task. `schema`: of the rows, as Spark would give them. `stored`: the columns
    of the files. Picklable."""

    storage: Storage
    schema: pa.Schema
    stored: pa.Schema
    shares: tuple[tuple[ScannedFile, ...], ...]

    @property
    def stored_bytes(self) -> int:
        """The size of all files."""
        return sum({file.path: file.size for share in self.shares for file in share}.values())

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one share, in the order of the files. StorageError: a file has changed since the plan was made.
        MissingFileError: it is gone. MalformedError: it cannot be read."""
        for file in self.shares[number]:
            try:
                for batch in self._batches(file):
                    yield from _conformed(batch, self.schema, file.path)
            except MalformedError as error:
                raise error.at(_full(self.storage, file)).advising(_UNREADABLE) from error

    def ahead(self, number: int) -> Iterator[pa.RecordBatch]:
        """The same: while one batch is used, the next one is read."""
        with computed_ahead(self.batches(number)) as batches:
            yield from batches

    def fetched(self, most_bytes: int) -> pa.Table | None:
        """All rows, in this process; None: they take more bytes."""
        batches, held = [], 0
        for number in range(len(self.shares)):
            for batch in self.batches(number):
                batches.append(batch)
                held += batch.nbytes
                if held > most_bytes:
                    return None
        return pa.Table.from_batches(batches, self.schema)

    def _batches(self, file: ScannedFile) -> Iterator[pa.RecordBatch]:
        _check_unchanged(self.storage, file)
        with open_little(self.storage, file.path) as source, readable("file", file.path):
            # Hadoop checks the bytes of a local file that it wrote, against a file beside it. The pages tell the same.
            opened = open_parquet(source, checksums=True)
            counts = _group_rows(opened.metadata)
            if counts != file.rows or not opened.schema_arrow.equals(self.stored):
                raise _changed(self.storage, file, f"{sum(counts)} rows in {len(counts)} row groups, or another schema")
            names = self.schema.names
            yield from parquet_batches(source, opened, names, _BATCH_ROWS, file.groups, checksums=True)
        _check_unchanged(self.storage, file)


def bare_scan(frame: Any, table: Storage) -> ParquetScan | None:
    """The scan that a DataFrame is; None: it is another frame, or may be. `table`: the storage of the table."""
    try:
        return _scan(frame, table)
    except _NotBareError as why:
        _log.debug("not_a_bare_scan", why=str(why))
    except Exception as error:  # of Spark's JVM, of a store, of damaged files: the usual way tells what is wrong
        _log.debug("not_a_bare_scan", why=reason_of(error))
    return None


def _scan(frame: Any, table: Storage) -> ParquetScan:
    root = frame._jdf.queryExecution().optimizedPlan()
    if str(root.nodeName()) == "Project":
        root = root.children().apply(0)
    _need(str(root.nodeName()) == "LogicalRelation", f"the plan is {root.nodeName()}")
    # Planned again, now: a plan that the frame made earlier does not know what was cached since.
    plan = frame.select("*")._jdf.queryExecution().sparkPlan()
    if _class(plan) == f"{_SQL}execution.ProjectExec":
        columns = plan.projectList()
        kinds = {_class(columns.apply(at)) for at in range(columns.size())}
        _need(kinds == {f"{_SQL}catalyst.expressions.AttributeReference"}, "columns are computed")
        plan = plan.child()
    _need(_class(plan) == f"{_SQL}execution.FileSourceScanExec", f"the plan is {plan.nodeName()}")
    _need(plan.dataFilters().isEmpty() and plan.partitionFilters().isEmpty(), "rows are filtered")
    _need(plan.tableIdentifier().isEmpty(), "a table of a catalog")
    relation = plan.relation()
    for part, kind in (
        (relation, "HadoopFsRelation"),
        (relation.location(), "InMemoryFileIndex"),
        (relation.fileFormat(), "parquet.ParquetFileFormat"),
    ):
        _need(_class(part) == f"{_SQL}execution.datasources.{kind}", f"no {kind}, but {_class(part)}")
    _need(relation.bucketSpec().isEmpty() and relation.partitionSchema().isEmpty(), "partition columns or buckets")
    options = set(str(relation.options().keySet().mkString("\n")).lower().split())
    _need(options <= _OPTIONS, f"options of the reader: {', '.join(sorted(options - _OPTIONS))}")
    session = frame.sparkSession
    for name, value in _FIXED_CONF.items():
        _need(str(session.conf.get(name)).lower() == value, name)
    state = session._jsparkSession.sessionState()
    _need(state.newHadoopConf().get("parquet.crypto.factory.class") is None, "files may be encrypted")
    schema, stored = _columns(frame.schema, str(relation.dataSchema().json()))
    storage, listed = _files(session, relation.location(), table)
    corrected = str(session.conf.get(_CALENDAR)).upper() == "CORRECTED"
    files = at_once(listed, lambda file: _with_footer(storage, file, stored, corrected))
    first = next((arrow for file, arrow in files if file.rows), None)
    _need(first is not None, "no rows")
    _need(all(arrow.equals(first) for _, arrow in files), "the files differ in their schemas")
    size = sum(file.size for file in listed)
    each = _task_bytes(state.conf(), size, int(session.sparkContext.defaultParallelism))
    shares = _shares([file for file, _ in files], -(-size // max(each, 1)))
    return ParquetScan(storage=storage, schema=schema, stored=first, shares=shares)


def _task_bytes(conf: Any, size: int, cores: int) -> int:
    """The bytes of files for one task, as Spark shares them."""
    return min(int(conf.filesMaxPartitionBytes()), max(int(conf.filesOpenCostInBytes()), -(-size // cores)))


def _class(part: Any) -> str:
    return str(part.getClass().getName())


def _columns(asked: StructType, data_schema: str) -> tuple[pa.Schema, pa.Schema]:
    """The columns of the rows, and those of the files, in Arrow's types as Spark gives them to Python."""
    from pyspark.sql.types import StructType

    data = StructType.fromJson(json.loads(data_schema))
    given = {field.name: field.dataType for field in data}
    _need(len({name.lower() for name in given}) == len(data), "two columns of one name")
    _need(len({name.lower() for name in asked.names}) == len(asked), "two columns of one name")
    for field in asked:
        _need(given.get(field.name) == field.dataType, f"no column of the files: {field.name}")
    _check_types(data)
    return arrow_of_spark(asked), arrow_of_spark(data)


def _check_types(kind: DataType) -> None:
    from pyspark.sql import types as T

    plain = (T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.BinaryType)
    if isinstance(kind, T.StructType):
        names = kind.names
        _need(all(map(_NAME.fullmatch, names)) and len({n.lower() for n in names}) == len(names), f"names: {names}")
        for field in kind:
            _need(not field.metadata, f"{field.name} has properties")
            _check_types(field.dataType)
    elif type(kind) is T.ArrayType:
        _check_types(kind.elementType)
    elif type(kind) is T.MapType:
        _check_types(kind.keyType)
        _check_types(kind.valueType)
    else:
        dated = (T.DateType, T.TimestampType, T.TimestampNTZType, T.DecimalType)
        _need(kind == T.StringType() or type(kind) in (*plain, *dated), f"a column of {kind.simpleString()}")


def _files(session: Any, index: Any, table: Storage) -> tuple[Storage, list[ScannedFile]]:
    """The files that Spark listed, by their paths, and the storage in which they are."""
    nothing = session._jvm.PythonUtils.toSeq([])
    folders, found = index.listFiles(nothing, nothing), list[ScannedFile]()
    for folder in range(folders.size()):
        files = folders.apply(folder).files()
        _need(len(found) + files.size() <= _FILES_MAX, f"more than {_FILES_MAX} files")
        for at in range(files.size()):
            one = files.apply(at)
            path, size, modified = str(one.getPath().toString()), int(one.getLen()), int(one.getModificationTime())
            found.append(ScannedFile(path=path, size=size, modified_ms=modified))
    _need(len({file.path for file in found}) == len(found) > 0, "no files, or one of them twice")
    match = _ROOT.match(found[0].path)
    root = match[0] if match else found[0].path
    _need(all(file.path.startswith(f"{root}/") for file in found), "files in several places")
    if root == "file:":
        _need(threads_of(session.sparkContext) > 0, "files of this machine, and tasks that may run elsewhere")
    storage = open_storage("/") if root == "file:" else storage_beside(table, root)
    if storage is None:
        raise _NotBareError("files that tasks may not reach")
    relative = (replace(file, path=file.path.removeprefix(root).lstrip("/")) for file in found)
    return storage, sorted(relative, key=lambda file: file.path)


def _with_footer(
    storage: Storage, file: ScannedFile, columns: pa.Schema, corrected: bool
) -> tuple[ScannedFile, pa.Schema]:
    """A file with its row groups, and its schema in Arrow's types. `corrected`: Spark reads dates of a file that names
    no calendar in the new one."""
    _check_unchanged(storage, file)
    with open_little(storage, file.path) as source, readable("file", file.path):
        opened = open_parquet(source)
        metadata = opened.metadata
        _need(_MODERN.match(metadata.created_by or "") is not None, f"{file.path}: written by {metadata.created_by}")
        _need(not is_encrypted(source, metadata), f"{file.path}: encrypted")
    if metadata.num_row_groups:
        codecs = {metadata.row_group(0).column(at).compression for at in range(metadata.num_columns)}
        _need(codecs <= _CODECS, f"{file.path}: compressed by {codecs}")
    dated = _check_leaves(opened, columns)
    version = b"org.apache.spark.version" in (metadata.metadata or {})
    _need(not dated or ((version or corrected) and old_calendar(opened) is None), f"{file.path}: the old calendar")
    arrow, rows = opened.schema_arrow, _group_rows(metadata)
    arrow.empty_table().cast(columns)  # ArrowException: not what it was taken for
    size = tuple(metadata.row_group(at).total_byte_size for at in range(len(rows)))
    return replace(file, rows=rows, bytes=size), arrow


def _check_leaves(file: pq.ParquetFile, columns: pa.Schema) -> bool:
    """Whether some are dates or times. Each leaf column must be stored as Spark's type of it asks."""
    wanted, read = list(_leaves(columns)), list(_leaves(file.schema_arrow))
    _need(len(wanted) == len(read) == len(file.schema), "other columns than the plan has")
    dated = False
    for at, ((path, kind), (_, given)) in enumerate(zip(wanted, read, strict=True)):
        leaf = file.schema.column(at)
        _need(leaf.path == path, f"the column {leaf.path}, where the plan has {path}")
        found = _kinds(leaf)
        _need(found == (_plain(given), kind), f"{path}: {leaf.physical_type} {leaf.logical_type} as {given} and {kind}")
        dated = dated or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    return dated


def _leaves(schema: pa.Schema | pa.StructType, above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """The leaf columns that Parquet has for a schema, lists and maps in three levels."""
    for field in schema:
        yield from _leaves_of(f"{above}{field.name}", field.type)


def _leaves_of(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        yield from _leaves(kind, f"{path}.")
    elif pa.types.is_list(kind):
        yield from _leaves_of(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _leaves_of(f"{path}.key_value.key", kind.key_type)
        yield from _leaves_of(f"{path}.key_value.value", kind.item_type)
    else:
        yield path, kind


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of values that an Arrow schema in a footer has in another form."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kind = _NARROW.get(kind, kind)
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


_I8, _I16, _I32, _I64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
_F32, _F64, _BOOL, _BYTES = pa.float32(), pa.float64(), pa.bool_(), pa.binary()
_PLAIN_KINDS = {"BOOLEAN": _BOOL, "INT32": _I32, "INT64": _I64, "FLOAT": _F32, "DOUBLE": _F64, "BYTE_ARRAY": _BYTES}
_UNSIGNED = {8: (pa.uint8(), _I16), 16: (pa.uint16(), _I32), 32: (pa.uint32(), _I64)}
_SIGNED = {kind.bit_width: (kind, kind) for kind in (_I8, _I16, _I32, _I64)}
_NARROW = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_UNITS = {"milliseconds": "ms", "microseconds": "us"}


def _kinds(leaf: pq.ColumnSchema) -> tuple[pa.DataType, pa.DataType] | None:
    """The types in which pyarrow and Spark read a leaf column; None: not known to be the same values."""
    logical, physical = json.loads(leaf.logical_type.to_json()), leaf.physical_type
    kind = logical["Type"]
    if kind == "None":
        return (found, found) if (found := _PLAIN_KINDS.get(physical)) is not None else None
    if kind == "Int":
        return (_SIGNED if logical["isSigned"] else _UNSIGNED).get(logical["bitWidth"])
    if kind in ("String", "Enum", "JSON") and physical == "BYTE_ARRAY":
        return pa.string(), pa.string()
    if kind == "Date":
        return pa.date32(), pa.date32()
    if kind == "Timestamp" and physical == "INT64" and logical["timeUnit"] in _UNITS:
        zone = "UTC" if logical["isAdjustedToUTC"] else None
        return pa.timestamp(_UNITS[logical["timeUnit"]], zone), pa.timestamp("us", zone)
    if kind == "Decimal":
        return (decimal := pa.decimal128(logical["precision"], logical["scale"])), decimal
    return None


def _shares(files: Sequence[ScannedFile], number: int) -> tuple[tuple[ScannedFile, ...], ...]:
    """The row groups in their order, in about as many shares of equal size (pure)."""
    total = max(sum(sum(file.bytes) for file in files), 1)
    shares: dict[int, dict[str, ScannedFile]] = {}
    before = 0
    for file in files:
        for group, size in enumerate(file.bytes):
            share = shares.setdefault(min(before * number // total, number - 1), {})
            known = share.get(file.path, file)
            share[file.path] = replace(known, groups=(*known.groups, group))
            before += size
    return tuple(tuple(share.values()) for share in shares.values())


def _group_rows(metadata: pq.FileMetaData) -> tuple[int, ...]:
    return tuple(metadata.row_group(at).num_rows for at in range(metadata.num_row_groups))


def _check_unchanged(storage: Storage, file: ScannedFile) -> None:
    entry = storage.find(file.path)
    unit = 1 if storage.is_file_system else 1000  # object stores tell whole seconds to some who ask
    if entry is None or (entry.size, entry.modified_ms // unit) != (file.size, file.modified_ms // unit):
        found = "no file" if entry is None else f"{entry.size} bytes of {entry.modified_ms}"
        raise _changed(storage, file, found)


def _full(storage: Storage, file: ScannedFile) -> str:
    return f"{storage.base_path.rstrip('/')}/{file.path}"


def _changed(storage: Storage, file: ScannedFile, found: str) -> StorageError:
    return StorageError(
        "a file of the rows changed while it was read",
        path=_full(storage, file),
        expected=f"{file.size} bytes of {file.modified_ms} ms, with row groups of {list(file.rows)} rows",
        found=found,
        todo="Nothing of this write is visible. Make the DataFrame again, and write again.",
    )


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, path: str) -> Iterator[pa.RecordBatch]:
    """A batch in Spark's types. MalformedError: a value that its type does not have."""
    with decoding("not readable rows of a file", path, pa.ArrowException, ValueError):
        rows = pa.Table.from_batches([batch.select(schema.names)]).cast(schema)
        for name in schema.names:
            if "decimal" in str(schema.field(name).type):
                rows.column(name).validate(full=True)
        yield from rows.to_batches()
