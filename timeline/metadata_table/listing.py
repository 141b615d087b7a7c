"""Lists a table's files through its metadata table instead of its folders."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..errors import MissingFileError, PhantombaseError, TableChangedError
from ..format.layout import Slicing
from ..format.table_config import TableConfig
from ..storage.contract import Entry, Storage
from ..table.table import Table, consistent
from ..view.listing import Listed
from ..view.view_loader import Named, Sizes
from .read import read_files
from .records.partitions import FILES


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


def named_files_of(table: Table) -> Named | None:
    """What the metadata table names beside a listing of the storage, for `Table.load_view`; None: it is off, or it is
    the listing itself.

    A metadata table that cannot be read is no witness: then files of archived writes count by their names. On version 6
    it names no log files here: their names have the instant of their base, so a pending write may have made them.
    """
    if FILES not in table.config.built_metadata_partitions or table.listing.is_witness:
        return None
    has_logs = table.layout.slicing is Slicing.BY_COMPLETION_TIME

    def named(folder: str) -> Sizes:
        try:
            found = consistent(lambda: read_files(table.reload(), folder)).partitions
        except TableChangedError:
            raise
        except PhantombaseError:
            return {}
        if has_logs:
            return found
        return {p: {n: size for n, size in of.items() if not n.startswith(".")} for p, of in found.items()}

    return named


def _entries(files: Mapping[str, int]) -> list[Entry]:
    return [Entry(name=name, is_folder=False, size=size) for name, size in sorted(files.items())]
