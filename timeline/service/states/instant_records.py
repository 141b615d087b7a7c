"""Reads what the files of a timeline's instants record, each file once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import MalformedError, MissingFileError, UnsupportedError
from ...format.clean import decode_clean_plan
from ...format.compaction_plan import pending_clustering_file_groups
from ...format.instant import MERGES, Instant, State
from ...format.rollback_plan import decode_rollback_plan
from ...instants.timeline import Timeline
from ...storage.contract import Entry, list_of_table
from ...table.table import Table
from .recorded import ANYTHING, NOTHING, TORN, Recorded, Records, of_clustering, of_commit, of_plan, of_removal

FileKey: TypeAlias = tuple[str, int, int, str]
"""Name, size, modification time and tag of a file: as long as these stay, its content does."""

_NO_FILES = frozenset({"savepoint", "indexing", "schemacommit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantRecords:
    """Of every active instant. `known`: by the file that was read; a later load takes from it what did not change."""

    records: Records
    known: Mapping[FileKey, Recorded]


def load_records(table: Table, timeline: Timeline, known: Mapping[FileKey, Recorded]) -> InstantRecords:
    """MalformedError, MissingFileError: a plan, or a commit that is no delta commit, cannot be read."""
    entries = {e.name: e for e in list_of_table(table.storage, table.config.timeline_folder)}
    instants = (*timeline.hidden, *timeline.instants)
    unread = [i for i in instants if _key(table, i, entries) not in known and _is_read(i)]
    table.files.read_ahead(map(_source, unread))
    used: dict[FileKey, Recorded] = {}
    records = []
    for instant in instants:
        key = _key(table, instant, entries)
        recorded = known.get(key)
        if recorded is None:
            recorded = _read(table, instant)
        used[key] = recorded
        records.append((instant, recorded))
    return InstantRecords(records=records, known=used)


def _source(instant: Instant) -> Instant:
    """The instant in the state whose file says the most."""
    return instant if instant.is_write and instant.completed else instant.at(State.REQUESTED)


def _key(table: Table, instant: Instant, entries: Mapping[str, Entry]) -> FileKey:
    name = table.instant_path(_source(instant)).rpartition("/")[2]
    entry = entries.get(name)
    state = f"{name} {instant.action} {instant.state.name}"
    return (state, -1, 0, "") if entry is None else (state, entry.size, entry.modified_ms, entry.tag)


def _is_read(instant: Instant) -> bool:
    pending = instant.action in MERGES or instant.family == "replacecommit"
    return (instant.completed or pending) if instant.is_write else instant.action in ("clean", "rollback")


def _read(table: Table, instant: Instant) -> Recorded:
    if instant.action in _NO_FILES or (instant.is_write and not _is_read(instant)):
        return NOTHING
    if instant.is_write and instant.completed:
        try:
            metadata = table.files.recorded(instant)
            return TORN if metadata is None else of_commit(metadata, instant.family)
        except (MalformedError, MissingFileError):
            if instant.family != "deltacommit":
                raise
            return TORN
    if instant.action in MERGES:
        return of_plan(table.compaction_plan(instant.requested_time))
    path = table.instant_path(_source(instant))
    if instant.is_write:
        return of_clustering(pending_clustering_file_groups(table.storage.read(path), path))
    try:
        if instant.action == "clean":
            clean = decode_clean_plan(table.storage.read(path), path)
            return of_removal([(p, "") for p in (*clean.files, *clean.partitions)])
        if instant.action == "rollback":
            undone = decode_rollback_plan(table.storage.read(path), path)
            return of_removal([*undone.doomed, *((s.partition, s.file_id) for s in undone.revoked)])
    except (MalformedError, MissingFileError, UnsupportedError):
        pass  # what it removes is unknown
    return ANYTHING
