"""Which folders of a table are partitions, and the source of a reader's partitions and files (`Table.listing`).

The default source is the storage; the alternative is the metadata table (`metadata_table.read.MetadataListing`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..format.file_name import parse_data_file
from ..format.table_config import TableConfig
from ..prefetch import prefetched, prefetched_when_slow
from ..storage.contract import Entry, Storage
from ..storage.folders import HOODIE

_PARTITION_MARK = ".hoodie_partition_metadata"
_LISTED = "files"


def is_partition(entries: Collection[Entry], config: TableConfig) -> bool:
    """Whether a folder with these entries is a partition. A partition has a partition metadata file. If this file is
    lost, Hudi still reads the rows of a table whose metadata table lists its files. In such tables a folder with data
    files and without subfolders is also a partition; the metadata table is not read for this."""
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


class Listing(Protocol):
    """Partitions and files of a table, found by its storage and its current settings."""

    @property
    def lacks_later_files(self) -> bool:
        """Whether the listing, as one in pages, lacks files of writes that complete during it, and files then cleaned.
        The caller must check whether a clean ran during the listing."""
        ...

    @property
    def is_witness(self) -> bool:
        """Whether the listing has exactly the files of completed writes, as these name them."""
        ...

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterable[Listed]:
        """The partitions at or under a folder; empty if there is no such folder."""
        ...

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterable[Listed]:
        """These partitions, by name; MissingFileError if one does not exist."""
        ...


def folders(storage: Storage, folder: str, ends: Callable[[str, Collection[Entry]], bool]) -> Iterator[Listed]:
    """A folder and all folders below it that are not Hudi's own, level by level; none below one that `ends` accepts."""
    level, ahead = [folder], prefetched_when_slow if storage.is_file_system else prefetched
    while level:
        below: list[str] = []
        for path, entries in zip(level, ahead(level, storage.list), strict=True):
            yield path, entries
            if not ends(path, entries):
                below += subfolders(path, entries)
        level = below


@dataclass(frozen=True, slots=True)
class StorageListing:
    """Lists folders of the storage, see `is_partition`. Pages are those of the storage, see `Storage`."""

    @property
    def lacks_later_files(self) -> bool:
        return False

    @property
    def is_witness(self) -> bool:
        return False

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterator[Listed]:
        if folder and ((entry := storage.find(folder)) is None or not entry.is_folder):
            return
        found = folders(storage, folder, lambda _, entries: is_partition(entries, config))
        yield from ((path, entries) for path, entries in found if is_partition(entries, config))

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterator[Listed]:
        return ((partition, storage.list(partition)) for partition in sorted(set(partitions)))
