"""Publishes the read-optimized state of a table to a catalog of Iceberg, through `pyiceberg` (extra `iceberg`).

    1   loads the table of the catalog; its property `hudi.published` says which state it shows
    2   if nothing has changed since, that is all: the names on the timeline tell, unless there are new writes or cleans
    3   pins the state of now, so that no clean removes its files, and reads it: it is no older than what 1 has shown
    4   commits one snapshot that removes and adds files by name, if the catalog still shows the snapshot of 1;
        otherwise goes on from 1
    5   lets the pins of older states end

A process that dies leaves at most a pin, and metadata files of Iceberg that nothing names. No file of the Hudi table
changes, so no lock is taken. Snapshots of Iceberg stay until a clean may have removed a file of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import (
    ConflictError,
    NoAnswerError,
    PhantombaseError,
    StorageError,
    UsageError,
    fault_of,
    without_classes,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.read.pins import HeldPin, PinOptions, all_pins, held_moment, live_pins
from phantombase.timeline.read.table_read import ReadOptions
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import GroupKey

from .catalog import same_place
from .iceberg_files import FileReader, PublishedFile, evolve, name_others, partition_columns, set_name_mapping
from .iceberg_state import (
    BASE_PATH,
    FIXED_PROPERTIES,
    HOLDS,
    MARK,
    HudiState,
    StateMark,
    base_files,
    broken_snapshots,
    check_options,
    mark_of,
    writes_since,
)
from .options import ICEBERG, SyncedTable, SyncOptions, SyncResult

if TYPE_CHECKING:
    from .iceberg_snapshot import Published, PublishFiles

_log = get_logger()
_INSTANT = "hudi.instant"
_PIN_S, _GRACE_S = 30 * 86_400, 2 * 3600
"""How long the files of the newest snapshot are held without a new one, and those of the snapshot before it."""
_TRIES = 5


def publish(table: Table, options: SyncOptions, *, dry_run: bool = False) -> SyncResult:
    """Makes the table of the catalog show the newest read-optimized state. `dry_run`: only asks. UsageError: no such
    catalog, or options that mean nothing there. ConflictError: a table of that name is another one, or others commit
    all the time. UnsupportedError: Iceberg lacks a type, or readers would not read a file right. StorageError: the
    catalog does not answer, or refuses."""
    publisher = _Publisher(table, options, dry_run=dry_run)
    for _ in range(_TRIES):
        if (done := from_one_snapshot(publisher.once)) is not None:
            return done
        _log.info("published_concurrently", table=table.storage.base_path, catalog=publisher.shown)
    raise ConflictError(
        "other processes change the Iceberg table all the time, or hold its lock",
        path=publisher.where,
        found=f"{_TRIES} tries; the last one: {publisher.refused}",
        todo="Nothing is lost: the next sync goes on from there. Locks of dead processes end after some minutes.",
    )


class _Publisher:
    def __init__(self, table: Table, options: SyncOptions, *, dry_run: bool) -> None:
        check_options(options)
        self._table, self._options, self._dry_run = table, options, dry_run
        named, _, query = str(options.to).removeprefix(ICEBERG).partition("?")
        self.shown, self.refused = f"{ICEBERG}{named}", ""
        self._given = dict(pair.split("=", 1) for pair in options.table_properties)
        config = table.config
        namespace = (options.database or config.database or "default").lower()
        self._name = (*namespace.split("."), (options.name or config.name).lower())
        self.where = f"{self.shown} {'.'.join(self._name)}"
        path = table.storage.base_path.rstrip("/")
        self._base = f"file://{path}" if path.startswith("/") else path
        self._catalog = self._opened(named, query)

    def _opened(self, named: str, query: str) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise UsageError(
                "Iceberg needs the package pyiceberg",
                todo="pip install 'phantombase[iceberg]' adds it: publishing to Iceberg's catalogs.",
            ) from error
        from pyiceberg.exceptions import NotInstalledError

        with self._asked():
            try:
                properties = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
                return load_catalog(named or None, **properties)
            except (ImportError, NotInstalledError, ValueError, TypeError) as error:
                raise UsageError(
                    "no such Iceberg catalog, or a package for its kind is missing",
                    path=self.shown,
                    expected="a catalog of .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__URI, or iceberg:NAME?uri=...",
                    found=_shown(error),
                ) from error

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """StorageError: the catalog does not answer, or refuses."""
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

        try:
            yield
        except (PhantombaseError, CommitFailedException, TableAlreadyExistsError, NoSuchTableError):
            raise
        except Exception as error:  # of any client of a catalog, or of the storage of its metadata
            raise NoAnswerError(
                "the Iceberg catalog did not answer, or refused a request",
                path=self.where,
                found=f"{fault_of(error)}: {_shown(error)}",
                todo="Check its settings. The data are not affected; the next sync tries again.",
            ) from error

    def once(self) -> SyncResult | None:
        """None: another process was first."""
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

        iceberg = self._loaded()
        mark = mark_of(iceberg)
        now = self._now(mark)
        if not now.timeline.completed:
            return self._result(None, why="the table has no completed write")
        broken = frozenset() if iceberg is None else broken_snapshots(iceberg, now.table, mark, now.changed)
        due = mark is None or mark.is_old(now.timeline, clock_ms() - _PIN_S * 500)
        due = due or not self._given.items() <= iceberg.properties.items() or not self._is_held(iceberg, mark)
        columns = now.changed_columns(iceberg, self.where)
        changed = iceberg is None or now.changed is None or bool(now.changed) or bool(columns)
        if not changed and (self._dry_run or not (due or broken - _heads(iceberg.metadata))):
            return self._result(now)
        if self._dry_run:
            added, removed, _ = self._difference(iceberg, now, columns)
            return self._result(now, created=iceberg is None, columns=columns, added=len(added), dropped=len(removed))
        with self._asked():
            transaction = self._created(now) if iceberg is None else iceberg.transaction()
        name, holds = self._pin_name(transaction.table_metadata), held_moment(now.table, ReadOptions())
        # A table that a catalog refuses to make again and again must not hold back cleans for a month.
        held = PinOptions(name=name, for_s=_PIN_S if iceberg is not None else _GRACE_S)
        pin = HeldPin(self._table.storage, held, holds)
        self._asks, self._marked = False, ""
        self._made: PublishFiles | None = None
        try:
            now = self._now(mark)
            done = self._commit(iceberg, transaction, now, broken, holds)
        except (CommitFailedException, NoSuchTableError, TableAlreadyExistsError) as error:
            self.refused = _shown(error)
            if not self._has_taken_effect():  # a client that repeats a request meets what it did itself
                pin.remove()
                if self._made is not None:
                    self._made.clean()
            return None
        except BaseException as error:
            # A commit that did not answer may have taken effect, and needs the pin, unless there is no table any more.
            dropped = isinstance(error, StorageError) and self._asks and iceberg is not None and self._is_dropped()
            if dropped or not self._asks:
                pin.remove()
            if dropped:
                return None
            raise
        if iceberg is None:
            HeldPin(self._table.storage, PinOptions(name=name, for_s=_PIN_S), holds)
            pin.remove()
        self._end_older(name, holds)
        return done

    def _is_held(self, iceberg: Any, mark: StateMark | None) -> bool:
        """Whether a pin holds the newest snapshot; not after a death just after the first one, or a release."""
        name, holds = self._pin_name(iceberg.metadata), "" if mark is None else mark.holds
        pins = live_pins(self._table.storage)
        return any(pin.name == name and pin.holds <= holds and pin.for_s == _PIN_S for pin in pins)

    def _has_taken_effect(self) -> bool:
        if (found := self._found()) is None:
            return False
        made = self._made is not None and found.snapshot_by_id(self._made.snapshot_id) is not None
        return made or (bool(self._marked) and found.properties.get(MARK) == self._marked)

    def _is_dropped(self) -> bool:
        with suppress(StorageError):
            return self._found() is None
        return False

    def _found(self) -> Any:
        """The table of that name in the catalog; None: there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        with self._asked():
            try:
                return self._catalog.load_table(self._name)
            except NoSuchTableError:
                return None

    def _loaded(self) -> Any:
        """The same. ConflictError: it is another one."""
        if (found := self._found()) is None:
            return None
        base = found.properties.get(BASE_PATH)
        if base is None or not same_place(base, self._base):
            raise ConflictError(
                "a table of this name in the Iceberg catalog is another one",
                path=self.where,
                expected=self._base,
                found=base or f"a table that phantombase did not make, at {found.location()}",
                todo="Choose another name with --name or --database, or drop the table from the catalog.",
            )
        # The files of a table are named in one way, also by processes that call the place another.
        self._base = base.rstrip("/")
        return found

    def _now(self, mark: StateMark | None) -> HudiState:
        seen = self._table.snapshot()
        options, config = self._options, seen.config
        if options.partition_fields and options.partition_fields != config.partition_fields:
            raise UsageError(
                "these are not the partition columns of the table",
                path=self._table.storage.base_path,
                expected=", ".join(config.partition_fields) or "none",
                found=", ".join(options.partition_fields),
                todo="Leave partition-fields out: they follow from the table.",
            )
        writes = writes_since(seen, mark)
        return HudiState(table=seen, mark=mark, writes=writes, meta_columns=options.meta_columns)

    def _created(self, now: HudiState) -> Any:
        """A transaction that makes the table with what it shows."""
        self._catalog.create_namespace_if_not_exists(self._name[:-1])
        properties = {**self._given, **FIXED_PROPERTIES, BASE_PATH: self._base}
        made = self._catalog.create_table_transaction(self._name, now.columns, properties=properties)
        names = partition_columns(now.table.config, now.columns)
        if names:
            with made.update_spec() as spec:
                for name in names:
                    spec.add_identity(name)
        set_name_mapping(made)
        return made

    def _difference(
        self, iceberg: Any, now: HudiState, columns: Collection[str]
    ) -> tuple[dict[str, Any], list[str], Published]:
        """The files to add by path, those to remove by URI, and those of the catalog. `columns`: that change. If one
        has a default, all files are added again, which asks whether each has it."""
        from .iceberg_snapshot import Published, published_files

        renewed = any(tuple(name.split(".")) in now.schema.defaults for name in columns)
        only = None if renewed else now.changed
        if only == frozenset():
            return {}, [], Published()
        with self._asked():
            snapshot = None if iceberg is None else iceberg.current_snapshot()
            paths = None if only is None else [(self._uri(f"{p}/" if p else ""), f"{group}_") for p, group in only]
            published = published_files(iceberg and iceberg.io, snapshot, self.where, paths)
        exactly = None if only is None else now.table.views.existing({partition for partition, _ in only})
        view = now.table.load_view(exactly=exactly)
        if view.timeline.completed != now.timeline.completed:
            raise AssertionError("a snapshot has two timelines")
        wanted = base_files(now.table, view, only)
        theirs = {uri: size for uri, size in published.files.items() if only is None or self._group_of(uri) in only}
        sizes = {self._uri(path): one.file.size for path, one in wanted.items()}
        same = {uri for uri, size in sizes.items() if not renewed and uri in theirs and size in (0, theirs[uri])}
        added = {path: one for path, one in wanted.items() if self._uri(path) not in same}
        return added, sorted(theirs.keys() - same), published

    def _uri(self, path: str) -> str:
        return f"{self._base}/{path}"

    def _group_of(self, uri: str) -> GroupKey | None:
        partition, _, text = uri.removeprefix(f"{self._base}/").rpartition("/")
        name = parse_data_file(text)
        return None if name is None else (partition, name.file_id)

    def _commit(
        self, iceberg: Any, transaction: Any, now: HudiState, broken: Collection[int], holds: str
    ) -> SyncResult:
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        from .iceberg_snapshot import PublishFiles, sweep

        columns = now.changed_columns(iceberg, self.where)
        added, removed, published = self._difference(iceberg, now, columns)
        current = None if iceberg is None else iceberg.current_snapshot()
        with self._asked():
            if columns:
                evolve(transaction, now.columns, self.where)
            entries = self._entries(transaction, now, added.values()) if added else []
            set_name_mapping(transaction)
            snapshot_id = 0 if current is None else current.snapshot_id
            if current is None or entries or removed:
                io = transaction._table.io
                summary = {_INSTANT: now.timeline.latest_completed, HOLDS: holds}
                self._made = made = PublishFiles(transaction, io, published, entries, removed, summary)
                made.commit()
                snapshot_id = made.snapshot_id
            old = set(broken) - _heads(transaction.table_metadata)
            gone = [one for one in transaction.table_metadata.snapshots if one.snapshot_id in old]
            if gone:
                ExpireSnapshots(transaction).by_ids([one.snapshot_id for one in gone]).commit()
            mark = StateMark.at(
                now.table,
                None if now.writes is None else now.mark,
                snapshot=snapshot_id,
                holds=holds,
                held_ms=clock_ms(),
                columns=now.columns_mark(transaction.table_metadata.schema()),
            )
            self._marked = mark.to_json()
            transaction.set_properties({**self._given, MARK: self._marked})
            self._asks = True
            transaction.commit_transaction()
        if gone:
            sweep(lambda: self._catalog.load_table(self._name).snapshots(), gone, transaction._table.io, self.where)
        return self._result(now, created=iceberg is None, columns=columns, added=len(entries), dropped=len(removed))

    def _entries(self, transaction: Any, now: HudiState, files: Collection[PublishedFile]) -> list[Any]:
        """Those of files with rows. Columns that only files have, and no partitions any more, go into the table."""
        for _ in range(2):
            reader = FileReader(now.table.storage, self._base, transaction.table_metadata, now.schema.defaults)
            found = reader.entries(files)
            if all(entry.partition is not None for entry in found):
                break
            with transaction.update_spec() as spec:
                for one in transaction.table_metadata.spec().fields:
                    spec.remove_field(one.name)
        name_others(transaction, reader.others)
        return [entry for entry in found if entry.record_count]

    def _result(self, now: HudiState | None, why: str = "", **done: Any) -> SyncResult:
        one = SyncedTable(name=self._name[-1], of="file", altered=bool(done.get("columns")), **done)
        return SyncResult(
            catalog=self.shown,
            database=".".join(self._name[:-1]),
            tables=() if now is None else (one,),
            up_to=None if now is None else now.timeline.latest_completed,
            why=why,
        )

    def _pin_name(self, metadata: Any) -> str:
        return f"iceberg-{re.sub(r'[^A-Za-z0-9._-]', '_', self._name[-1])[:50]}-{str(metadata.table_uuid)[:8]}"

    def _end_older(self, name: str, holds: str) -> None:
        """Older states are held for readers that have begun to read them."""
        storage = self._table.storage
        with suppress(PhantombaseError):  # they end by themselves
            for pin in all_pins(storage):
                if pin.name == name and pin.holds < holds and pin.for_s == _PIN_S:
                    HeldPin(storage, PinOptions(name=name, for_s=_GRACE_S), pin.holds)
                    storage.delete(pin.path)


def _heads(metadata: Any) -> set[int]:
    return {ref.snapshot_id for ref in metadata.refs.values()}


def _shown(error: Exception) -> str:
    """Its text without the user and password of an address."""
    return without_classes(re.sub(r"(?<=://)[^/@\s]*@", "", str(error)))
