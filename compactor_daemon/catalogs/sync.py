"""Syncs a table to a Hive Metastore as Hudi's HiveSyncTool does: its names there, columns and partitions.

    1   asks for the tables in one request; if nothing is new, that is all
    2   makes or changes tables, adds and drops partitions
    3   asks again: if another process has synced meanwhile, goes on from 2 with the newest state of the table
    4   marks the tables with the newest write that they show

A process that dies before 4 leaves the mark, and the next sync does the same again. Nothing of the Hudi table changes,
so no lock is taken. If two processes go through 3 and 4 at one moment, a partition that one of them has just dropped
may stay in the catalog: it has no rows.
"""

from __future__ import annotations

import getpass
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, UnsupportedError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.text_table import plural

from ..service_run import ServiceAnswer, ServiceMeans
from .metastore import PROVIDER, Calls, Metastore, base_path, batches, is_hudi
from .options import ICEBERG, SyncedTable, SyncOptions, SyncResult
from .partitions import Mark, PartitionChanges, changes_since, is_behind
from .tables import OUTPUT, SERDE, CatalogColumn, CatalogTable, partition_name, partition_values, tables_of, widens

_log = get_logger()
_EMPTY: Mapping[tuple[str, ...], Any] = {}
"""The partitions of a new table."""
_TRIES = 5
"""As often as another process may sync meanwhile; the next sync goes on from the mark."""


def sync_table(table: Table, options: SyncOptions, *, dry_run: bool = False) -> SyncResult:
    """Makes the tables of the catalog show the Hudi table as it is now. `dry_run`: only asks. UsageError: no catalog is
    named, or other partition columns. ConflictError: a table of that name is another one. UnsupportedError: a column of
    the catalog has a wider type, or partitions have no values. StorageError: the catalog does not answer, or refuses.
    """
    if str(options.to).startswith(ICEBERG):
        from .iceberg import publish  # late: pyiceberg is an extra, and large

        return publish(table, options, dry_run=dry_run)
    store = metastore_of(options)
    database = (options.database or table.config.database or "default").lower()
    nothing = SyncResult(catalog=store.shown, database=database)
    seen = table.reload()
    if options.partition_fields and options.partition_fields != seen.config.partition_fields:
        raise UsageError(
            "these are not the partition columns of the table",
            path=table.storage.base_path,
            expected=", ".join(seen.config.partition_fields) or "none",
            found=", ".join(options.partition_fields),
            todo="Leave partition-fields out: they follow from the table.",
        )
    timeline = seen.load_timeline()
    if not timeline.completed:
        return replace(nothing, why="the table has no completed write")
    with store.calls() as calls:
        run = _Run(calls, table, options, database, dry_run=dry_run)
        return replace(nothing, **run.synced(seen, timeline))


def metastore_of(options: SyncOptions) -> Metastore:
    """The catalog of the options. UsageError: none is named, or of another kind."""
    options.check_named("--to")
    return Metastore.parse(str(options.to))


class _Run:
    """One sync. `kinds`: the structures of Thrift."""

    def __init__(self, calls: Calls, table: Table, options: SyncOptions, database: str, *, dry_run: bool) -> None:
        self._calls, self._kinds = calls, calls.kinds
        self._table, self._options, self._database = table, options, database
        self._dry_run = dry_run
        path = table.storage.base_path.rstrip("/")
        self._location = f"file:{path}" if path.startswith("/") else path

    def synced(self, seen: Table, timeline: Timeline) -> Mapping[str, Any]:
        """The fields of the result."""
        wanted = self._wanted(seen, timeline)
        known = self._known(wanted)
        since = {one.name: _mark(known.get(one.name)) for one in wanted}
        done = {one.name: SyncedTable(name=one.name) for one in wanted}
        for _ in range(_TRIES):
            self._check(wanted, known)
            changes = {mark: changes_since(seen, timeline, mark) for mark in set(since.values())}
            before, known = known.keys(), self._made(wanted, known, done)
            for one in wanted:
                if one.partition_columns and one.name in known:
                    made = _EMPTY if one.name not in before and done[one.name].created else None
                    found, what = known[one.name], changes[since[one.name]]
                    done[one.name] = self._partitions(found, one, what, made, seen, done[one.name])
            mark = Mark.at(timeline)
            stale = [one for one in wanted if self._is_stale(one, known.get(one.name), done[one.name], timeline, mark)]
            if self._dry_run or not stale:
                break
            fresh = self._known(wanted)
            if all(_mark(fresh.get(n)) == _mark(one) for n, one in known.items()) and known.keys() <= fresh.keys():
                for one in stale:
                    done[one.name] = self._put(fresh[one.name], one, mark, done[one.name])
                break
            _log.info("synced_concurrently", table=self._table.storage.base_path, database=self._database)
            known, seen = fresh, self._table.reload()
            timeline = seen.load_timeline()
            wanted = self._wanted(seen, timeline)
        return {"tables": tuple(done.values()), "up_to": timeline.latest_completed}

    def _wanted(self, seen: Table, timeline: Timeline) -> tuple[CatalogTable, ...]:
        return tables_of(seen.config, seen.newest_schema(timeline).file_text, self._location, self._options)

    def _known(self, wanted: Collection[CatalogTable]) -> dict[str, Any]:
        """Those of the tables that the catalog has."""
        return {one.tableName: one for one in self._calls.tables(self._database, [w.name for w in wanted])}

    def _check(self, wanted: Collection[CatalogTable], known: Mapping[str, Any]) -> None:
        """Errors: see `sync_table`. Asked before anything is changed."""
        for one in wanted:
            if (found := known.get(one.name)) is not None:
                where = f"{self._database}.{one.name}"
                _check_same(found, self._location, where)
                _check_columns(found, one, where)

    def _made(
        self, wanted: Collection[CatalogTable], known: Mapping[str, Any], done: dict[str, SyncedTable]
    ) -> dict[str, Any]:
        """All tables; those that the catalog lacks are made."""
        missing = [one for one in wanted if one.name not in known]
        if missing and not self._dry_run and not known and self._database not in self._calls.databases():
            self._calls.create_database(self._database)
        raced = False
        for one in missing:
            created = self._dry_run or self._calls.create(self._thrift(one))
            raced = raced or not created
            done[one.name] = replace(done[one.name], created=created)
        found = {**known, **{one.name: self._thrift(one) for one in missing}}
        return found if not raced else self._known(wanted)

    def _partitions(
        self,
        found: Any,
        wanted: CatalogTable,
        changes: PartitionChanges,
        had: Mapping[tuple[str, ...], Any] | None,
        seen: Table,
        done: SyncedTable,
    ) -> SyncedTable:
        """Adds, moves and drops partitions. `had`: those that the catalog has, by values; None: it must be asked."""
        written = dict(self._valued(changes.written, seen))
        gone = {values for values, _ in self._valued(changes.gone, seen)}
        if had is None and changes.all:
            had = _by_values(self._calls.partitions(found))
        elif had is None:
            names = [partition_name(wanted.partition_columns, values) for values in sorted({*written, *gone})]
            some = batches(names, self._options.batch)
            had = _by_values(one for few in some for one in self._calls.named(found, few))
        gone = set(had.keys() - written.keys()) if changes.all else gone & had.keys()
        new = sorted(written.keys() - had.keys())
        moved = [v for v in sorted(written.keys() & had.keys()) if _path_of(had[v]) != self._below(written[v])]
        if not self._dry_run:
            columns = self._columns(wanted.columns)
            for some in batches(new, self._options.batch):
                self._calls.add(found, [self._partition(found, v, self._below(written[v]), columns) for v in some])
            for some in batches(moved, self._options.batch):
                for values in some:
                    had[values].sd.location = self._uri(self._below(written[values]))
                self._calls.move(found, [had[values] for values in some])
            for some in batches(sorted(gone), self._options.batch):
                self._calls.drop(found, [partition_name(wanted.partition_columns, values) for values in some])
        return replace(
            done, added=done.added + len(new), moved=done.moved + len(moved), dropped=done.dropped + len(gone)
        )

    def _valued(self, paths: Collection[str], seen: Table) -> Iterator[tuple[tuple[str, ...], str]]:
        """Partitions by their values. UnsupportedError: see `partition_values`."""
        for path in paths:
            values = partition_values(path, seen.config, slashed_days=self._options.slashed_days)
            if values is None:
                raise UnsupportedError(
                    "the folders of a partition are not one per partition column",
                    path=f"{self._table.storage.base_path}/{path}",
                    expected=", ".join(seen.config.partition_fields),
                    todo="Let Hudi's sync tool register this table, with a partition_extractor_class of its own.",
                )
            yield values, path

    def _is_stale(
        self, wanted: CatalogTable, found: Any, done: SyncedTable, timeline: Timeline, mark: Mark | None
    ) -> bool:
        """Whether a table of the catalog must be written: it is new, it differs, or its mark must be moved."""
        if found is None or done.changed or _differs(found, wanted):
            return True
        return mark is not None and mark != _mark(found) and is_behind(timeline, _mark(found))

    def _put(self, found: Any, wanted: CatalogTable, mark: Mark | None, done: SyncedTable) -> SyncedTable:
        """Sets the columns, the mark, and the parameters; those of others stay."""
        had = {column.name: column.type for column in found.sd.cols}
        columns = tuple(one.name for one in wanted.columns if had.get(one.name) != one.type)
        cascades = [*had.items()] != [(one.name, one.type) for one in wanted.columns]
        altered = _differs(found, wanted)
        if cascades:
            comments = {column.name: column.comment for column in found.sd.cols}
            of_others = (replace(one, comment=one.comment or comments.get(one.name) or "") for one in wanted.columns)
            found.sd.cols = self._columns([*of_others])
        found.parameters = {**(found.parameters or {}), **wanted.parameters, **(mark.parameters if mark else {})}
        found.sd.serdeInfo.parameters = {**(found.sd.serdeInfo.parameters or {}), **wanted.serde_properties}
        self._calls.alter(found, partitions=cascades and bool(wanted.partition_columns))
        return replace(done, altered=altered and not done.created, columns=() if done.created else columns)

    def _thrift(self, wanted: CatalogTable) -> Any:
        """A new table as a structure of Thrift."""
        return self._kinds.Table(
            tableName=wanted.name,
            dbName=self._database,
            owner=_user(),
            createTime=clock_ms() // 1000,
            lastAccessTime=0,
            retention=0,
            sd=self._storage(
                wanted.input_format, wanted.serde_properties, self._location, self._columns(wanted.columns)
            ),
            partitionKeys=self._columns(wanted.partition_columns),
            parameters=dict(wanted.parameters),
            tableType="EXTERNAL_TABLE",
        )

    def _partition(self, found: Any, values: tuple[str, ...], path: str, columns: list[Any]) -> Any:
        serde = dict(found.sd.serdeInfo.parameters)
        if PROVIDER not in found.parameters:
            serde.pop("path", None)  # as Hudi's sync, where it is no data source table of Spark
        return self._kinds.Partition(
            values=list(values),
            dbName=found.dbName,
            tableName=found.tableName,
            createTime=clock_ms() // 1000,
            lastAccessTime=0,
            sd=self._storage(found.sd.inputFormat, serde, self._uri(path), columns),
            parameters={},
        )

    def _storage(self, input_format: str, serde: Mapping[str, str], location: str, columns: list[Any]) -> Any:
        return self._kinds.StorageDescriptor(
            cols=columns,
            location=location,
            inputFormat=input_format,
            outputFormat=OUTPUT,
            compressed=False,
            numBuckets=0,
            serdeInfo=self._kinds.SerDeInfo(serializationLib=SERDE, parameters=dict(serde)),
            bucketCols=[],
            sortCols=[],
            parameters={},
        )

    def _columns(self, columns: Collection[CatalogColumn]) -> list[Any]:
        return [self._kinds.FieldSchema(name=one.name, type=one.type, comment=one.comment) for one in columns]

    def _below(self, partition: str) -> str:
        return f"{base_path(self._location)}/{partition}"

    def _uri(self, path: str) -> str:
        return f"file:{path}" if path.startswith("/") else path


def _by_values(partitions: Iterable[Any]) -> dict[tuple[str, ...], Any]:
    return {tuple(one.values): one for one in partitions}


def _user() -> str:
    with suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return "phantombase"


def _mark(found: Any) -> Mark | None:
    """That of a table of the catalog; None: it has none, or there is no table."""
    return Mark.of(found.parameters or {}) if found is not None else None


def _path_of(partition: Any) -> str:
    return base_path(partition.sd.location)


def _differs(found: Any, wanted: CatalogTable) -> bool:
    """Whether columns, or parameters that are ours, are not as they should be."""
    columns = [(column.name, column.type) for column in found.sd.cols]
    return (
        columns != [(one.name, one.type) for one in wanted.columns]
        or not wanted.parameters.items() <= (found.parameters or {}).items()
        or not wanted.serde_properties.items() <= (found.sd.serdeInfo.parameters or {}).items()
    )


def _check_same(found: Any, location: str, where: str) -> None:
    """ConflictError: a table of the catalog is no Hudi table, or another one."""
    todo = "Choose another name with --name or --database, or drop the table from the catalog."
    if not is_hudi(found):
        format_ = (found.sd and found.sd.inputFormat) or found.tableType
        what = "a table of this name in the catalog is no Hudi table"
        raise ConflictError(what, path=where, expected="a table of Hudi's", found=format_, todo=todo)
    own, there = base_path(location), base_path(found.sd and found.sd.location)
    if _place(own) != _place(there):
        what = "a table of this name in the catalog has another location"
        raise ConflictError(what, path=where, expected=own, found=there, todo=todo)


def _place(path: str) -> str:
    """A path without what the same place is called by others."""
    return path.replace("s3a://", "s3://", 1).replace("s3n://", "s3://", 1).replace("file:///", "/", 1)


def _check_columns(found: Any, wanted: CatalogTable, where: str) -> None:
    """ConflictError: other partition columns. UnsupportedError: a column would become narrower."""
    keys, own = ([one.name for one in columns] for columns in (found.partitionKeys or (), wanted.partition_columns))
    if keys != own:
        raise ConflictError(
            "a table of this name in the catalog has other partition columns",
            path=where,
            expected=", ".join(own) or "none",
            found=", ".join(keys) or "none",
            todo="Drop the table from the catalog, and sync again: that makes a new one. No data are lost.",
        )
    had = {column.name: column.type for column in found.sd.cols}
    for one in wanted.columns:
        if (type_ := had.get(one.name)) is not None and not widens(type_, one.type):
            raise UnsupportedError(
                "a column of the catalog's table has a type that the table's does not hold",
                path=f"{where}.{one.name}",
                expected=type_,
                found=one.type,
                todo="Drop the table from the catalog, and sync again: that makes a new one. No data are lost.",
            )


def run_service(table: Table, options: SyncOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    done = sync_table(table, options)
    changed = done.changed
    what = done.why or f"{done.catalog} {done.database}: " + (
        "; ".join(described(one) for one in changed) if changed else "up to date"
    )
    return ServiceAnswer(what=what, instants=len(changed))


def described(one: SyncedTable) -> str:
    """What was changed of a table, in a few words."""
    columns = f"columns {', '.join(one.columns)}" if one.columns else ""
    parts = ["created" if one.created else "altered" if one.altered and not columns else "", columns]
    parts += [
        f"{plural(n, one.of)} {did}"
        for n, did in ((one.added, "added"), (one.moved, "moved"), (one.dropped, "dropped"))
        if n
    ]
    return f"{one.name} " + (", ".join(filter(None, parts)) or "as it was")
