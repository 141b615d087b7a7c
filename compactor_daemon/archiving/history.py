"""The history (version 8 on): its files and their rows, how instants are added, and how small files are merged.

    <first>_<last>_<level>.parquet   staged and placed; a dead writer left it if no manifest names it
    manifest_<n+1>, _version_        see `manifest`; from then on the instants of the file are archived

Columns of a file, one row an instant:

    instantTime, completionTime, action    texts; the action of the completed file
    metadata                               the bytes of the completed file
    plan                                   the bytes of the requested file of a table service or replace commit, or null
    version                                1; Hudi requires it

Ten files of one level become one file of the next, as in Hudi. Files that a manifest names never change, so they are
merged without the lock; under the lock it is checked again that the manifest still names them. Afterwards the newest
manifests and the files that they name are kept, for readers of an older manifest; all other files of the history are
removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches, read_parquet, readable
from phantombase.timeline.codec.parquet_write import open_parquet_writer
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.instant_files import StateFiles
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.snapshot import check_guard, unguarded
from phantombase.timeline.storage.staged_file import place_staged, staged_output

from .manifest import (
    HistoryFile,
    Manifest,
    manifest_numbers,
    manifest_path,
    newest_manifest,
    put_manifest,
    read_manifest,
    set_version,
    staged_name,
)

PLANNED = frozenset({"clean", "compaction", "logcompaction", "clustering", "replacecommit"})
"""Actions whose requested file is kept as `plan`."""
ROW_SCHEMA = pa.schema(
    [
        ("instantTime", pa.string()),
        ("completionTime", pa.string()),
        ("action", pa.string()),
        ("metadata", pa.binary()),
        ("plan", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)
_VERSION = 1
_NAME = re.compile(r"(\d+)_(\d+)_(\d+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HistoryName:
    """The name of a history file: its first and last instant, and its level."""

    first: str
    last: str
    level: int

    def __str__(self) -> str:
        return f"{self.first}_{self.last}_{self.level}.parquet"

    @staticmethod
    def parse(name: str) -> HistoryName | None:
        """None: not the name of a history file."""
        match = _NAME.fullmatch(name)
        return HistoryName(first=match[1], last=match[2], level=int(match[3])) if match else None

    @staticmethod
    def of(name: str, where: str) -> HistoryName:
        """MalformedError: not the name of a history file."""
        found = HistoryName.parse(name)
        if found is None:
            raise MalformedError(
                "not the name of a history file", path=where, expected="<first>_<last>_<level>.parquet", found=name
            )
        return found


_ROWS = 64
"""Instants in memory at a time; the commit of a large write takes some megabytes."""
_AT_ONCE = 16
"""Files read concurrently."""
_KEY = ("instantTime", "completionTime", "action")


def archived_already(storage: Storage, config: TableConfig, active: Sequence[Instant]) -> tuple[Instant, ...]:
    """The active completed instants that are in the history. Changes nothing. UnknownStateError: it cannot be read."""
    manifest = newest_manifest(storage, config.history_folder)
    by_key = {(i.requested_time, i.action): i for i in active if i.completed}
    first = min((i.requested_time for i in by_key.values()), default="")
    found: set[Instant] = set()
    for file in manifest.files:
        path = f"{config.history_folder}/{file.name}"
        if by_key and HistoryName.of(file.name, path).last >= first:
            for time, completion, action in _keys(storage, path):
                instant = by_key.get((time, action))
                # A table that was upgraded from version 6 may have completed files without a completion time.
                if instant is not None and instant.completion_time in (None, completion):
                    found.add(instant)
    return tuple(i for i in active if i in found)


def make_current(storage: Storage, config: TableConfig) -> None:
    """Makes a manifest that a dead writer put the one that counts."""
    manifest = newest_manifest(storage, config.history_folder)
    if manifest.number:
        set_version(storage, config.history_folder, manifest.number)


def _keys(storage: Storage, path: str) -> Iterator[tuple[str, str, str]]:
    with readable("history file", path):
        table = read_parquet(storage.open_input(path), _KEY)
    for row in table.select(list(_KEY)).to_pylist():
        yield row["instantTime"], row["completionTime"], row["action"]


def add_to_history(
    storage: Storage,
    config: TableConfig,
    instants: Sequence[Instant],
    files: StateFiles,
    completion: Callable[[Instant], str],
) -> str:
    """Archives completed instants that are not in the history; returns the new file's name. `storage`: of a section.
    `completion`: of instants whose name has none. Memory: `_ROWS` instants. ConflictError: see `put_manifest`."""
    folder = config.history_folder
    times = [i.requested_time for i in instants]
    name = HistoryName(first=min(times), last=max(times), level=0)
    rows = prefetched(instants, lambda i: _row(storage, i, files, completion(i)), _AT_ONCE)
    with staged_name(storage, ".parquet") as staged:
        write_rows(storage, staged, _batches(rows))
        file = place_history(storage, folder, staged, name)
    before = newest_manifest(storage, folder)
    after = put_manifest(storage, folder, before, (*before.files, file))
    check_counts(storage, folder, after)
    return file.name


def _row(storage: Storage, instant: Instant, files: StateFiles, completion: str) -> dict[str, Any]:
    by_state = {f.instant.state: f for f in files.files(instant)}
    done, asked = by_state[State.COMPLETED], by_state.get(State.REQUESTED)
    plan = storage.read(asked.path) if asked is not None and asked.instant.action in PLANNED and asked.size else None
    keys = dict(zip(_KEY, (instant.requested_time, completion, instant.action), strict=True))
    return {**keys, "metadata": storage.read(done.path), "plan": plan or None, "version": _VERSION}


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.Table]:
    while batch := list(islice(rows, _ROWS)):
        yield pa.Table.from_pylist(batch, ROW_SCHEMA)


def write_rows(storage: Storage, path: str, batches: Iterator[pa.Table]) -> None:
    """Writes a history file under a staged name, batch by batch. At least one batch."""
    first = next(batches)
    with staged_output(storage, path) as file, open_parquet_writer(file, ROW_SCHEMA, "zstd", first) as writer:
        writer.write(first)
        for batch in batches:
            writer.write(batch)


def place_history(storage: Storage, folder: str, staged: str, name: HistoryName) -> HistoryFile:
    """Gives a staged history file its name, in place of one that no manifest names."""
    entry = storage.find(staged)
    if entry is None:
        raise MissingFileError("a staged history file is gone", path=staged, todo="Run again.")
    final = f"{folder}/{name}"
    named = {f.name for f in newest_manifest(storage, folder).files}
    if str(name) in named:
        raise MalformedError(
            "the history names a file of these instants, and does not hold them",
            path=final,
            todo="Look at the file: it may have been replaced. Nothing was changed.",
        )
    storage.make_folder(folder)
    there = storage.find(final)
    if there is not None and _same_instants(storage, staged, final):
        return HistoryFile(name=str(name), size=there.size)
    storage.delete(final)
    try:
        check_guard(storage)
    except PhantombaseError:
        # This process may have stalled before the deletion: a manifest may name another process's file of this name.
        if str(name) in {f.name for f in newest_manifest(storage, folder).files}:
            place_staged(unguarded(storage), staged, final, entry.size)
        raise
    place_staged(storage, staged, final, entry.size)
    return HistoryFile(name=str(name), size=entry.size)


def _same_instants(storage: Storage, staged: str, final: str) -> bool:
    """Whether a file that no manifest names is complete and holds what is to be archived: then it is kept. While this
    process stalls, another one may put a manifest that names the file."""
    try:
        return sorted(_keys(storage, final)) == sorted(_keys(storage, staged))
    except MalformedError:
        return False


def check_counts(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Verifies, before anything is removed, that the manifest counts and that its files exist with their sizes."""
    sizes = {e.name: e.size for e in storage.list(folder)}
    wrong = [f.name for f in manifest.files if sizes.get(f.name) != f.size]
    if wrong:
        raise MalformedError(
            "the history's manifest names files that are not there as named",
            path=f"{folder}/manifest_{manifest.number}",
            found=", ".join(wrong[:3]),
            todo="Restore them from a copy. Nothing was removed from the active timeline.",
        )


BATCH_FILES = 10
"""Files of one level per merge (hoodie.timeline.compaction.batch.size)."""
BATCH_BYTES = 1000 << 20
"""Most bytes per merge."""
_MANIFESTS_KEPT = 3
_BATCH_ROWS = 256


def next_merge(
    files: Sequence[HistoryFile], where: str, *, count: int = BATCH_FILES
) -> tuple[tuple[HistoryFile, ...], HistoryName] | None:
    """The files that are to be merged, of the lowest level with enough of them, oldest first, and the name of the file
    that they become, of the next level (pure); None: none are due."""
    named = sorted((HistoryName.of(f.name, where), f) for f in files)
    for level in sorted({name.level for name, _ in named}):
        of_level = [(name, file) for name, file in named if name.level == level][:count]
        if len(of_level) == count and sum(file.size for _, file in of_level) <= BATCH_BYTES:
            first, last = min(name.first for name, _ in of_level), max(name.last for name, _ in of_level)
            target = HistoryName(first=first, last=last, level=level + 1)
            return tuple(file for _, file in of_level), target
    return None


def compact_history(
    storage: Storage, config: TableConfig, section: Callable[[], AbstractContextManager[Storage]]
) -> tuple[str, ...]:
    """Merges until nothing is due; returns the new names. `section`: takes the lock, gives the storage under it.
    Memory: one row group of a file. ConflictError: see `put_manifest`."""
    made: list[str] = []
    folder = config.history_folder
    while (due := next_merge(newest_manifest(storage, folder).files, folder)) is not None:
        files, target = due
        with staged_name(storage, ".parquet") as staged:
            write_rows(storage, staged, _rows(storage, folder, files))
            with section() as held:
                before = newest_manifest(held, folder)
                if not set(files) <= set(before.files):
                    continue  # another process has merged them
                left = tuple(f for f in before.files if f not in files)
                file = place_history(held, folder, staged, target)
                after = put_manifest(held, folder, before, (*left, file))
                check_counts(held, folder, after)
                made.append(file.name)
                _forget_old(held, folder, after, len(made))
    return tuple(made)


def _rows(storage: Storage, folder: str, files: Sequence[HistoryFile]) -> Iterator[pa.Table]:
    """The rows of these files, each instant once."""
    seen: set[tuple[str, str, str]] = set()
    for file in files:
        path = f"{folder}/{file.name}"
        with readable("history file", path):
            source = storage.open_input(path)
            for batch in parquet_batches(source, open_parquet(source), ROW_SCHEMA.names, _BATCH_ROWS):
                table = pa.Table.from_batches([batch]).select(ROW_SCHEMA.names).cast(ROW_SCHEMA)
                keys = list(zip(*(table.column(i).to_pylist() for i in range(3)), strict=True))
                fresh = pa.array([key not in seen for key in keys])
                seen.update(keys)
                yield table if pc.all(fresh).as_py() else table.filter(fresh)


def _forget_old(storage: Storage, folder: str, counting: Manifest, merged: int) -> None:
    """Removes manifests older than the newest ones, and files that no remaining manifest names. No later manifest names
    such a file again. A file that no manifest has ever named was placed by a dead archiver."""
    numbers = [n for n in manifest_numbers(storage, folder) if n <= counting.number]
    kept = numbers[-(_MANIFESTS_KEPT + merged) :]
    named = {name for number in kept for name in _names(storage, folder, number)}
    names = [e.name for e in storage.list(folder) if not e.is_folder]
    files = [n for n in names if HistoryName.parse(n) is not None and n not in named]
    older = [number for number in numbers if number not in kept]
    once_named = {name for number in older for name in _names(storage, folder, number)}
    storage.delete_all([manifest_path(folder, number) for number in older])
    storage.delete_all([f"{folder}/{name}" for name in files if name in once_named])
    for name in files:
        if name not in once_named:
            _remove_leftover(storage, folder, name)


def _names(storage: Storage, folder: str, number: int) -> tuple[str, ...]:
    """The files that a manifest names; none if it is torn: a torn manifest never counted, and a writer skipped it."""
    with suppress(MalformedError, MissingFileError):
        return tuple(f.name for f in read_manifest(storage, folder, number))
    return ()


def _remove_leftover(storage: Storage, folder: str, name: str) -> None:
    """Removes a file that a dead archiver placed; puts the file back if a manifest names it since. Another process that
    archives the same instants uses the file as it is, while this process may stall right before the removal."""
    path = f"{folder}/{name}"
    with staged_name(storage, ".parquet") as kept:
        try:
            storage.place(path, kept)
        except MissingFileError:
            return
        try:  # from here on: placing may have been a rename, after which the staged name is the only one
            storage.delete(path)
            check_guard(storage)
        except PhantombaseError:
            if name in {f.name for f in newest_manifest(storage, folder).files}:
                unguarded(storage).place(kept, path)
            raise
