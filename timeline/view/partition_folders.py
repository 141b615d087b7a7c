"""Which folders of a table are partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..format.file_name import parse_data_file
from ..format.table_config import TableConfig
from ..storage.contract import Entry
from ..storage.folders import HOODIE

_PARTITION_MARK = ".hoodie_partition_metadata"


_LISTED = "files"


def is_partition(entries: Collection[Entry], config: TableConfig) -> bool:
    """Whether a folder with these entries is a partition.

    Its metadata file says so. Where that is lost, Hudi still reads the rows of a table whose metadata table lists its
    files. There a folder with data files and nothing below it is one, too, without a look into the metadata table.
    """
    if any(e.name.startswith(_PARTITION_MARK) and not e.is_folder for e in entries):
        return True
    if _LISTED not in config.built_metadata_partitions or any(e.is_folder for e in entries):
        return False
    return any(parse_data_file(e.name) is not None for e in entries)


def subfolders(folder: str, entries: Iterable[Entry]) -> list[str]:
    """Paths of the subfolders that may be or contain partitions: all except Hudi's own, as in Hudi."""
    names = [e.name for e in entries if e.is_folder and e.name != HOODIE]
    return [f"{folder}/{name}" if folder else name for name in names]
