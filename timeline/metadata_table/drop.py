"""Turning the metadata table off."""

from __future__ import annotations

from ..event_log import get_logger
from ..format.table_config import save_table_config
from ..locks.section import Section
from ..locks.table_lock import TableLock
from ..table.table import Table
from .location import METADATA_FOLDER
from .record_index import mark_global_keys

_log = get_logger()


def drop_metadata_table(table: Table, lock: TableLock) -> Table:
    """Turns the metadata table off, as a Hudi writer with it disabled does; does nothing if it is off.

    The property is changed first, since readers obey it. After a crash in between, readers ignore the folder.
    """
    with lock.hold("drop the metadata table") as section:
        return drop_within(table.reload(), section)


def drop_within(table: Table, section: Section) -> Table:
    """`drop_metadata_table` in a section that is held already."""
    if table.config.metadata_partitions:
        section.check()
        mark_global_keys(table)
        section.check()
        save_table_config(table.storage, table.config.without_metadata_table())
        section.check()
        table.storage.delete_folder(METADATA_FOLDER)
        _log.info("metadata_table_dropped", path=table.storage.base_path)
    return table.reload()
