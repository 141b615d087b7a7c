"""Keeps Spark's pieces between stages in files on the table's storage; the shuffle moves only references.

Executors and the table share a file system anyway. Spark would copy a piece from Python to the JVM, into a cache,
through the shuffle, and back; a file is written once and mapped by its reader.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from phantombase.timeline.errors import StorageError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS

from .row_blobs import Piece

ROWS = f"{RECORDS}/rows"
"""Relative to the table base; holds a folder for each running write, `<ms since the epoch>-<random>`."""

_OLD_MS = 24 * 3600 * 1000
"""The age after which a folder counts as left by a killed write."""

_REFERENCE = b"#piece "
_SMALL_BYTES = 16 << 10
"""Smaller payloads are sent unchanged."""


@dataclass(frozen=True, slots=True)
class Spool:
    """The files of one write's pieces. Picklable."""

    storage: Storage
    folder: str

    @staticmethod
    def new(storage: Storage) -> Spool:
        """A spool with a folder of its own, which is made with the first piece."""
        return Spool(storage, f"{ROWS}/{round(time.time() * 1000)}-{uuid.uuid4().hex}")

    def put(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces with references as payloads. When the iterator is exhausted, all payloads are written."""
        path, file, end = f"{self.folder}/{uuid.uuid4().hex}", None, 0
        try:
            for piece in pieces:
                size = len(memoryview(piece.payload))
                if size < _SMALL_BYTES:
                    yield piece
                    continue
                file = file or self.storage.open_output(path)
                file.write(piece.payload)
                yield replace(piece, payload=_REFERENCE + json.dumps([path, end, size]).encode())
                end += size
        except OSError as error:
            raise StorageError("the rows of a write could not be kept", path=path, found=str(error)) from error
        finally:
            if file is not None:
                file.close()

    def get(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Inverse of `put`: payloads are mapped, not read."""
        files: dict[str, pa.NativeFile] = {}
        for piece in pieces:
            if bytes(memoryview(piece.payload)[: len(_REFERENCE)]) != _REFERENCE:
                yield piece
                continue
            path, start, size = json.loads(bytes(piece.payload)[len(_REFERENCE) :])
            if path not in files:
                files[path] = self.storage.open_input(path)
            files[path].seek(start)
            yield replace(piece, payload=files[path].read_buffer(size))

    def bytes_of(self, piece: Piece) -> int:
        """The size of the rows of a piece that `put` gave."""
        payload = bytes(memoryview(piece.payload))
        return int(json.loads(payload[len(_REFERENCE) :])[2]) if payload.startswith(_REFERENCE) else len(payload)

    def remove(self) -> None:
        """Deletes the files."""
        self.storage.delete_folder(self.folder)


def remove_old(storage: Storage, now_ms: int) -> None:
    """Deletes the folders that killed writes have left."""
    if storage.find(ROWS) is None:
        return
    for entry in storage.list(ROWS):
        since = entry.name.partition("-")[0]
        if since.isdigit() and now_ms - int(since) > _OLD_MS:
            storage.delete_folder(f"{ROWS}/{entry.name}")
