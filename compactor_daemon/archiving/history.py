"""Puts instants into the history (version 8 on), and finds active instants that are in it already.

<first>_<last>_0.parquet    staged and placed: a file of that name that no manifest names is what a dead writer left
manifest_<n+1>, _version_   see `manifest`; from then on the instants are archived
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from phantombase.timeline.codec.parquet_read import read_parquet, readable
from phantombase.timeline.codec.parquet_write import open_parquet_writer
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.instant_files import StateFiles
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.staged_file import place_staged, staged_output

from .history_rows import PLANNED, ROW_SCHEMA, HistoryName, Row, row_batch
from .manifest import HistoryFile, Manifest, newest_manifest, put_manifest, set_version
from .staged import staged_name

_ROWS = 64
"""Instants in memory at a time; a commit of a large write has some megabytes."""
_AT_ONCE = 16
"""Files that are read at the same time."""
_KEY = ("instantTime", "completionTime", "action")


def archived_already(storage: Storage, config: TableConfig, active: Sequence[Instant]) -> tuple[Instant, ...]:
    """Those of the active completed instants that the history holds too: their archiving stopped half-way.

    Also makes nothing of it current: see `add_to_history`. UnknownStateError is not hidden: what cannot be read raises.
    """
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


def make_current(storage: Storage, config: TableConfig, check: Callable[[], None]) -> None:
    """Finishes a manifest that a dead writer put: makes it the one that counts."""
    manifest = newest_manifest(storage, config.history_folder)
    if manifest.number:
        set_version(storage, config.history_folder, manifest.number, check)


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
    check: Callable[[], None],
) -> str:
    """Archives completed instants, none of which is in the history; returns the new file's name.

    Called under the table lock; `check` raises if it is lost. `completion`: of instants whose name has no completion
    time. Memory: the content of `_ROWS` instants. ConflictError: see `put_manifest`.
    """
    folder = config.history_folder
    times = [i.requested_time for i in instants]
    name = HistoryName(first=min(times), last=max(times), level=0)
    rows = prefetched(instants, lambda i: _row(storage, i, files, completion(i)), _AT_ONCE)
    with staged_name(storage, ".parquet") as staged:
        write_rows(storage, staged, _batches(rows))
        file = place_history(storage, folder, staged, name, check)
    before = newest_manifest(storage, folder)
    after = put_manifest(storage, folder, before, (*before.files, file), check)
    check_counts(storage, folder, after)
    return file.name


def _row(storage: Storage, instant: Instant, files: StateFiles, completion: str) -> Row:
    by_state = {f.instant.state: f for f in files.files(instant)}
    done, asked = by_state[State.COMPLETED], by_state.get(State.REQUESTED)
    plan = storage.read(asked.path) if asked is not None and asked.instant.action in PLANNED and asked.size else None
    return Row(
        time=instant.requested_time,
        completion=completion,
        action=instant.action,
        metadata=storage.read(done.path),
        plan=plan or None,
    )


def _batches(rows: Iterator[Row]) -> Iterator[pa.Table]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS:
            yield row_batch(batch)
            batch = []
    if batch:
        yield row_batch(batch)


def write_rows(storage: Storage, path: str, batches: Iterator[pa.Table]) -> None:
    """Writes a history file under a staged name, batch by batch. At least one batch."""
    first = next(batches)
    with staged_output(storage, path) as file, open_parquet_writer(file, ROW_SCHEMA, "zstd", first) as writer:
        writer.write(first)
        for batch in batches:
            writer.write(batch)


def place_history(
    storage: Storage, folder: str, staged: str, name: HistoryName, check: Callable[[], None]
) -> HistoryFile:
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
    check()
    storage.delete(final)
    try:
        check()
    except PhantombaseError:
        # It slept before the deletion: another process may have given the same name to a file that now counts.
        if str(name) in {f.name for f in newest_manifest(storage, folder).files}:
            place_staged(storage, staged, final, entry.size)
        raise
    place_staged(storage, staged, final, entry.size)
    return HistoryFile(name=str(name), size=entry.size)


def _same_instants(storage: Storage, staged: str, final: str) -> bool:
    """Whether a file that no manifest names is whole, and holds what is to be archived: then it stays.

    It must not be deleted: while this process sleeps, another one may name it in the manifest.
    """
    try:
        return sorted(_keys(storage, final)) == sorted(_keys(storage, staged))
    except MalformedError:
        return False


def check_counts(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Looks back, before anything is removed: the manifest counts, and its files are there with their sizes."""
    sizes = {e.name: e.size for e in storage.list(folder)}
    wrong = [f.name for f in manifest.files if sizes.get(f.name) != f.size]
    if wrong:
        raise MalformedError(
            "the history's manifest names files that are not there as named",
            path=f"{folder}/manifest_{manifest.number}",
            found=", ".join(wrong[:3]),
            todo="Restore them from a copy. Nothing was removed from the active timeline.",
        )
