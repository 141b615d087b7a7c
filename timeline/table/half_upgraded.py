"""Detects a table that Hudi is upgrading or downgrading, or has: half of its timeline, or all, is in another folder."""

from __future__ import annotations

from ..errors import ConflictError, MissingFileError, TableChangedError
from ..format.layout import LAYOUT_1, LAYOUT_2
from ..storage.folders import HOODIE
from .table import Table


def refuse_half_upgraded(table: Table) -> None:
    """ConflictError while an upgrade or downgrade moves the timeline: a missing instant may be in the other half.

    Hudi moves the files first, and changes the version in hoodie.properties last.
    """
    for folder in sorted({HOODIE, f"{HOODIE}/{LAYOUT_2.default_timeline_folder}"} - {table.config.timeline_folder}):
        try:
            names = [e.name for e in table.storage.list(folder) if not e.is_folder]
        except MissingFileError:
            continue
        found = next((n for n in names if LAYOUT_1.parse(n) or LAYOUT_2.parse(n)), None)
        if found is not None:
            raise ConflictError(
                "the table is being upgraded or downgraded",
                path=f"{table.storage.base_path}/{folder}",
                expected=f"all instants in {table.config.timeline_folder}",
                found=found,
                todo="Let Hudi finish it, then run again. If no upgrade or downgrade is running, move this file away.",
            )


def reload_same_version(table: Table, during: str) -> Table:
    """The table reloaded under the lock. TableChangedError: it was upgraded `during` an action, such as "a clean"."""
    now = table.reload()
    if now.config.version != table.config.version:
        raise TableChangedError(
            f"the table was upgraded during {during}", path=table.storage.base_path, todo="Run again."
        )
    return now
