"""Syncs a table to a catalog as Hudi's HiveSyncTool does: its names there, columns and partitions.

    1   asks for the tables in one request; if nothing is new, that is all
    2   makes tables, adds partitions, and drops those that the newest state of the table does not have either
    3   asks again: if another process has synced meanwhile, goes on from 2 with the newest state of the table
    4   marks the tables with the newest write that they show

A process that dies before 4 leaves the mark, and the next sync does the same again. Nothing of the Hudi table changes,
so no lock is taken. If two processes go through 3 and 4 at one moment, a partition that one of them has just dropped
may stay in a Hive Metastore: it has no rows. Glue refuses 4 of the second one, which goes on from 2."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from phantombase.timeline.errors import ConflictError, NoAnswerError, UnsupportedError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.prefetch import at_once as in_threads
from phantombase.timeline.storage.contract import count_change
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.terminal.text_table import plural

from ..unit_of_work import ServiceAnswer, ServiceMeans, unit_of_work
from .catalog import Calls, CatalogPartition, CatalogTable, TableCatalog, base_path, same_place
from .options import ICEBERG, SyncedTable, SyncOptions, SyncResult, open_catalog
from .tables import Mark, PartitionChanges, changes_since, is_behind, partition_values, tables_of, widens

_log = get_logger()
_EMPTY: Mapping[tuple[str, ...], CatalogPartition] = {}
"""The partitions of a new table."""
_FEW, _AT_ONCE = 500, 2
"""Of more partitions two tables are changed at once."""
_SLOW_S, _SILENT_MOST_S = 5.0, 300.0
_TRIES = 5
"""As often as another process may sync meanwhile; the next sync goes on from the mark."""
_Work: TypeAlias = Callable[[Calls], SyncedTable]


def _said(done: SyncResult) -> WorkFacts | None:
    if not done.changed:
        return None
    return WorkFacts(
        instant=done.up_to, why=f"{done.catalog} {done.database}: {'; '.join(map(described, done.changed))}"
    )


@unit_of_work("sync", _said)
def sync_table(table: Table, options: SyncOptions, *, dry_run: bool = False) -> SyncResult:
    """Makes the tables of the catalog show the Hudi table as it is now. `dry_run`: only asks. UsageError: no catalog is
    named, or other partition columns. ConflictError: a table of that name is another one. UnsupportedError: a column of
    the catalog has a wider type, or partitions have no values. StorageError: the catalog does not answer, or refuses.
    """
    if str(options.to).startswith(ICEBERG):
        from .iceberg import publish  # late: pyiceberg is an extra, and large

        return publish(table, options, dry_run=dry_run)
    options.check_named("--to")
    store = open_catalog(str(options.to), table.storage, archive=options.archive, batch=options.batch)
    database = (options.database or table.config.database or "default").lower()
    nothing = SyncResult(catalog=store.shown, database=database)
    seen = table.snapshot(cached=False)
    if options.partition_fields and options.partition_fields != seen.config.partition_fields:
        raise UsageError(
            "these are not the partition columns of the table",
            path=table.storage.base_path,
            expected=", ".join(seen.config.partition_fields) or "none",
            found=", ".join(options.partition_fields),
            todo="Leave partition-fields out: they follow from the table.",
        )
    if not seen.timeline.completed:
        return replace(nothing, why="the table has no completed write")
    with store.calls() as calls:
        run = _Run(store, calls, table, options, database, dry_run=dry_run)
        return replace(nothing, **run.synced(seen))


class _Run:
    """One sync. `calls`: the connection of its own thread."""

    def __init__(
        self, store: TableCatalog, calls: Calls, table: Table, options: SyncOptions, database: str, *, dry_run: bool
    ) -> None:
        self._store, self._calls, self._table, self._options = store, calls, table, options
        self._database, self._dry_run = database, dry_run
        path = table.storage.base_path.rstrip("/")
        self._location = f"file:{path}" if path.startswith("/") else path

    def synced(self, seen: Snapshot) -> Mapping[str, Any]:
        """The fields of the result."""
        wanted = self._wanted(seen)
        known = self._known(wanted)
        since = {one.name: _mark(known.get(one.name)) for one in wanted}
        done = {one.name: SyncedTable(name=one.name) for one in wanted}
        for _ in range(_TRIES):
            self._check(wanted, known)
            changes = {mark: changes_since(seen, mark) for mark in set(since.values())}
            before, known = known.keys(), self._made(wanted, known, done)
            work = [
                partial(
                    self._partitions,
                    known[one.name],
                    one,
                    since[one.name],
                    changes[since[one.name]],
                    _EMPTY if one.name not in before and done[one.name].created else None,
                    seen,
                    done[one.name],
                )
                for one in wanted
                if one.partition_columns and one.name in known
            ]
            most = max(len(one.written) + len(one.gone) for one in changes.values())
            done |= {one.name: one for one in self._each(work, at_once=most > _FEW)}
            timeline = seen.timeline
            mark = Mark.at(timeline)
            stale = [
                one for one in wanted if self._is_stale(one, known.get(one.name), done[one.name], seen.timeline, mark)
            ]
            if self._dry_run or not stale:
                break
            fresh = self._known(wanted)
            if all(_mark(fresh.get(n)) == _mark(one) for n, one in known.items()) and known.keys() <= fresh.keys():
                put = [(one.name, self._put(fresh[one.name], one, mark, done[one.name])) for one in stale]
                done |= {name: changed for name, changed in put if changed is not None}
                if all(changed is not None for _, changed in put):
                    break
                fresh = self._known(wanted)
            _log.info("synced_concurrently", table=self._table.storage.base_path, database=self._database)
            known, seen = fresh, self._table.snapshot(cached=False)
            wanted = self._wanted(seen)
        return {"tables": tuple(done.values()), "up_to": seen.timeline.latest_completed}

    def _each(self, work: Sequence[_Work], *, at_once: bool) -> Iterable[SyncedTable]:
        """The results of work on single tables. `at_once`: each with a connection of its own, some at a time."""
        if not at_once:
            return [one(self._calls) for one in work]

        def apart(one: _Work) -> SyncedTable:
            with self._store.calls() as calls:
                return one(calls)

        return in_threads(work, apart, _AT_ONCE)

    def _wanted(self, seen: Snapshot) -> tuple[CatalogTable, ...]:
        schema = seen.newest_schema().file_text
        return tables_of(seen.config, schema, self._location, self._database, self._options)

    def _known(self, wanted: Collection[CatalogTable]) -> dict[str, CatalogTable]:
        """Those of the tables that the catalog has."""
        return {one.name: one for one in self._calls.tables(self._database, [w.name for w in wanted])}

    def _check(self, wanted: Collection[CatalogTable], known: Mapping[str, CatalogTable]) -> None:
        """Errors: see `sync_table`. Asked before anything is changed."""
        for one in wanted:
            if (found := known.get(one.name)) is not None:
                where = f"{self._database}.{one.name}"
                _check_same(found, self._location, where)
                _check_columns(found, one, where)

    def _made(
        self, wanted: Collection[CatalogTable], known: Mapping[str, CatalogTable], done: dict[str, SyncedTable]
    ) -> dict[str, CatalogTable]:
        """All tables; those that the catalog lacks are made."""
        missing = [one for one in wanted if one.name not in known]
        if missing and not self._dry_run and not known and self._database not in self._calls.databases():
            self._calls.create_database(self._database)
        raced = False
        for one in missing:
            created = self._dry_run or self._calls.create(one)
            raced = raced or not created
            if created and not self._dry_run:
                count_change()
            done[one.name] = replace(done[one.name], created=created)
        found = {**known, **{one.name: one for one in missing}}
        return found if not raced else self._known(wanted)

    def _partitions(
        self,
        found: CatalogTable,
        wanted: CatalogTable,
        mark: Mark | None,
        changes: PartitionChanges,
        had: Mapping[tuple[str, ...], CatalogPartition] | None,
        seen: Table,
        done: SyncedTable,
        calls: Calls,
    ) -> SyncedTable:
        """Adds, changes and drops partitions, by `changes` since `mark`. `had`: those that the catalog has, by values;
        None: it must be asked."""
        written = {
            values: CatalogPartition(values=values, location=self._uri(self._below(path)), columns=wanted.columns)
            for values, path in self._valued(changes.written, seen)
        }
        gone = {values for values, _ in self._valued(changes.gone, seen)}
        if had is None and changes.all:
            had = _by_values(calls.partitions(found))
        elif had is None:
            asked = sorted({*written, *gone})
            had = _by_values(calls.named(found, asked)) if asked else {}
        gone = set(had.keys() - written.keys()) if changes.all else gone & had.keys()
        new = [written[values] for values in sorted(written.keys() - had.keys())]
        moved = [
            replace(written[values], raw=had[values].raw)
            for values in sorted(written.keys() & had.keys())
            if not same_place(had[values].location, written[values].location)
            or had[values].types != found.types == wanted.types
        ]
        if not self._dry_run:
            gone = self._still(gone, mark)
            for change, what in ((calls.add, new), (calls.move, moved)):
                if what:
                    change(found, what)
                    count_change()
            if gone:
                calls.drop(found, sorted(gone))
                count_change()
        return replace(
            done, added=done.added + len(new), moved=done.moved + len(moved), dropped=done.dropped + len(gone)
        )

    def _still(self, gone: set[tuple[str, ...]], mark: Mark | None) -> set[tuple[str, ...]]:
        """Those that the newest state of the table lacks, too: another sync may have shown one that has come back, and
        nothing would bring it back again if this process dropped it and died."""
        if not gone:
            return gone
        now = self._table.snapshot(cached=False)
        changes = changes_since(now, mark)
        have, lack = ({values for values, _ in self._valued(some, now)} for some in (changes.written, changes.gone))
        return gone - have if changes.all else gone & lack

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
        self, wanted: CatalogTable, found: CatalogTable | None, done: SyncedTable, timeline: Timeline, mark: Mark | None
    ) -> bool:
        """Whether a table of the catalog must be written: it is new, it differs, or its mark must be moved."""
        if found is None or done.changed or _differs(found, wanted):
            return True
        return mark is not None and mark != _mark(found) and is_behind(timeline, _mark(found))

    def _put(
        self, found: CatalogTable, wanted: CatalogTable, mark: Mark | None, done: SyncedTable
    ) -> SyncedTable | None:
        """Sets the columns, the mark, and the parameters; those of others stay. None: see `Calls.alter`."""
        had = dict(found.types)
        names = tuple(one.name for one in wanted.columns if had.get(one.name) != one.type)
        cascades = found.types != wanted.types
        comments = {column.name: column.comment for column in found.columns}
        of_others = tuple(replace(one, comment=one.comment or comments.get(one.name) or "") for one in wanted.columns)
        made = replace(
            found,
            columns=of_others if cascades else found.columns,
            parameters={**found.parameters, **wanted.parameters, **(mark.parameters if mark else {})},
            serde_properties={**found.serde_properties, **wanted.serde_properties},
        )
        altered = _differs(found, wanted)
        if made != found and not self._calls.alter(made, partitions=cascades and bool(wanted.partition_columns)):
            return None
        return replace(done, altered=altered and not done.created, columns=() if done.created else names)

    def _below(self, partition: str) -> str:
        return f"{base_path(self._location)}/{partition}"

    def _uri(self, path: str) -> str:
        return f"file:{path}" if path.startswith("/") else path


def _by_values(partitions: Iterable[CatalogPartition]) -> dict[tuple[str, ...], CatalogPartition]:
    return {one.values: one for one in partitions}


def _mark(found: CatalogTable | None) -> Mark | None:
    """That of a table of the catalog; None: it has none, or there is no table."""
    return Mark.of(found.parameters) if found is not None else None


def _differs(found: CatalogTable, wanted: CatalogTable) -> bool:
    """Whether columns, or parameters that are ours, are not as they should be."""
    return (
        found.types != wanted.types
        or not wanted.parameters.items() <= found.parameters.items()
        or not wanted.serde_properties.items() <= found.serde_properties.items()
    )


def _check_same(found: CatalogTable, location: str, where: str) -> None:
    """ConflictError: a table of the catalog is no Hudi table, or another one."""
    todo = "Choose another name with --name or --database, or drop the table from the catalog."
    if not found.is_hudi:
        what = "a table of this name in the catalog is no Hudi table"
        format_ = found.input_format or "no input format"
        raise ConflictError(what, path=where, expected="a table of Hudi's", found=format_, todo=todo)
    own, there = base_path(location), base_path(found.location)
    if not same_place(own, there):
        what = "a table of this name in the catalog has another location"
        raise ConflictError(what, path=where, expected=own, found=there, todo=todo)


def _check_columns(found: CatalogTable, wanted: CatalogTable, where: str) -> None:
    """ConflictError: other partition columns. UnsupportedError: a column would become narrower."""
    keys, own = ([one.name for one in columns] for columns in (found.partition_columns, wanted.partition_columns))
    if keys != own:
        raise ConflictError(
            "a table of this name in the catalog has other partition columns",
            path=where,
            expected=", ".join(own) or "none",
            found=", ".join(keys) or "none",
            todo="Drop the table from the catalog, and sync again: that makes a new one. No data are lost.",
        )
    had = dict(found.types)
    for one in wanted.columns:
        if (type_ := had.get(one.name)) is not None and not widens(type_, one.type):
            raise UnsupportedError(
                "a column of the catalog's table has a type that the table's does not hold",
                path=f"{where}.{one.name}",
                expected=type_,
                found=one.type,
                todo="Drop the table from the catalog, and sync again: that makes a new one. No data are lost.",
            )


_silent: dict[str, tuple[float, NoAnswerError]] = {}
"""By name of a catalog that let a sync wait in vain, until when it is not asked, by the monotonic clock, and its error.
"""


def run_service(table: Table, options: SyncOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    """A catalog that does not answer costs each sync its timeouts, and behind them wait the cleans of other tables, or
    a writer. So this process does not ask it for nine times as long as the last sync took, at most five minutes."""
    name, begun = str(options.to), time.monotonic()
    until, last = _silent.get(name, (begun, None))
    if last is not None and begun < until:
        found = f"{last.found}; this process asks again in {until - begun:.0f} s"
        raise NoAnswerError(last.what, path=last.path, found=found, todo=last.todo)
    try:
        done = sync_table(table, options, dry_run=means.dry_run)
    except NoAnswerError as error:
        took_s = time.monotonic() - begun
        if took_s >= _SLOW_S:
            _silent[name] = begun + took_s + min(9 * took_s, _SILENT_MOST_S), error
        raise
    _silent.pop(name, None)
    changed = done.changed
    would = "would change " if means.dry_run and changed else ""
    what = done.why or f"{would}{done.catalog} {done.database}: " + (
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
