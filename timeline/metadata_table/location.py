"""Where the metadata table is, and how to open it: a separate table in a folder of the table that it describes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ..errors import LockError, MalformedError, MissingFileError, NotATableError
from ..format.table_config import load_table_config
from ..storage.contract import Entry, OwnLock, Storage
from ..storage.folders import HOODIE
from ..storage.snapshot import latest
from ..table.table import Table

if TYPE_CHECKING:  # what `status` does not need to start
    import pyarrow as pa

METADATA_FOLDER = f"{HOODIE}/metadata"
"""Base path of the metadata table, relative to that of its data table."""

BUILD_ANEW = (
    "Turn the metadata table off: `compactor-daemon compact TABLE --drop-metadata-table`. "
    "The next Hudi writer builds it anew."
)
"""What to do about an unusable metadata table."""


@dataclass(frozen=True, slots=True)
class PrefixStorage:
    """A folder of a storage as a storage of its own, with the same promises."""

    storage: Storage
    folder: str

    @property
    def base_path(self) -> str:
        return f"{self.storage.base_path}/{self.folder}"

    @property
    def is_file_system(self) -> bool:
        return self.storage.is_file_system

    @property
    def own_lock(self) -> OwnLock:
        return self.storage.own_lock

    @property
    def names_at_once(self) -> int | None:
        return self.storage.names_at_once

    @property
    def location(self) -> str:
        return f"{self.storage.location}/{self.folder}"

    def _full(self, path: str) -> str:
        return f"{self.folder}/{path}" if path else self.folder

    def list(self, folder: str) -> list[Entry]:
        return self.storage.list(self._full(folder))

    def list_below(self, folder: str, before: str = "") -> Sequence[tuple[str, Entry]]:
        return self.storage.list_below(self._full(folder), before)

    def find(self, path: str) -> Entry | None:
        return self.storage.find(self._full(path))

    def read(self, path: str) -> bytes:
        return self.storage.read(self._full(path))

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        return self.storage.open_input(self._full(path), whole=whole)

    def open_output(self, path: str) -> IO[bytes]:
        return self.storage.open_output(self._full(path))

    def close_output(self, file: IO[bytes]) -> None:
        self.storage.close_output(file)

    def abort_output(self, file: IO[bytes]) -> None:
        self.storage.abort_output(file)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self.storage.put_if_absent(self._full(path), data)

    def make_folder(self, folder: str) -> None:
        self.storage.make_folder(self._full(folder))

    def place(self, source: str, target: str) -> bool:
        return self.storage.place(self._full(source), self._full(target))

    def overwrite(self, path: str, data: bytes) -> None:
        self.storage.overwrite(self._full(path), data)

    def delete(self, path: str) -> None:
        self.storage.delete(self._full(path))

    def delete_all(self, paths: Collection[str]) -> None:
        self.storage.delete_all([self._full(path) for path in paths])

    def delete_folder(self, folder: str) -> None:
        self.storage.delete_folder(self._full(folder))

    def set_modified(self, path: str, modified_ms: int) -> None:
        self.storage.set_modified(self._full(path), modified_ms)

    def prove(self) -> None:
        self.storage.prove()

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        return self.storage.hold(self._full(path), timeout_s, busy)


def open_metadata_table(table: Table) -> Table:
    """The metadata table of a data table; `config.metadata_partitions` of the data table shows whether it has one.

    The checks of data tables do not apply: its base files are HFiles, and its records have their own merge rules.
    NotATableError: there is none. TableChangedError: it was taken out meanwhile. MalformedError: its settings are
    unusable.
    """
    storage = PrefixStorage(latest(table.storage), METADATA_FOLDER)
    try:
        return Table(storage, load_table_config(storage), clock=table.clock)
    except NotATableError as error:
        table.check_unchanged()
        raise error.advising(BUILD_ANEW) from error
    except MalformedError as error:
        raise error.below(storage.base_path).advising(BUILD_ANEW) from error


@contextmanager
def anew_if_unreadable(metadata: Table) -> Iterator[None]:
    """MalformedError or MissingFileError of a file of the metadata table's own timeline: it names the whole path, and
    the way out.

    That of any table's plan is no way out here: restoring the data table would take writes back for nothing.
    """
    try:
        yield
    except (MalformedError, MissingFileError) as error:
        raise error.below(metadata.storage.base_path).advising(BUILD_ANEW) from error
