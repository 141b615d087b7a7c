"""The archive of a table, by its version; the removal of archived instants from the active timeline; merges of small
files of the history.

Version 6: archive logs, log files of Avro blocks, with one `HoodieArchivedMetaEntry` for each state file.

    .hoodie/archived/.commits_.archive.<n>_1-0-1    n: greater than that of all existing files

Hudi 0.15 also writes a new file for each archiving where the storage cannot append. A record has the content of its
state file in the field of its action, and the time at which the file was written: Hudi 1.x uses the time of a completed
file as the completion time of the instant. `archived_entry.avsc` is the schema that Hudi 0.15 puts into its archives,
without descriptions.

From version 8 on: files of the history, see `archiving.history`. Ten files of one level become one file of the next, as
in Hudi (`compact_history`). Files that a manifest names never change, so they are merged without the lock; under the
lock it is checked again that the manifest still names them. Afterwards the newest manifests and the files that they
name are kept, for readers of an older manifest; all other files of the history are removed.

Removal: files of earlier states are removed first, so that no completed instant becomes a pending one; then completed
files one by one, oldest first: a reader sees no gap between the archive and the active timeline."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_container import any_record
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches, readable
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError, reason_of
from phantombase.timeline.format.commit_metadata import as_record, decode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.log_encode import archive_block
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.archived_timeline import (
    HistoryFile,
    archive_log_instants,
    manifest_numbers,
    manifest_path,
    read_manifest,
)
from phantombase.timeline.instants.instant_files import StateFile, StateFiles, of_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.snapshot import check_guard, unguarded
from phantombase.timeline.storage.staged_file import staged_output

from .history import (
    ROW_SCHEMA,
    HistoryName,
    Manifest,
    add_to_history,
    archived_already,
    archived_by_another,
    check_counts,
    make_current,
    newest_manifest,
    place_history,
    put_manifest,
    staged_name,
    write_rows,
)


def remove_instants(storage: Storage, files: Sequence[StateFile]) -> None:
    """Removes these files of archived instants; some may be gone already. `storage`: of a section (`exclusive`)."""
    storage.delete_all([f.path for f in files if not f.instant.completed])
    for one in sorted((f for f in files if f.instant.completed), key=lambda f: f.instant.requested_time):
        storage.delete(one.path)


_SCHEMA = json.loads(files(__package__).joinpath("archived_entry.avsc").read_text())
SCHEMA_TEXT = json.dumps(_SCHEMA, separators=(",", ":"))
_PARSED = fastavro.parse_schema(_SCHEMA)
_COMMITS = frozenset({"commit", "deltacommit"})


def encode_entry(instant: Instant, content: bytes, where: str, written: str) -> bytes:
    """The record of one state file in Avro. `written`: its instant time. MalformedError: no content of the action."""
    record: dict[str, Any] = {field["name"]: None for field in _SCHEMA["fields"]}
    record |= {
        "commitTime": instant.requested_time,
        "actionType": instant.action,
        "actionState": instant.state.name,
        "stateTransitionTime": written,
        **_content(instant, content, where),
    }
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, _PARSED, record)
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedError(
            "a state file that the archive's schema cannot hold", path=where, found=reason_of(error)
        ) from error
    return out.getvalue()


def _content(instant: Instant, content: bytes, where: str) -> Mapping[str, Any]:
    """The field that Hudi sets for the action and state of a file that has content."""
    action, done = instant.action, instant.completed
    if action in _COMMITS and (done or content):
        return {"hoodieCommitMetadata": as_record(decode(content, where))}
    if action == "replacecommit" and done:
        return {"hoodieReplaceCommitMetadata": as_record(decode(content, where))}
    if not content:
        return {}
    if action == "replacecommit" and instant.state is State.INFLIGHT:
        return {"HoodieInflightReplaceMetadata": as_record(decode(content, where))}
    field = _FIELDS.get((action, done)) if done or instant.state is State.REQUESTED or action == "clean" else None
    return {field: any_record(content, where)} if field else {}


_FIELDS = {
    ("clean", False): "hoodieCleanerPlan",
    ("clean", True): "hoodieCleanMetadata",
    ("compaction", False): "hoodieCompactionPlan",
    ("logcompaction", False): "hoodieCompactionPlan",
    ("replacecommit", False): "hoodieRequestedReplaceMetadata",
    ("rollback", True): "hoodieRollbackMetadata",
}
RECORDS_IN_BLOCK = 10
"""As Hudi (hoodie.commits.archival.batch)."""
_AT_ONCE = 16
_NAME = re.compile(r"\.commits_\.archive\.(\d+).*")


def archive_logs(storage: Storage, config: TableConfig) -> list[tuple[int, str]]:
    """Number and name of all archive logs, ascending."""
    names = [e.name for e in listed_if_there(storage, config.history_folder) or () if not e.is_folder]
    return sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))


def in_logs_already(storage: Storage, config: TableConfig, active: Sequence[Instant]) -> tuple[Instant, ...]:
    """The active completed instants that are also in the archive: their archiving is in progress, so they are in the
    newest logs. MalformedError: an unreadable log may hold any instant."""
    by_key = {(i.requested_time, i.action): i for i in active if i.completed}
    found: set[Instant] = set()
    for _, name in reversed(archive_logs(storage, config)):
        held = archive_log_instants(storage, f"{config.history_folder}/{name}")
        here = {by_key[i.requested_time, i.action] for i in held if (i.requested_time, i.action) in by_key}
        if not here:
            break
        found |= here
    return tuple(i for i in active if i in found)


def write_archive_log(
    storage: Storage, config: TableConfig, instants: Sequence[Instant], files: StateFiles, moment: Callable[[int], str]
) -> str:
    """Archives completed instants that are not in the archive; returns the new file's name. `storage`: of a section.
    `moment`: see `Archive`. Memory: some state files. ConflictError: another process has put the same file."""
    folder = config.history_folder
    number = max((n for n, _ in archive_logs(storage, config)), default=0) + 1
    name = f".commits_.archive.{number}_1-0-1"

    def entry(file: StateFile) -> bytes:
        return encode_entry(file.instant, storage.read(file.path), file.path, moment(file.modified_ms))

    with staged_name(storage, ".log") as staged:
        with staged_output(storage, staged) as out:
            records = prefetched(of_instants(files, instants), entry, _AT_ONCE)
            while block := list(islice(records, RECORDS_IN_BLOCK)):
                out.writelines(archive_block(block, SCHEMA_TEXT))
        _place(storage, staged, f"{folder}/{name}")
    return name


def _place(storage: Storage, staged: str, final: str) -> None:
    made = storage.find(staged)
    if made is None:
        raise MissingFileError("a staged archive log is gone", path=staged, todo="Run again.")
    storage.make_folder(final.rpartition("/")[0])
    placed = storage.place(staged, final)
    there = storage.find(final)
    if not placed or there is None or there.size != made.size:
        raise archived_by_another(storage, final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The archive of a table. `storage`: of a section, but for `seen_already`. `moment`: ms to an instant time."""

    storage: Storage
    config: TableConfig
    moment: Callable[[int], str]

    def held_already(self, active: Sequence[Instant]) -> tuple[Instant, ...]:
        """The active completed instants that are also archived: the run that archived them died before their removal.
        MalformedError, UnknownStateError: the archive cannot be read."""
        if self.config.layout.has_completion_times:
            make_current(self.storage, self.config)
        return self.seen_already(active)

    def seen_already(self, active: Sequence[Instant]) -> tuple[Instant, ...]:
        """As `held_already`, for a dry run: nothing is changed."""
        if not self.config.layout.has_completion_times:
            return in_logs_already(self.storage, self.config, active)
        return archived_already(self.storage, self.config, active)

    def write(self, instants: Sequence[Instant], timeline: Timeline, files: StateFiles) -> str:
        """Adds instants; returns the new file's name. Errors: see `write_archive_log`, `add_to_history`."""
        if not self.config.layout.has_completion_times:
            return write_archive_log(self.storage, self.config, instants, files, self.moment)
        return add_to_history(self.storage, self.config, instants, files, timeline.completed_at)


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
    listed = (e.name for e in listed_if_there(storage, folder) or ())
    numbers = [n for n in manifest_numbers(listed) if n <= counting.number]
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
