"""Merges small files of the history (version 8 on): ten of one level become one of the next, as Hudi does.

Files that a manifest names never change, so they are merged without the lock; under the lock it is looked at again
whether the manifest still names them. Afterwards the newest manifests stay with the files they name, for readers that
read an older manifest; everything else of the history goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches, readable
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.storage.contract import Storage

from .history import check_counts, place_history, write_rows
from .history_rows import ROW_SCHEMA, HistoryName, spanning
from .manifest import (
    HistoryFile,
    Manifest,
    manifest_numbers,
    manifest_path,
    newest_manifest,
    put_manifest,
    read_manifest,
)
from .staged import staged_name

BATCH_FILES = 10
"""Files of one level that are merged (hoodie.timeline.compaction.batch.size)."""
BATCH_BYTES = 1000 << 20
"""The most bytes that are merged at once."""
_MANIFESTS_KEPT = 3
_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Files of one level that become one of the next. `target`: its name."""

    files: tuple[HistoryFile, ...]
    target: HistoryName


def next_merge(files: Sequence[HistoryFile], where: str, *, count: int = BATCH_FILES) -> Merge | None:
    """The merge that is due, of the lowest level that has enough files, oldest files first (pure); None: none is."""
    named = sorted((HistoryName.of(f.name, where), f) for f in files)
    for level in sorted({name.level for name, _ in named}):
        of_level = [(name, file) for name, file in named if name.level == level][:count]
        if len(of_level) == count and sum(file.size for _, file in of_level) <= BATCH_BYTES:
            target = spanning((name for name, _ in of_level), level + 1)
            return Merge(files=tuple(file for _, file in of_level), target=target)
    return None


def compact_history(
    storage: Storage,
    config: TableConfig,
    section: Callable[[], AbstractContextManager[Callable[[], None]]],
) -> tuple[str, ...]:
    """Merges until nothing is due; returns the new names. `section`: takes the lock, gives its check.

    Memory: one row group of a file. ConflictError: see `put_manifest`.
    """
    made: list[str] = []
    folder = config.history_folder
    while (merge := next_merge(newest_manifest(storage, folder).files, folder)) is not None:
        with staged_name(storage, ".parquet") as staged:
            write_rows(storage, staged, _rows(storage, folder, merge.files))
            with section() as check:
                before = newest_manifest(storage, folder)
                if not set(merge.files) <= set(before.files):
                    continue  # another process has merged them
                left = tuple(f for f in before.files if f not in merge.files)
                file = place_history(storage, folder, staged, merge.target, check)
                after = put_manifest(storage, folder, before, (*left, file), check)
                check_counts(storage, folder, after)
                made.append(file.name)
                _forget_old(storage, folder, after, len(made), check)
    return tuple(made)


def _rows(storage: Storage, folder: str, files: Sequence[HistoryFile]) -> Iterator[pa.Table]:
    """The rows of these files, each instant once."""
    seen: set[tuple[str, str, str]] = set()
    for file in files:
        path = f"{folder}/{file.name}"
        with readable("history file", path):
            source = storage.open_input(path)
            for batch in parquet_batches(source, open_parquet(source), ROW_SCHEMA.names, _ROWS):
                table = pa.Table.from_batches([batch]).select(ROW_SCHEMA.names).cast(ROW_SCHEMA)
                keys = list(zip(*(table.column(i).to_pylist() for i in range(3)), strict=True))
                fresh = pa.array([key not in seen for key in keys])
                seen.update(keys)
                yield table if pc.all(fresh).as_py() else table.filter(fresh)


def _forget_old(storage: Storage, folder: str, counting: Manifest, merged: int, check: Callable[[], None]) -> None:
    """Removes manifests older than the newest ones, and files that no manifest left names.

    What manifests have named never comes again. A file that none has ever named is what a dead archiver placed.
    """
    numbers = [n for n in manifest_numbers(storage, folder) if n <= counting.number]
    kept = numbers[-(_MANIFESTS_KEPT + merged) :]
    named = {name for number in kept for name in _names(storage, folder, number)}
    names = [e.name for e in storage.list(folder) if not e.is_folder]
    files = [n for n in names if HistoryName.parse(n) is not None and n not in named]
    older = [number for number in numbers if number not in kept]
    once_named = {name for number in older for name in _names(storage, folder, number)}
    check()
    storage.delete_all([manifest_path(folder, number) for number in older])
    check()
    storage.delete_all([f"{folder}/{name}" for name in files if name in once_named])
    for name in files:
        if name not in once_named:
            _remove_leftover(storage, folder, name, check)


def _names(storage: Storage, folder: str, number: int) -> tuple[str, ...]:
    """The files that a manifest names; none if it is torn: then it never counted, and a writer passed it over."""
    with suppress(MalformedError, MissingFileError):
        return tuple(f.name for f in read_manifest(storage, folder, number))
    return ()


def _remove_leftover(storage: Storage, folder: str, name: str, check: Callable[[], None]) -> None:
    """Removes a file that a dead archiver placed; puts it back where another process has named it since.

    Who archives the same instants names the file as it is. This process may sleep right before it removes it.
    """
    path = f"{folder}/{name}"
    with staged_name(storage, ".parquet") as kept:
        check()
        try:
            storage.place(path, kept)
        except MissingFileError:
            return
        storage.delete(path)
        try:
            check()
        except PhantombaseError:
            if name in {f.name for f in newest_manifest(storage, folder).files}:
                storage.place(kept, path)
            raise
