"""The keys that one file of a write adds to its file group, or deletes from it: staged by the task that makes the file.

    task      stage_keys: a file beside the staged data file, under a name that no reader looks at
    driver    `index_logs`: log files of the record index

So no key is sent to the driver, and none of these files outlives the write's staging folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from ..storage.contract import Storage
from ..storage.staged_file import staged_output

_SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("deleted", pa.bool_(), nullable=False)])
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKeys:
    """The staged keys of one file: its file group, the path of the staged file; how many keys, and their bytes."""

    partition: str
    file_id: str
    path: str
    count: int
    size: int

    def to_json(self) -> dict[str, Any]:
        """As a part of a task's record."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any] | None) -> FileKeys | None:
        """Inverse of `to_json`; None stays None."""
        return None if fields is None else FileKeys(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedKeys:
    """The staged keys of a write. `memory_limit`: bytes that making log files of them may take, more or less.

    `replaced`: those of file groups that it replaces. Of a key that is there and in `files`, that of `files` counts.
    """

    files: tuple[FileKeys, ...]
    memory_limit: int
    replaced: tuple[FileKeys, ...] = ()

    @property
    def ordered(self) -> tuple[FileKeys, ...]:
        """All, in an order in which the last entry of a key counts."""
        return tuple(
            one for part in (self.replaced, self.files) for one in sorted(part, key=lambda k: (k.partition, k.file_id))
        )


def stage_keys(
    storage: Storage, group: tuple[str, str], path: str, added: Iterable[pa.Array], deleted: Iterable[pa.Array]
) -> FileKeys:
    """Stages the keys of one file. `group`: partition and file id. StorageError: see `staged_output`."""
    count, size = 0, 0
    with staged_output(storage, path) as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        for gone, arrays in ((False, added), (True, deleted)):
            for keys in arrays:
                flags = pa.repeat(pa.scalar(gone), len(keys))
                table = pa.Table.from_arrays([keys.cast(pa.string()), flags], schema=_SCHEMA)
                stream.write_table(table, max_chunksize=_BATCH_ROWS)
                count, size = count + len(keys), size + keys.nbytes
    return FileKeys(partition=group[0], file_id=group[1], path=path, count=count, size=size)


def read_keys(source: pa.NativeFile) -> Iterator[tuple[pa.StringArray, pa.BooleanArray]]:
    """The keys of an opened file, and which of them are deleted, by batches."""
    with source, pa.ipc.open_stream(source) as stream:
        for batch in stream:
            yield batch.column(0), batch.column(1)
