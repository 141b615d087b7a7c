"""Makes a table on storage: the folders that Hudi makes, then hoodie.properties, which makes it a table."""

from __future__ import annotations

from collections.abc import Callable

from phantombase.timeline.errors import MalformedError, NotATableError, StorageError, UsageError
from phantombase.timeline.format.table_config import (
    PROPERTIES,
    PROPERTIES_LOST,
    TableConfig,
    load_table_config,
    make_table_folders,
)
from phantombase.timeline.metadata_table.create import make_metadata_table
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.listing import subfolders

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


def refuse_place(storage: Storage, opened: Callable[[str], Storage]) -> None:
    """UsageError: a new table would be inside another one or above others, or in a table of another format.

    `opened`: gives the storage at a URL. A folder above that cannot be looked at counts as none: access to an object
    store may be for the folder of the table alone. Below, so many levels are looked into as when tables are searched.
    """
    above = storage.base_path.rstrip("/")
    while (parent := above.rpartition("/")[0]) and not parent.endswith(":/"):
        try:
            if opened(parent).find(HOODIE) is not None:
                raise _no_place(storage, f"in the table {parent}")
        except StorageError:
            break
        above = parent
    level = [""]
    for depth in range(_LEVELS + 1):
        below: list[str] = []
        for folder in level:
            entries = [] if (found := listed_if_there(storage, folder)) is None else list(found)
            names = {entry.name for entry in entries}
            if "_delta_log" in names:
                raise _no_place(storage, f"a Delta table at {folder or 'this path'}")
            if folder.rpartition("/")[2] == "metadata" and any(name.endswith(".metadata.json") for name in names):
                raise _no_place(storage, f"an Iceberg table at {folder.rpartition('/')[0] or 'this path'}")
            if folder and HOODIE in names:
                raise _no_place(storage, f"the table {folder} below it")
            if depth < _LEVELS:
                below += subfolders(folder, entries)
        level = below[:_FOLDERS_MAX]


_LEVELS = 3
_FOLDERS_MAX = 1000


def _no_place(storage: Storage, found: str) -> UsageError:
    return UsageError(
        "a table cannot be made here",
        path=storage.base_path,
        expected="a folder that is not in a table, and holds none",
        found=found,
        todo="Check the path. A new table needs a folder of its own.",
    )


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
                todo=f"A new table needs a folder of its own. {PROPERTIES_LOST}",
            )
