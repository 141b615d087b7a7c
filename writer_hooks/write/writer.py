"""The entry point of writing: describe the table and the write, then choose what to do with the rows.

    from phantombase import writer

    writer(df).table("trips").key("id").partition("day").ordering("ts").upsert("/data/trips")

`df` is a Spark DataFrame, or rows of pyarrow, pandas, Polars, DuckDB or another library that gives them as an Arrow
stream. Such rows are written in this process, without Spark."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.catalogs.options import SyncOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.hudi_names import contradiction, overruled
from phantombase.timeline.errors import NotATableError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.locks.table_lock import BASE_PATH_HASH, base_path_hash, table_lock
from phantombase.timeline.option import member, path_text, spelled, spelled_class
from phantombase.timeline.planning.options import requests_of
from phantombase.timeline.reachable import waiting
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.open_storage import full_path, open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table

from ..commit.place_files import first_table, refuse_first_partitions, still_there
from ..commit.stream_batches import DEFAULT_STREAM, StreamBatch, checked_stream
from ..engine.engine import Engine, LocalEngine, Pieces, StagedEngine, StagedRows
from ..engine.spark import SparkEngine, default_slots
from ..merge_into import MergeInto
from ..options import (
    BackPressure,
    CompactionOptions,
    FullAction,
    Mode,
    MovedKeys,
    Operation,
    Write,
    WriteOptions,
    listed,
)
from ..schema.key_generator import PARTITION_TYPES
from ..schema.new_table import NewTable, check_same_table, made_with, refuse_place, same_as
from ..schema.table_schema import columns_of
from ..schema.write_schema import checked_schema
from .conf import METADATA, OPERATION, STREAM, check_description, parse_operation_conf, parse_write_conf
from .rows import classic, column_names, first_rows, in_arrow, rows_mark, streaming_run, with_columns
from .table_conf import PARTITIONS, check_times, described_table, idle, not_followed, table_field, table_names
from .write import Written, check, shown, write, write_batch

_log = get_logger()

Place: TypeAlias = str | os.PathLike[str]
"""The path or URL of a table."""


@spelled_class
@dataclass(frozen=True, kw_only=True)
class Writer(Shown):
    """The description of a write; every method returns a new one. In brackets: Hudi's names, which `conf` takes. The
    fields of the table (name, key, ...) are needed to make a new table. With an existing table they can be left out;
    those that are given must agree with it. `explicit`: fields of table and write that methods have set, other than
    `conf` and `config`; `said` and `own`: `given` and `options` without what `conf` set; `hoodie`: its names.
    `operation`, `partitions` and `stream`: as `conf` names them."""

    source: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    options: WriteOptions = field(default_factory=WriteOptions)
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    operation: Operation | None = None
    partitions: tuple[str, ...] | None = None
    stream: str = DEFAULT_STREAM
    explicit: frozenset[str] = field(default=frozenset(), repr=False)
    hoodie: Mapping[str, str] = field(default_factory=dict, compare=False)
    said: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    own: WriteOptions = field(default_factory=WriteOptions, compare=False, repr=False)

    # --- the table -------------------------------------------------------------------------------------------------

    def table(
        self, name: str, *, version: int | None = None, database: str | None = None, metadata_table: bool | None = None
    ) -> Writer:
        """The table's name, and the version of a new table: 6, 8 or 9 (`hoodie.table.name`,
        `hoodie.write.table.version`). `metadata_table`: a new table gets Hudi's metadata table, which lists its files
        (`hoodie.metadata.enable`)."""
        return self._with(name=name, version=version, database=database, metadata_table=metadata_table)

    def key(self, *fields: str) -> Writer:
        """The columns that make a row unique (`hoodie.datasource.write.recordkey.field`). Without columns the table is
        keyless: each row that is inserted gets a key of its own, and no row is updated."""
        return self._with(key_fields=column_names(fields))

    def partition(self, *fields: str, hive_style: bool | None = None, url_encode: bool | None = None) -> Writer:
        """The partition columns, and how their folders are named (`hoodie.datasource.write.partitionpath.field`,
        `...hive_style_partitioning`, `...partitionpath.urlencode`)."""
        return self._with(partition_fields=column_names(fields), hive_style=hive_style, url_encode=url_encode)

    def ordering(self, *fields: str) -> Writer:
        """The columns that decide between two rows of one key (`hoodie.table.ordering.fields`, `...precombine.field`).
        Without them the later write wins."""
        return self._with(ordering_fields=column_names(fields))

    def key_generator(self, kind: str, **times: str) -> Writer:
        """SIMPLE, COMPLEX, NON_PARTITION, TIMESTAMP or CUSTOM (`hoodie.datasource.write.keygenerator.type`). `times`:
        of TIMESTAMP, for instance `timestamp_type="EPOCHMILLISECONDS"`: `hoodie.keygen.timebased.` names with `_` for
        `.`. Every write must give those that an existing table does not store (version 6: the type). UsageError: Hudi
        has no such name."""
        named = tuple(sorted((f"hoodie.keygen.timebased.{n.replace('_', '.')}", v) for n, v in times.items()))
        check_times(name for name, _ in named)
        return self._with(key_generator=kind, times=named or None)

    def merge_mode(self, mode: MergeMode | str) -> Writer:
        """The merge rule of a new table: EVENT_TIME or COMMIT_TIME (`hoodie.record.merge.mode`)."""
        return self._with(merge_mode=member(MergeMode, mode, "a merge mode"))

    def timezone(self, name: str) -> Writer:
        """The time zone of the table's instants, the same for all its writers: LOCAL (the zone of this process, the
        default), UTC, or a name such as America/New_York. `hoodie.table.timeline.timezone=UTC` of a table wins."""
        return self.option(clock=replace(self.options.clock, timezone=name))

    # --- the write -------------------------------------------------------------------------------------------------

    def buckets(self, count: int, *fields: str) -> Writer:
        """The bucket index (`hoodie.bucket.index.num.buckets`, `...hash.field`), which a table does not record. Every
        writer of the table must use the same values. Without them the key index is used."""
        return self.option(buckets=count, bucket_fields=fields)

    def global_keys(self, *, move: bool = True) -> Writer:
        """Keys are unique over all partitions, as under Hudi's GLOBAL_SIMPLE, GLOBAL_BLOOM and RECORD_INDEX, which a
        table does not record: all its writers must say so (`hoodie.index.type`). `move`: a row whose key another
        partition has moves the key to its own; otherwise it is written where the key is
        (`hoodie.simple.index.update.partition.path`, `hoodie.bloom...`, `hoodie.record...`). By the table's merge rule
        it may lose against the row there. A delete finds its key in any partition. `insert` looks no key up."""
        return self.option(moved_keys=MovedKeys.MOVE if move else MovedKeys.STAY)

    def option(self, **options: Any) -> Writer:
        """Sets fields of `WriteOptions`. UsageError: one of them contradicts a name of `conf`, see there."""
        return self._told(own=replace(self.own, **options), explicit=self.explicit | options.keys())

    def schedule(self, *, notify: Callable[[], None] | None = None, fleet: str | None = None, **options: Any) -> Writer:
        """Request a compaction after each commit, if one is due: fields of `ScheduleOptions`
        (`hoodie.compact.schedule.inline`, `hoodie.compact.inline.max.delta.commits`, ...). Another compactor executes
        it: `compactor-daemon`, Hudi, or an `AsyncCompaction` of this job, whose `notify` is given here. `fleet`: the
        ZooKeeper (`host:port[,host:port][/chroot][?access]`) of the daemons, which then claim it at once; without it
        they find it at their next poll."""
        compaction = CompactionOptions(
            mode=Mode.SCHEDULE,
            schedule=requests_of(options),
            notify=notify,
            fleet=ZooKeeperOptions.of(fleet) if fleet is not None else None,
        )
        return self.option(compaction=compaction)

    def compact_inline(self, *, limit_s: float | None = None, **options: Any) -> Writer:
        """Request a compaction if one is due, and execute pending ones before the write returns
        (`hoodie.compact.inline`); `options` as for `schedule`. `limit_s`: seconds after which staging stops; the next
        write, or another compactor, continues."""
        return self.option(
            compaction=CompactionOptions(mode=Mode.INLINE, schedule=requests_of(options), limit_s=limit_s)
        )

    def back_pressure(self, *, action: FullAction | str = FullAction.WAIT, **options: Any) -> Writer:
        """Wait, or fail, instead of making a file group's log too long: fields of `BackPressure`
        (`phantombase.write.stop.trigger`, `.action`, `.wait.seconds`, `phantombase.write.slow.trigger`, ...). `action`:
        "wait", "fail" or "go-on". By default batches of a stream wait, and other writes go on."""
        chosen = member(FullAction, action, "an action for a full file group")
        if chosen is not FullAction.WAIT and "wait_s" in options:
            raise UsageError(
                "wait_s means nothing here",
                expected='action="wait"',
                found=f'action="{chosen.value}"',
                todo="Leave it out.",
            )
        if "slow_s" in options and options.get("slow_trigger") is None:
            raise UsageError("slow_s means nothing here", expected="slow_trigger, too", found="none")
        return self.option(back_pressure=BackPressure(action=chosen, **options))

    def clean(self, *, policy: Policy | str = Policy.COMMITS, **options: Any) -> Writer:
        """Remove the files that no reader needs after each commit (`hoodie.clean.automatic`): fields of `CleanOptions`
        (`hoodie.clean.commits.retained`, ...). `policy`: "commits", "hours" or "versions"."""
        return self.option(clean=CleanOptions(policy=member(Policy, policy, "a policy of cleaning"), **options))

    def cluster(self, *, after_commits: int = 4, wait_s: float = 0.0, **options: Any) -> Writer:
        """Cluster small files after a commit (`hoodie.clustering.inline`), once as many writes and compactions have
        completed since the last clustering (`hoodie.clustering.inline.max.commits`): fields of `ClusterOptions`
        (`hoodie.clustering.plan.strategy.*`). `wait_s`: how long it waits for writes of others that began before its
        plan; without a wait the next commit tries again. The write is complete before, whatever becomes of the
        clustering."""
        return self.option(cluster=ClusterOptions(after_commits=after_commits, wait_s=wait_s, **options))

    def archive(self, **options: Any) -> Writer:
        """Archive old instants after each commit (`hoodie.archive.automatic`): fields of `ArchiveOptions`
        (`hoodie.keep.min.commits`, `hoodie.keep.max.commits`)."""
        return self.option(archive=ArchiveOptions(**options))

    def sync(self, to: str, **options: Any) -> Writer:
        """Make a catalog show the table as it is after each commit (`hoodie.datasource.hive_sync.enable`): `to`, such
        as "hive:HOST:PORT" or "glue:REGION", and fields of `SyncOptions` (`hoodie.datasource.hive_sync.*`). A sync that
        fails is a warning; the next one makes up for it."""
        return self.option(sync=SyncOptions(to=to, **options))

    def config(self, path: Place | None = None) -> Writer:
        """Takes the options of the write from a configuration file, the one of the commands and the daemon: its top
        level, [write] and [schedule]. Variables, such as `PHANTOMBASE_BUCKETS`, override the file. None: the file that
        PHANTOMBASE_CONFIG names, if it names one. Call it first: later calls override it. UsageError: an option of the
        write is set already."""
        from .settings import write_settings  # imported here: few writers need the reader of commands' options

        named = None if path is None else path_text(path)
        if self.options != WriteOptions():
            raise UsageError(
                "a configuration file would undo options of this write",
                path=named,
                todo="Call writer(...).config(...) first: what is called after it wins.",
            )
        found = write_settings(named)
        own = self.storage_options if self.storage_options.given else found.storage_options
        return replace(self, storage_options=own)._told(own=found.options)

    def conf(self, conf: Mapping[str, Any]) -> Writer:
        """Sets all of the above under Hudi's names, and what `write` does (`hoodie.datasource.write.operation`,
        `...partitions.to.delete`). Dictionaries of several calls are merged: the later value of a name wins, as with
        Spark's options. UsageError: an unknown name, or one that contradicts another name, or what a method says, be it
        called before or after."""
        chosen, rest = parse_operation_conf(conf)
        return replace(self, **chosen)._told(warns=True, hoodie=overruled(self.hoodie, rest))

    def _with(self, **fields: Any) -> Writer:
        known = {k: v for k, v in fields.items() if v is not None}
        return self._told(said={**self.said, **known}, explicit=self.explicit | known.keys())

    def _told(self, *, warns: bool = False, **changes: Any) -> Writer:
        """With what methods and names say together. `warns`: of names without meaning. UsageError: see `conf`."""
        now = replace(self, **changes)
        given, options, ignored = parse_write_conf(now.hoodie, now.own, now.explicit)
        check_description(now.said, given, now.own.clock.timezone, now.hoodie)
        if ignored and warns:
            _log.warning("configurations_without_meaning", names=" ".join(ignored))
        times = {**dict(given.get("times", ())), **dict(now.said.get("times", ()))}
        given = {**given, **now.said, **({"times": tuple(sorted(times.items()))} if times else {})}
        return replace(now, given=given, options=options)

    # --- what to do ------------------------------------------------------------------------------------------------

    def write(self, path: Place) -> Written:
        """What `conf` says: upsert, insert, bulk_insert, delete, insert_overwrite, insert_overwrite_table or
        delete_partition (`hoodie.datasource.write.operation`). Without it: upsert."""
        if self.operation is Operation.DELETE_PARTITION:
            return self.delete_partition(path)
        return self._write(path, self.operation or Operation.UPSERT)

    def upsert(self, path: Place) -> Written:
        """Updates rows of existing keys by the table's merge rule, and adds the others."""
        return self._write(path, Operation.UPSERT)

    def merge_into(
        self,
        path: Place,
        on: str | Iterable[str] | None = None,
        *,
        update: Iterable[str] = (),
        set: Mapping[str, str] | None = None,
        insert: bool = False,
        delete: str | None = None,
    ) -> Written:
        """Sets some columns of the rows of these keys, and leaves their other columns as they are (`MERGE INTO`). `on`:
        the key fields; None is the same. `update`: the columns to set from those of the same name. `set`: columns of
        the table, and the columns of these rows that give their new values. Where rows merge by event time the ordering
        columns must be among them. `insert`: add the complete rows of other keys; else they are left out. `delete`: a
        column of these rows, true in those that delete; they add nothing. Key and partition columns name the rows;
        other columns are left out. UsageError, UnsupportedError: see `MergeInto`; or two rows have one key."""
        into = MergeInto.of(on, update, set, inserts=insert, delete=delete)
        engine, what = self._engine(), replace(self._described(path, Operation.UPSERT), into=into)
        with self._opened(path, engine, what) as (table, *_):
            own = columns_of(table)
            into.check(table.config, own)
            chosen = into.source_columns(own, table.config, engine.schema.names)
            engine = replace(self, source=with_columns(self.source, chosen))._engine()
            return write(table, engine, what)

    def insert(self, path: Place) -> Written:
        """Adds rows without looking for existing rows of their keys."""
        return self._write(path, Operation.INSERT)

    def bulk_insert(self, path: Place) -> Written:
        """Adds rows as `insert`, into new base files only: the fastest way to load a table."""
        return self._write(path, Operation.BULK_INSERT)

    def delete(self, path: Place) -> Written:
        """Deletes the rows of these keys. Key and partition columns are enough."""
        return self._write(path, Operation.DELETE)

    def insert_overwrite(self, path: Place) -> Written:
        """Replaces all rows of the partitions of these rows. Rows of one key are all kept, unless `combine` is set."""
        return self._write(path, Operation.INSERT_OVERWRITE)

    def insert_overwrite_table(self, path: Place) -> Written:
        """Replaces all rows of the table; without rows it is empty afterwards. Otherwise as `insert_overwrite`."""
        return self._write(path, Operation.INSERT_OVERWRITE_TABLE)

    def delete_partition(self, path: Place, partitions: Iterable[str] | None = None) -> Written:
        """Deletes all rows of these partitions (`hoodie.datasource.write.partitions.to.delete`). `partitions`: paths as
        the table's folders, in which `*` matches any text; those that the table does not have are left out. None: those
        that `conf` names, else the partitions of the rows, of which key and partition columns are enough.
        ConflictError: a compaction of one of them is pending."""
        named = listed(self.partitions if partitions is None else partitions)
        if self.partitions not in (None, named):
            _log.warning("configurations_without_meaning", names=PARTITIONS)
        if named is None:
            return self._write(path, Operation.DELETE_PARTITION)
        rows = columns_of(Table.open(path_text(path), self.storage_options)).empty_table()
        return replace(self, source=rows, partitions=named)._write(path, Operation.DELETE_PARTITION)

    def foreach_batch(
        self,
        path: Place,
        *,
        stream: str | None = None,
        operation: Operation | str | None = None,
        take_over: str | None = None,
    ) -> Callable[[Any, int], None]:
        """For `df.writeStream.foreachBatch(writer().key("id")...foreach_batch(path))`: writes each batch exactly once.
        `stream`: the query's name in the table; None: what `conf` says
        (`hoodie.datasource.write.streaming.checkpoint.identifier`), else Hudi's default. The number of the batch is
        stored with its commit, so that a batch that is replayed after a crash is recognised; with it Spark's id of the
        query, so that another query, or a new checkpoint, is refused under this name. `take_over`: the instant of the
        last batch of the query that this one replaces, as that error names it; otherwise it changes nothing.
        `operation`: None does what `conf` says, by default an upsert. A function that gives parts of a batch to several
        sinks needs one for each operation, in the same order each time, or names of their own. Batches wait for
        compaction, unless `back_pressure` says otherwise. UsageError: not a name of a stream. The sink raises it for
        rows that it does not write, see `written_as`."""
        text = path_text(path)
        # Batches come later, perhaps from another folder. Other texts stay: a lock may hash them.
        path = text if text.startswith("/") or ":" in text.partition("/")[0] else full_path(text)
        said = self.operation or "upsert" if operation is None else operation
        own, chosen = secrets.token_hex(8), member(Operation, said, "an operation")
        name = checked_stream(stream or self.stream)
        undone = [OPERATION] if self.operation not in (None, chosen) else []
        if undone := undone + ([STREAM] if self.stream not in (DEFAULT_STREAM, name) else []):
            _log.warning("configurations_without_meaning", names=" ".join(undone))

        def sink(frame: Any, number: int) -> None:
            if not isinstance(number, int):
                raise UsageError("not the number of a batch", expected="that which Spark gives", found=repr(number))
            described = replace(self, source=in_arrow(frame))
            engine, what = described._engine(), described._described(path, chosen)
            query, run = streaming_run(described.source)
            batch = StreamBatch(
                name=name,
                number=number,
                operation=chosen.value,
                query=query,
                run=run or own,
                rows=rows_mark(described.source, query),
                take_over=take_over,
            )
            with described._opened(path, engine, what, streams=True) as (table, first, alone):
                write_batch(table, engine, what, batch, first, alone=alone)

        return sink

    def _write(self, path: Place, operation: Operation) -> Written:
        # The first job of a session takes long, and Spark shows nothing until it runs.
        with waiting(f"writing {path} on Spark") if hasattr(self.source, "mapInArrow") else nullcontext():
            engine, what = self._engine(), self._described(path, operation)
            with self._opened(path, engine, what) as (table, rows, alone):
                return write(table, engine, what, rows, alone=alone)

    def _described(self, path: Place, operation: Operation) -> Write:
        """The write, with the settings of TIMESTAMP and CUSTOM keys that a table does not store; and with the lock of
        the path as it is given. Hudi hashes the text of the path, so its lock for this path is the same."""
        times, fields = self.given.get("times", self.options.times), self.given.get("partition_fields", ())
        if any(":" in field for field in fields):
            times = (*times, (PARTITION_TYPES, ",".join(fields)))
        options = replace(self.options, times=times)
        options.check_used()
        if options.lock is not None and BASE_PATH_HASH in options.lock:
            options = replace(options, lock=options.lock.replace(BASE_PATH_HASH, base_path_hash(path_text(path))))
        return Write(operation=operation, options=options, partitions=self.partitions)

    def _engine(self) -> Engine:
        if isinstance(self.source, pa.Table):
            return LocalEngine(self.source, slots=self.options.slots or 2)
        if isinstance(self.source, StagedRows):
            return StagedEngine(self.source, slots=self.options.slots)
        if hasattr(self.source, "mapInArrow"):
            return SparkEngine(classic(self.source), slots=self.options.slots or default_slots(self.source))
        raise UsageError("no rows are given", todo="Give them to writer(...), or write a stream with foreach_batch.")

    def check(self, place: Place, *, streams: bool = False) -> None:
        """Raises what `write` would raise for its options, its table or its columns, before it reads rows; changes
        nothing. `streams`: see `_opened`."""
        engine, what = self._engine(), self._described(place, self.operation or Operation.UPSERT)
        storage, options = self._place(place, engine)
        try:
            table = Table.open(path_text(place), options)
        except NotATableError:
            self._new(storage, options, engine, what, streams=streams)
            return
        self._check_same(table)
        not_followed(table.config, self.hoodie)
        check(table, engine, what)

    def _place(self, place: Place, engine: Engine) -> tuple[Storage, StorageOptions]:
        """The storage at the path, and its options. UsageError: the names of `conf` say another path."""
        path = path_text(place)
        options = self.storage_options.over(engine.hadoop_conf(path))
        storage = open_storage(path, options)
        named = self.given.get("base_path")
        if named is not None and open_storage(named, options).base_path != storage.base_path:
            raise contradiction("the path of the write", path, "hoodie.base.path", named)
        return storage, options

    def _new(
        self, storage: Storage, options: StorageOptions, engine: Engine, what: Write, *, streams: bool
    ) -> tuple[NewTable, str]:
        """The table that this write makes, and its schema. NotATableError: it makes none."""
        if (what.deletes and not streams) or what.into is not None:
            Table.open(storage.base_path, options)  # raises the error
        by_name = {n: v for n, v in self.hoodie.items() if table_field(n) not in self.said}
        spec = described_table(self.given, by_name, takes_keyless=not what.looks_keys_up)
        config = spec.config()
        not_followed(config, self.hoodie)
        text = checked_schema(config, None, engine.schema, what)
        opened, allowed = partial(open_storage, options=options), what.options.allow_other_files
        refuse_place(storage, opened, allow_other_files=allowed)
        return spec, text

    def _check_same(self, table: Table) -> None:
        given = {k: v for k, v in self.given.items() if k not in ("times", "base_path")}
        check_same_table(table.config, replace(same_as(table.config), **given))

    @contextmanager
    def _opened(
        self, place: Place, engine: Engine, what: Write, *, streams: bool = False
    ) -> Iterator[tuple[Table, Pieces | None, bool]]:
        """The table at the path; a new one with the prepared rows, and whether it is removed if the write fails.
        `streams`: deletes make it, too. ConflictError: another first write has removed it in this way meanwhile."""
        storage, options = self._place(place, engine)
        try:
            table = Table.open(path_text(place), options)
        except NotATableError:
            spec, text = self._new(storage, options, engine, what, streams=streams)
            config = spec.config()
            lock = what.lock or table_lock(storage, what.options.lock, name=config.name)
            with first_table(storage, lock, partial(open_storage, options=options)) as first:
                with engine.described(shown(what, storage)):
                    prepared = first_rows(config, text, engine, storage, what)
                with prepared.kept() as rows, still_there():
                    with engine.described(shown(what, storage)):
                        refuse_first_partitions(storage, rows.row_counts(), listed=spec.metadata_table)
                    table = first.make(spec)
                    self._name_idle(table, what, streams=streams)
                    same = made_with(table.config) == made_with(config)
                    yield table, rows if same else None, first.is_removable
            return
        self._check_same(table)
        self._name_idle(table, what, streams=streams)
        with still_there():
            yield table, None, False

    def _name_idle(self, table: Table, what: Write, *, streams: bool) -> None:
        """Warns once of all names that this write, or this table, does not follow. UsageError: see `not_followed`."""
        mine = table_names({field: value for field, value in self.given.items() if field in self.explicit})
        names = not_followed(table.config, {**mine, **self.hoodie})
        names |= set(idle(self.hoodie, what, streams=streams))
        if self.given.get("metadata_table") and not table.config.metadata_partitions:
            names.add(METADATA)
        if self.stream != DEFAULT_STREAM and not streams:
            names.add(STREAM)
        if self.operation not in (None, what.operation) and not streams:
            names.add(OPERATION)  # the method that was called counts
        if names:
            _log.warning("configurations_without_meaning", names=" ".join(sorted(names)), path=table.storage.base_path)


@spelled
def writer(rows: Any = None, *, storage_options: Mapping[str, str] | None = None) -> Writer:
    """A write of a Spark DataFrame, or of rows that are, or give, an Arrow table or stream (pyarrow, pandas, Polars,
    DuckDB); without `rows` if batches come later (`foreach_batch`). A stream is read now, and kept in memory.
    `storage_options`: of an object store, under obstore's, the environment's or Hadoop's names. They override those of
    the Hadoop configuration of the DataFrame's Spark."""
    return Writer(source=in_arrow(rows), storage_options=StorageOptions.of(storage_options))
