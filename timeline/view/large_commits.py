"""Completed files of many megabytes of JSON on a local disk: parsed once a process, then read partition by partition.

A write of tens of thousands of files has a completed file of as many write statistics, and each step asks all completed
writes of the active timeline for the files of a few partitions. So one parse finds where the statistics of each
partition stand, and checks them all; nothing else of the file stays in memory. They are decoded again where they are
asked for. A file is known by its path, size and modification time: a completed file is put once. Of Avro nothing
stays: where its partitions stand only a parse of all shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import TableChangedError
from ..storage.contract import Entry, Storage
from ..storage.local import large_file, read_part
from .witness import JsonStat, NamedFile, NamedFiles, files_of_json, named_files

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_KEPT = 256


class _Stat(JsonStat, gc=False, rename="camel"):
    file_id: str | None = None


class _Ranges(msgspec.Struct, rename="camel"):
    partition_to_write_stats: dict[str, msgspec.Raw] | None


_RANGES = msgspec.json.Decoder(_Ranges)
_STATS = msgspec.json.Decoder(list[_Stat])


class _Range(NamedTuple):
    """The first byte of a partition's write statistics, their number of bytes, and the hashes of their file ids; None:
    not all have one."""

    begin: int
    length: int
    ids: npt.NDArray[np.int64] | None


class LargeFiles(NamedFiles):
    """See the module."""

    __slots__ = ("_path", "_ranges", "_storage")

    def __init__(self, storage: Storage, path: str, ranges: Mapping[str, _Range]) -> None:
        super().__init__(ranges, files_of_json)
        self._storage, self._path, self._ranges = storage, path, ranges

    def __getitem__(self, partition: str) -> tuple[NamedFile, ...]:
        return self._decoded(self._bytes(partition))

    def of_group(self, partition: str, file_id: str) -> Sequence[NamedFile]:
        found = self._ranges.get(partition)
        if found is None or (found.ids is not None and hash(file_id) not in found.ids):
            return ()
        return super().of_group(partition, file_id)

    def _bytes(self, partition: str) -> bytes:
        begin, length, _ = self._ranges[partition]
        return read_part(self._storage, self._path, begin, length)

    def _decoded(self, data: bytes) -> tuple[NamedFile, ...]:
        try:
            return tuple([file for stat in _STATS.decode(data) for file in files_of_json(stat)])
        except (msgspec.MsgspecError, ValueError) as error:
            raise TableChangedError(
                "a completed file was replaced while the table was read", path=self._path, todo="Run it again."
            ) from error


def named_files_of(storage: Storage, path: str) -> NamedFiles:
    """See `named_files`, of a completed file on a storage. MissingFileError: it does not exist."""
    found = large_file(storage, path)
    large = None if found is None else _large(found[0], path, found[1])
    return named_files(storage.read(path), path) if large is None else large


@lru_cache(maxsize=_KEPT)
def _large(storage: Storage, path: str, entry: Entry) -> LargeFiles | None:
    """None: see `_ranges`, or another content was read than that of the entry."""
    data = storage.read(path)
    ranges = _ranges(data) if len(data) == entry.size else None
    return None if ranges is None else LargeFiles(storage, path, ranges)


def _ranges(data: bytes) -> Mapping[str, _Range] | None:
    """Where the write statistics of each partition are that has some; None: another way has to read or refuse them."""
    import numpy as np  # late: few tables have such a file

    start, found = _address(data), dict[str, _Range]()
    try:
        for partition, raw in (_RANGES.decode(data).partition_to_write_stats or {}).items():
            if stats := _STATS.decode(raw):
                ids = [hash(stat.file_id) for stat in stats if stat.file_id]
                hashes = np.array(ids, np.int64) if len(ids) == len(stats) else None
                found[partition] = _Range(_address(raw) - start, len(memoryview(raw)), hashes)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found


def _address(data: bytes | msgspec.Raw) -> int:
    import numpy as np

    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])
