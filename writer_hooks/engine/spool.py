"""Where Spark's pieces lie between its stages: in files on the table's storage; the shuffle moves references.

Executors and the table share a file system anyway. Through Spark a piece would be copied from Python to the JVM, into a
cache, through the shuffle, and back; through a file it is written once and mapped where it is read.
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
"""A folder for each write under way, `<ms since the epoch>-<random>`, relative to the table base."""

_OLD_MS = 24 * 3600 * 1000
"""What is older was left by a killed write."""

_REFERENCE = b"#piece "
_SMALL_BYTES = 16 << 10
"""Smaller payloads travel as they are."""


@dataclass(frozen=True, slots=True)
class Spool:
    """The files of one write's pieces. Picklable."""

    storage: Storage
    folder: str

    @staticmethod
    def new(storage: Storage) -> Spool:
        """One of its own; nothing is there before the first piece."""
        return Spool(storage, f"{ROWS}/{round(time.time() * 1000)}-{uuid.uuid4().hex}")

    def put(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces with references for payloads; exhaust it, and what they refer to is written."""
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
            raise StorageError("keeping the rows of a write failed", path=path, found=str(error)) from error
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

    def remove(self) -> None:
        """Deletes the files."""
        self.storage.delete_folder(self.folder)


def remove_old(storage: Storage, now_ms: int) -> None:
    """Deletes what killed writes have left."""
    if storage.find(ROWS) is None:
        return
    for entry in storage.list(ROWS):
        since = entry.name.partition("-")[0]
        if since.isdigit() and now_ms - int(since) > _OLD_MS:
            storage.delete_folder(f"{ROWS}/{entry.name}")
