"""Names of what compaction attempts leave on storage: folders, and the record that ends an attempt.

.hoodie/.phantombase/<C>              a recorded instant: in use, or a tombstone
.hoodie/.phantombase/<C>/<e>/outcome     how attempt e ended: dead, cancelled or commit
"""

from __future__ import annotations

from ..storage.contract import Storage, listed_if_there
from ..storage.folders import BEHIND_INSTANTS, RECORDS

OUTCOME = "outcome"
DEAD, CANCELLED, COMMITTED = "dead", "cancelled", "commit"
STAGED_DATA = (".parquet", ".log")
"""Suffixes of the names of staged files."""


def instant_folder(instant: str) -> str:
    """Folder of the records of all attempts at an instant."""
    return f"{RECORDS}/{instant}"


def attempt_folder(instant: str, attempt: int) -> str:
    """Folder of the records and staged files of one attempt."""
    return f"{instant_folder(instant)}/{attempt}"


def outcome_path(instant: str, attempt: int) -> str:
    """Path of an attempt's outcome."""
    return f"{attempt_folder(instant, attempt)}/{OUTCOME}"


def attempts(storage: Storage, instant: str) -> tuple[int, ...]:
    """Numbers of all attempts at an instant, ascending."""
    entries = listed_if_there(storage, instant_folder(instant))
    return tuple(sorted(int(e.name) for e in entries or () if e.is_folder and e.name.isdigit()))


def staged_files(storage: Storage, instant: str, endings: tuple[str, ...]) -> list[str]:
    """Files that attempts at an instant have staged, by the suffix of their names."""
    folders = [attempt_folder(instant, number) for number in attempts(storage, instant)]
    return [f"{f}/{e.name}" for f in folders for e in storage.list(f) if e.name.endswith(endings)]


def recorded_instants(storage: Storage) -> tuple[str, ...]:
    """Instants that have records, unscheduled ones (tombstones) included."""
    if storage.is_file_system:
        return tuple(e.name for e in listed_if_there(storage, RECORDS) or () if e.is_folder and e.name.isdigit())
    names = {path.partition("/")[0] for path, _ in storage.list_below(RECORDS, BEHIND_INSTANTS)}
    return tuple(sorted(name for name in names if name.isdigit()))
