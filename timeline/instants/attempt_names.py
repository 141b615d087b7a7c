"""Names of what attempts at compactions leave in storage: folders, and the record that ends an attempt.

.hoodie/.phantombase/<C>              a recorded instant: in use, or a tombstone
.hoodie/.phantombase/<C>/<e>/fate     how attempt e ended: dead, void or go
"""

from __future__ import annotations

from ..storage.contract import Storage
from ..storage.folders import RECORDS

FATE = "fate"
DEAD, VOID, GO = "dead", "void", "go"
STAGED_DATA = (".parquet", ".log")
"""Endings of the names of staged files."""


def instant_folder(instant: str) -> str:
    """Where all attempts at an instant keep their records."""
    return f"{RECORDS}/{instant}"


def attempt_folder(instant: str, attempt: int) -> str:
    """Where one attempt keeps its records and staged files."""
    return f"{instant_folder(instant)}/{attempt}"


def fate_path(instant: str, attempt: int) -> str:
    """Where an attempt's fate stands."""
    return f"{attempt_folder(instant, attempt)}/{FATE}"


def attempts(storage: Storage, instant: str) -> tuple[int, ...]:
    """Numbers of all attempts at an instant, ascending."""
    folder = instant_folder(instant)
    if storage.find(folder) is None:
        return ()
    return tuple(sorted(int(e.name) for e in storage.list(folder) if e.is_folder and e.name.isdigit()))


def staged_files(storage: Storage, instant: str, endings: tuple[str, ...]) -> list[str]:
    """What attempts at an instant have staged, by the ending of its name."""
    folders = [attempt_folder(instant, number) for number in attempts(storage, instant)]
    return [f"{f}/{e.name}" for f in folders for e in storage.list(f) if e.name.endswith(endings)]


def recorded_instants(storage: Storage) -> tuple[str, ...]:
    """Instants that have records, unscheduled ones (tombstones) included."""
    if storage.find(RECORDS) is None:
        return ()
    return tuple(e.name for e in storage.list(RECORDS) if e.is_folder and e.name.isdigit())
