"""Makes a table on storage: the folders that Hudi makes, then hoodie.properties, which makes it a table."""

from __future__ import annotations

from phantombase.timeline.errors import MalformedError, NotATableError
from phantombase.timeline.format.table_config import PROPERTIES, TableConfig, load_table_config, make_table_folders
from phantombase.timeline.metadata_table.create import make_metadata_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.table.table import Table

from .spec import NewTable, check_same_table


def create_table(storage: Storage, spec: NewTable) -> Table:
    """Makes the table that `spec` describes, or opens it if it is there already. Two creators at once are safe.

    UsageError: no such table can be made, or another one is there. MalformedError: a damaged table is there, which a
    new one must not overwrite. After an error nothing has been written.
    """
    config = spec.config()
    existing = _existing(storage)
    if existing is None:
        _refuse_remains(storage, config)
        make_table_folders(storage, config)
        if spec.metadata_table:
            config = make_metadata_table(storage, config)
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
    """MalformedError: there is a timeline without hoodie.properties.

    The table has lost that file. With a new one its rows would be read in another way.
    """
    for folder in sorted({HOODIE, config.timeline_folder}):
        if storage.find(folder) is None:
            continue
        names = [e.name for e in storage.list(folder) if not e.is_folder and config.layout.parse(e.name) is not None]
        if names:
            raise MalformedError(
                "a table without its hoodie.properties",
                path=f"{storage.base_path}/{folder}",
                found=", ".join(sorted(names)[:3]),
                todo="Restore that file, or make the new table in an empty folder.",
            )
