"""The files that a write adds to the table, and the file groups that it replaces.

Staged files get their final names, each after its Hudi marker, so that a process that rolls the write back finds the
file. Placed files are not visible before the write completes. The commit's statistics are made of them.

A write that overwrites replaces all file groups that its partitions have when it begins. What other processes change in
these partitions until the write completes is a conflict (see `conflict`).

A first write that fails, on a full disk or by Ctrl-C, leaves nothing: `FirstTable` removes the table that it has made.

    begins as the only instant            its files and instants are removed without a rollback: no reader saw them
    lock held, and the timeline is empty  hoodie.properties goes first: from then on there is no table
    then                                  what the write alone has made, empty folders, at last the lock file

The table stays where another process may have begun to use it: there is an instant, or a file of another process; or
the lock is one that Hudi's writers hold: they look at the settings long before they are seen on the timeline. Those of
phantombase read the settings again under the lock: one that meets no table any more ends with a ConflictError."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from phantombase.timeline.errors import (
    ConflictError,
    MissingFileError,
    NotATableError,
    PhantombaseError,
    UnknownCommitError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import WriteStat
from phantombase.timeline.format.file_name import (
    PARTITION_METADATA,
    WRITER,
    LogFileName,
    parse_data_file,
    partition_metadata,
)
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.record_key import looks_like_bucket
from phantombase.timeline.format.table_config import PROPERTIES, load_table_config
from phantombase.timeline.locks.table_lock import StorageLock, TableLock, is_holdable_first, is_of_hudi
from phantombase.timeline.metadata_table.records.keys import refuse_unordered
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.prefetch import at_once, prefetched
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import HEARTBEATS, HOODIE, METADATA_FOLDER, RECORDS, TEMPORARY, join
from phantombase.timeline.storage.staged_file import place_staged
from phantombase.timeline.table.in_progress import exclusive, making_a_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Marker, MarkerKind, log_marker_kind, make_marker, traces_of, undo
from phantombase.timeline.view.view import GroupKey, is_replaced

from ...timeline.record_fields import gathered
from ..engine.engine import RowCounts
from ..files.stager import FileKind, StagedFile, without_base
from ..index.bucket_step import newest_file_ids, nonblocking_bucket
from ..options import Operation, Write
from ..schema.key_generator import refuse_long_partitions
from ..schema.new_table import NewTable, create_table
from .transaction import Transaction

_log = get_logger()


def replaced_groups(begun: Transaction, write: Write, counts: RowCounts) -> dict[str, tuple[str, ...]]:
    """File ids by partition, also of one without any, as in Hudi. Errors: `refuse_planned`, `without_base`.
    UnsupportedError: Hudi's writers without conflict checks may be writing into one of them: its rows would be lost."""
    if not write.operation.replaces:
        return {}
    partitions = sorted(_partitions(begun, write, {partition for partition, _ in counts}))
    views, facts = begun.table.views, begun.facts
    found = prefetched(partitions, lambda partition: views.partition_groups(partition, begun.timeline, facts))
    living = [[g for g in groups if g.slices and not is_replaced(g, facts)] for groups in found]
    if (is_deleted := write.deletes_if) is not None:
        both = zip(partitions, living, strict=True)
        still = {partition: groups for partition, groups in both if is_deleted(begun.table, partition, groups)}
        partitions, living = list(still), list(still.values())
    replaced = [group for groups in living for group in groups]
    refuse_planned(begun.table, begun.instant, write, [group.key for group in replaced])
    buckets = [group for group in replaced if looks_like_bucket(group.file_id)]
    if buckets and (other := nonblocking_bucket(buckets, newest_file_ids(begun.table))):
        raise UnsupportedError(
            "replacing file groups of Hudi's writers with NON_BLOCKING_CONCURRENCY_CONTROL is not supported: they "
            "check no conflicts, so what they write meanwhile would be lost",
            path="/".join(buckets[0].key),
            found=f"such a bucket: {other}",
            todo="Delete the rows by key, or let Hudi replace the partition while none of these writers runs.",
        )
    if begun.table.config.captures_changes:
        for group in replaced:
            if group.slices[-1].base is None:
                raise without_base(group.key, begun.instant)
    return {p: tuple(g.file_id for g in groups) for p, groups in zip(partitions, living, strict=True)}


def refuse_planned(table: Table, instant: str, write: Write, replaced: Iterable[GroupKey]) -> None:
    """ConflictError: a delete_partition replaces a file group of a pending compaction, which Hudi refuses too. Once the
    cleaner has removed the group, Hudi could never execute the plan. An overwrite is allowed, as in Hudi: readers and
    compactors of phantombase leave out the replaced file group. With change data capture it is refused: Hudi's CDC
    query expects the replaced rows in a base file of the plan, and fails."""
    if write.operation is Operation.DELETE_PARTITION or table.config.captures_changes:
        for key in sorted(table.facts.pending_plans(table.load_timeline()).keys() & set(replaced)):
            raise ConflictError(
                "a pending compaction holds a file group of a partition that is to be deleted",
                path="/".join(key),
                instant=instant,
                todo="Nothing of this write is visible. Execute the compaction, or unschedule it; then write again. "
                "Where both are refused for a lost file, write its partition by insert_overwrite first.",
            )


def _partitions(begun: Transaction, write: Write, of_rows: set[str]) -> set[str]:
    """Also partitions without a folder, if completed writes name files of them."""
    if write.operation is Operation.INSERT_OVERWRITE_TABLE:
        return of_rows.union(begun.table.partitions(), begun.facts.partitions)
    if write.operation is Operation.INSERT_OVERWRITE or write.partitions is None:
        return of_rows
    return matching(write.partitions, {*begun.table.partitions(), *begun.facts.partitions})


def matching(patterns: Iterable[str], partitions: Iterable[str]) -> set[str]:
    """The partitions that one of the patterns names; `*` matches any text, `/` too, as in Hudi."""
    wanted = re.compile("|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.DOTALL)
    return {partition for partition in partitions if wanted.fullmatch(partition)}


_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placed file of a write. `path`: relative to the table base. `log_version`: None for base files."""

    staged: StagedFile
    path: str
    log_version: int | None


def place_all(table: Table, instant: str, files: Sequence[StagedFile], there: Collection[str] = ()) -> list[Placed]:
    """Places the files of a write, several at a time. StorageError: a file is missing or has another size. `there`:
    partitions that the table has."""
    by_partition = gathered((file.partition, file) for file in files)
    new = [partition for partition in by_partition if partition not in there]
    at_once(new, lambda partition: _refuse_nested(table, partition, by_partition))
    placed = at_once(by_partition.items(), lambda item: _place_partition(table, instant, *item))
    return [one for part in placed for one in part]


def refuse_first_partitions(storage: Storage, counts: RowCounts, *, listed: bool) -> None:
    """UsageError: the rows of a first write have a partition below another one of theirs, one whose path is that of a
    file, or one that is too long (`refuse_long_partitions`). UnsupportedError: `listed` in a metadata table, Hudi would
    not find it."""
    partitions = {partition for partition, _ in counts}
    refuse_long_partitions(storage, partitions)
    if listed:
        refuse_unordered(partitions, storage.base_path)
    files = {entry.name for entry in listed_if_there(storage, "") or () if not entry.is_folder}
    for partition in sorted(partitions):
        if other := next((p for p in _above(partition) if p in partitions), None):
            raise _nested(storage, other, partition)
        if storage.is_file_system and (first := partition.partition("/")[0]) in files:
            raise UsageError(
                "a file is where the folder of a partition would be",
                path=f"{storage.base_path}/{first}",
                todo="Remove it, or choose another path for the table.",
            )


def partitions_there(table: Table, partitions: Collection[str]) -> frozenset[str]:
    """Those of the partitions of rows that the table has. UsageError: see `_refuse_nested`. UnsupportedError: a new one
    that Hudi would not find in the table's metadata table."""
    each = sorted(partitions)
    found = at_once(each, lambda partition: _refuse_nested(table, partition, partitions))
    new = [partition for partition, is_there in zip(each, found, strict=True) if not is_there]
    if table.config.metadata_partitions:
        refuse_unordered((p for p in new if max(p, default="") > "\uffff"), table.storage.base_path)
    return frozenset(partitions).difference(new)


def _refuse_nested(table: Table, partition: str, all_: Collection[str]) -> bool:
    """Whether the table has the partition. UsageError: it is new, and below another one, or above one. Readers of
    folders, Hudi's too, search for none below a partition: its rows would be lost."""
    if table.storage.find(join(partition, PARTITION_METADATA)) is not None:
        return True
    other = next(
        (p for p in _above(partition) if p in all_ or table.storage.find(f"{p}/{PARTITION_METADATA}") is not None), None
    ) or next((p for p in table.partitions(partition) if p != partition), None)
    if other is not None:
        raise _nested(table.storage, other, partition)
    return False


def _above(partition: str) -> Iterator[str]:
    parts = partition.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _nested(storage: Storage, other: str, partition: str) -> UsageError:
    return UsageError(
        "a partition below another one would not be read",
        path=f"{storage.base_path}/{partition}",
        expected="partition values of which none begins with another one and a slash",
        found=f"{other} and {partition}",
        todo="Change the values, or create the table again with URL encoding of partition values.",
    )


def _place_partition(table: Table, instant: str, partition: str, files: Iterable[StagedFile]) -> list[Placed]:
    depth = len(partition.split("/")) if partition else 0
    prefix = f"{partition}/" if partition else ""
    # Without this file Hudi does not see the partition. It must exist before the data files.
    table.storage.put_if_absent(f"{prefix}{PARTITION_METADATA}", partition_metadata(instant, depth))
    by_name = table.layout.slicing is Slicing.BY_BASE_INSTANT
    versions = _log_versions(table, partition) if by_name else {}
    placed = []
    for file in files:
        if file.kind is FileKind.BASE:
            name, version = str(file.name), None
            kind = MarkerKind.MERGE if file.base_instant is not None else MarkerKind.CREATE
        else:
            log_instant = str(file.base_instant) if by_name else instant
            version = versions.get((file.file_id, log_instant), 0) + 1
            token = f"0-{WRITER}-{random.randrange(10**9)}"
            name = str(LogFileName(file_id=file.file_id, instant=log_instant, version=version, token=token))
            kind = log_marker_kind(table.layout)
        make_marker(table.storage, instant, Marker(partition=partition, file=name, kind=kind))
        place_staged(table.storage, str(file.staged), f"{prefix}{name}", file.size)
        placed.append(Placed(staged=file, path=f"{prefix}{name}", log_version=version))
    return placed


def _log_versions(table: Table, partition: str) -> dict[tuple[str, str], int]:
    """The highest log version by (file id, base instant), uncommitted ones included."""
    highest: dict[tuple[str, str], int] = {}
    for entry in table.storage.list(partition):
        name = None if entry.is_folder else parse_data_file(entry.name)
        if isinstance(name, LogFileName):
            key = name.file_id, name.instant
            highest[key] = max(highest.get(key, 0), name.version)
    return highest


def write_stat(placed: Placed, instant: str, *, names_slice: bool) -> WriteStat:
    """The statistics of a file in the commit, as Hudi 0.15 and 1.2 write them. `names_slice`: the statistics of a log
    file name the log files below it (version 6, and change data capture). They always name the base file below it;
    Hudi's do not, from version 8 on without capture. So a reader detects a lost base file also after the write that
    made it is archived (`Witness.below_of`)."""
    file = placed.staged
    new = file.base_instant is None
    common = WriteStat(
        file_id=file.file_id,
        path=placed.path,
        prev_commit="null" if new else str(file.base_instant),
        num_writes=file.writes,
        num_deletes=file.deletes,
        num_update_writes=file.updates,
        num_inserts=file.inserts,
        total_write_bytes=file.size,
        file_size_in_bytes=file.size,
        partition_path=file.partition,
    )
    if placed.log_version is None:
        return common
    name = placed.path.rpartition("/")[2]
    return replace(
        common,
        prev_commit=common.prev_commit if names_slice else instant,
        log_version=placed.log_version,
        log_offset=0,
        base_file=file.base_file or "",
        log_files=(*file.log_files, name) if names_slice else (name,),
    )


_OWN = (METADATA_FOLDER, HEARTBEATS, f"{RECORDS}/streams")
"""Folders below that of Hudi in which a first write, and no other process in a table without instants, leaves files."""


class FirstTable:
    """The table of a first write. See the module."""

    def __init__(self, storage: Storage, lock: TableLock, opened: Callable[[str], Storage]) -> None:
        self._storage, self._lock = storage, lock
        self._folders = _missing(storage, opened)
        self._new: NewTable | None = None
        self._was_held = False

    @property
    def is_removable(self) -> bool:
        """Whether a write that fails in it leaves nothing: then it needs no rollback."""
        return self._new is not None and self._was_held and not is_of_hudi(self._lock)

    def make(self, spec: NewTable) -> Table:
        """The table. Errors as those of `create_table` and `making_a_table`."""
        if isinstance(self._lock, StorageLock):
            self._storage.make_folder(RECORDS)  # which needs the rights that the lock does, and says so better
        with making_a_table(self._lock, self._storage):
            self._was_held = is_holdable_first(self._lock, self._storage)
            with suppress(NotATableError):
                load_table_config(self._storage)
                return create_table(self._storage, spec)
            self._new = spec
            self._storage.make_folder("")
            return create_table(self._storage, spec)

    def remove(self) -> None:
        """Removes what the write has made, unless another process uses it; it must not fail in its turn."""
        try:
            if self._was_held:
                with making_a_table(self._lock, self._storage):
                    self._remove_table()
            if self._storage.is_file_system and self._storage.find(PROPERTIES) is None:
                folders = (partial(self._storage.delete_empty_folder, one) for one in (RECORDS, HOODIE))
                all(remove() for remove in (*folders, *(partial(one.delete_empty_folder, "") for one in self._folders)))
        except PhantombaseError as error:
            _log.warning("new_table_stays", path=self._storage.base_path, why=str(error))

    def _remove_table(self) -> None:
        storage, lock = self._storage, self._lock
        own = {lock.path} if isinstance(lock, StorageLock) else set()
        with suppress(NotATableError):
            if Table.on(storage).load_timeline(archived=True).instants or not self.is_removable:
                return
            own.add(PROPERTIES)
        files = {f"{HOODIE}/{path}" for path, _ in storage.list_below(HOODIE)} - own
        if not all(path.startswith(tuple(f"{folder}/" for folder in (*_OWN, TEMPORARY))) for path in files):
            return
        storage.delete(PROPERTIES)
        for folder in _OWN:
            storage.delete_folder(folder)
        _remove_empty(storage, HOODIE)
        if isinstance(lock, StorageLock):
            storage.delete(lock.path)  # the last change: from here on another process may hold it


@contextmanager
def first_table(storage: Storage, lock: TableLock, opened: Callable[[str], Storage]) -> Iterator[FirstTable]:
    """What the block makes with it is removed if the block fails. `opened`: gives the storage at a URL."""
    table = FirstTable(storage, lock, opened)
    try:
        yield table
    except UnknownCommitError:
        raise
    except (Exception, KeyboardInterrupt):
        table.remove()
        raise


@contextmanager
def still_there() -> Iterator[None]:
    """ConflictError, if the table of a write vanishes."""
    try:
        yield
    except NotATableError as error:
        todo = "Write again: another process's first write had made it, and removed it when it failed."
        raise ConflictError("there is no table any more", path=error.path, found=error.found, todo=todo) from error


def undo_only_write(lock: TableLock, partitions: Iterable[str], table: Table, pending: Instant) -> bool:
    """Removes a pending write, and what it has made of these partitions; False: there is another instant, so nothing is
    changed. `table`: that of a first write."""
    time = pending.requested_time
    with exclusive(table, lock, f"remove the first write {time}") as held:
        if {i.identity for i in held.load_timeline(archived=True).instants} != {pending.identity}:
            return False
        undo(held, pending, lambda: traces_of(held, time, pending.action, scan=False), partial(forget, held, time))
        for partition in partitions:
            mark, depth = join(partition, PARTITION_METADATA), len(partition.split("/")) if partition else 0
            with suppress(MissingFileError):
                if held.storage.read(mark) == partition_metadata(time, depth):
                    held.storage.delete(mark)
            while partition and held.storage.delete_empty_folder(partition):
                partition = partition.rpartition("/")[0]
        return True


def _remove_empty(storage: Storage, folder: str) -> None:
    for entry in listed_if_there(storage, folder) or ():
        if entry.is_folder:
            _remove_empty(storage, f"{folder}/{entry.name}")
    storage.delete_empty_folder(folder)


def _missing(storage: Storage, opened: Callable[[str], Storage]) -> list[Storage]:
    """The folder of the table and those above it that do not exist, the lowest first; none where folders are names."""
    found = list[Storage]()
    while storage.is_file_system and storage.find("") is None:
        found.append(storage)
        storage = opened(storage.base_path.rpartition("/")[0] or "/")
    return found
