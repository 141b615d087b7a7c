"""Makes a table on storage: the folders Hudi makes, then hoodie.properties, whose appearance is the table's birth."""

from __future__ import annotations

from phantombase.timeline.errors import MalformedError, NotATableError
from phantombase.timeline.format.table_config import PROPERTIES, TableConfig, load_table_config
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.table.table import Table

from .spec import NewTable, check_same_table

_FOLDERS = (".aux/.bootstrap/.partitions", ".aux/.bootstrap/.fileids", ".schema", ".temp")


def create_table(storage: Storage, spec: NewTable) -> Table:
    """The table `spec` describes: made, or opened when it is there already. Two creators at once are safe.

    UsageError: no such table can be made, or another one is there. MalformedError: what lies there is a damaged
    table, which a new one must not cover. Nothing has then been written.
    """
    config = spec.config()
    existing = _existing(storage)
    if existing is None:
        _refuse_remains(storage, config)
        for folder in (*(f"{HOODIE}/{name}" for name in _FOLDERS), config.history_folder):
            storage.make_folder(folder)
        if storage.put_if_absent(PROPERTIES, config.dump()):
            return Table.on(storage)
        existing = load_table_config(storage)
    check_same_table(existing, spec)
    return Table.on(storage)


def _existing(storage: Storage) -> TableConfig | None:
    try:
        return load_table_config(storage)
    except NotATableError:
        return None


def _refuse_remains(storage: Storage, config: TableConfig) -> None:
    """A timeline without hoodie.properties is a table that has lost it: under new ones its rows would change."""
    for folder in {HOODIE, config.timeline_folder}:
        if storage.find(folder) is None:
            continue
        names = [e.name for e in storage.list(folder) if not e.is_folder and config.layout.parse(e.name) is not None]
        if names:
            raise MalformedError(
                "a table without its hoodie.properties",
                path=f"{storage.base_path}/{folder}",
                found=", ".join(sorted(names)[:3]),
                todo="Restore that file; a new table needs an empty place.",
            )
