"""Which folders of a table are partitions, and where a reader's partitions and files come from (`Table.listing`).

The storage itself is the default. The metadata table is the alternative (`metadata_table.listing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..format.file_name import parse_data_file
from ..format.table_config import TableConfig
from ..storage.contract import Entry, Storage
from ..storage.folders import HOODIE

_PARTITION_MARK = ".hoodie_partition_metadata"


_LISTED = "files"


def is_partition(entries: Collection[Entry], config: TableConfig) -> bool:
    """Whether a folder with these entries is a partition.

    Its metadata file says so. Where that is lost, Hudi still reads the rows of a table whose metadata table lists its
    files. There a folder with data files and nothing below it is one, too, without reading the metadata table.
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


Listed: TypeAlias = tuple[str, list[Entry]]
"""A partition path and the files in its folder; these may include files that are not data files."""

_THREADS = 8


class Listing(Protocol):
    """Partitions and files of a table, found by its storage and its current settings."""

    @property
    def lacks_later_files(self) -> bool:
        """Whether files are left out whose writes complete while it is made, as in pages; what cleans remove is, too.

        The caller must check whether a clean ran during the listing.
        """
        ...

    @property
    def is_witness(self) -> bool:
        """Whether it has exactly the files of completed writes, as these name them."""
        ...

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterable[Listed]:
        """The partitions at or under a folder; empty if there is no such folder."""
        ...

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterable[Listed]:
        """These partitions, by name; MissingFileError if one does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class StorageListing:
    """Lists folders. A folder with a partition metadata file is a partition. Pages are the storage's, see `Storage`."""

    @property
    def lacks_later_files(self) -> bool:
        return False

    @property
    def is_witness(self) -> bool:
        return False

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterator[Listed]:
        if folder and ((entry := storage.find(folder)) is None or not entry.is_folder):
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            level = [folder]
            while level:
                below: list[str] = []
                for path, entries in zip(level, pool.map(storage.list, level), strict=True):
                    if is_partition(entries, config):
                        yield path, entries
                    else:
                        below += subfolders(path, entries)
                level = below

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterator[Listed]:
        return ((partition, storage.list(partition)) for partition in sorted(set(partitions)))
