"""Lists a table's files through its metadata table instead of its folders."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..errors import MissingFileError
from ..format.table_config import TableConfig
from ..storage.contract import Entry, Storage
from ..table.table import Table
from ..view.listing import Listed
from .read import read_files


@dataclass(frozen=True, slots=True)
class MetadataListing:
    """Reads the metadata table again at each call; errors as in `read_entries`. Entries have no times.

    What pended on the table's timeline when it was loaded does not count; what a clean removes later does.
    """

    @property
    def lacks_later_files(self) -> bool:
        return True

    @property
    def is_witness(self) -> bool:
        return True

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterator[Listed]:
        for partition, files in read_files(Table(storage, config)).partitions.items():
            if not folder or partition == folder or partition.startswith(f"{folder}/"):
                yield partition, _entries(files)

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterator[Listed]:
        named = read_files(Table(storage, config)).partitions
        for partition in sorted(set(partitions)):
            if partition not in named:
                raise MissingFileError("no such partition in the metadata table", path=partition)
            yield partition, _entries(named[partition])


def _entries(files: Mapping[str, int]) -> list[Entry]:
    return [Entry(name=name, is_folder=False, size=size) for name, size in sorted(files.items())]
