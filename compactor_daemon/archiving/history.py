"""The history (version 8 on): its manifests, its files and their rows, and how instants are added.

    <first>_<last>_<level>.parquet   staged and placed; a dead writer left it if no manifest names it
    manifest_<n>                     JSON, every file that counts with its size; never changed
    _version_                        text, the number of the manifest that counts; while it is missing, the greatest
                                     manifest does; from then on the instants of the file are archived

A writer puts the next manifest, then replaces `_version_` by deleting and putting it. So a manifest above `_version_`
is what a dead writer left: its files were complete before it was put, and the next writer continues from it.

Columns of a file, one row an instant:

    instantTime, completionTime, action    texts; the action of the completed file
    metadata                               the bytes of the completed file
    plan                                   the bytes of the requested file of a table service or replace commit, or null
    version                                1; Hudi requires it"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from phantombase.timeline.codec.parquet_read import read_parquet, readable
from phantombase.timeline.codec.parquet_write import open_parquet_writer
from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.archived_timeline import (
    VERSION_FILE,
    HistoryFile,
    history_version,
    manifest_numbers,
    manifest_path,
    read_manifest,
)
from phantombase.timeline.instants.instant_files import StateFiles
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import TEMPORARY
from phantombase.timeline.storage.snapshot import check_guard, unguarded
from phantombase.timeline.storage.staged_file import place_staged, staged_output


@contextmanager
def staged_name(storage: Storage, ending: str) -> Iterator[str]:
    """A path for one staged file, which is removed at exit, placed or not. A killed process's file is removed later."""
    path = f"{TEMPORARY}/{uuid.uuid4().hex}{ending}"
    try:
        yield path
    finally:
        with suppress(PhantombaseError):
            unguarded(storage).delete(path)


_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest; `number` 0 and no files: nothing was archived yet. `last`: the greatest number in use."""

    number: int
    files: tuple[HistoryFile, ...]
    last: int


def newest_manifest(storage: Storage, folder: str) -> Manifest:
    """The manifest from which a writer continues; called under the table lock. It is the greatest manifest. If that one
    is above `_version_` and torn (Hudi writes in place on local disks), it is the manifest that `_version_` names.
    MalformedError: the latter is unreadable. MissingFileError: it does not exist."""
    numbers = manifest_numbers(entry.name for entry in listed_if_there(storage, folder) or ())
    counting = history_version(storage, folder)
    last = max([*numbers, counting or 0])
    for number in reversed(numbers):
        try:
            return Manifest(number=number, files=read_manifest(storage, folder, number), last=last)
        except MalformedError:
            if counting is None or number <= counting:
                raise
    if counting:
        raise MissingFileError("the history's manifest is missing", path=manifest_path(folder, counting))
    return Manifest(number=0, files=(), last=last)


def put_manifest(storage: Storage, folder: str, before: Manifest, files: tuple[HistoryFile, ...]) -> Manifest:
    """Makes a manifest of these files count. `storage`: of a section. ConflictError: another put it, or `_version_`."""
    number = before.last + 1
    body = json.dumps({"files": [{"fileName": f.name, "fileLen": f.size} for f in files]}, indent=2).encode()
    if not storage.put_if_absent(manifest_path(folder, number), body):
        raise archived_by_another(storage, manifest_path(folder, number))
    set_version(storage, folder, number)
    return Manifest(number=number, files=files, last=number)


def set_version(storage: Storage, folder: str, number: int) -> None:
    """Makes a manifest the one that counts, unless it already is. Errors as `put_manifest`. A process that stalled
    right before its put, and lost the lock, may put an older number while `_version_` is missing. That process removes
    the number as soon as it finds that the lock is lost: then the greatest manifest counts. A process that holds the
    lock puts its own number again."""
    path, counting = f"{folder}/{VERSION_FILE}", history_version(storage, folder)
    for _ in range(_TRIES):
        if counting == number:
            return
        storage.delete(path)
        storage.put_if_absent(path, str(number).encode())
        try:
            check_guard(storage)
        except PhantombaseError:
            _withdraw_older(unguarded(storage), folder, number)
            raise
        counting = history_version(storage, folder)
        if counting is not None and counting > number:
            break
    if counting != number:
        raise archived_by_another(storage, path)


def _withdraw_older(storage: Storage, folder: str, number: int) -> None:
    """Removes `_version_` if it names this manifest and another process has put a newer one."""
    if history_version(storage, folder) == number < newest_manifest(storage, folder).number:
        storage.delete(f"{folder}/{VERSION_FILE}")


def archived_by_another(storage: Storage, path: str) -> ConflictError:
    """Another process has put this file of the archive."""
    return ConflictError(
        "another process archives this table",
        path=f"{storage.base_path}/{path}",
        expected="one archiving process at a time, under the table lock",
        todo="Give all processes that archive the same lock, then run again: it continues where this run stopped.",
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
