"""The rows of a write: prepared before the write is visible, and staged as files once it has an instant.

They come from any library that gives them in Arrow's form: pandas, Polars, DuckDB, record batches, readers. The
interface `__arrow_c_stream__` or `__arrow_c_array__` decides; no library is named here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from phantombase.compactor_daemon.execution.spark_session import living
from phantombase.timeline.codec.arrow_schema import arrow_schema, project
from phantombase.timeline.codec.avro_schema import META_COLUMNS, has_decimals_of_bytes
from phantombase.timeline.codec.row_hash import hash_sum, row_hashes
from phantombase.timeline.errors import UnsupportedError, UsageError, reason_of
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.format.record_key import KeySplit
from phantombase.timeline.format.table_config import MergeMode, TableConfig
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.index_logs import FileKeys, RecordedKeys
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.record_index import has_one_record_index
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.table.table import Snapshot, Table, TableSchema
from phantombase.timeline.view.view import GroupKey, ViewFacts

from ..commit.conflict import WriteSet
from ..commit.stream_batches import NO_ROWS
from ..commit.transaction import Transaction
from ..engine.engine import Engine, Pieces, RowCounts, StagedRows
from ..engine.spark import run, to_arrow
from ..files.stager import FileKind, StagedFile, WriteWork
from ..files.stored_keys import NOT_NOTED
from ..index.bucket_step import BucketStep, shows_other_index
from ..index.global_keys import place_keys
from ..index.key_index import KeyIndex, NewFilesStep
from ..index.lookup_step import replaced_keys
from ..index.prepare_step import BySource, KeyRoute, PrepareRows, ToBucket, ToSlot
from ..options import MovedKeys, Operation, Write, WriteOptions
from ..schema.key_encoding import generator_of
from ..schema.key_generator import KeyGenerator

_log = get_logger()


def prepare_rows(table: Snapshot, schema: TableSchema, engine: Engine, write: Write, *, here: bool) -> Pieces:
    """The input in the table's types with keys and paths, split by targets. `here`: see `Engine.prepare`."""
    config = table.config
    own = pa.schema([field for field in schema.arrow if field.name not in META_COLUMNS])
    if write.deletes:
        own = project(own, [*config.record_key_fields, *config.partition_fields])
    if write.into is not None:
        own = write.into.row_schema(own, config)
    rules = slice_rules(table, schema)
    if write.moved_keys is MovedKeys.MOVE and rules.merge.unset is not None:
        raise UnsupportedError(
            "rows that move to another partition are not merged with what the old row gives them, as this table "
            "demands",
            path=table.storage.base_path,
            expected="a merge rule under which one of two rows wins whole",
            found="values that mean 'not given'",
            todo="Let keys stay in their partitions: global_keys(move=False).",
        )
    keys = generator_of(table, dict(write.options.times), moves=write.moved_keys is not None)
    prepare = _preparation(config, keys, own, rules.ordering_fields, engine.slots, write)
    return engine.prepare(prepare, table.storage, here=here)


def _preparation(
    config: TableConfig, keys: KeyGenerator, own: pa.Schema, ordering: tuple[str, ...], slots: int, write: Write
) -> PrepareRows:
    return PrepareRows(
        keys=keys,
        data_schema=own,
        ordering_fields=ordering,
        route=_route(config, slots, write),
        key_only=write.deletes,
        batch_bytes=write.options.batch_bytes,
        together=write.moved_keys is not None,
    )


def first_rows(config: TableConfig, schema_text: str, engine: Engine, storage: Storage, write: Write) -> Pieces:
    """The prepared rows of a first write, before its table is made: `row_counts` checks them, so that a refused write
    leaves no table. UsageError, UnsupportedError: as those of the write itself."""
    own = pa.schema([field for field in arrow_schema(schema_text) if field.name not in META_COLUMNS])
    prefixed, options = config.layout.has_completion_times, write.options
    keys = KeyGenerator.of(config, one_field_prefixed=prefixed, writer=dict(options.times))
    ordering = () if config.merge_mode is MergeMode.COMMIT_TIME else config.ordering_fields
    prepare = _preparation(config, keys, own, ordering, engine.slots, write)
    return engine.prepare(prepare, storage, here=needs_only_rows(write, None) and write.moved_keys is None)


def _route(config: TableConfig, slots: int, write: Write) -> KeyRoute:
    if write.options.buckets is not None:
        return _to_bucket(config, write.options.buckets, write.options)
    # All rows of one key must be sent to one task.
    return ToSlot(slots) if write.looks_keys_up or write.combines else BySource(slots)


def _to_bucket(config: TableConfig, buckets: int, options: WriteOptions) -> ToBucket:
    return ToBucket(buckets, options.bucket_fields or config.record_key_fields, KeySplit.of(config.layout))


def stage_rows(
    begun: Transaction,
    schema: TableSchema,
    rows: Pieces,
    counts: RowCounts,
    slots: int,
    write: Write,
    replacing: Mapping[str, Sequence[str]],
) -> tuple[list[StagedFile], RecordedKeys | str]:
    """Stages the files of a write, and its keys for the record index; text instead of these: why they are not known.
    `rows`: from `prepare_rows`, computed already; `counts`: their summary. `replacing`: file ids that the write
    replaces, by partition."""
    asked = write.options.log_format
    work = _work(begun.table, begun.facts, schema, write)
    work = replace(work, instant=begun.instant, clustering=begun.clustering, replaced=_keys(replacing))
    if work.log_format is not (asked or work.log_format):
        path = begun.table.storage.base_path
        _log.warning("configurations_without_meaning", names="hoodie.logfile.data.block.format", path=path)
    gone = replaced_keys(rows, work, slots, replacing) if work.notes_keys else NOT_NOTED
    if write.operation is Operation.DELETE_PARTITION:
        done = []
    elif write.moved_keys is None:
        done = _staged(work, rows, counts, slots, write)
    else:
        route = _route(begun.table.config, slots, write)
        with place_keys(rows, work, route, slots, write.moved_keys).kept() as placed:
            done = _staged(work, placed, placed.row_counts(), slots, write)
    files = [StagedFile.from_json(data) for data in done]
    return files, _noted_keys(files, gone, write, staged_folder(work.instant))


def check_index(table: Snapshot, schema: TableSchema, counts: RowCounts, slots: int, write: Write) -> None:
    """UsageError, UnsupportedError: the table has another index. Tasks find it too, but then the write has begun, and
    must be rolled back. File groups are looked at only if the newest write shows others; of another engine's buckets
    the first write of a process looks."""
    options, operation = write.options, write.operation
    keyed = operation is not Operation.DELETE_PARTITION and options.buckets is None
    # What replaces all that it looks at may have another index, and is the way out where a bucket has two groups.
    if (operation.replaces and not keyed) or not shows_other_index(table, options):
        return
    work = _work(table, table.load_facts(), schema, write)
    if options.buckets is None:
        KeyIndex(work, options, slots).check(counts, looks_up=write.looks_keys_up)
    else:
        BucketStep(work, _to_bucket(table.config, options.buckets, options)).check_once(counts)


def _work(table: Snapshot, facts: ViewFacts, schema: TableSchema, write: Write) -> WriteWork:
    """What tasks need, without what a write has only once it has begun."""
    rules, options = slice_rules(table, schema), write.options
    # 0.15.0 looks for BINARY decimals in a Parquet block of such a column, and fails the whole read.
    old = not table.layout.has_completion_times and has_decimals_of_bytes(schema.file_text)
    avro = old or rules.merge.orders_by_text
    return WriteWork(
        table=table,
        timeline=table.timeline,
        facts=facts,
        clustering=frozenset(),
        instant="",
        schema=schema,
        rules=replace(rules, memory_bytes=options.output.memory_limit, spill_folder=options.output.spill_dir),
        output=options.output,
        log_format=LogFormat.AVRO if avro else options.log_format or LogFormat.PARQUET,
        combine=write.combines,
        deletes=write.deletes,
        file_bytes=options.file_bytes,
        measure=Measure.of(table, schema),
        into=write.into,
        notes_keys=has_one_record_index(table),
        notes_updates=options.buckets is not None or write.moved_keys is MovedKeys.MOVE,
    )


def _staged(work: WriteWork, rows: Pieces, counts: RowCounts, slots: int, write: Write) -> list[bytes]:
    options = write.options
    if options.buckets is not None:
        return rows.regroup(BucketStep(work, _to_bucket(work.table.config, options.buckets, options))).collect()
    if write.operation is Operation.BULK_INSERT:
        if work.timeline.completed_writes:
            KeyIndex(work, options, slots).groups(counts)  # refuses a table with buckets, which new files would break
        return rows.regroup(NewFilesStep(work)).collect()
    if write.operation is Operation.INSERT or write.operation.replaces:
        return KeyIndex(work, options, slots).insert(rows, counts)
    return KeyIndex(work, options, slots).upsert(rows, counts)


def needs_only_rows(write: Write, table: Table | None) -> bool:
    """Whether the time of `stage_rows` depends on the rows alone: it reads nothing of the table. None: a new table."""
    looks = write.into is not None or (write.operation.replaces and table is not None and has_one_record_index(table))
    return (write.options.buckets is not None and not looks) or write.operation is Operation.BULK_INSERT


def write_set(
    files: list[StagedFile], write: Write, replacing: Mapping[str, Sequence[str]], *, global_keys: bool = False
) -> WriteSet:
    """The changes that these files make. `replacing`: file ids by partition. `global_keys`: one partition a key."""
    bases = [f for f in files if f.kind is FileKind.BASE]
    upserts, bucketed = write.operation is Operation.UPSERT, write.options.buckets is not None
    unique = upserts and not bucketed
    return WriteSet(
        appended=frozenset(f.key for f in files if f.kind is FileKind.LOG),
        rewritten=frozenset(f.key for f in bases if f.base_instant is not None),
        buckets=frozenset((f.partition, f.file_id[:8]) for f in bases) if bucketed else frozenset(),
        inserts=frozenset(f.partition for f in bases if f.inserts) if unique else frozenset(),
        looked_up=unique,
        everywhere=global_keys and upserts,
        partitions=frozenset(f.partition for f in files),
        overwritten=frozenset(replacing),
        overwrites_all=write.operation is Operation.INSERT_OVERWRITE_TABLE,
        replaced=_keys(replacing),
    )


def _noted_keys(
    files: Sequence[StagedFile], gone: tuple[FileKeys, ...] | str, write: Write, folder: str
) -> RecordedKeys | str:
    """See `stage_rows`. `gone`: of replaced file groups."""
    unknown = next((file.keys_unknown for file in files if file.keys_unknown), None)
    if unknown is not None or isinstance(gone, str):
        return unknown or str(gone)
    noted = tuple(file.keys for file in files if file.keys is not None)
    return RecordedKeys(files=noted, memory_limit=write.options.output.memory_limit, folder=folder, replaced=gone)


def _keys(file_ids: Mapping[str, Sequence[str]]) -> frozenset[GroupKey]:
    return frozenset((partition, file_id) for partition, of in file_ids.items() for file_id in of)


def column_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that a method was given. UsageError: such as a list of names instead of names."""
    if not all(isinstance(name, str) for name in fields):
        raise UsageError("not names of columns", expected="each as an argument of its own, a text", found=repr(fields))
    return fields


# --- rows of any library ------------------------------------------------------------------------------------------

_EXPECTED = "a Spark DataFrame, or rows of pyarrow, pandas, Polars, DuckDB or another library with __arrow_c_stream__"
_MADE: Mapping[type[Any], str] = {
    list: "Of a list of dictionaries: pyarrow.Table.from_pylist(rows).",
    dict: "Of columns by their names: pyarrow.table(rows).",
}
_INDEX = re.compile(r"__index_level_\d+__")
"""An index of pandas that has no name; one with a name is a column."""


def with_columns(rows: Any, columns: Mapping[str, str]) -> Any:
    """Rows with these columns only, from those that `columns` names. `rows`: from `in_arrow`."""
    if isinstance(rows, pa.Table):
        return pa.table({name: rows.column(source) for name, source in columns.items()})
    return rows.select(*(rows[f"`{source}`"].alias(name) for name, source in columns.items()))


def in_arrow(rows: Any) -> Any:
    """Rows as a pyarrow Table; a Spark DataFrame, staged rows and None are returned unchanged. Rows are read here:
    a stream can be read only once. UsageError: no rows, or values that Arrow has no type for."""
    if (
        rows is None or isinstance(rows, (pa.Table, StagedRows)) or hasattr(rows, "mapInArrow")
    ):  # Spark's have a stream too
        return rows
    kind = f"{type(rows).__module__.partition('.')[0]} {type(rows).__name__}".removeprefix("builtins ")
    gives = hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")
    if isinstance(rows, type) or not gives:
        todo = "Collect it first: rows.collect()." if hasattr(rows, "collect") else _MADE.get(type(rows))
        raise UsageError("not rows", expected=_EXPECTED, found=kind, todo=todo)
    try:
        table = pa.table(rows)
    except Exception as error:  # of the library that gives them
        found = f"{kind}: {reason_of(error).partition('. Detail:')[0]}"
        todo = "Make a pyarrow.Table of them first."
        raise UsageError("rows that cannot be read as Arrow", found=found, todo=todo) from error
    # Polars gives such a column as addresses in memory.
    if kind == "polars DataFrame" and (objects := [n for n, of in rows.schema.items() if str(of) == "Object"]):
        raise UsageError("columns of Python objects", found=", ".join(objects), todo="Give them a type, or drop them.")
    return table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)]).replace_schema_metadata()


def rows_mark(rows: Any, query: str) -> str:
    """A mark that distinguishes rows from others, whatever their order; "" if there is none. `rows`: from `in_arrow`.
    For a DataFrame of a query it is the hash of the plan, which is the same within one run of the query only. A
    DataFrame without a known query, as in a thread of a `foreachBatch` function, is computed. Staged rows have none.
    SparkError: see `run`."""
    if isinstance(rows, pa.Table):
        marks = marked(rows.to_batches())
    elif isinstance(rows, StagedRows):
        return ""
    elif query:
        return str(rows.semanticHash())
    else:
        marks = run(partial(to_arrow, rows.mapInArrow(marked, _MARKS))).to_batches()
    done = pa.Table.from_batches(marks, _MARK_SCHEMA)
    if done["hash"].null_count:
        return ""
    count, total = sum(done["rows"].to_pylist()), sum(done["hash"].to_pylist())
    return f"{count}:{total % (1 << 64):016x}" if count else NO_ROWS


_MARK_SCHEMA = pa.schema([("rows", pa.int64()), ("hash", pa.int64())])
_MARKS = "rows long, hash long"


def marked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each batch the number of rows and the sum of hashes mod 2^64, signed; null: a column's type has no rule."""
    for batch in batches:
        order = sorted(range(batch.num_columns), key=batch.schema.names.__getitem__)
        total: int | None = None
        with suppress(UnsupportedError):
            total = hash_sum(row_hashes([batch.column(at) for at in order], batch.num_rows))
            total -= (total >> 63) << 64
        yield pa.record_batch([pa.array([batch.num_rows], pa.int64()), pa.array([total], pa.int64())], _MARK_SCHEMA)


def streaming_run(rows: Any) -> tuple[str, str]:
    """Spark's ids of the streaming query whose batch this thread writes, which is in its checkpoint, and of its run; ""
    if none. `rows`: a DataFrame, or what was made of one."""
    if isinstance(rows, StagedRows):
        return rows.query, rows.run
    session = getattr(rows, "sparkSession", None)
    if session is None and (sql := sys.modules.get("pyspark.sql")) is not None:
        session = sql.SparkSession.getActiveSession()
    context = getattr(session, "sparkContext", None)
    if context is None:
        return "", ""
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    return query, (context.getLocalProperty("spark.jobGroup.id") or "") if query else ""


def classic(frame: Any) -> Any:
    """The DataFrame. UnsupportedError: it is one of Spark Connect, whose driver is another process. SparkError: its
    session was stopped."""
    if not hasattr(frame, "_jdf"):
        raise UnsupportedError(
            "writer(...) takes no DataFrame of Spark Connect",
            expected="a DataFrame of a session with its driver in this process",
            found=f"{type(frame).__module__}.{type(frame).__name__}",
            todo='The source writes there, from PySpark 4.0 on: df.write.format("phantombase").mode("append")'
            ".options(...).save(PATH), with Hudi's names of options.",
        )
    living(frame.sparkSession.sparkContext)
    return frame
